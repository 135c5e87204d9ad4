#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A hybrid goes on in another process: a model with attention and with layers that have states of their own.

The first process reads a document into a cluster, begins an answer, and is killed in the middle of
it. The second one opens the session by its name. It takes the states that the session has kept,
feeds the few tokens behind them again, and ends the answer. The answer and its logits are compared
with those of a fresh computation by Transformers' own attention over the whole text.

    examples/transformers/hybrid.py [--tokens N] [--answer N] [--model NAME]

Without --model it is a small Falcon-H1 (attention and Mamba 2 in every layer) with random weights,
which reads bytes: no package brings a hybrid's weights along. The computation is the same.

"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time

import torch
from ask import MOST, document
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, StoppingCriteria
from transformers.utils import logging

import banyan
import banyan.transformers

SESSION, EVERY = "the-text", 512
SHAPE = dict(
    vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2,
    head_dim=32, mamba_d_ssm=256, mamba_n_heads=8, mamba_d_head=32, mamba_d_state=64, mamba_chunk_size=64,
    max_position_embeddings=1 << 17, pad_token_id=0, bos_token_id=1, eos_token_id=None,
)  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1200, metavar="N", help="of the document (default: 1200)")
    parser.add_argument("--answer", type=int, default=60, metavar="N", help="tokens to generate (default: 60)")
    parser.add_argument("--model", metavar="NAME", help="a hybrid of Transformers' (default: a small one with random weights)")
    parser.add_argument("--process", metavar="ENDPOINT,NUMBER", help=argparse.SUPPRESS)
    return parser.parse_args()


def load(name: str | None, tokens: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """The model and the document's tokens."""
    text = document(None)
    if name is not None:
        model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="banyan", dtype=torch.float32)
        return model, AutoTokenizer.from_pretrained(name)(text, return_tensors="pt").input_ids[:, :tokens]
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("falcon_h1", **SHAPE), attn_implementation="banyan").eval()
    with torch.no_grad():
        for p in model.parameters():  # fresh weights are nearly uniform: every token would be as likely
            if p.dim() > 1:
                p.normal_(0, 0.1)
    return model, torch.tensor([list(text.encode()[:tokens])])


class Killed(StoppingCriteria):
    """kill -9 after so many tokens."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **more: object) -> torch.Tensor:
        if input_ids.shape[1] >= self._tokens:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(len(input_ids), dtype=torch.bool)


def generate(model, ids: torch.Tensor, more: int, cache, **options: object) -> torch.Tensor:
    return model.generate(
        ids, attention_mask=torch.ones_like(ids), past_key_values=cache, max_new_tokens=more, do_sample=False, **options
    )  # fmt: skip


def read(options: argparse.Namespace, client: banyan.Client) -> None:
    model, ids = load(options.model, options.tokens)
    cache = banyan.transformers.BanyanCache(model, client, session=SESSION, state_tokens=EVERY)
    begin = time.monotonic()
    banyan.transformers.prefill(model, ids, cache, block=256)
    print(f"process 1: {ids.shape[1]} tokens read in {time.monotonic() - begin:.1f} s; it answers, and is killed", flush=True)
    generate(model, ids, options.answer, cache, stopping_criteria=[Killed(ids.shape[1] + options.answer // 2)])


def go_on(options: argparse.Namespace, client: banyan.Client) -> None:
    model, ids = load(options.model, options.tokens)
    with banyan.transformers.BanyanCache(model, client, session=SESSION, state_tokens=EVERY) as cache:
        held, fed = cache.tokens()[0][None], []
        states = [s.position for s in cache.sessions[0].states()]
        hook = model.register_forward_pre_hook(lambda m, a, k: fed.append(k["input_ids"].shape[1]), with_kwargs=True)
        begin = time.monotonic()
        with torch.no_grad(), cache.fork() as fork:
            fork.crop(-1)
            got = model(input_ids=held[:, -1:], past_key_values=fork).logits[:, -1]
        hook.remove()
        print(f"process 2: the session has {held.shape[1]} tokens, and states behind {', '.join(map(str, states))}")
        print(f"  ready in {time.monotonic() - begin:.1f} s: {sum(fed) - 1} tokens were fed again", flush=True)
        answer = generate(model, held, options.tokens + options.answer - held.shape[1], cache)
    compare(model, ids.shape[1], held.shape[1], answer, got)


def compare(model, read: int, held: int, answer: torch.Tensor, got: torch.Tensor) -> None:
    """One forward of eager attention over the whole text gives the logits of every token of the answer."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        fresh = model(answer[:, :-1], use_cache=False).logits
    found = float((got - fresh[:, held - 1]).abs().max() / fresh[:, held - 1].abs().max())
    print(f"  logits beside a fresh computation: largest difference {found:.1e} of the largest logit")
    if not found <= MOST:
        sys.exit(f"that is more than {MOST}")
    if not torch.equal(answer[:, read:], fresh[:, read - 1 :].argmax(-1)):
        sys.exit("the answer is another one than that of a fresh computation")
    print(f"  all {answer.shape[1] - read} tokens of the answer are those of a fresh computation")


def main() -> None:
    options = arguments()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if options.process:
        endpoint, number = options.process.rsplit(",", 1)
        with banyan.Client(endpoint, timeout=120) as client:
            (read if number == "0" else go_on)(options, client)
        return
    with banyan.local_cluster(2, worker_args=["--bind=none"]) as cluster:
        for number, ends in enumerate((-signal.SIGKILL, 0)):
            again = [sys.executable, __file__, f"--process={cluster.endpoint},{number}", f"--tokens={options.tokens}"]
            again += [f"--answer={options.answer}"] + ([f"--model={options.model}"] if options.model else [])
            if (code := subprocess.run(again).returncode) != ends:
                sys.exit(f"process {number + 1} ended with {code}")


if __name__ == "__main__":
    main()
