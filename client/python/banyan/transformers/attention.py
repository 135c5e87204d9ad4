# SPDX-License-Identifier: Apache-2.0
"""The attention implementation "banyan"."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from .masks import banyan_mask
from .refused import Refused
from .tags import pending, tag_of


def banyan_attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any = None,
    scaling: float | None = None, dropout: float = 0.0, **keywords: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """AttentionInterface's function: query [B, H, S, D] -> ([B, S, H, Dv], None)."""
    tag = tag_of(key)
    if tag is None and pending.tag is not None and not pending.tag.opened:
        tag = pending.tag
    if tag is None:
        raise Refused(
            f"{type(module).__name__} asks for attention over keys that are in no BanyanCache: give past_key_values=BanyanCache(...)"
        )
    if dropout:
        keywords["dropout"] = dropout
    pending.tag = None
    return tag.owner.attend(module, tag, query, key, value, attention_mask, scaling, keywords), None


def register() -> None:
    AttentionInterface.register("banyan", banyan_attention)
    AttentionMaskInterface.register("banyan", banyan_mask)
