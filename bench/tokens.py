#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of a model of Transformers: over its own attention (SDPA), and over a Banyan cluster on the same cores.

Both in turns, several times; medians. Per size of prompt and batch: prefill (SDPA: the whole prompt in one forward, which
is its fastest; Banyan: banyan.transformers.prefill) and decode, and the time spent in Python a layer and step over the
cluster. Runs itself with OMP_WAIT_POLICY=PASSIVE: PyTorch's idle threads would spin where workers could compute.

    bench/tokens.py [--model DIR] [--prompts 4096,16384] [--batch 1] [--dtype float32] [--block 1024] [--workers 4]
                    [--turns 3] [--decode-threads 1]

Needs what client/python/tests/requirements-models.txt names, BANYAN_LIBRARY and BANYAN_BIN (or an installed wheel).
"""

from __future__ import annotations

import argparse
import os
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


def decode(model, cache, last: torch.Tensor, new: int) -> float:
    """Tokens a second, of all sequences together."""
    begin = time.perf_counter()
    with torch.inference_mode():
        for _ in range(new):
            last = model(last, past_key_values=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)
    return last.shape[0] * new / (time.perf_counter() - begin)


def sdpa(model, ids: torch.Tensor, new: int) -> tuple[float, float]:
    """Tokens a second of prefill and of decode, over the model's own cache."""
    model.set_attn_implementation("sdpa")
    cache = DynamicCache(config=model.config)
    begin = time.perf_counter()
    with torch.inference_mode():
        model(ids[:, :-1], past_key_values=cache, logits_to_keep=1)
    return ids.numel() / (time.perf_counter() - begin), decode(model, cache, ids[:, -1:], new)


def served(model, client, waiting: Waiting, ids: torch.Tensor, new: int, block: int, threads: int) -> tuple[float, float, float]:
    """The same over the cluster, and microseconds of a layer and decode step that are spent in Python."""
    model.set_attn_implementation("banyan")
    with banyan.transformers.BanyanCache(model, client) as cache:
        begin = time.perf_counter()
        banyan.transformers.prefill(model, ids, cache, block=block, progress=False)
        speed = ids.numel() / (time.perf_counter() - begin)
        waiting.reset()
        before = torch.get_num_threads()
        torch.set_num_threads(threads or before)
        try:
            return speed, decode(model, cache, ids[:, -1:], new), waiting.python()
        finally:
            torch.set_num_threads(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "examples" / "model"), help="a folder or a name (default: the shipped model)")
    parser.add_argument("--prompts", default="4096,16384", help="tokens of the prompts")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--new", type=int, default=64, help="tokens to decode")
    parser.add_argument("--block", type=int, default=1024, help="tokens of a block of Banyan's prefill")
    parser.add_argument("--decode-threads", type=int, default=0, help="of PyTorch, in decode over the cluster (default: as many as it has)")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    model = AutoModelForCausalLM.from_pretrained(options.model, attn_implementation="sdpa", dtype=dtype).eval()
    print(f"{options.dtype}, batch {options.batch}, {options.workers} workers, block {options.block}")
    print(f"{torch.get_num_threads()} threads of PyTorch {torch.__version__}")
    print(f"{'prompt':>7} {'':8} {'prefill/s':>10} {'decode/s':>9} {'Python us':>10}")
    waiting = Waiting()
    args = ["--bind=none"]
    with banyan.local_cluster(options.workers, memory="2G", worker_args=args) as cluster, cluster.connect(timeout=600) as client:
        for tokens in (int(n) for n in options.prompts.split(",")):
            ids = torch.randint(0, model.config.vocab_size, (options.batch, tokens))
            found: dict[str, list[tuple[float, ...]]] = {"sdpa": [], "banyan": []}
            for _ in range(options.turns):
                found["sdpa"].append(sdpa(model, ids, options.new))
                found["banyan"].append(served(model, client, waiting, ids, options.new, options.block, options.decode_threads))
            median = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in found.items()}
            for name, (prefill, decoded, *python) in median.items():
                print(f"{tokens:>7} {name:8} {prefill:>10.0f} {decoded:>9.1f} {python[0] if python else 0:>10.1f}")
            ratios = [b / a for a, b in zip(median["sdpa"], median["banyan"])]
            print(f"{tokens:>7} {'ratio':8} {ratios[0]:>10.2f} {ratios[1]:>9.2f}", flush=True)


if __name__ == "__main__":
    if "OMP_WAIT_POLICY" not in os.environ:  # read when PyTorch is loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"})
    sys.exit(main())
