# SPDX-License-Identifier: Apache-2.0
"""The attention implementation "banyan"."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface

from .masks import Mask, banyan_mask
from .refused import Refused
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
        if _is_whole(module, attention_mask, keywords):
            return sdpa_attention_forward(module, query, key, value, None, dropout=dropout, scaling=scaling, is_causal=False)
        what_to_do = "give past_key_values=BanyanCache(...)"
        if module.training:
            what_to_do = "call model.eval(), since Transformers drops the cache of models in training with gradient checkpointing"
        raise Refused(f"{type(module).__name__} asks for attention over keys that are in no BanyanCache: {what_to_do}")
    if dropout:
        keywords["dropout"] = dropout
    pending.tag = None
    return tag.owner.attend(module, tag, query, key, value, attention_mask, scaling, keywords), None


def _is_whole(module: torch.nn.Module, mask: Any, keywords: dict[str, Any]) -> bool:
    """Whether every row sees all the keys at hand, as in the towers for images and sound of models that read those too."""
    causal = keywords.get("is_causal", getattr(module, "is_causal", True))
    unmasked = mask is None or (isinstance(mask, Mask) and not mask.rule.causal and mask.pads is None and mask.blocks is None)
    return causal is False and unmasked and not keywords.get("softcap") and keywords.get("s_aux") is None


def register() -> None:
    AttentionInterface.register("banyan", banyan_attention)
    AttentionMaskInterface.register("banyan", banyan_mask)
