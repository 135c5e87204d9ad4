# SPDX-License-Identifier: Apache-2.0
"""Who may use the C client now: calls of any thread, until it is closed, in the process that made it."""

from __future__ import annotations

import os
from collections.abc import Callable

from .errors import Closed


class Guard:
    """Counts the calls under way. close() lets no new one in; what it is given runs when the last has left.

    No lock: a finaliser or a signal's handler may call it in the midst of itself. What is done to a list at once takes its place:
    a call first counts itself and then looks whether it may, close() first says that no call may and then looks whether one is
    counted; of what runs at the end there is one copy, and whoever takes it runs it.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        self._calls: list[None] = []  # one for each call under way
        self._turn: list[None] = [None]  # taken by the first close()
        self._closed: list[None] = []  # not empty when it is closed
        self._last: list[Callable[[], None]] = []

    @property
    def closed(self) -> bool:
        return bool(self._closed)

    @property
    def foreign(self) -> bool:
        """Whether this process was forked from the one that made it."""
        return os.getpid() != self._pid

    def enter(self) -> None:
        if self.foreign:
            raise Closed(f"this {self._what} belongs to another process, which this one was forked from: connect again after fork()")
        self._calls.append(None)
        if self._closed:
            self.leave()
            raise Closed(f"this {self._what} was closed")

    def leave(self) -> None:
        self._calls.pop()
        self._end()

    def close(self, last: Callable[[], None]) -> bool:
        """last: runs now, or in the thread of the last call under way. False: closed already, or of another process."""
        if self.foreign or not self._take_turn():
            return False
        self._last.append(last)
        self._closed.append(None)
        self._end()
        return True

    def _take_turn(self) -> bool:
        """Whether this is the first close()."""
        try:
            self._turn.pop()
        except IndexError:
            return False
        return True

    def _end(self) -> None:
        if self._closed and not self._calls:
            try:
                last = self._last.pop()
            except IndexError:
                return  # another thread has taken it
            last()
