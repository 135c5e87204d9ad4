# SPDX-License-Identifier: Apache-2.0
"""Long prompts, in blocks: the client's memory holds a block's activations, not a document's."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import torch

from .cache import BanyanCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def prefill(
    model: PreTrainedModel, input_ids: torch.Tensor, cache: BanyanCache, *, attention_mask: torch.Tensor | None = None,
    block: int = 1024, progress: bool | None = None,
) -> int:  # fmt: skip
    """Feeds what the cache does not have yet of input_ids [batch, tokens], but the last token, which generate() wants.

    What the cache has is compared with input_ids first (BanyanCache.check), so a document that was read by another
    process is not read again. An interrupted call may be repeated: it goes on where it was.

    Args:
        attention_mask: of all tokens, where there is padding on the left.
        block: tokens of a forward.
        progress: whether tqdm shows a bar; None: on a terminal, from 4 blocks on.

    Returns how many tokens of each sequence were fed.
    """
    cache.check(input_ids)
    begin, end = cache.get_seq_length(), input_ids.shape[1] - 1
    if begin >= end:
        return 0
    for at in _steps(begin, end, block, progress):
        until = min(at + block, end)
        more = _beside(model, attention_mask, at, until)
        with torch.inference_mode():
            model(input_ids=input_ids[:, at:until], past_key_values=cache, use_cache=True, logits_to_keep=1, **more)
    return end - begin


def _beside(model: PreTrainedModel, attention_mask: torch.Tensor | None, at: int, until: int) -> dict[str, Any]:
    """What generate() gives a model beside the tokens: positions do not count padding."""
    if attention_mask is None:
        return {}
    more = {"attention_mask": attention_mask[:, :until]}
    if "position_ids" in inspect.signature(model.forward).parameters:
        more["position_ids"] = (attention_mask[:, :until].long().cumsum(-1) - 1).clamp(min=0)[:, at:]
    return more


def _steps(begin: int, end: int, block: int, progress: bool | None) -> Any:
    steps = range(begin, end, block)
    if progress is None:
        progress = len(steps) >= 4 and sys.stderr.isatty()
    if not progress:
        return steps
    from tqdm import tqdm

    return tqdm(steps, desc="prefill", unit_scale=block, unit=" tokens")
