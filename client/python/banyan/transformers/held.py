# SPDX-License-Identifier: Apache-2.0
"""The text that a cache holds, and how another one is compared with it."""

from __future__ import annotations

from typing import Any

import torch

from . import alone, text
from .blocks import answer_of
from .layers import evaluating
from .refused import Refused
from .state import State
from .text import Text


class Held(State):
    def tokens(self) -> list[torch.Tensor]:
        """The tokens that each sequence holds, without padding, read from the service. -1: an embedding was
        fed there."""
        return [codes.masked_fill(~text.is_id(codes), -1) for codes in self._read()]

    def _read(self) -> list[torch.Tensor]:
        if self._steps is None:
            return []
        self._look()
        return [self._steps.said(s, 0, self.columns - pad).tokens for s, pad in zip(self._steps.sessions, self.pads)]

    def _held(self) -> Text:
        """What the sessions hold; read from the service where another process has fed it."""
        if self._text is None:
            self._text = Text(len(self.pads), max(64, self.columns))
            if self.columns:
                for i, (codes, pad) in enumerate(zip(self._read(), self.pads)):
                    self._text.put_row(i, pad, codes)
        return self._text

    def _all_codes(self) -> torch.Tensor:
        return self._held().all(self.columns)

    def _codes(self, fed: torch.Tensor) -> torch.Tensor:
        return text.of_embeddings(fed) if fed.is_floating_point() else fed.detach().to("cpu", torch.int64)

    def _common(self, fed: torch.Tensor) -> list[int]:
        """How many columns of each sequence are the same in what is held and in a text, ids or embeddings;
        padding counts."""
        codes, embedded = self._codes(fed), self._embedded_alike()
        held = self._held()
        return [
            pad + text.common(held.row(i, pad, self.columns), codes[i, pad:], embedded) if pad < codes.shape[1] else codes.shape[1]
            for i, pad in enumerate(self.pads)
        ]

    def _embedded_alike(self) -> Any:
        """The numbers of ids' embeddings, if the model computes the same from these as from ids."""
        model = self._model and self._model()
        if model is None:
            return None

        def numbers(ids: torch.Tensor) -> torch.Tensor:
            table = model.get_input_embeddings()
            within = (ids >= 0) & (ids < table.weight.shape[0])
            if not self._is_alike(model) or not bool(within.any()):
                return ids
            out = ids.clone()
            with torch.no_grad():
                out[within] = text.of_embeddings(table(ids[within].to(table.weight.device))[None])[0]
            return out

        return numbers

    def _is_alike(self, model: Any) -> bool:
        """Whether a forward depends on nothing of an id but its embedding. Models may have a second table of
        them (Gemma 3n)."""
        if self._alike is None:
            table = model.get_input_embeddings()
            ids = torch.tensor([[1, 0]], device=table.weight.device)
            with torch.no_grad(), alone.locally(), evaluating(model):
                try:
                    a, b = (
                        answer_of(model(**{name: x}, use_cache=False)) for name, x in (("input_ids", ids), ("inputs_embeds", table(ids)))
                    )
                    self._alike = bool(torch.equal(a, b))
                except Exception:
                    self._alike = False
        return self._alike

    def check(self, input_ids: torch.Tensor) -> None:
        """Refuses unless the sessions hold a beginning of these tokens, [batch, tokens], or as many of them
        as there are.

        Padding is what the cache has noted. generate() and prefill() do it by themselves; call it before a
        bare forward of a session that was resumed. Embeddings, [batch, tokens, hidden], are compared by a
        hash of each.
        """
        if self._steps is None:
            return
        if len(input_ids) != len(self.pads):
            raise Refused(f"this cache holds {len(self.pads)} sequences and is given {len(input_ids)}")
        for i, same in enumerate(self._common(input_ids)):
            if same < min(self.columns, input_ids.shape[1]):
                at, mine = same - self.pads[i], int(self._held().row(i, same, same + 1))
                other = int(self._codes(input_ids[i : i + 1, same : same + 1]))
                raise Refused(
                    f"token {at} of sequence {i} is {text.shown(mine)} in the session and {text.shown(other)} in what is given: "
                    "cache.rewind_to(input_ids) goes back to before it, or use another session"
                )
        self._unchecked, self._began = False, None

    def _check_not_again(self, fed: torch.Tensor) -> None:
        """Of a bare forward after a session was resumed: it is given new tokens, not the text from its
        beginning."""
        if fed.shape[1] >= self.columns and all(
            bool((fed[i, pad : self.columns] == self._held().row(i, pad, self.columns)).all()) for i, pad in enumerate(self.pads)
        ):
            raise Refused(
                f"the session that was resumed has these {self.columns} tokens already: give the model those behind them, "
                f"input_ids[:, {self.columns}:]. If they are to stand there twice, call cache.check(input_ids) first"
            )
        self._unchecked = False

    def rewind_to(self, input_ids: torch.Tensor) -> int:
        """Goes back to the beginning that what is held has in common with these tokens, [batch, tokens]; what
        is behind is removed.

        For a text whose last part has changed: a chat template that writes the last answer in another way, an
        answer that is to be given again. Returns how many columns are left; generate() feeds the others. A
        batch goes back as far as the sequence that differs first. Refused where a layer's state cannot go
        back, as crop() is.
        """
        if self._steps is None or not self.columns:
            return 0
        if len(input_ids) != len(self.pads):
            raise Refused(f"this cache holds {len(self.pads)} sequences and is given {len(input_ids)}")
        left = min(min(self._common(input_ids)), self.columns)
        if left <= max(self.pads):
            self.reset()  # a sequence has nothing left: padding may be another one
        elif left < self.columns:
            self.crop(left - self.columns)
        self._unchecked = False
        return self.columns
