#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of a model of Transformers: over its own attention (SDPA), and over a Banyan cluster on the same cores.

Both in turns, several times; medians. Per size of prompt and batch: prefill and decode, and the time spent in Python a
layer and step over the cluster.

    bench/tokens.py [--model DIR] [--prompts 4096,16384] [--batch 1] [--dtype float32] [--workers 4] [--turns 3]

Needs what client/python/tests/requirements-models.txt names, BANYAN_LIBRARY and BANYAN_BIN (or an installed wheel).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache

import banyan
import banyan.transformers

ROOT = Path(__file__).resolve().parent.parent


class Waiting:
    """The time that calls of the C library take: what is left of a step is Python's and the model's."""

    def __init__(self) -> None:
        self.calls, self.inside, self.around = 0, 0.0, 0.0
        client_call, attend = banyan.Client.call, banyan.transformers.BanyanCache.attend

        def call(client, *arguments):
            begin = time.perf_counter()
            try:
                return client_call(client, *arguments)
            finally:
                self.inside += time.perf_counter() - begin

        def whole(cache, *arguments):
            begin = time.perf_counter()
            try:
                return attend(cache, *arguments)
            finally:
                self.around += time.perf_counter() - begin
                self.calls += 1

        banyan.Client.call, banyan.transformers.BanyanCache.attend = call, whole

    def python(self) -> float:
        """Microseconds a layer and step, outside the C library."""
        return (self.around - self.inside) / max(1, self.calls) * 1e6

    def reset(self) -> None:
        self.calls, self.inside, self.around = 0, 0.0, 0.0


def run(model, cache, ids: torch.Tensor, new: int, block: int) -> tuple[float, float]:
    """Tokens a second of prefill and of decode, of all sequences together."""
    batch, tokens = ids.shape
    with torch.inference_mode():
        begin = time.perf_counter()
        for part in ids.split(block, dim=1):
            out = model(part, past_key_values=cache, logits_to_keep=1)
        prefilled = time.perf_counter()
        for _ in range(new):
            out = model(out.logits[:, -1:].argmax(-1), past_key_values=cache, logits_to_keep=1)
        end = time.perf_counter()
    return batch * tokens / (prefilled - begin), batch * new / (end - prefilled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "examples" / "model"), help="a folder or a name (default: the shipped model)")
    parser.add_argument("--prompts", default="4096,16384", help="tokens of the prompts")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--new", type=int, default=64, help="tokens to decode")
    parser.add_argument("--block", type=int, default=0, help="tokens of a prefill's blocks (default: all at once)")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    model = AutoModelForCausalLM.from_pretrained(options.model, attn_implementation="sdpa", dtype=dtype).eval()
    print(f"{options.dtype}, batch {options.batch}, {options.workers} workers, {torch.get_num_threads()} threads of PyTorch {torch.__version__}")
    print(f"{'prompt':>7} {'':8} {'prefill/s':>10} {'decode/s':>9} {'Python us':>10}")
    waiting = Waiting()
    args = ["--bind=none"]
    with banyan.local_cluster(options.workers, memory="2G", worker_args=args) as cluster, cluster.connect(timeout=600) as client:
        for tokens in (int(n) for n in options.prompts.split(",")):
            ids = torch.randint(0, model.config.vocab_size, (options.batch, tokens))
            found: dict[str, list[tuple[float, float]]] = {"sdpa": [], "banyan": []}
            python = []
            for _ in range(options.turns):
                model.set_attn_implementation("sdpa")
                found["sdpa"].append(run(model, DynamicCache(config=model.config), ids, options.new, options.block or tokens))
                model.set_attn_implementation("banyan")
                with banyan.transformers.BanyanCache(model, client) as cache:
                    waiting.reset()
                    found["banyan"].append(run(model, cache, ids, options.new, options.block or tokens))
                    python.append(waiting.python())
            median = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in found.items()}
            for name, (prefill, decode) in median.items():
                print(f"{tokens:>7} {name:8} {prefill:>10.0f} {decode:>9.1f} {statistics.median(python) if name == 'banyan' else 0:>10.1f}")
            ratios = [b / a for a, b in zip(median["sdpa"], median["banyan"])]
            print(f"{tokens:>7} {'ratio':8} {ratios[0]:>10.2f} {ratios[1]:>9.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
