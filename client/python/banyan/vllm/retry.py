# SPDX-License-Identifier: Apache-2.0
"""Calls that are repeated while the cluster does not answer, within a deadline.

Every call of the service may be sent again: an append of the same bytes at the same place is done once. A
worker that was away for two seconds must therefore cost no request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from ..client import Client
from ..errors import Aborted, BanyanError, Closed, DeadlineExceeded, Unavailable
from .config import Settings

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5  # seconds


def passing(error: BaseException) -> bool:
    """Whether the same call may succeed a little later."""
    return isinstance(error, (Unavailable, DeadlineExceeded, Aborted)) and not isinstance(error, Closed)


class Deadline:
    """Some seconds from now; pauses between attempts grow, and end with it.

    clock, sleep: seams for tests.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self._clock, self._sleep = clock, sleep
        self._end = clock() + seconds
        self._pause = FIRST_PAUSE

    @property
    def left(self) -> float:
        return max(0.0, self._end - self._clock())

    @property
    def attempt(self) -> float:
        """Timeout of the next attempt, in seconds: all that is left. A prefill's call may take long though
        nothing is amiss."""
        return max(0.05, self.left)

    def pause(self) -> bool:
        """Waits before the next attempt. False: there is no time for one."""
        left = self.left
        if left <= 0:
            return False
        self._sleep(min(self._pause, left))
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True


def connect(settings: Settings) -> Client:
    """A client whose calls wait as long as they are repeated."""
    return Client(settings.endpoint, timeout=max(0.1, settings.retry_s), **settings.files)  # type: ignore[arg-type]


def persist(call: Callable[[], T], deadline: Deadline) -> T:
    """call(), again while it fails in passing and there is time. Raises its last error."""
    while True:
        try:
            return call()
        except BanyanError as error:
            if not passing(error) or not deadline.pause():
                raise
