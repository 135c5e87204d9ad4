# SPDX-License-Identifier: Apache-2.0
"""The form of a forward: frequencies that depend on the length of the text (lengths.py), limits that a step
leaves out (limits.py)."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from . import text
from .feeding import feed, mask_of
from .generate import running
from .refused import Refused
from .reused import Reused

AGAIN = 1024  # tokens of a block that is fed again


class Formed(Reused):
    @contextlib.contextmanager
    def toward(self, positions: int) -> Iterator[None]:
        """What is fed in here are blocks of a text that has so many positions in the end."""
        before, self._goal = self._goal, positions
        try:
            yield
        finally:
            self._goal = before

    def _choose_form(self, model: Any, keywords: dict[str, Any], rows: int) -> None:
        self._drop_forms()  # of a forward that an error has ended
        if self._limits and self.columns:
            self._forms = self._limits.in_step()
        if not self._lengths:
            return
        positions = keywords.get("position_ids")
        end = self.columns + rows
        if isinstance(positions, torch.Tensor):
            end = int(positions.max()) + 1
        form = self._lengths.form_of(max(end, self._goal))
        if form != self._form and self.columns:
            self._feed_again(model, form, self._count_tokens_alone(keywords.get("position_ids")))
        self._form = form
        self._forms += self._lengths.in_form(form)

    def _drop_forms(self) -> None:
        for hook in self._forms:
            hook.remove()
        self._forms = []

    def _count_tokens_alone(self, positions: Any) -> bool:
        """Whether the positions of a forward leave padding out; they go on where those before it ended."""
        if not isinstance(positions, torch.Tensor):
            return not any(self.pads)  # the model counts columns
        first = positions[..., 0].cpu()
        if bool((first == self.columns - torch.tensor(self.pads)).all()):
            return True
        if bool((first == self.columns).all()):
            return False
        raise Refused(
            "the text passes the length from which on this model has other frequencies, so all of it must be fed again, and its "
            "position_ids count something else than its tokens: begin again with a new cache, and give the whole text"
        )

    def _feed_again(self, model: Any, form: int, positions: bool) -> None:
        """The text crosses the border of the frequencies: all keys are other ones. positions: whether padding
        has none."""
        codes, columns, pads = self._all_codes(), self.columns, list(self.pads)
        if not bool(text.is_id(codes).all()):
            raise Refused(
                "the text passes the length from which on this model has other frequencies, so all of it must be fed again, and it was fed "
                "as embeddings, which are not kept: begin again with a new cache, and give the whole text"
            )
        warnings.warn(
            f"the text passes {self._lengths.borders if self._lengths else []} tokens, where this model changes its frequencies "
            f"(longrope): {columns} tokens are fed again, once. A text that is longer from the beginning needs no second time",
            stacklevel=2,
        )
        kept = self._retry, self._unchecked
        self.reset()
        self._form = form
        ids = codes.to(self.device)
        mask = mask_of(pads, columns, ids.device)
        with self.toward(self._lengths.least(form) if self._lengths else 0):
            for at in range(0, columns, AGAIN):
                feed(model, self, ids, mask, at, min(at + AGAIN, columns), positions=positions)
        self._retry, self._unchecked = kept

    def _taken_back(self, model: Any, keywords: dict[str, Any]) -> dict[str, Any] | None:
        """What a forward should have been given, of whose arguments the model has dropped the cache.

        Models with longrope (Phi-3) do so where a text passes the border, so that generate() begins again
        without what is held.
        """
        call, ids = running(), keywords.get("input_ids")
        if call is None or call[0] is not self or call[1] is not model or keywords.get("past_key_values") is not None or not self._lengths:
            return None
        if not isinstance(ids, torch.Tensor) or not self._lengths.borders or ids.shape[1] <= self._lengths.borders[0]:
            return None
        wanted = call[2].tokens if self.columns == 0 else self._all_codes()
        if wanted is None or wanted.is_floating_point():
            return None
        wanted = wanted.to(ids.device)
        if self.columns == 0 and len(wanted) != len(ids):
            wanted = wanted.repeat_interleave(len(ids) // max(1, len(wanted)), dim=0)
        if wanted.shape[1] > ids.shape[1] or len(wanted) != len(ids) or not bool((ids[:, : wanted.shape[1]] == wanted).all()):
            return None  # another text: that of guidance_scale
        given = {**keywords, "past_key_values": self, "input_ids": ids[:, self.columns :]}
        if isinstance(positions := keywords.get("position_ids"), torch.Tensor):
            given["position_ids"] = positions[..., self.columns :]
        return given
