# SPDX-License-Identifier: Apache-2.0
"""States that are no keys and values (recurrent layers, convolutions): where they are kept, and how a cache
goes back to them.

    kept by                 when
    a session with a name   every `state_tokens` tokens, at the end of each generate(), and by close()
    one that others find    every `state_tokens` tokens (reuse=True)
    this cache, in memory   before a forward of several rows behind others: the last one

A cache whose states are not those behind its text is *stale*: it was opened, cut, or an error has ended a
forward. Its next forward goes back to the newest states before that place, and feeds the tokens from there on
again. Their keys and values are in the session already: nothing is appended, and nothing is removed.

The session's states are found by a digest of the tokens before them, of the model and of how positions were
counted: a state of another text is never taken.
"""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

import torch

from ..client import Session
from ..errors import DataLoss, NotFound, ResourceExhausted, Unimplemented
from ..states import DIGEST
from . import taken, text
from .feeding import feed, mask_of
from .formed import AGAIN, Formed
from .positions import OTHER, SHIFTED, TOKENS
from .refused import Refused
from .taken import Taken

_LAYER = 0  # under which a session has them: those of all layers are one state
_ENDS = 2  # states at ends of generate() that stand behind the last one of each `state_tokens`


class Stated(Formed):
    def _counted_as(self) -> bytes:
        """How positions are counted, and by which model."""
        kind = SHIFTED if self._shifts else OTHER if self._counted is None else self._counted.kind(self.pads)
        return repr((taken.VERSION, self._mark, self._form, kind)).encode()

    def _digest(self, i: int, columns: int) -> bytes:
        """Of what sequence i holds up to a column."""
        pad = self.pads[i]
        out = hashlib.blake2b(self._counted_as(), digest_size=DIGEST)
        more = self._shifts[i] if self._shifts else 0 if self._counted is None or self._counted.kind(self.pads) == TOKENS else pad
        out.update(more.to_bytes(8, "little", signed=True))
        out.update(self._held().row(i, pad, columns).contiguous().numpy().data)
        return out.digest()

    # ---- put ----

    def _end_states(self, began: int) -> None:
        """Behind a forward that began there."""
        layers = self._local()
        if not layers or self._replaying or self._stale or any(layer.record_past for layer in layers.values()):
            return
        if self._state_tokens and began // self._state_tokens != self.columns // self._state_tokens:
            self._saved = taken.take(self.columns, layers, self._states)
            self._put_states(self._saved)

    def _put_end(self) -> None:
        """At the end of a generate(), or of the cache: the session may be opened by others from now on."""
        layers = self._local()
        if not layers or not self.columns or self._stale or self._dirty or self._open:
            return
        if self._named and self._state_tokens and not any(layer.record_past for layer in layers.values()):
            self._put_states(taken.take(self.columns, layers, self._states), end=True)

    def _put_states(self, states: Taken, end: bool = False) -> None:
        if not (self._named or self._reuse) or not self._state_tokens or self._steps is None:
            return
        try:
            for i, (session, pad) in enumerate(zip(self._steps.sessions, self.pads)):
                if pad < states.columns:
                    self._put_one(session, states, i, end)
        except (ResourceExhausted, Unimplemented) as error:
            self._state_tokens = 0
            warnings.warn(
                f"session {self.name!r} keeps no more states of layers that are no attention: {error}. Another process that opens it has "
                "to feed its tokens again",
                stacklevel=2,
            )

    def _put_one(self, session: Session, states: Taken, i: int, end: bool) -> None:
        position, digest = states.columns - self.pads[i], self._digest(i, states.columns)
        try:
            there = session.states()
        except DataLoss:  # of those that were there
            session.cut_states(0)
            there = []
        if any(s.position == position and s.digest == digest for s in there):
            return
        lasting = self._last_lasting([s.position for s in there if s.position < position])
        if there and there[-1].position >= position:  # of another text: the session was fed by hand
            session.cut_states(position - 1)
        elif end and sum(s.position > lasting for s in there) >= _ENDS:
            session.cut_states(lasting)
        session.put_state(_LAYER, position, taken.pack(states, i), digest)

    def _last_lasting(self, positions: list[int]) -> int:
        """The last of these that is the first one in its `state_tokens`."""
        last = 0
        for position in positions:
            if position // self._state_tokens > last // self._state_tokens:
                last = position
        return last

    # ---- back ----

    def _save_states(self, rows: int) -> None:
        """Before a forward: of one with several rows some may be taken away again."""
        layers = self._local()
        if layers and self.columns and rows > 1 and not self._replaying:
            self._saved = taken.take(self.columns, layers, self._states)

    def _catch_up(self, model: Any) -> None:
        """The states are those behind what is held, from now on."""
        if not self._stale:
            return
        self.put_right()
        until = self.columns
        codes = self._all_codes()
        begin = self._go_back()
        if begin < until and not bool(text.is_id(codes[:, begin:until]).all()):
            raise Refused(
                "layers of this model have states of their own, which are those of another place now, and the tokens since were fed as "
                "embeddings, which are not kept: begin again with cache.reset(), and give the whole text"
            )
        if begin < until:
            self._replay(model, codes, begin, until)
        self._stale = False

    def _go_back(self) -> int:
        """Takes the newest states there are. Returns of which column they are."""
        layers = self._local()
        found = self._saved if self._saved and self._saved.columns <= self.columns else None
        if (held := self._held_states(found.columns if found else 0)) is not None:
            found = held
        if found is None:
            taken.begin(layers)
            self._states = []
            return 0
        self._saved, self._states = found, taken.put_back(found, layers)
        return found.columns

    def _held_states(self, least: int) -> Taken | None:
        """The newest ones that the sessions have of this very text, behind column `least`."""
        if self._steps is None or not self.columns or not self._state_tokens:
            return None
        lists = []
        for session in self._steps.sessions:
            try:
                lists.append({s.position: s.digest for s in session.states()})
            except (Unimplemented, DataLoss):  # without states the tokens do
                return None
        begun = min(range(len(self.pads)), key=lambda i: self.pads[i])
        for position in sorted(lists[begun], reverse=True):
            column = position + self.pads[begun]
            if least < column <= self.columns and all(
                pad >= column or lists[i].get(column - pad) == self._digest(i, column) for i, pad in enumerate(self.pads)
            ):
                try:
                    return self._read_states(column)
                except (ValueError, KeyError, StopIteration, NotFound, DataLoss):  # of another kind, gone, or lost
                    continue
        return None

    def _read_states(self, column: int) -> Taken | None:
        assert self._steps is not None
        each: list[bytearray | None] = []
        for i, (session, pad) in enumerate(zip(self._steps.sessions, self.pads)):
            if pad >= column:
                each.append(None)
                continue
            one = session.get_state(_LAYER, column - pad)
            if one.position != column - pad or one.digest != self._digest(i, column):
                raise NotFound("it has changed since")
            each.append(one.data)
        layers = self._local()
        found = taken.unpack(column, each, {i: self._device_of(i) for i in layers}, self.device)
        if found.layers.keys() != layers.keys() or any(len(found.layers[i]) != layers[i].number_of_states for i in layers):
            raise ValueError("a state of other layers")
        return found

    def _device_of(self, index: int) -> torch.device:
        model = self._model and self._model()
        for module in model.modules() if model is not None else ():
            if getattr(module, "layer_idx", None) == index:
                for p in module.parameters():
                    if not p.is_meta:
                        return torch.device(p.device)
        return self.device

    def _replay(self, model: Any, codes: torch.Tensor, begin: int, until: int) -> None:
        """Feeds columns whose keys and values the sessions have: the layers' states move on, and nothing is
        put."""
        assert self._steps is not None
        ids, mask = codes.to(self.device), mask_of(self.pads, until, self.device)
        positions = self._counted is None or self._counted.kind(self.pads) == TOKENS
        before = self._counted, self._retry, self._unchecked, self._prepared
        self.columns, self._replaying, self._steps.replaying = begin, True, True
        self._unchecked = self._prepared = self._stale = self._open = False
        block = AGAIN if self._ways.blocks else 1 if begin else until
        failed = True
        try:
            with torch.inference_mode(False), torch.no_grad(), self.toward(until):
                for at in range(begin, until, block):
                    feed(model, self, ids, mask, at, min(at + block, until), positions=positions)
            failed = False
        finally:
            self._counted, self._retry, self._unchecked, self._prepared = before
            self._replaying, self._done, self._dirty, self._open, self._began = False, set(), False, False, None
            self._stale, self.columns = failed, until
            if self._steps is not None:
                self._steps.replaying = False
                self._steps.put_nothing()
