# SPDX-License-Identifier: Apache-2.0
"""The session that holds a model's keys and values."""

from __future__ import annotations

from typing import Any

from ..spec import Spec
from .layers import Layer
from .refused import Refused


def spec_of(plan: dict[int, Layer], layers: int, kv_type: str, more: dict[str, Any]) -> Spec:
    first = next(iter(plan.values()))
    for index, layer in plan.items():
        if layer.source != index or layer.latent or layer.sinks or layer.rule.chunk or not layer.rule.causal:
            raise Refused(f"layer {index}: not yet")
        if Layer(**{**layer.__dict__, "source": first.source}) != first:
            raise Refused("layers differ: not yet")
    return Spec(
        layers=layers, q_heads=first.q_heads, kv_heads=first.kv_heads, k_dim=first.k_dim, v_dim=first.v_dim, kv_type=kv_type,
        scale=first.scale, soft_cap=first.soft_cap, window=first.rule.window, **more,
    )  # fmt: skip
