# SPDX-License-Identifier: Apache-2.0
"""Guards the C client: calls from any thread may use it until it is closed, in the process that created it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .errors import Closed


class Guard:
    """Holds the calls in progress. close() lets no new one in; its argument runs when the last one has left.

        with guard.entered():
            …                   # a call

    The garbage collector may run anywhere and close a session or a cache there, so the same thread may call these functions
    again in the middle of any of them. The lock is therefore reentrant, and a call is held before the guard is checked for
    being closed. Ctrl-C may also arrive anywhere: before, in and after each of them. So calls are held by weak references:
    whatever ends a call, it has left as soon as nothing refers to it; leave() of a call that has not entered does nothing.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._calls: set[weakref.ref[Any]] = set()
        self._closed = False
        self._last: Callable[[], None] | None = None

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def foreign(self) -> bool:
        """Whether this process was forked from the one that created it."""
        return os.getpid() != self._pid

    def entered(self) -> Entered:
        return Entered([self])

    def enter(self, call: Any) -> None:
        """call: stands for one call; it has left after leave(call), or when nothing refers to it."""
        if self.foreign:
            raise Closed(f"this {self._what} belongs to the process that this one was forked from: create a new Client after fork()")
        try:
            with self._lock:
                self._calls.add(weakref.ref(call, self._left))
                if self._closed:
                    raise Closed(f"this {self._what} was closed")
        except BaseException:
            self.leave(call)
            raise

    def leave(self, call: Any) -> None:
        self._left(weakref.ref(call))

    def _left(self, call: weakref.ref[Any]) -> None:
        if self.foreign:  # whose threads are not here: one of them may have had the lock
            return
        last = None
        with self._lock:
            if call not in self._calls:
                return
            self._calls.remove(call)
            if not self._calls:
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


class Entered:
    """A context manager: a call is in progress over all of these. enter() raises Closed where one is closed."""

    __slots__ = ("__weakref__", "_guards")

    def __init__(self, guards: list[Guard]) -> None:
        self._guards = guards

    def enter(self) -> None:
        try:
            for guard in self._guards:
                guard.enter(self)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        for guard in self._guards:
            guard.leave(self)

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *error: Any) -> None:
        self.leave()
