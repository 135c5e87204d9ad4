# SPDX-License-Identifier: Apache-2.0
"""Sessions with a name: what is computed of a prompt is what the session lacks, whatever became of the engine
that filled it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import models
import pytest
import texts
from engine import Engine, Output, wait_for

import banyan

PROMPT = texts.prompts(560)[0]
NEW = 16


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return models.make(folder, "llama")


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[Engine]:
    with Engine(model) as engine:
        yield engine


@pytest.fixture(scope="module")
def ours(model: Path, cluster: banyan.LocalCluster) -> Iterator[Engine]:
    with Engine(model, {"BANYAN_ENDPOINT": cluster.endpoint}) as engine:
        yield engine


def named(name: str, **more: object) -> dict[str, object]:
    return {"banyan_session": name, **more}


def computed(engine: Engine) -> tuple[float, float]:
    """By vLLM's own metrics: tokens of prompts that were computed, and that came from the connector; all of
    them since its start."""
    metrics = engine.metrics()
    found = {name.split("{")[1].rstrip("}"): value for name, value in metrics.items() if name.startswith("vllm:prompt_tokens_by_source")}
    return found.get("local_compute", 0.0), found.get("external_kv_transfer", 0.0)


def ask(engine: Engine, prompt: list[int], n: int = NEW, **more: object) -> tuple[list[Output], int, int]:
    """The outputs, and how many tokens of the prompt were computed and were taken from the session."""
    before = computed(engine)
    outputs = engine.generate([prompt], n, **more)
    after = computed(engine)
    own, taken = (int(b - a) for a, b in zip(before, after))
    assert own + taken == len(prompt), "every token is of one source"
    assert outputs[0].cached == taken
    return outputs, own, taken


def test_a_killed_engine(model: Path, plain: Engine, cluster: banyan.LocalCluster) -> None:
    """Two turns, kill -9 in between: of the second turn's prompt only what was never fed is computed."""
    environment = {"BANYAN_ENDPOINT": cluster.endpoint}
    with Engine(model, environment) as engine:
        first, own, taken = ask(engine, PROMPT, params=named("killed"))
        assert (own, taken) == (len(PROMPT), 0)
        engine.kill()
    texts.compare(plain.generate([PROMPT], NEW), first)
    again = [*PROMPT, *first[0].tokens]  # the last of them was chosen, and never fed
    with Engine(model, environment) as engine:
        same, own, taken = ask(engine, again, params=named("killed"))
        assert (own, taken) == (1, len(again) - 1)
        texts.compare(plain.generate([again], NEW), same)
        more = [*again, *same[0].tokens, *texts.prompts(33, seed=2)[0]]
        third, own, taken = ask(engine, more, params=named("killed"))
        assert (own, taken) == (33 + 1, len(more) - 34)
        texts.compare(plain.generate([more], NEW), third)


def test_the_same_prompt_again(ours: Engine, plain: Engine) -> None:
    """One token at least is computed, because the first new one comes from it."""
    want = plain.generate([PROMPT], NEW)
    for own_wanted in (len(PROMPT), 1, 1):
        got, own, _ = ask(ours, PROMPT, params=named("again"))
        assert own == own_wanted
        texts.compare(want, got)


@pytest.mark.parametrize("common", [1, 255, 256, 300, 559])
def test_another_continuation(common: int, ours: Engine, plain: Engine) -> None:
    """The session's text is compared: what differs is cut off, and not used."""
    name = f"cut-{common}"
    ask(ours, PROMPT, params=named(name))
    other = [*PROMPT[:common], 2, *texts.prompts(80, seed=3)[0]]
    got, _, taken = ask(ours, other, params=named(name))
    assert taken == common
    texts.compare(plain.generate([other], NEW), got)


def test_a_shorter_prompt(ours: Engine, plain: Engine) -> None:
    ask(ours, PROMPT, params=named("shorter"))
    got, own, taken = ask(ours, PROMPT[:200], params=named("shorter"))
    assert (own, taken) == (1, 199)
    texts.compare(plain.generate([PROMPT[:200]], NEW), got)


def test_two_at_once(ours: Engine, plain: Engine) -> None:
    """A second live request of a name gets a fork: both are answered as if they were alone."""
    a, b = [*PROMPT, 7, 8, 9], [*PROMPT[:400], 11, 12]
    ask(ours, PROMPT, params=named("twice"))
    got = ours.generate([a, b], 3 * NEW, params=named("twice"))
    texts.compare(plain.generate([a, b], 3 * NEW), got)


def test_several_answers(model: Path, cluster: banyan.LocalCluster) -> None:
    """n > 1, drawn with a seed, with and without a name: the prompt is computed once."""
    whole = dict(max_num_batched_tokens=2048)  # vLLM on a CPU cannot draw with a seed where it cuts prompts
    with Engine(model, **whole) as engine:
        want = engine.generate([PROMPT], NEW, sequences=3, temperature=0.7)
    assert len({tuple(out.tokens) for out in want}) == 3
    with Engine(model, {"BANYAN_ENDPOINT": cluster.endpoint}, **whole) as engine:
        for params in (None, named("several")):
            before = computed(engine)
            texts.compare(want, engine.generate([PROMPT], NEW, sequences=3, temperature=0.7, params=params))
            own, taken = (b - a for a, b in zip(before, computed(engine)))
            assert (own, taken) == (len(PROMPT) + 2, 2 * (len(PROMPT) - 1))


def test_salts_are_apart(ours: Engine) -> None:
    """The same name and the same text under another cache_salt: nothing is taken from it."""
    ask(ours, PROMPT, params=named("salted"), salt="one")
    assert ask(ours, PROMPT, params=named("salted"), salt="two")[1:] == (len(PROMPT), 0)
    assert ask(ours, PROMPT, params=named("salted"))[1:] == (len(PROMPT), 0)
    assert ask(ours, PROMPT, params=named("salted"), salt="one")[1:] == (1, len(PROMPT) - 1)


def test_another_model(ours: Engine, folder: Path, cluster: banyan.LocalCluster) -> None:
    """Other weights of the same shape: a session of a model is not used by another, in either direction."""
    other = models.make(folder / "other", "llama", seed=5)
    ask(ours, PROMPT, params=named("whose"))
    with Engine(other) as engine:
        want = engine.generate([PROMPT], NEW)
    with Engine(other, {"BANYAN_ENDPOINT": cluster.endpoint}) as engine:
        got, _, taken = ask(engine, PROMPT, params=named("whose"))
        assert taken == 0
        if got[0].finish != "error":
            texts.compare(want, got)


def test_life_and_pin(ours: Engine, cluster: banyan.LocalCluster) -> None:
    """banyan_ttl is the session's life without use; a pinned one is never deleted; without a word it is the
    engine's."""
    ask(ours, PROMPT[:20], params=named("brief", banyan_ttl=2))
    ask(ours, PROMPT[:20], params=named("pinned", banyan_pin=True))
    ask(ours, PROMPT[:20], params=named("usual"))

    def there() -> dict[str, float]:
        with cluster.connect() as client:
            return {i.name: client.open(i.id).spec.idle_ttl for i in client.sessions() if i.name in ("brief", "pinned", "usual")}

    assert there() == {"brief": 2, "pinned": 0, "usual": 3600}

    def left() -> set[str]:
        with cluster.connect() as client:
            return {info.name for info in client.sessions()}

    wait_for(lambda: "brief" not in left(), 120, 0.2)
    assert left() >= {"pinned", "usual"}


@pytest.mark.parametrize("params", [{"banyan_session": 7}, {"banyan_session": "x", "banyan_ttl": -1}, {"banyan_pin": True}])
def test_parameters_that_make_no_sense(params: dict[str, object], ours: Engine) -> None:
    """The request fails without text; the next one is answered."""
    assert [(out.finish, out.tokens) for out in ours.generate([PROMPT[:20]], 2, params=params)] == [("error", [])]
    assert ours.generate([PROMPT[:20]], 2)[0].finish == "length"


def test_without_the_variable(model: Path) -> None:
    """Nothing of the package is imported but its door, and the answers are plain vLLM's."""
    with Engine(model) as engine:
        engine.generate([PROMPT[:20]], 2)
        assert engine.call("loaded") in ([], ["banyan.vllm"])
