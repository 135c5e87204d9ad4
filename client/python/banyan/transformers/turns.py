# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: one thread at a time works with a cache, or with a model that keeps a part of a text in
its modules.

    generate(), prefill()   hold "call" from the comparison of the text to the last token
    a forward               holds "forward"; an interrupt may leave it held: its thread takes it again

Others wait, for a moment: a streamer's reader may be ahead of the end of its generate().
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .refused import Refused

PATIENCE = 10.0  # seconds


class Turn:
    def __init__(self, what: str) -> None:
        self._what = what
        self._changed = threading.Condition()
        self._held: dict[str, int] = {}  # by which thread

    def _other(self) -> int | None:
        """Another thread that is at work here."""
        mine = threading.get_ident()
        for name, holder in list(self._held.items()):
            if holder != mine:
                if holder in sys._current_frames():
                    return holder
                del self._held[name]  # it has ended
        return None

    def _wait(self) -> None:
        end = time.monotonic() + PATIENCE
        while self._other() is not None:
            left = end - time.monotonic()
            if left <= 0:
                raise Refused(f"another thread is at work with {self._what}")
            self._changed.wait(min(left, 0.1))  # the end of a thread wakes no one

    def check(self) -> None:
        """Returns when no other thread is at work here."""
        mine = threading.get_ident()
        if any(holder != mine for holder in self._held.values()):
            with self._changed:
                self._wait()

    def take(self, name: str) -> bool:
        """Whether the thread did not hold it before."""
        with self._changed:
            self._wait()
            new = name not in self._held
            self._held[name] = threading.get_ident()
            return new

    def leave(self, name: str) -> None:
        """Nothing if another thread holds it."""
        with self._changed:
            if self._held.get(name) == threading.get_ident():
                del self._held[name]
                self._changed.notify_all()

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        new = self.take(name)
        try:
            yield
        finally:
            if new:
                self.leave(name)
