# SPDX-License-Identifier: Apache-2.0
"""Sessions of caches that were not closed: the garbage collector hands them over, and a thread deletes them.

The collector may run anywhere, also within a call of the same client: it must not make one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading

from ..client import Client
from ..errors import BanyanError

_left: queue.SimpleQueue[tuple[Client, list[int]]] = queue.SimpleQueue()  # put() may be called by a finaliser, whatever it interrupts
_starting = threading.Lock()
_thread: tuple[int, threading.Thread] | None = None  # and the process that it is in


def _delete(client: Client, ids: list[int]) -> None:
    for session in ids:
        with contextlib.suppress(BanyanError):
            client.open(session).delete()


def _serve() -> None:
    while True:
        _delete(*_left.get())


def watch() -> None:
    """Called when sessions without a name are made, so that leave() need not start a thread."""
    global _thread
    with _starting:
        if _thread is None or _thread[0] != os.getpid():
            thread = threading.Thread(target=_serve, name="banyan-leftover", daemon=True)
            thread.start()
            _thread = os.getpid(), thread


def leave(client: Client, ids: list[int]) -> None:
    """These sessions are deleted soon. Makes no call and takes no lock. Ids, since the holds on them are
    collected as well."""
    _left.put((client, ids))


@atexit.register
def _last() -> None:
    while True:
        try:
            _delete(*_left.get_nowait())
        except queue.Empty:
            return
