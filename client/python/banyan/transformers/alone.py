# SPDX-License-Identifier: Apache-2.0
"""Attention of forwards without a BanyanCache: computed here, by the model's own eager attention.

A forward over a whole text without a cache (perplexity, embeddings), and what a generate() that was given a
BanyanCache calls beside it: assistants, the other text of guidance_scale.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from .generate import running
from .masks import Mask
from .refused import Refused

_EAGER_MOST = 1 << 24  # rows times keys; beyond that PyTorch's attention, which needs no such matrix, where it can


class _Forwards(threading.local):
    def __init__(self) -> None:
        self.caches: list[Any] = []  # of forwards under way in this thread, which were given a BanyanCache
        self.allowed = 0


_forwards = _Forwards()


def begin(cache: Any) -> None:
    _forwards.caches.append(cache)


def end(cache: Any) -> bool:
    """Of its forward, whatever became of it; also of one that an interrupt has ended without a word. Whether
    there was one."""
    before = _forwards.caches
    if before:
        _forwards.caches = [other for other in before if other is not cache]
    return len(_forwards.caches) < len(before)


def is_within() -> bool:
    """Whether this thread is in a forward of a BanyanCache's."""
    return bool(_forwards.caches)


@contextmanager
def locally() -> Iterator[None]:
    """Forwards in here may use caches of Transformers'."""
    caches, _forwards.caches = _forwards.caches, []
    _forwards.allowed += 1
    try:
        yield
    finally:
        _forwards.allowed -= 1
        _forwards.caches = caches


def attend(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, scaling: float | None,
    dropout: float, keywords: dict[str, Any],
) -> torch.Tensor:  # fmt: skip
    """[B, S, H, Dv]. Refused where a BanyanCache should hold the keys."""
    if _is_whole(module, mask, keywords):
        return _sdpa(module, query, key, value, None, scaling, dropout, False)
    _check(module, query, key, mask)
    if query.shape[2] * key.shape[2] > _EAGER_MOST and not keywords.get("softcap") and keywords.get("s_aux") is None:
        return _sdpa(module, query, key, value, mask.tensor(None), scaling, dropout, False)
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        if keywords.get("softcap") or keywords.get("s_aux") is not None:
            raise Refused(f"{type(module).__name__} has no eager attention that could compute a forward without a BanyanCache")
        return _sdpa(module, query, key, value, mask.tensor(None), scaling, dropout, False)
    out: torch.Tensor = eager(module, query, key, value, mask.tensor(query.dtype), scaling=scaling, dropout=dropout, **keywords)[0]
    return out


def _sdpa(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, scaling: float | None,
    dropout: float, causal: bool,
) -> torch.Tensor:  # fmt: skip
    return sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=causal)[0]


def _check(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, mask: Any) -> None:
    name = type(module).__name__
    if _forwards.caches:
        why = (
            "call model.eval(), since Transformers drops the cache of models in training with gradient checkpointing"
            if module.training
            else "this model does not pass the cache on to its layers, so it cannot use one"
        )
        raise Refused(f"{name} asks for attention over keys that are in no BanyanCache, though the model was given one: {why}")
    if not isinstance(mask, Mask):
        raise Refused(f"{name} brings a mask of its own: the service cannot know what it means")
    if _forwards.allowed or running() is not None:
        return
    if mask.q_offset or key.shape[2] != query.shape[2]:
        raise Refused(
            f"{name} asks for attention over keys that another cache holds (a DynamicCache, which Transformers makes by itself, a "
            "StaticCache): give past_key_values=BanyanCache(...). Without any cache, with use_cache=False, a forward over a whole text is "
            "computed here"
        )


def _is_whole(module: torch.nn.Module, mask: Any, keywords: dict[str, Any]) -> bool:
    """Whether every row sees all the keys at hand, as in the towers for images and sound of models that read
    those too."""
    causal = keywords.get("is_causal", getattr(module, "is_causal", True))
    unmasked = mask is None or (isinstance(mask, Mask) and mask.is_all())
    return causal is False and unmasked and not keywords.get("softcap") and keywords.get("s_aux") is None
