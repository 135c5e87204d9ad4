# SPDX-License-Identifier: Apache-2.0
"""The attention implementation "banyan"."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from . import alone
from .masks import banyan_mask
from .tags import pending, tag_of, uncompiled


@uncompiled
def banyan_attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any = None,
    scaling: float | None = None, dropout: float = 0.0, **keywords: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """AttentionInterface's function: query [B, H, S, D] -> ([B, S, H, Dv], None)."""
    tag = tag_of(key)
    if tag is None and pending.tag is not None and not pending.tag.opened:
        tag = pending.tag
    if tag is None:
        return alone.attend(module, query, key, value, attention_mask, scaling, dropout, keywords), None
    if dropout:
        keywords["dropout"] = dropout
    pending.tag = None
    return tag.owner.attend(module, tag, query, key, value, attention_mask, scaling, keywords), None


def register() -> None:
    AttentionInterface.register("banyan", banyan_attention)
    AttentionMaskInterface.register("banyan", banyan_mask)
