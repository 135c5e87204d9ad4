# SPDX-License-Identifier: Apache-2.0
"""Who may use the C client now: calls of any thread, until it is closed, in the process that made it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from .errors import Closed


class Guard:
    """Counts the calls under way. close() lets no new one in; what it is given runs when the last has left."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._calls = 0
        self._closed = False
        self._last: Callable[[], None] | None = None

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def foreign(self) -> bool:
        """Whether this process was forked from the one that made it."""
        return os.getpid() != self._pid

    def enter(self) -> None:
        if self.foreign:
            raise Closed(f"this {self._what} belongs to another process, which this one was forked from: connect anew after fork()")
        with self._lock:
            if self._closed:
                raise Closed(f"this {self._what} was closed")
            self._calls += 1

    def leave(self) -> None:
        with self._lock:
            self._calls -= 1
            last, self._last = (self._last, None) if self._calls == 0 else (None, self._last)
        if last is not None:
            last()

    def close(self, last: Callable[[], None]) -> bool:
        """last: runs now, or in the thread of the last call under way. False: closed already, or of another process."""
        if self.foreign:
            return False
        with self._lock:
            if self._closed:
                return False
            self._closed = True
            if self._calls:
                self._last = last
                return True
        last()
        return True
