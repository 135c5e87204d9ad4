# SPDX-License-Identifier: Apache-2.0
"""Who may use the C client now: calls of any thread, until it is closed, in the process that made it."""

from __future__ import annotations

import os
import threading

from .errors import Closed


class Guard:
    """Counts the calls under way. close() lets no new one in; wait() returns when the last has left."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        self._changed = threading.Condition(threading.Lock())
        self._calls = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def foreign(self) -> bool:
        """Whether this process was forked from the one that made it."""
        return os.getpid() != self._pid

    def enter(self) -> None:
        if self.foreign:
            raise Closed(f"this {self._what} belongs to the process that this one was forked from: connect anew after fork()")
        with self._changed:
            if self._closed:
                raise Closed(f"this {self._what} was closed")
            self._calls += 1

    def leave(self) -> None:
        with self._changed:
            self._calls -= 1
            if self._calls == 0 and self._closed:
                self._changed.notify_all()

    def close(self) -> bool:
        """False: it was closed already, or belongs to another process."""
        if self.foreign:
            return False
        with self._changed:
            first, self._closed = not self._closed, True
            return first

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._calls == 0)
