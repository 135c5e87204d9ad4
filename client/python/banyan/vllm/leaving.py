# SPDX-License-Identifier: Apache-2.0
"""Rows on their way from the engine to the cluster: a step hands them over and goes on, threads send them.

    step          hand()    copies are put behind what their session has yet to get
    thread        sends them, in each session's order; one session's trouble holds up no other one's
    later step    wait()    until a session has so much: where the window moves past it, for a fork, after a
    preemption

What is on its way is bounded: hand() waits while it is more than MOST bytes. An error ends what its session
has yet to get; error() and wait() have it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..errors import DeadlineExceeded

MOST = 256 << 20  # bytes on their way
THREADS = 4


@dataclass
class Load:
    """Rows of a session up to `end`. send: blocks until they are there, or raises; bytes: that it keeps in
    memory.
    """

    end: int
    bytes: int
    send: Callable[[], None]


@dataclass(eq=False)
class Lane:
    """What one session has yet to get; its fields are Leaving's.

    Attributes:
        done: up to where it has got everything.
        error: why the rest does not come; None: it comes.
        last: what is done once at the end, when nothing is left; None: more may come.
    """

    done: int = 0
    error: Exception | None = None
    last: Callable[[], None] | None = None
    _loads: deque[Load] = field(default_factory=deque)
    _running: bool = False
    _ended: bool = False


class Leaving:
    """Of one worker. Thread-safe.

    Args:
        most: bytes on their way, above which hand() waits.
        log: takes a sentence.
    """

    def __init__(self, log: Callable[[str], None], most: int = MOST, threads: int = THREADS) -> None:
        self._log, self._most, self._limit = log, most, threads
        self._changed = threading.Condition()
        self._ready: deque[Lane] = deque()
        self._threads: list[threading.Thread] = []
        self._bytes = self._active = 0
        self._stopping = False

    def hand(self, lane: Lane, load: Load, seconds: float) -> None:
        """Blocks only while too much is on its way. Raises DeadlineExceeded, or the lane's error."""
        with self._changed:
            room = self._changed.wait_for(lambda: not self._bytes or self._bytes + load.bytes <= self._most, seconds)
            if lane.error is not None:
                raise lane.error
            if not room:
                raise DeadlineExceeded(f"the cluster has not taken {self._bytes >> 20} MiB within {seconds:g} s")
            lane._loads.append(load)
            self._bytes += load.bytes
            self._wake(lane)

    def wait(self, lane: Lane, end: int, seconds: float) -> None:
        """Until its session has everything up to `end`. Raises DeadlineExceeded, or the lane's error."""
        with self._changed:
            self._changed.wait_for(lambda: lane.done >= end or lane.error is not None, seconds)
            if lane.error is not None:
                raise lane.error
            if lane.done < end:
                raise DeadlineExceeded(f"tokens {lane.done} to {end} have not reached the cluster within {seconds:g} s")

    def end(self, lane: Lane, last: Callable[[], None], drop: bool) -> bool:
        """No more comes; `last` is called in a thread when the rest has been sent, or is dropped. Whether
        something was on its way.
        """
        with self._changed:
            busy = bool(lane._loads) or lane._running
            lane.last = last
            if drop:
                self._drop(lane)
            self._wake(lane)
            return busy

    def ended(self, lane: Lane, seconds: float = 0.0) -> bool:
        """Whether all of it is over, its `last` too; waits for that so long."""
        with self._changed:
            return self._changed.wait_for(lambda: lane._ended, seconds)

    def stop(self, seconds: float) -> None:
        """Waits so long for what is on its way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._ready and not self._active, seconds)
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(0.1)

    def _drop(self, lane: Lane) -> None:
        self._bytes -= sum(load.bytes for load in lane._loads)
        lane._loads.clear()
        self._changed.notify_all()

    def _wake(self, lane: Lane) -> None:
        if lane._running or lane in self._ready:
            return
        self._ready.append(lane)
        if len(self._threads) < self._limit and len(self._ready) + self._active > len(self._threads):
            self._threads.append(threading.Thread(target=self._run, name="banyan-leaving", daemon=True))
            self._threads[-1].start()
        self._changed.notify_all()

    def _run(self) -> None:
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._ready or self._stopping)
                if self._stopping:
                    return
                lane = self._ready.popleft()
                self._active += 1
                lane._running = True
                self._one(lane)
                lane._running = False
                self._active -= 1
                if lane._loads or (lane.last is not None and not lane._ended):
                    self._wake(lane)
                self._changed.notify_all()

    def _one(self, lane: Lane) -> None:
        """The lane's next load, or its end. Holds the lock before and after, not meanwhile."""
        load = lane._loads.popleft() if lane._loads else None
        last = lane.last if load is None and not lane._ended else None
        self._changed.release()
        error: Exception | None = None
        try:
            if load is not None:
                load.send()
            elif last is not None:
                last()
        except Exception as caught:
            error = caught.with_traceback(None)  # whose frames hold the rows
        finally:
            self._changed.acquire()
        if load is None:
            lane._ended = lane._ended or last is not None
            if error is not None:
                self._log(f"the end of a session: {error}")
            return
        self._bytes -= load.bytes
        if error is None:
            lane.done = load.end
        else:
            lane.error = error
            self._drop(lane)
