# SPDX-License-Identifier: Apache-2.0
"""What a cluster's trouble costs: at most the requests that need what is away, after the deadline. Never the
engine, nor a wrong token."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import models
import pytest
import texts
from engine import Engine, Output, wait_for

import banyan

PROMPTS = texts.prompts(40, 90, 150, 210)
NEW = 200  # long enough that something can happen in the middle


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return models.make(folder, "llama")


@pytest.fixture(scope="module")
def want(model: Path) -> list[Output]:
    with Engine(model) as engine:
        return engine.generate(PROMPTS, NEW)


@pytest.fixture
def own() -> Iterator[banyan.LocalCluster]:
    """A cluster that a test may harm."""
    with banyan.local_cluster(workers=4, memory="256M", threads=1) as cluster:
        yield cluster


def engine_of(model: Path, cluster: banyan.LocalCluster, **environment: str) -> Engine:
    return Engine(model, {"BANYAN_ENDPOINT": cluster.endpoint, "BANYAN_RETRY_SECONDS": "4", **environment})


def in_the_middle(engine: Engine, cluster: banyan.LocalCluster, harm: Callable[[banyan.Client], None], n: int = NEW) -> list[Output]:
    """Starts all prompts, does harm when each has a session with some tokens of the answer, and returns the
    answers."""
    with cluster.connect() as client:
        engine.ask("generate", PROMPTS, n)
        lengths = sorted(len(prompt) + 8 for prompt in PROMPTS)

        def under_way() -> bool:
            assert not engine.answered(), "it has answered before anything could happen"
            found = sorted(info.length for info in client.sessions())
            return len(found) == len(lengths) and all(a >= b for a, b in zip(found, lengths))

        wait_for(under_way)
        harm(client)
    answers: list[Output] = engine.answer()
    return answers


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def go_on(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("who", ["coordinator", "worker-0"])
def test_a_stall_costs_nothing(who: str, model: Path, want: list[Output], own: banyan.LocalCluster) -> None:
    """2 s without an answer: every request is answered, with equal tokens."""

    def harm(_: banyan.Client) -> None:
        stop(own.pid(who))
        time.sleep(2)
        go_on(own.pid(who))

    with engine_of(model, own, BANYAN_RETRY_SECONDS="60") as engine:
        texts.compare(want, in_the_middle(engine, own, harm))


def test_a_coordinator_that_is_killed(model: Path, want: list[Output], own: banyan.LocalCluster) -> None:
    """Killed and started again on its store: every request is answered, with equal tokens."""

    def harm(_: banyan.Client) -> None:
        own.kill("coordinator")
        own.start_coordinator()

    with engine_of(model, own, BANYAN_RETRY_SECONDS="60") as engine:
        texts.compare(want, in_the_middle(engine, own, harm))


def test_a_frozen_coordinator(model: Path, want: list[Output], own: banyan.LocalCluster) -> None:
    """Beyond the deadline the requests fail, with what they had; the engine goes on, and the next ones are
    answered."""
    with engine_of(model, own) as engine:
        answers = in_the_middle(engine, own, lambda _: stop(own.pid("coordinator")))
        go_on(own.pid("coordinator"))
        assert [out.finish for out in answers] == ["error"] * len(PROMPTS)
        for a, b in zip(want, answers):
            assert 0 < len(b.tokens) < NEW
            assert a.tokens[: len(b.tokens)] == b.tokens, "what was delivered before is right"
        texts.compare(want, engine.generate(PROMPTS, NEW))


def test_an_error_in_the_first_step_delivers_no_token(model: Path, want: list[Output], own: banyan.LocalCluster) -> None:
    with engine_of(model, own) as engine:
        stop(own.pid("coordinator"))
        answers = engine.generate(PROMPTS[:2], NEW)
        go_on(own.pid("coordinator"))
        assert [(out.finish, out.tokens) for out in answers] == [("error", [])] * 2
        texts.compare(want, engine.generate(PROMPTS, NEW))


def holder(client: banyan.Client, n: int) -> tuple[str, set[int]]:
    """A worker that holds some sessions and not all, and the lengths' order of those that it holds."""
    sessions = sorted(client.sessions(), key=lambda info: info.length)
    assert len(sessions) == n
    held = [set(client.open(info.id).info().members) for info in sessions]
    for worker in sorted(set.union(*held)):
        mine = {i for i, members in enumerate(held) if worker in members}
        if 0 < len(mine) < n:
            return worker, mine
    raise AssertionError(f"each worker holds all sessions: {held}")


def test_a_killed_worker_with_one_copy(model: Path, want: list[Output], own: banyan.LocalCluster) -> None:
    """The requests whose rows it had fail; the others are answered, with equal tokens."""
    lost: set[int] = set()

    def harm(client: banyan.Client) -> None:
        worker, mine = holder(client, len(PROMPTS))
        lost.update(mine)
        own.kill(worker)

    with engine_of(model, own, BANYAN_REPLICAS="1") as engine:
        answers = in_the_middle(engine, own, harm)
        assert {i for i, out in enumerate(answers) if out.finish == "error"} == lost
        alive = [i for i in range(len(PROMPTS)) if i not in lost]
        texts.compare([want[i] for i in alive], [answers[i] for i in alive])
        texts.compare(want, engine.generate(PROMPTS, NEW))


def test_a_killed_worker_with_two_copies(model: Path, want: list[Output], own: banyan.LocalCluster) -> None:
    """No request fails."""

    def harm(client: banyan.Client) -> None:
        own.kill(holder(client, len(PROMPTS))[0])

    with engine_of(model, own, BANYAN_REPLICAS="2", BANYAN_RETRY_SECONDS="60") as engine:
        texts.compare(want, in_the_middle(engine, own, harm))


def test_a_cluster_without_room(model: Path, want: list[Output], folder: Path) -> None:
    """What does not fit is refused, and only that: the engine goes on."""
    with banyan.local_cluster(workers=1, memory="16M", threads=1) as small, engine_of(models.make(folder, "long"), small) as engine:
        tight = engine.generate(texts.prompts(2000, 2000, 2000, 2000), 4, logprobs=None)
        assert "error" in {out.finish for out in tight}
        assert engine.generate(texts.prompts(20), 4)[0].finish == "length"
