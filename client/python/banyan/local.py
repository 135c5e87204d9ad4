# SPDX-License-Identifier: Apache-2.0
"""A cluster on this machine, for notebooks and tests: real daemons that stop with the object or the interpreter.

A killed interpreter cannot stop anything itself. The daemons' standard input is therefore a pipe that only this process
holds open, and they stop when it closes (--stop-on-eof), however the process ended. PR_SET_PDEATHSIG would not do: it
depends on the thread that started them.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from . import programs
from .client import Client
from .errors import InvalidArgument, Unavailable

_clusters: weakref.WeakSet[LocalCluster] = weakref.WeakSet()


def _stop_all() -> None:
    for cluster in list(_clusters):
        cluster.stop()


def _let_go_all() -> None:
    """In a forked process: it must not keep its parent's daemons alive."""
    for cluster in list(_clusters):
        cluster._let_go()


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_let_go_all)


class LocalCluster:
    """A coordinator and workers in their own folder, on unix sockets and loopback.

    The daemons stop with stop(), with the `with` block, or with this process, even if it is killed; then a temporary
    folder stays behind. The object cannot be used in a process forked from this one.

    Args:
        workers: number of worker processes.
        memory: for each, in the format of banyan-worker --memory.
        threads: compute threads for each; 0: the cores divided between them.
        folder: for store, sockets and logs, kept afterwards; None: a temporary one, removed at the end.
        coordinator_args, worker_args: further arguments for the daemons.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        memory: str = "1G",
        threads: int = 0,
        folder: str | os.PathLike[str] | None = None,
        coordinator_args: Sequence[str] = (),
        worker_args: Sequence[str] = (),
    ) -> None:
        if workers < 1:
            raise InvalidArgument(f"{workers} workers: at least one is needed")
        self._pid = os.getpid()
        self._keep = folder is not None
        self.folder = Path(folder if folder is not None else tempfile.mkdtemp(prefix="banyan-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._memory = memory
        self._threads = threads or max(1, len(os.sched_getaffinity(0)) // workers)
        self._coordinator_args, self._worker_args = list(coordinator_args), list(worker_args)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._leash: tuple[int, ...] = ()  # while there are daemons: what they read, and the other end, which only this process has
        self.endpoint = f"unix://{self.folder}/c.sock"
        if len(self.endpoint) > 100:
            raise InvalidArgument(f"{self.folder}: its name is too long for a unix socket, of at most 107 characters")
        _clusters.add(self)
        try:
            self.start_coordinator()
            for i in range(workers):
                self.start_worker(i)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def connect(self, **options: Any) -> Client:
        """Connects a new client: see Client."""
        return Client(self.endpoint, **options)

    def start_coordinator(self) -> None:
        """Starts the coordinator, on the same store after it was stopped or killed."""
        self._start(
            "coordinator", "banyan-coordinator", f"--listen={self.endpoint}", f"--store={self.folder}/store.db",
            f"--secret-file={self.folder}/secret", *self._coordinator_args,
        )  # fmt: skip

    def start_worker(self, i: int) -> None:
        self._start(
            f"worker-{i}", "banyan-worker", f"--name=worker-{i}", f"--coordinator={self.endpoint}",
            f"--secret-file={self.folder}/secret", f"--memory={self._memory}", f"--threads={self._threads}",
            f"--listen=unix://{self.folder}/w{i}.sock", f"--edge-listen=unix://{self.folder}/e{i}.sock", "--device=cpu",
            *self._worker_args,
        )  # fmt: skip

    def _start(self, name: str, program: str, *arguments: str) -> None:
        ready = self.folder / f"{name}.json"
        ready.unlink(missing_ok=True)
        self._leash = self._leash or os.pipe()
        path = self.folder / f"{name}.log"
        with open(path, "ab") as log:
            process = subprocess.Popen(
                [programs.find(program), *arguments, f"--ready-file={ready}", "--stop-on-eof"], stdin=self._leash[0], stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        self._processes[name] = process
        end = time.monotonic() + 60
        while not ready.is_file():
            if process.poll() is not None or time.monotonic() > end:
                tail = path.read_text(errors="replace")[-2000:]
                raise Unavailable(f"{program} {'ended' if process.poll() is not None else 'is not ready after 60 s'}:\n{tail}")
            time.sleep(0.005)

    def pid(self, name: str) -> int:
        """The process of "coordinator" or "worker-0", "worker-1", …"""
        return self._processes[name].pid

    def kill(self, name: str) -> None:
        """Kills a daemon (SIGKILL) and waits until it is gone."""
        process = self._processes[name]
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Stops the daemons; their data is gone, unless `folder` was given: then the store is kept."""
        if os.getpid() != self._pid:
            return
        processes, self._processes = list(self._processes.values()), {}
        for process in reversed(processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 10
        for process in processes:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._let_go()
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _let_go(self) -> None:
        ends, self._leash = self._leash, ()
        for end in ends:
            os.close(end)

    def ready(self, name: str) -> dict[str, Any]:
        """The daemon's ready file: endpoints and pid."""
        found: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        return found


def local_cluster(workers: int = 2, **options: Any) -> LocalCluster:
    """Starts a cluster on this machine: see LocalCluster.

    >>> with local_cluster(workers=2, memory="64M") as own, own.connect() as client:
    ...     len(client.cluster().workers)
    2
    """
    return LocalCluster(workers, **options)
