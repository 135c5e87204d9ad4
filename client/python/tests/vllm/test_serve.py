# SPDX-License-Identifier: Apache-2.0
"""vLLM's API server over a cluster, as its clients see it."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import pytest
from engine import wait_for

import banyan

TEXT = (
    "In the days when the judges ruled there was a famine in the land. A man of Bethlehem went to live in the country of Moab, "
    "he and his wife Naomi and his two sons. He died there, and Naomi was left with her two sons, who took wives: Orpah and Ruth. "
) * 8  # fmt: skip


class Server:
    """An API server in a process group of its own, with its log in a file."""

    def __init__(self, model: Path, folder: Path, environment: dict[str, str], *flags: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = folder / f"server-{self.port}.log"
        words = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "m",
            "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32", "--max-model-len", "4096",
            "--max-num-seqs", "8", "--enforce-eager", "--enable-prompt-tokens-details", "--enable-server-load-tracking", *flags,
        ]  # fmt: skip
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith("BANYAN_") or name in ("BANYAN_LIBRARY", "BANYAN_BIN")
        }
        more = {"TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(words, env=clean | more | environment, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_for(self.ready, pause=0.25)
        except BaseException:
            self.kill()
            raise

    def ready(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log.read_text(errors='replace')[-4000:]}")
        try:
            return self.get("/health")[0] == 200
        except OSError:
            return False

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            connection.request(
                method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json", **(headers or {})}
            )
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, bytes]:
        return self.request("GET", path)

    def ask(self, prompt: str, n: int = 24, session: str | None = None, **more: Any) -> tuple[int, dict[str, Any]]:
        headers = {"X-Session-ID": session} if session else {}
        body = {"model": "m", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, **more}
        status, said = self.request("POST", "/v1/completions", body, headers)
        found: dict[str, Any] = json.loads(said)
        return status, found

    def kill(self) -> None:
        """kill -9 of the server and of its engine, at once."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def text_of(said: dict[str, Any]) -> str:
    found: str = said["choices"][0]["text"]
    return found


def cached(said: dict[str, Any]) -> int:
    details = said["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


@pytest.fixture(scope="module")
def model() -> Path:
    return models.smollm2()


@pytest.fixture
def own() -> Iterator[banyan.LocalCluster]:
    with banyan.local_cluster(workers=4, memory="512M", threads=1) as cluster:
        yield cluster


QUESTIONS = [f"{TEXT}\nQuestion {i}: what happened in the land in year {i}?\nAnswer:" for i in range(8)]


@pytest.fixture(scope="module")
def want(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Plain vLLM's answers."""
    server = Server(model, tmp_path_factory.mktemp("plain"), {}, "--no-enable-prefix-caching")
    try:
        return [text_of(server.ask(question)[1]) for question in QUESTIONS]
    finally:
        server.kill()


def test_a_conversation_and_what_harms_it(model: Path, want: list[str], own: banyan.LocalCluster, tmp_path: Path) -> None:
    environment = {"BANYAN_ENDPOINT": own.endpoint, "BANYAN_RETRY_SECONDS": "3"}
    server = Server(model, tmp_path, environment)
    try:
        eight_at_once(server, want)
        one_that_hangs_up(server, own)
        first = a_turn(server)
        server.kill()
        server = Server(model, tmp_path, environment)
        the_next_turn(server, first)
        a_cluster_that_is_away(server, own, want)
    finally:
        server.kill()


def eight_at_once(server: Server, want: list[str]) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(server.ask, QUESTIONS))
    assert [status for status, _ in answers] == [200] * 8
    assert [text_of(said) for _, said in answers] == want


def one_that_hangs_up(server: Server, own: banyan.LocalCluster) -> None:
    """A client that goes away in the middle: its session is deleted without another request."""
    with own.connect() as client:
        before = {info.id for info in client.sessions()}
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        body = {"model": "m", "prompt": QUESTIONS[0], "max_tokens": 2000, "temperature": 0, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        connection.getresponse().read(64)
        mine = {info.id for info in client.sessions()} - before
        assert len(mine) == 1
        connection.sock.close() if connection.sock else None
        connection.close()
        begin = time.monotonic()
        wait_for(lambda: not mine & {info.id for info in client.sessions()}, 60, 0.05)
        print(f"deleted {time.monotonic() - begin:.2f} s after the client had gone")


def a_turn(server: Server) -> str:
    status, said = server.ask(QUESTIONS[0], session="talk")
    assert status == 200 and cached(said) == 0
    return QUESTIONS[0] + text_of(said)


def the_next_turn(server: Server, so_far: str) -> None:
    """Of a server that was started again: the session has everything but what the last step chose."""
    prompt = so_far + "\nAnd then?"
    status, said = server.ask(prompt, session="talk")
    assert status == 200
    fresh = said["usage"]["prompt_tokens"] - cached(said)
    assert 0 < fresh <= 12, f"{fresh} tokens of {said['usage']['prompt_tokens']} were computed"
    status, again = server.ask(prompt)
    assert status == 200 and cached(again) == 0 and text_of(again) == text_of(said)
    status, other = server.ask(prompt, session="other")
    assert status == 200 and cached(other) == 0


def a_cluster_that_is_away(server: Server, own: banyan.LocalCluster, want: list[str]) -> None:
    """500 after the deadline, then 200."""
    os.kill(own.pid("coordinator"), signal.SIGSTOP)
    try:
        status, said = server.ask(QUESTIONS[1])
        assert status == 500, said
    finally:
        os.kill(own.pid("coordinator"), signal.SIGCONT)
    status, said = server.ask(QUESTIONS[1])
    assert (status, text_of(said)) == (200, want[1])
