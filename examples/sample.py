#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes random keys, values and a query as .safetensors files, in place of a model: for the tutorials.

    sample.py [TOKENS]      context.safetensors: K and V of one layer; token.safetensors: q, k and v of one more token
"""
import json
import math
import random
import struct
import sys

Q_HEADS, KV_HEADS, DIM = 8, 2, 64


def write(path, tensors):
    """A file of float32 tensors: name -> shape."""
    header, data = {}, b""
    for name, shape in tensors.items():
        n = math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * n]}
        data += struct.pack(f"<{n}f", *(random.gauss(0, 1) for _ in range(n)))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def main():
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    random.seed(1)
    write("context.safetensors", {f"layers.0.{name}": [tokens, KV_HEADS, DIM] for name in "kv"})
    write("token.safetensors", {"q": [1, Q_HEADS, DIM], "k": [1, KV_HEADS, DIM], "v": [1, KV_HEADS, DIM]})


if __name__ == "__main__":
    main()
