# SPDX-License-Identifier: Apache-2.0
"""Attention over two parts of a context become attention over both.

A part gives (o, lse): its normalised output and the log of the sum of exp of its logits, natural base. With m
the larger lse, the weight of a part is exp(lse - m), and

    o = (w1 o1 + w2 o2) / (w1 + w2),    lse = m + log(w1 + w2)

A part of which a row sees no key has lse -inf: it is skipped, never multiplied, so that what its output holds
does not count. If both are empty, o is 0 and lse -inf. A NaN that comes in goes out. All of it in float32 or
more.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def merge(o1: Any, lse1: Any, o2: Any, lse2: Any) -> tuple[Any, Any]:
    """o: [..., dim], lse: [...], NumPy arrays or PyTorch tensors, both parts of one library. New memory."""
    if isinstance(o1, np.ndarray):
        return _numpy(o1, lse1, o2, lse2)
    return _torch(o1, lse1, o2, lse2)


def _numpy(o1: Any, lse1: Any, o2: Any, lse2: Any) -> tuple[Any, Any]:
    m = np.maximum(lse1, lse2)  # NaN where one is
    base = np.where(np.isneginf(m), np.float32(0), m)
    w1, w2 = np.exp(lse1 - base), np.exp(lse2 - base)
    total = w1 + w2
    o = np.where((w1 == 0)[..., None], 0, o1 * w1[..., None]) + np.where((w2 == 0)[..., None], 0, o2 * w2[..., None])
    empty = total == 0
    safe = np.where(empty, 1, total)
    return o / safe[..., None], np.where(empty, -np.inf, base + np.log(safe)).astype(lse1.dtype)


def _torch(o1: Any, lse1: Any, o2: Any, lse2: Any) -> tuple[Any, Any]:
    import torch

    m = torch.maximum(lse1, lse2)
    base = torch.where(torch.isneginf(m), 0.0, m)
    w1, w2 = (lse1 - base).exp(), (lse2 - base).exp()
    total = w1 + w2
    zero = torch.zeros((), dtype=o1.dtype, device=o1.device)
    o = torch.where((w1 == 0)[..., None], zero, o1 * w1[..., None]) + torch.where((w2 == 0)[..., None], zero, o2 * w2[..., None])
    empty = total == 0
    safe = torch.where(empty, 1.0, total)
    return o / safe[..., None], torch.where(empty, float("-inf"), base + safe.log())
