# SPDX-License-Identifier: Apache-2.0
"""Feeding a model a part of a text, as generate() does."""

from __future__ import annotations

import inspect
from typing import Any

import torch


def feed(
    model: Any, cache: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor | None, at: int, until: int, *, positions: bool = True
) -> Any:  # fmt: skip
    """One forward of the columns [at, until). positions: False: none are given, so that the model counts
    padding, too."""
    more = _beside(model, attention_mask, at, until)
    if not positions:
        more.pop("position_ids", None)
    if "position_ids" in more and cache.shifts:
        more["position_ids"] = more["position_ids"] + torch.tensor(cache.shifts, device=more["position_ids"].device)[:, None]
    return model(input_ids=input_ids[:, at:until], past_key_values=cache, use_cache=True, **more)


def _beside(model: Any, attention_mask: torch.Tensor | None, at: int, until: int) -> dict[str, Any]:
    """What generate() gives a model beside the tokens: positions do not count padding."""
    takes = inspect.signature(model.forward).parameters
    more: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
    if attention_mask is not None:
        more["attention_mask"] = attention_mask[:, :until]
        if "position_ids" in takes:
            more["position_ids"] = (attention_mask[:, :until].long().cumsum(-1) - 1).clamp(min=0)[:, at:]
    return more


def mask_of(pads: list[int], columns: int, device: torch.device) -> torch.Tensor | None:
    """The attention_mask of a batch with so much padding; None where there is none."""
    if not any(pads):
        return None
    return (torch.arange(columns, device=device) >= torch.tensor(pads, device=device)[:, None]).long()
