# SPDX-License-Identifier: Apache-2.0
"""A cluster and a llama-server as processes of a test, and a client of the server's HTTP."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any


class Cluster:
    """A coordinator and workers on unix sockets in a folder of their own."""

    def __init__(self, programs: Path, workers: int = 3):
        self._programs, self._workers = programs, workers
        self._folder = tempfile.TemporaryDirectory(prefix="banyan-llama-")
        self.folder = Path(self._folder.name)
        self.endpoint = f"unix://{self.folder}/c.sock"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._life = 0
        self.start()

    def start(self) -> None:
        """A new, empty cluster at the same endpoint."""
        self._life += 1
        life = self.folder / str(self._life)
        life.mkdir()
        (self.folder / "c.sock").unlink(missing_ok=True)
        common = [f"--secret-file={self.folder}/secret"]
        self._run(life / "coordinator", "banyan-coordinator", f"--listen={self.endpoint}", f"--store={life}/store.db", *common)
        for i in range(self._workers):
            self._run(
                life / f"worker-{i}", "banyan-worker", f"--name=worker-{i}", f"--coordinator={self.endpoint}", "--memory=1G", "--threads=1",
                f"--listen=unix://{life}/w{i}", f"--edge-listen=unix://{life}/e{i}", "--device=cpu", *common,
            )  # fmt: skip

    def _run(self, base: Path, program: str, *arguments: str) -> None:
        ready = base.with_suffix(".json")
        with open(base.with_suffix(".log"), "wb") as log:
            process = subprocess.Popen(
                [self._programs / program, *arguments, f"--ready-file={ready}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._processes.append(process)
        end = time.monotonic() + 60
        while not ready.is_file():
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{program} is not ready:\n{base.with_suffix('.log').read_text()[-2000:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        """All of it, as when its machines lose power."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def close(self) -> None:
        self.kill()
        self._folder.cleanup()

    def sessions(self) -> int:
        out = subprocess.run(
            [self._programs / "banyanctl", "sessions", "--json"], env={**os.environ, "BANYAN_ENDPOINT": self.endpoint}, check=True, capture_output=True
        ).stdout
        return len(json.loads(out))


class Server:
    """A llama-server. `endpoint` None: plain llama.cpp."""

    def __init__(self, program: Path, model: Path, *arguments: str, plugin: Path | None = None, endpoint: str | None = None, **environment: str):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._log = tempfile.NamedTemporaryFile(mode="w+", prefix="llama-server-", suffix=".log")
        command = [program, "-m", model, "--host", "127.0.0.1", "--port", str(self.port), "-t", "1", "-ub", "64", "--swa-full", "--no-warmup", *arguments]
        command += ["-dev", "Banyan0", "-ngl", "99", "-ot", ".*=CPU", "-fa", "on"] if plugin else ["-dev", "none", "-fa", "off"]
        env = {**os.environ, **environment}
        if plugin:
            env["GGML_BACKEND_PATH"] = str(plugin)
            env["BANYAN_ENDPOINT"] = str(endpoint)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=env)
        end = time.monotonic() + 180
        while self.ask("GET", "/health")[0] != 200:
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"llama-server is not ready (status {self._process.poll()}):\n{self.log()[-3000:]}")
            time.sleep(0.1)

    def log(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float = 300) -> tuple[int, Any]:
        """(status, what was answered as JSON); status 0: no connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        except (ConnectionError, http.client.HTTPException):
            return 0, None
        finally:
            connection.close()

    def complete(self, prompt: str, count: int = 12, **more: Any) -> tuple[int, Any]:
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "n_probs": 3, "ignore_eos": True, "cache_prompt": True, **more}
        return self.ask("POST", "/completion", body)

    def begin_and_leave(self, prompt: str, pieces: int) -> None:
        """Begins a long completion, reads some pieces of its stream (0: not even the status), and closes the
        connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        body = {"prompt": prompt, "n_predict": 400, "temperature": 0, "stream": True, "ignore_eos": True}
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        if pieces:
            answer = connection.getresponse()
            for _ in range(2 * pieces):
                answer.readline()
        else:
            time.sleep(0.3)
        connection.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
