# SPDX-License-Identifier: Apache-2.0
"""A cache's layers as Transformers sees them: keys and values go to a keeper, other state stays here."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers.cache_utils import (
    DYNAMIC_LAYER_TYPE_MAPPING,
    CacheLayerMixin,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
    get_layer_types_and_kwargs,
)

from .tags import Tag, give, uncompiled


class Keeper(Protocol):
    """Where keys and values go: a cache, or a probe."""

    columns: int  # tokens that it has

    def arrives(self, index: int, keys: torch.Tensor, values: torch.Tensor) -> Tag: ...


class Face(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One attention layer."""

    is_sliding, is_croppable, is_compileable = False, True, False

    def __init__(self, keeper: Keeper, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keeper, self.index = keeper, index

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    @uncompiled
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *more: Any, **keywords: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.is_initialized = True
        return give(self.keeper.arrives(self.index, key_states, value_states))

    @uncompiled
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keeper.columns + query_length, 0

    @uncompiled
    def get_seq_length(self) -> int:
        return self.keeper.columns

    def get_max_length(self) -> int:
        return -1


class HybridFace(Face, LinearAttentionLayer):  # type: ignore[no-untyped-call]
    """Attention and a state of its own in one layer: the state stays here."""

    is_croppable = LinearAttentionCacheLayerMixin.is_croppable

    def __init__(self, keeper: Keeper, index: int, number_of_states: int) -> None:
        Face.__init__(self, keeper, index)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)

    lazy_initialization = LinearAttentionLayer.lazy_initialization  # type: ignore[assignment]
    reset = LinearAttentionLayer.reset
    reorder_cache = LinearAttentionLayer.reorder_cache
    crop = LinearAttentionLayer.crop


def faces(config: Any, keeper: Keeper) -> list[Any]:
    """A layer for each of the model's."""
    kinds, options = get_layer_types_and_kwargs(config)
    out: list[Any] = []
    for i in range(config.num_hidden_layers):
        made = DYNAMIC_LAYER_TYPE_MAPPING.get(kinds[i])
        if made is None or issubclass(made, CacheLayerMixin):
            hybrid = made is not None and issubclass(made, LinearAttentionCacheLayerMixin)
            out.append(HybridFace(keeper, i, options[i].get("number_of_states", 1)) if hybrid else Face(keeper, i))
        else:
            out.append(made(**options[i]))  # a state that is no attention's, or nothing
    return out


def windows_of_caches(config: Any) -> list[int]:
    """Of each layer: the window that a cache of Transformers' applies to it; 0: none."""
    kinds, options = get_layer_types_and_kwargs(config)
    return [int(more.get("sliding_window") or 0) for _, more in zip(kinds, options)]


def stateful(layer: Any) -> bool:
    """Whether it has a state in this process."""
    return isinstance(layer, LinearAttentionCacheLayerMixin)
