# SPDX-License-Identifier: Apache-2.0
"""One call of the service for a layer's rows: C structures that are made once and filled for each call, which
is repeated if it stalls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._abi import ffi, lib
from ..client import Client, Session
from ..errors import BanyanError, from_c
from ..guard import Entered
from .retry import Deadline, passing

_WORD = 8
_ITEM = ffi.sizeof("banyan_item") // _WORD


def _word(field: str) -> int:
    """The place of a field; those of 32 bits have a word of their own, whose upper half is padding."""
    offset = int(ffi.offsetof("banyan_item", field))
    assert offset % _WORD == 0, field
    return offset // _WORD


_SESSION, _LAYER, _FIRST, _ROWS, _VISIBLE = (_word(f) for f in ("session", "layer", "first", "rows", "visible"))
_Q, _K, _V, _O, _LSE = (_word(f) for f in ("q", "k", "v", "o", "lse"))


class Items:
    """An array of banyan_item that grows. Not thread-safe."""

    def __init__(self, room: int = 64) -> None:
        self._make(room)
        self.n = 0
        self.sessions: list[Session] = []  # of the items, in their order

    def _make(self, room: int) -> None:
        self._room = room
        self._items = ffi.new("banyan_item[]", room)
        self._errors = ffi.new("banyan_error[]", room)
        for i in range(room):
            self._items[i].error = ffi.addressof(self._errors, i)
        # The same memory, for numbers: an address is stored without an object being made for it.
        self._words = memoryview(ffi.buffer(self._items)).cast("B").cast("Q")

    def clear(self, room: int) -> None:
        """No items, and room for this many."""
        if room > self._room:
            self._make(max(room, 2 * self._room))
        self.n = 0
        self.sessions.clear()

    def add(
        self, session: Session, layer: int, first: int, rows: int, q: int, k: int, v: int, o: int, visible: int = 0, lse: int = 0
    ) -> None:
        """q, k, v, o, lse: addresses, as banyan_item has them; k, v, lse 0: none. Who calls keeps the memory
        until call() is over."""
        words, at = self._words, self.n * _ITEM
        words[at + _SESSION] = int(ffi.cast("uintptr_t", session.handle))
        words[at + _LAYER], words[at + _FIRST], words[at + _ROWS] = layer, first, rows
        words[at + _Q], words[at + _K], words[at + _V] = q, k, v
        words[at + _O], words[at + _LSE], words[at + _VISIBLE] = o, lse, visible
        self.sessions.append(session)
        self.n += 1

    def call(self, client: Client, seconds: float, same: Callable[[Session], bool]) -> dict[int, BanyanError]:
        """Blocks until every item is answered or has failed; those that fail in passing are sent again for
        `seconds`.

        same: whether a session of which an item was Aborted is what it was; asks the service, may raise.
        Where it is not, the item is not sent again. Which items have failed, and why. An append that is sent
        again is done once.
        """
        deadline = Deadline(seconds)
        failed = self._once(client, self._items, self._errors, list(range(self.n)), deadline)
        while failed and any(passing(error) for error in failed.values()) and deadline.pause():
            again = [i for i, error in failed.items() if passing(error) and not self._changed(i, error, same)]
            if not again:
                break
            items, errors = ffi.new("banyan_item[]", len(again)), ffi.new("banyan_error[]", len(again))
            for j, i in enumerate(again):
                items[j] = self._items[i]
                items[j].error = ffi.addressof(errors, j)
            lasting = {i: error for i, error in failed.items() if i not in again}
            failed = lasting | self._once(client, items, errors, again, deadline)
        return failed

    def _changed(self, i: int, error: BanyanError, same: Callable[[Session], bool]) -> bool:
        """After Aborted, calls of a hold are refused until it has asked for the session's state; which may be
        another one."""
        try:
            return error.code == "ABORTED" and not same(self.sessions[i])
        except BanyanError:
            return False  # the next attempt says it

    def _once(self, client: Client, items: Any, errors: Any, which: list[int], deadline: Deadline) -> dict[int, BanyanError]:
        """items: those numbered `which` of this array."""
        if not which:
            return {}
        sessions = {id(self.sessions[i]): self.sessions[i] for i in which}.values()
        try:
            with Entered([session.guard for session in sessions]):
                client.call(lib.banyan_attend, client.handle, items, len(which), int(deadline.attempt * 1e9), ffi.NULL)
        except BanyanError as error:
            return dict.fromkeys(which, error)
        return {i: from_c(items[j].code, errors[j]) for j, i in enumerate(which) if items[j].code != lib.BANYAN_OK}
