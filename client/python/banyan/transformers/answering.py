# SPDX-License-Identifier: Apache-2.0
"""What generate() and prefill() are called with: compared with what a cache holds, before anything is fed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers import PreTrainedModel

from .feeding import feed
from .generate import Asked
from .refused import Refused
from .watching import Watching


class Answering(Watching):
    def in_turn(self) -> AbstractContextManager[None]:
        """generate() and prefill() are in here, so that no other thread feeds anything between the comparison
        of their text and its end."""
        return self._turn.held("call")

    def begin_generating(self, model: PreTrainedModel, asked: Asked) -> None:
        """What generate() is called with is compared with what is held, before anything is fed: the model and
        the whole text.

        generate() feeds what the cache does not have, and needs at least the last token.
        """
        self._check_open()
        if self._is_awaited(model):
            self._meet(model)
        self._check_weights(glance=True)
        given = asked.tokens
        if self._reuse and self._steps is None and given is not None and asked.is_text:
            self._find_whole(given, asked.mask)
        self._await_count()
        self._put_shifts(max(1, len(self.pads) // asked.copies) if given is None else len(given))
        if self.columns and (given is None or not given.shape[1]):
            raise Refused(
                f"generate() is given no text, and the cache holds {self.columns} tokens: give it the whole text, those included, or begin "
                "again with cache.reset()"
            )
        if given is None or self._steps is None:
            self._retry = None if given is None else given.shape[1]
            return
        if self._named:
            self._look()
        given = self._in_copies(given, asked)
        columns = given.shape[1]
        if asked.mask is not None and self.columns:
            self._check_mask(asked.mask, len(given), columns)
        if columns:
            self.check(given)
        if 0 < columns < self.columns and columns != self._retry:
            raise Refused(
                f"generate() is given {columns} tokens, and the cache holds {self.columns}: give it the whole text, those included. To "
                f"go on from an earlier place, cache.fork() and fork.crop({columns - 1 - self.columns}) come first, or "
                "cache.rewind_to(input_ids)"
            )
        if 0 < columns <= self.columns:
            self.crop(columns - 1 - self.columns)  # the last one is fed again, for its logits
        self._retry = columns
        if self.columns and columns - self.columns > 1 and not self._ways.blocks and not given.is_floating_point():
            self.feed_one_by_one(model, given, asked.mask, columns - 1)

    def _find_whole(self, input_ids: torch.Tensor, mask: Any) -> None:
        """Of a text without padding."""
        if len(input_ids) != 1 or not isinstance(mask, torch.Tensor) or bool(mask.all()):
            self.find(input_ids)

    def feed_one_by_one(self, model: PreTrainedModel, input_ids: torch.Tensor, mask: torch.Tensor | None, until: int) -> None:
        """Up to a column, for models that compute something else in blocks."""
        ids = input_ids.to(self.device)
        if mask is not None:
            mask = mask.repeat_interleave(len(ids) // len(mask), dim=0).to(ids.device)
        with torch.no_grad():
            for at in range(self.columns, until):
                feed(model, self, ids, mask, at, at + 1)

    def end_generating(self, failed: bool) -> None:
        """Of a call that an error has ended it is noted with how many tokens it began: the same call goes on
        there."""
        self._counted_now()
        if not failed:
            self._retry = None
            self._put_end()

    def begin_filling(self, model: PreTrainedModel, input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> None:
        """The same for prefill()."""
        self._check_open()
        if self._is_awaited(model):
            self._meet(model)
        self._check_weights(glance=True)
        if self._reuse and self._steps is None:
            self._find_whole(input_ids, attention_mask)
        if self._steps is not None:
            if self._named:
                self._look()
            if attention_mask is not None and self.columns:
                self._check_mask(attention_mask, len(input_ids), input_ids.shape[1])
            self.check(input_ids)

    @property
    def blocks_are_exact(self) -> bool:
        """Whether the model computes the same in several forwards of several tokens as in one."""
        return self._ways.blocks

    def _in_copies(self, given: torch.Tensor, asked: Asked) -> torch.Tensor:
        """The text as generate() will feed it, a row a sequence; what is held is forked for beams and
        num_return_sequences."""
        rows, copies = len(given), asked.copies
        if copies > 1 and rows * copies != len(self.pads) and rows == len(self.pads):
            self.check(given)
            if self._stale and (model := self._model and self._model()) is not None:
                self._catch_up(model)  # forks that are made for a moment share no states
            self.batch_repeat_interleave(copies)
        if rows * copies != len(self.pads):
            raise Refused(
                f"this cache holds {len(self.pads)} sequences and generate() is given {rows}"
                + (f", of which it makes {copies} each" if copies > 1 else "")
                + ". For several answers to one text give the text once, with num_return_sequences"
            )
        return given.repeat_interleave(copies, dim=0) if copies > 1 else given

    def _check_mask(self, mask: Any, rows: int, columns: int) -> None:
        if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
            return
        if mask.shape[1] != columns:
            raise Refused(
                f"attention_mask is for {mask.shape[1]} tokens, and there are {columns}: give the whole text, what the cache holds "
                "included, and the mask of it"
            )
        mask = mask.repeat_interleave(rows // len(mask), dim=0) if len(mask) and rows % len(mask) == 0 else mask
        pads = (mask.cumsum(1) == 0).sum(1).tolist()
        moved = [i for i, (new, old) in enumerate(zip(pads, self.pads)) if new != old and old < self.columns]
        if moved:
            i = moved[0]
            raise Refused(
                f"sequence {i} has {pads[i]} tokens of padding in attention_mask, and {self.pads[i]} in the session: padding cannot move. "
                "Pad the batch as it was padded when its sessions were made, or feed the sequences one by one"
            )
