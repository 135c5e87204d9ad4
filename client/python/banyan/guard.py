# SPDX-License-Identifier: Apache-2.0
"""Guards the C client: calls from any thread may use it until it is closed, in the process that created it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from .errors import Closed


class Guard:
    """Counts the calls in progress. After close() no new one may enter; its argument runs when the last one has left.

    The garbage collector may run anywhere and close a session or a cache there, so the same thread may call these functions
    again in the middle of any of them. The lock is therefore reentrant, and the count is raised before the guard is checked
    for being closed. Ctrl-C may also arrive anywhere: an enter() that raises has counted nothing.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._calls = 0
        self._closed = False
        self._last: Callable[[], None] | None = None

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def foreign(self) -> bool:
        """Whether this process was forked from the one that created it."""
        return os.getpid() != self._pid

    def enter(self) -> None:
        if self.foreign:
            raise Closed(f"this {self._what} belongs to the process that this one was forked from: create a new Client after fork()")
        counted = False
        try:
            with self._lock:
                self._calls += 1
                counted = True
                if self._closed:
                    raise Closed(f"this {self._what} was closed")
        except BaseException:
            if counted:
                self.leave()
            raise

    def leave(self) -> None:
        last = None
        with self._lock:
            self._calls -= 1
            if self._calls == 0:
                last, self._last = self._last, None
        if last is not None:
            last()

    def close(self, last: Callable[[], None]) -> bool:
        """last: runs now, or in the thread of the last call in progress. False: already closed, or of another process."""
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
