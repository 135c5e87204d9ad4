# SPDX-License-Identifier: Apache-2.0
"""The session's specification, from the attention layers as vLLM has made them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import tokens
from ..spec import Kind, Spec

TYPES = {"torch.float32": "f32", "torch.float16": "f16", "torch.bfloat16": "bf16"}


class Layer(NamedTuple):
    """One attention layer, as the backend's implementation notes it when vLLM makes it.

    Attributes:
        kind: heads, dimensions, scale, soft cap, window, slopes.
        target: name of the layer whose keys it reads; None: its own.
        sinks: a logit for each query head, or nothing.
    """

    kind: Kind
    target: str | None = None
    sinks: tuple[float, ...] = ()


class Model(NamedTuple):
    """spec: of its sessions; number: a layer's, by its name; token_layer: the one that holds tokens."""

    spec: Spec
    number: dict[str, int]
    token_layer: int


def model_of(layers: Mapping[str, Layer], dtype: Any, replicas: int) -> Model:
    """layers: by name, in the order of the model; dtype: torch's, of keys and values."""
    kv_type = TYPES.get(str(dtype))
    if kv_type is None:
        raise ValueError(f"keys are of type {dtype}: float32, float16 or bfloat16 is expected")
    if not layers:
        raise ValueError("the model has no attention layer of Banyan's backend")
    index = {name: i for i, name in enumerate(layers)}
    shares: list[int | None] = []
    for name, layer in layers.items():
        source = None if layer.target is None else index.get(layer.target)
        if layer.target is not None and (source is None or source >= index[name]):
            raise ValueError(f"{name} reads the keys of {layer.target}, which does not come before it")
        shares.append(source)
    of_layer = [*(layer.kind for layer in layers.values()), tokens.KIND]
    kinds = list(dict.fromkeys(of_layer))
    sinks = [*(layer.sinks for layer in layers.values()), ()]
    spec = Spec(
        layers=len(of_layer), kv_type=kv_type, kinds=tuple(kinds), layer_kind=tuple(kinds.index(kind) for kind in of_layer),
        shares=(*shares, None) if any(s is not None for s in shares) else (),
        layer_sinks=tuple(sinks) if any(sinks) else (), replicas=replicas,
    )  # fmt: skip
    return Model(spec, index, len(of_layer) - 1)


def holds_tokens(spec: Spec) -> bool:
    """Whether a session's last layer is one of tokens: else it was not made by an engine."""
    last = spec.table[-1]
    return last is not None and (last.q_heads, last.kv_heads, last.k_dim, last.v_dim, last.window) == (1, 1, tokens.DIM, tokens.DIM, 1)
