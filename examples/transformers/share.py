#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two processes share a document by its content: the second one starts where the first one's text
ends.

No name is agreed on. The first process reads a document and answers a question; what it has
computed stays in the cluster as cache. A second process is given the same document and another
question, finds the document by its tokens, and reads the question alone. Its logits are compared
with those of a fresh computation by Transformers' own attention.

    examples/transformers/share.py [--tokens N] [--model NAME]

"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import torch
from ask import MOST, document, document_ids, load
from transformers import DynamicCache
from transformers.utils import logging

import banyan
import banyan.transformers

QUESTIONS = ("What was the name of Ruth's mother in law?", "What swallowed Jonah?")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000, metavar="N", help="of the document (default: 2000)")
    parser.add_argument("--model", metavar="NAME", help="another model of Transformers (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--process", metavar="ENDPOINT,NUMBER", help=argparse.SUPPRESS)
    return parser.parse_args()


def process(options: argparse.Namespace, endpoint: str, number: int) -> None:
    tokenizer, model = load(options.model)
    read = document_ids(tokenizer, document(None))[:, : options.tokens]
    asked = f"\n\n{QUESTIONS[number]} Answer in one short sentence.<|im_end|>\n<|im_start|>assistant\n"
    ids = torch.cat((read, tokenizer(asked, return_tensors="pt", add_special_tokens=False).input_ids), dim=1)
    with banyan.Client(endpoint, timeout=120) as client, banyan.transformers.BanyanCache(model, client, reuse=True) as cache:
        begin = time.monotonic()
        found = cache.find(ids)
        banyan.transformers.prefill(model, ids, cache, block=512)
        took = time.monotonic() - begin
        print(f"process {number + 1}: {found} of {ids.shape[1]} tokens were found, the others read in {took:.1f} s")
        if number:
            compare(model, ids, cache)
            if found < options.tokens // 256 * 256:
                sys.exit("the second process has not found the document")
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), past_key_values=cache, max_new_tokens=24, do_sample=False,
            pad_token_id=tokenizer.eos_token_id,
        )  # fmt: skip
        print(f"  {QUESTIONS[number]}\n    {tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).strip()}", flush=True)


def compare(model, ids: torch.Tensor, cache) -> None:
    with torch.no_grad(), cache.fork() as fork:
        at = fork.get_seq_length()
        got = model(ids[:, at:], past_key_values=fork).logits[:, -1]
        fork.delete()
        model.set_attn_implementation("eager")
        local = DynamicCache(config=model.config)
        for block in ids[:, :-1].split(512, dim=1):
            model(block, past_key_values=local, logits_to_keep=1)
        want = model(ids[:, -1:], past_key_values=local).logits[:, -1]
        model.set_attn_implementation("banyan")
    found = float((got - want).abs().max() / want.abs().max())
    print(f"  logits beside a fresh computation: largest difference {found:.1e} of the largest logit")
    if not found <= MOST:
        sys.exit(f"that is more than {MOST}")


def main() -> None:
    options = arguments()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if options.process:
        endpoint, number = options.process.rsplit(",", 1)
        process(options, endpoint, int(number))
        return
    with banyan.local_cluster(2, worker_args=["--bind=none"]) as cluster:
        for number in range(len(QUESTIONS)):
            again = [sys.executable, __file__, f"--process={cluster.endpoint},{number}", f"--tokens={options.tokens}"]
            subprocess.run(again + ([f"--model={options.model}"] if options.model else []), check=True)


if __name__ == "__main__":
    main()
