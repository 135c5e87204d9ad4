# SPDX-License-Identifier: Apache-2.0
"""Attention in float64, plainly."""

from __future__ import annotations

import numpy as np


def attend(q, k, v, first, scale=None, window=0, soft_cap=0.0, sinks=None, visible=None):
    """q [rows, q_heads, dim], k and v [tokens, kv_heads, dim] -> o [rows, q_heads, v_dim], lse [rows,
    q_heads]."""
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    rows, heads, dim = q.shape
    group = heads // k.shape[1]
    o, lse = np.zeros((rows, heads, v.shape[2])), np.full((rows, heads), -np.inf)
    for r in range(rows):
        at = first + r
        end = min(at + 1, len(k) if visible is None else visible)
        begin = max(0, at - window + 1) if window else 0
        for h in range(heads):
            x = k[begin:end, h // group] @ q[r, h] * (dim**-0.5 if scale is None else scale)
            if soft_cap:
                x = soft_cap * np.tanh(x / soft_cap)
            top = max(x.max(initial=-np.inf), -np.inf if sinks is None else sinks[h])
            if top == -np.inf:
                continue
            w = np.exp(x - top)
            total = w.sum() + (0 if sinks is None else np.exp(sinks[h] - top))
            o[r, h] = w @ v[begin:end, h // group] / total
            lse[r, h] = top + np.log(total)
    return o, lse


def from_fp8(codes):
    """OCP e4m3: bias 7, no infinities."""
    codes = np.asarray(codes).astype(np.int64)
    exponent, fraction = codes >> 3 & 15, (codes & 7) / 8
    size = np.where(exponent, 2.0 ** (exponent - 7) * (1 + fraction), 2.0**-6 * fraction)
    return np.where(codes & 128, -size, size)


def to_bf16(x):
    """Bits of bfloat16, rounded to nearest even, in uint16; and the same as float32."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return (bits >> 16).astype(np.uint16), bits.astype(np.uint32).view(np.float32)
