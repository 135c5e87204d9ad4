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

from .refused import Refused
from .tags import Owner, Tag, give, stand_in, uncompiled

_NOTHING = torch.empty(0)


class Keeper(Owner, Protocol):
    """Where keys and values go: a cache, or a probe."""

    columns: int  # tokens that it has

    def arrives(self, index: int, keys: torch.Tensor, values: torch.Tensor) -> Tag: ...


class _NotHeld(Refused, AttributeError):
    """For hasattr() and getattr() the layer has no such attribute."""


class Face(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One attention layer.

    Its keys and values stand for those that the service holds: a model may ask whether there are any, and not
    compute with them.
    """

    is_sliding, is_croppable, is_compileable = False, True, False

    def __init__(self, keeper: Keeper, index: int) -> None:
        self.keeper, self.index = keeper, index
        super().__init__()  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _NotHeld(f"this model's layers keep more in their cache than keys and values ({name}), and the service holds those alone")

    def _held(self) -> torch.Tensor:
        return stand_in(Tag(self.keeper, self.index, _NOTHING, _NOTHING), self.keeper.columns > 0)

    def _set(self, given: torch.Tensor | None) -> None:
        if given is not None:
            raise Refused(f"layer {self.index} of this model puts keys or values into its cache itself: they would not be in the service")

    keys = property(_held, _set)
    values = property(_held, _set)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    @uncompiled
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *more: Any, **keywords: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        given = give(self.keeper.arrives(self.index, key_states, value_states))
        self.is_initialized = True
        return given

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
    if not isinstance(getattr(config, "num_hidden_layers", None), int):
        raise Refused(
            f"{type(config).__name__} has no num_hidden_layers: the model is not one stack of layers, and it is unknown which of them "
            "have keys and values"
        )
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
