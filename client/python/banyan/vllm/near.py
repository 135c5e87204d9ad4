# SPDX-License-Identifier: Apache-2.0
"""Attention over the recent tokens that the engine has itself, with the log-sum-exp that merge.py needs.

Plain PyTorch, on whatever device the tensors are: what the service computes for the same layer, over the keys
from `begin` on. vLLM's CPU operation gives no log-sum-exp.
"""

from __future__ import annotations

from typing import Any

import torch

from ..spec import Kind

_CELLS = 1 << 22  # logits at a time


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int, begin: int, kind: Kind, sinks: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 o [rows, q_heads, v_dim] and lse [rows, q_heads] of rows at positions first…, over keys at
    begin….

    q: [rows, q_heads, k_dim]; k, v: [keys, kv_heads, dim], the last key being the last row's. sinks:
    [q_heads], or None: their part is in the other side's answer. A row that sees no key here has lse -inf (or
    its sink's logit), and o 0.
    """
    rows, heads, _ = q.shape
    keys, kv_heads, v_dim = v.shape
    group = heads // kv_heads
    kt = k.float().permute(1, 2, 0)  # [kv_heads, dim, keys]
    vt = v.float().permute(1, 0, 2)
    at = torch.arange(begin, begin + keys, device=q.device)
    o = torch.empty((rows, heads, v_dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((rows, heads), dtype=torch.float32, device=q.device)
    step = max(1, _CELLS // max(1, heads * keys))
    for r in range(0, rows, step):
        n = min(step, rows - r)
        # [kv_heads, group * n, keys]
        x = q[r : r + n].float().reshape(n, kv_heads, group, -1).permute(1, 2, 0, 3).reshape(kv_heads, group * n, -1) @ kt
        x = (x * (kind.scale or kind.k_dim**-0.5)).view(heads, n, keys)
        if kind.soft_cap:
            x = kind.soft_cap * torch.tanh(x / kind.soft_cap)
        mine = torch.arange(first + r, first + r + n, device=q.device)[:, None]
        if len(kind.alibi):
            x = x - torch.tensor(kind.alibi, dtype=torch.float32, device=q.device)[:, None, None] * (mine - at)
        hidden = at > mine
        if kind.window:
            hidden |= at <= mine - kind.window
        x = x.masked_fill(hidden, float("-inf"))
        top = x.amax(-1) if keys else torch.full((heads, n), float("-inf"), device=q.device)
        if sinks is not None:
            top = torch.maximum(top, sinks[:, None])
        base = torch.where(torch.isneginf(top), 0.0, top)
        w = (x - base[..., None]).exp()
        total = w.sum(-1)
        answer = (w.view(kv_heads, group * n, keys) @ vt).view(heads, n, v_dim)
        if sinks is not None:
            total = total + (sinks[:, None] - base).exp()
        safe = torch.where(total == 0, 1.0, total)
        o[r : r + n] = (answer / safe[..., None]).permute(1, 0, 2)
        lse[r : r + n] = torch.where(total == 0, float("-inf"), base + safe.log()).T
    return o, lse
