# SPDX-License-Identifier: Apache-2.0
"""The session that holds a model's keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..spec import Kind, Spec
from ..tokens import KEEPER, KIND
from .layers import Layer


def _kind(layer: Layer) -> Kind:
    return Kind(
        q_heads=layer.q_heads, kv_heads=layer.kv_heads, k_dim=layer.k_dim, v_dim=layer.v_dim, scale=float(np.float32(layer.scale)),
        soft_cap=float(np.float32(layer.soft_cap)), window=layer.rule.window, mask_chunk=layer.rule.chunk,
        not_causal=not layer.rule.causal, v_in_k=layer.latent,
    )  # fmt: skip


def spec_of(plan: dict[int, Layer], layers: int, kv_type: str, more: dict[str, Any]) -> Spec:
    """The model's layers, of one kind for each sort of them, and behind them the one that holds the
    tokens."""
    behind = [KIND, KEEPER] if more.get("forget") else [KIND]
    of_layer = [_kind(plan[i]) if i in plan else None for i in range(layers)] + behind
    kinds = list(dict.fromkeys(kind for kind in of_layer if kind is not None))
    sinks = [*(plan[i].sinks if i in plan else () for i in range(layers)), *(() for _ in behind)]
    shares = [*(plan[i].source if i in plan and plan[i].source != i else None for i in range(layers)), None, layers][: len(of_layer)]
    return Spec(
        layers=len(of_layer), kv_type=kv_type, kinds=tuple(kinds),
        layer_kind=tuple(None if k is None else kinds.index(k) for k in of_layer),
        shares=tuple(shares) if any(s is not None for s in shares) else (), layer_sinks=tuple(sinks) if any(sinks) else (), **more,
    )  # fmt: skip
