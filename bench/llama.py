#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of llama.cpp: with its own cache and attention, and with the plug-in and workers on the same cores.

    bench/llama.py --llama FOLDER_OF_LLAMA_BENCH [--plugin libggml-banyan.so] [--model GGUF] [--geometry 32,8,128] [--layers 1]
                   [--depths 512,8192,32768] [--generate 32] [--prefill 2048] [--threads N] [--local 1] [--turns 3] [--type f16]

Without --model it makes one of random weights of the given attention geometry (query heads, KV heads, dimensions), narrow elsewhere.
Runs llama-bench for both in turns and prints medians: decode at each depth (--generate tokens behind so many) and prefill of
--prefill tokens at that depth. Needs the PyPI package gguf for the random model.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def make_model(path: Path, geometry: tuple[int, int, int], layers: int, context: int) -> None:
    """A llama of random weights: wide where attention is, narrow elsewhere; a vocabulary of 256 bytes."""
    import gguf
    import numpy as np

    heads, kv_heads, dim = geometry
    width, ff, words = 256, 512, 256
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(words)
    writer.add_tokenizer_model("no_vocab")

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, (rng.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[-1])).astype(np.float32))

    add("token_embd.weight", words, width)
    writer.add_tensor("output_norm.weight", np.ones(width, dtype=np.float32))
    add("output.weight", words, width)
    for i in range(layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{norm}.weight", np.ones(width, dtype=np.float32))
        add(f"blk.{i}.attn_q.weight", heads * dim, width)
        add(f"blk.{i}.attn_k.weight", kv_heads * dim, width)
        add(f"blk.{i}.attn_v.weight", kv_heads * dim, width)
        add(f"blk.{i}.attn_output.weight", width, heads * dim)
        add(f"blk.{i}.ffn_gate.weight", ff, width)
        add(f"blk.{i}.ffn_up.weight", ff, width)
        add(f"blk.{i}.ffn_down.weight", width, ff)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run(options: argparse.Namespace, model: Path, depth: int, ours: bool, prefill: bool) -> float:
    """Tokens a second."""
    command = [str(options.llama / "llama-bench"), "-m", str(model), "-fa", "on", "-t", str(options.threads), "-r", "1", "-d", str(depth),
               "-ctk", options.type, "-ctv", options.type, "-o", "json", "-p", str(options.prefill if prefill else 0),
               "-n", str(0 if prefill else options.generate)]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GGML_BACKEND", "BANYAN_"))}
    if ours:
        environment |= {"GGML_BACKEND_PATH": str(options.plugin), "BANYAN_LOCAL": str(options.local)}
        if options.local_threads:
            environment["BANYAN_LOCAL_THREADS"] = str(options.local_threads)
        command += ["-dev", "Banyan0", "-ngl", "99", "-ot", ".*=CPU"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout)[0]["avg_ts"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", type=Path, required=True)
    parser.add_argument("--plugin", type=Path, default=ROOT / "build/release/lib/libggml-banyan.so")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--geometry", default="32,8,128")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--depths", default="512,8192,32768")
    parser.add_argument("--generate", type=int, default=32)
    parser.add_argument("--prefill", type=int, default=0, help="0: decode alone")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--local", type=int, default=1)
    parser.add_argument("--local-threads", type=int, default=0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--type", default="f16")
    options = parser.parse_args()
    if not (options.llama / "llama-bench").is_file():
        parser.error(f"{options.llama}: there is no llama-bench in it")
    if not options.plugin.is_file():
        parser.error(f"{options.plugin} is not there: configure with -DBANYAN_LLAMA_SOURCE and build ggml-banyan")
    depths = [int(d) for d in options.depths.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or Path(folder) / "random.gguf"
        if not options.model:
            heads, kv_heads, dim = (int(n) for n in options.geometry.split(","))
            make_model(model, (heads, kv_heads, dim), options.layers, max(depths) + options.generate + options.prefill + 256)
        print(f"{str():24} {'llama.cpp':>12} {'Banyan':>12} {'ratio':>8}   tokens a second, medians of {options.turns}")
        for prefill in [False, True] if options.prefill else [False]:
            for depth in depths:
                times = [(run(options, model, depth, False, prefill), run(options, model, depth, True, prefill)) for _ in range(options.turns)]
                plain, ours = (statistics.median(t[i] for t in times) for i in (0, 1))
                ratio = statistics.median(t[1] / t[0] for t in times)
                print(f"{'prefill' if prefill else 'decode'} at {depth:<14} {plain:12.1f} {ours:12.1f} {ratio:8.2f}", flush=True)


if __name__ == "__main__":
    main()
