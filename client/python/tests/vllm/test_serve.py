# SPDX-License-Identifier: Apache-2.0
"""vLLM's API server over a cluster, as its clients see it."""

from __future__ import annotations

import concurrent.futures
import ctypes
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
from engine import Engine, wait_for
from transformers import AutoTokenizer

import banyan

TEXT = (
    "In the days when the judges ruled there was a famine in the land. A man of Bethlehem went to live in the country of Moab, "
    "he and his wife Naomi and his two sons. He died there, and Naomi was left with her two sons, who took wives: Orpah and Ruth. "
) * 3  # fmt: skip
QUESTIONS = [f"{TEXT}\nQuestion {i}: what happened in the land in year {i}?\nAnswer:" for i in range(8)]
NEW = 24


def die_with_parent() -> None:
    """A server does not outlive a test that was killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


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
            self.process = subprocess.Popen(
                words, env=clean | more | environment, stdout=log, stderr=log, start_new_session=True, preexec_fn=die_with_parent
            )
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

    def ask(self, prompt: list[int], n: int = NEW, session: str | None = None, **more: Any) -> tuple[int, dict[str, Any]]:
        headers = {"X-Session-ID": session} if session else {}
        body = {"model": "m", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}
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


def tokens_of(said: dict[str, Any]) -> list[int]:
    found: list[int] = said["choices"][0]["token_ids"]
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


@pytest.fixture(scope="module")
def prompts(model: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(model)
    return [tokenizer(question).input_ids for question in QUESTIONS]


@pytest.fixture(scope="module")
def want(model: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Plain vLLM's answers."""
    with Engine(model, max_num_batched_tokens=2048) as engine:
        return [out.tokens for out in engine.generate(prompts, NEW, logprobs=None)]


def test_a_conversation_and_what_harms_it(
    model: Path, prompts: list[list[int]], want: list[list[int]], own: banyan.LocalCluster, tmp_path: Path
) -> None:
    environment = {"BANYAN_ENDPOINT": own.endpoint, "BANYAN_RETRY_SECONDS": "3"}
    server = Server(model, tmp_path, environment)
    try:
        eight_at_once(server, prompts, want)
        one_that_hangs_up(server, prompts[0], own)
        so_far = a_turn(server, prompts[0])
        server.kill()
        server = Server(model, tmp_path, environment)
        the_next_turn(server, so_far)
        a_cluster_that_is_away(server, own, prompts[1], want[1])
    finally:
        server.kill()


def eight_at_once(server: Server, prompts: list[list[int]], want: list[list[int]]) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(server.ask, prompts))
    assert [status for status, _ in answers] == [200] * 8
    assert [tokens_of(said) for _, said in answers] == want


def one_that_hangs_up(server: Server, prompt: list[int], own: banyan.LocalCluster) -> None:
    """A client that goes away in the middle: its session is deleted without another request."""
    with own.connect() as client:
        before = {info.id for info in client.sessions()}
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        body = {"model": "m", "prompt": prompt, "max_tokens": 2000, "temperature": 0, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read(64)
        mine = {info.id for info in client.sessions()} - before
        assert len(mine) == 1
        answer.close()
        connection.close()
        begin = time.monotonic()
        wait_for(lambda: not mine & {info.id for info in client.sessions()}, 60, 0.05)
        print(f"deleted {time.monotonic() - begin:.2f} s after the client had gone")


def a_turn(server: Server, prompt: list[int]) -> list[int]:
    status, said = server.ask(prompt, session="talk")
    assert status == 200 and cached(said) == 0
    return [*prompt, *tokens_of(said)]


def the_next_turn(server: Server, so_far: list[int]) -> None:
    """Of a server that was started again: the session has everything but what the last step chose."""
    prompt = [*so_far, *so_far[:9]]
    status, said = server.ask(prompt, session="talk")
    assert (status, cached(said)) == (200, len(so_far) - 1)
    status, again = server.ask(prompt)
    assert status == 200 and cached(again) == 0 and tokens_of(again) == tokens_of(said)
    status, other = server.ask(prompt, session="other")
    assert status == 200 and cached(other) == 0


def a_cluster_that_is_away(server: Server, own: banyan.LocalCluster, prompt: list[int], want: list[int]) -> None:
    """500 after the deadline, then 200."""
    os.kill(own.pid("coordinator"), signal.SIGSTOP)
    try:
        status, said = server.ask(prompt)
        assert status == 500, said
    finally:
        os.kill(own.pid("coordinator"), signal.SIGCONT)
    status, said = server.ask(prompt)
    assert (status, tokens_of(said)) == (200, want)
