# SPDX-License-Identifier: Apache-2.0
"""Long prompts, in blocks: the client's memory holds a block's activations, not a document's."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from . import wave
from .cache import BanyanCache
from .feeding import feed as feed_part
from .kept import not_text
from .refused import Refused

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def prefill(
    model: PreTrainedModel, input_ids: torch.Tensor, cache: BanyanCache, *, attention_mask: torch.Tensor | None = None,
    block: int = 1024, progress: bool | None = None, overlap: bool = True,
) -> int:  # fmt: skip
    """Feeds what the cache does not have yet of input_ids [batch, tokens], but the last token, which
    generate() needs.

    What the cache has is compared with input_ids first (BanyanCache.check), so a document that was read by
    another process is not read again. An interrupted call may be repeated: it goes on where it was.

    Args:
        attention_mask: of all tokens, where there is padding on the left.
        block: tokens of a forward.
        progress: whether tqdm shows a bar; None: on a terminal, from 4 blocks on.
        overlap: a block is computed while the workers compute the attention of the one before it, in two
        threads. Without
            it, and for models that cannot be in two forwards at once, one block after the other: the same
            answers.

    Returns how many tokens of each sequence were fed.
    """
    if block < 1:
        raise ValueError(f"prefill: blocks of {block} tokens")
    with cache.in_turn():
        cache.begin_filling(model, input_ids, attention_mask)
        _check_text_alone(model, input_ids[:, cache.get_seq_length() :])
        return _fill(model, input_ids, cache, attention_mask, block, progress, overlap)


def _fill(
    model: PreTrainedModel, input_ids: torch.Tensor, cache: BanyanCache, attention_mask: torch.Tensor | None, block: int,
    progress: bool | None, overlap: bool,
) -> int:  # fmt: skip
    begin, end = cache.get_seq_length(), input_ids.shape[1] - 1
    if begin >= end:
        return 0
    if not cache.blocks_are_exact:  # then all at once, or token by token
        block, overlap = (1 if begin else end), False
    parts = [(at, min(at + block, end)) for at in range(begin, end, block)]

    def feed(to: BanyanCache, at: int, until: int) -> None:
        feed_part(model, to, input_ids, attention_mask, at, until)

    positions = input_ids.shape[1] if attention_mask is None else int(attention_mask.long().sum(-1).max())
    # Not inference_mode: the states of layers that stay here are written to again by generate(), outside of
    # it.
    with torch.no_grad(), cache.toward(positions), _bar(end - begin, len(parts), progress) as done:
        # One after the other until the sessions are there and no sequence is nothing but padding.
        while parts and not (cache.sessions and all(pad < cache.get_seq_length() for pad in cache.pads)):
            part = parts.pop(0)
            feed(cache, *part)
            done(part[1] - part[0])
        if overlap and len(parts) > 1 and wave.possible(model, cache, block):
            wave.run(cache, parts, feed, done)
            parts = []
        for part in parts:
            feed(cache, *part)
            done(part[1] - part[0])
    return end - begin


def _check_text_alone(model: PreTrainedModel, input_ids: torch.Tensor) -> None:
    for name, token in not_text(model.config).items():
        if bool((input_ids == token).any()):
            raise Refused(
                f"input_ids hold {token}, this model's {name}: prefill feeds tokens alone, without the images or sound that belong there. "
                "Call the model, or generate(), with all its inputs"
            )


@contextlib.contextmanager
def _bar(tokens: int, parts: int, progress: bool | None) -> Iterator[Callable[[int], Any]]:
    """The function to call after each block, with how many tokens it had."""
    if progress is None:
        progress = parts >= 4 and sys.stderr.isatty()
    if not progress:
        yield lambda tokens: None
        return
    from tqdm import tqdm

    with tqdm(total=tokens, desc="prefill", unit=" tokens") as bar:
        yield bar.update
