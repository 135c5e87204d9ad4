# SPDX-License-Identifier: Apache-2.0
"""BANYAN_WINDOW: the last tokens in the engine, older ones in the cluster. That answers are the same is in
test_same.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import models
import pytest
import texts
from engine import Engine, wait_for

import banyan

RECENT, NEW = 640, 24
SHORT, LONG = texts.prompts(300, 1400)


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return models.make(folder, "llama")


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[Engine]:
    with Engine(model) as engine:
        yield engine


@pytest.fixture
def own() -> Iterator[banyan.LocalCluster]:
    with banyan.local_cluster(workers=2, memory="256M", threads=1) as cluster:
        yield cluster


def engine_of(model: Path, cluster: banyan.LocalCluster, **environment: str) -> Engine:
    return Engine(model, {"BANYAN_ENDPOINT": cluster.endpoint, "BANYAN_WINDOW": str(RECENT), **environment})


def test_what_fits_asks_nothing(model: Path, plain: Engine, own: banyan.LocalCluster) -> None:
    """A text that fits into the window makes no session, from its first token to its last."""
    want = plain.generate([SHORT], 10 * NEW)
    with engine_of(model, own) as engine, own.connect() as client:
        engine.ask("generate", [SHORT], 10 * NEW)
        looks = 0
        while not engine.answered():
            assert client.sessions() == []
            looks += 1
        assert looks > 1
        texts.compare(want, engine.answer())


def test_a_named_session_is_whole_at_the_end(model: Path, plain: Engine, own: banyan.LocalCluster) -> None:
    """What was in the engine alone is in the cluster once the request is over: another engine computes one
    token.
    """
    for name, prompt in (("short", SHORT), ("long", LONG)):
        with engine_of(model, own) as engine, own.connect() as client:
            (first,) = engine.generate([prompt], NEW, params={"banyan_session": name})
            again = [*prompt, *first.tokens]
            whole = (name, len(again) - 1)
            wait_for(lambda whole=whole: whole in [(info.name, info.length) for info in client.sessions()])
            engine.kill()
        want = plain.generate([again], NEW)
        with engine_of(model, own) as engine:
            got = engine.generate([again], NEW, params={"banyan_session": name})
        assert got[0].cached == len(again) - 1
        texts.compare(want, got)


def test_a_lost_engine_loses_at_most_the_window(model: Path, plain: Engine, own: banyan.LocalCluster) -> None:
    with engine_of(model, own) as engine, own.connect() as client:
        engine.ask("generate", [LONG], 300, params={"banyan_session": "lost"})
        wait_for(lambda: [info for info in client.sessions() if info.length >= len(LONG) - RECENT + 64])
        engine.kill()
        (info,) = client.sessions()
    want = plain.generate([LONG], NEW)
    with engine_of(model, own) as engine:
        got = engine.generate([LONG], NEW, params={"banyan_session": "lost"})
    assert got[0].cached == min(info.length, len(LONG) - 1)
    texts.compare(want, got)


def test_the_next_turn(model: Path, plain: Engine, own: banyan.LocalCluster) -> None:
    """Of the same engine, at once: it waits for the rows of the last turn that are on their way, and computes
    none of them.
    """
    with engine_of(model, own) as engine:
        prompt = LONG
        for _ in range(3):
            (got,) = engine.generate([prompt], NEW, params={"banyan_session": "turns"})
            assert got.cached in (0, len(prompt) - 2)
            texts.compare(plain.generate([prompt], NEW), [got])
            prompt = [*prompt, *got.tokens, 5]
        assert engine.rows() == len(prompt) - 2


def test_steps_do_not_wait_for_the_cluster(model: Path, plain: Engine, own: banyan.LocalCluster) -> None:
    """It is away while rows are to leave: tokens come until the window moves past them, and the rest when it
    is back.
    """
    prompt, n = LONG[: RECENT - 80], 150
    want = plain.generate([prompt], n)
    with engine_of(model, own, BANYAN_RETRY_SECONDS="300") as engine:
        os.kill(own.pid("coordinator"), signal.SIGSTOP)
        engine.ask("generate", [prompt], n)
        wait_for(lambda: engine.rows() > RECENT)  # chunks have left, and the next step is the first that waits for one
        assert not engine.answered()
        os.kill(own.pid("coordinator"), signal.SIGCONT)
        texts.compare(want, engine.answer())


def test_latent_attention_has_no_window(own: banyan.LocalCluster, folder: Path) -> None:
    """On a CPU vLLM computes a prompt of such a model in one step, and a window must be larger than a
    step.
    """
    with pytest.raises(Exception, match=r"BANYAN_WINDOW=640: with steps of up to 2048 tokens .* at least 2560 are needed"):
        Engine(models.make(folder, "deepseek"), {"BANYAN_ENDPOINT": own.endpoint, "BANYAN_WINDOW": str(RECENT)})


def test_several_at_once(model: Path, plain: Engine, own: banyan.LocalCluster) -> None:
    """A name in use, and prompts that begin alike, shorter and longer than the window."""
    with engine_of(model, own) as engine:
        for prompt in (SHORT, LONG):
            both = [[*prompt, 7, 8], [*prompt[:-20], 9]]
            texts.compare(plain.generate(both, NEW), engine.generate(both, NEW, params={"banyan_session": f"both-{len(prompt)}"}))
            same = [prompt, prompt]
            texts.compare(plain.generate(same, NEW), engine.generate(same, NEW))


def test_a_window_that_is_too_small(model: Path, own: banyan.LocalCluster) -> None:
    with pytest.raises(Exception, match=r"BANYAN_WINDOW=100: with steps of up to 64 tokens .* at least 576 are needed"):
        Engine(model, {"BANYAN_ENDPOINT": own.endpoint, "BANYAN_WINDOW": "100"})
