# SPDX-License-Identifier: Apache-2.0
"""banyan.vllm without vLLM: names, deadlines, the book of sessions and the worker over a real cluster, with a
model that is a formula."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import banyan

torch = pytest.importorskip("torch")

from formula import DIM, HEADS, KV, TEXT, Engine, request, run, wait_for  # noqa: E402

from banyan.spec import Kind  # noqa: E402
from banyan.vllm import config, forward, window  # noqa: E402
from banyan.vllm.layers import Layer, holds_tokens, model_of  # noqa: E402
from banyan.vllm.names import NAME_MAX, of_rank, wish  # noqa: E402
from banyan.vllm.retry import Deadline, persist  # noqa: E402
from banyan.vllm.sessions import SHARED  # noqa: E402
from banyan.vllm.steps import Step  # noqa: E402

# ---- blocks ----


def test_an_engines_memory_does_not_grow_with_the_text():
    assert window.blocks_of(1000, 256, 0, 64) == 4  # of one byte a token
    assert window.blocks_of(1 << 20, 256, 0, 64) == 4096
    assert window.blocks_of(1 << 17, 256, 1024, 256) == window.blocks_of(1 << 20, 256, 1024, 256) == 12
    assert window.blocks_of(512, 256, 1024, 256) == 2  # shorter than the window


# ---- names ----


@pytest.mark.parametrize(
    "params, session, salt, name",
    [
        (None, None, None, None),
        ({}, "talk", None, "talk"),
        ({"banyan_session": "mine"}, "talk", None, "mine"),
        ({"other": 1}, None, None, None),
    ],
)
def test_names(params, session, salt, name):
    assert wish(params, session, salt) == (name, None, "")


def test_names_are_apart():
    """No two of these are the same session, and the service takes each."""
    texts = ["a", "a#b", "b", "x" * 200, "x" * 201, "é", "a\nb", "mail@host", "#salt-x", "salt", None]
    found = [wish(None, text, salt).name for text, salt in itertools.product(texts, [None, "b", "salt", "s" * 300])]
    kept = [name for name in found if name is not None]
    assert len(found) == len(kept) + 1 and len(set(kept)) == len(kept)
    for name in kept:
        assert name.isascii() and name.isprintable() and len(of_rank(name, 15, 16)) <= 128 and len(name) <= NAME_MAX
        assert "salt-s" not in name and "sss" not in name, "a salt is a secret"


@pytest.mark.parametrize(
    "params",
    [
        {"banyan_session": 7}, {"banyan_session": ""}, {"banyan_session": "x", "banyan_ttl": -1},
        {"banyan_session": "x", "banyan_ttl": True},
        {"banyan_session": "x", "banyan_pin": 1}, {"banyan_session": "x", "banyan_pin": True, "banyan_ttl": 5}, {"banyan_pin": True},
        {"banyan_ttl": 4},
    ],
)  # fmt: skip
def test_names_that_make_no_sense(params):
    assert wish(params, None, None).refused


def test_lives_of_names():
    assert wish({"banyan_session": "x", "banyan_ttl": 2}, None, None).ttl_s == 2.0
    assert wish({"banyan_session": "x", "banyan_pin": True}, None, None).ttl_s == 0.0


# ---- settings ----


def test_settings():
    found = config.Settings.of(
        {"BANYAN_ENDPOINT": "tcp://a:1", "BANYAN_TOKEN_FILE": "t", "BANYAN_RETRY_SECONDS": "4", "BANYAN_WINDOW": "64"}
    )
    assert (found.endpoint, found.files, found.retry_s, found.window, found.ttl_s) == ("tcp://a:1", {"token_file": "t"}, 4.0, 64, 3600.0)
    for name, value in (("BANYAN_RETRY_SECONDS", "x"), ("BANYAN_RETRY_SECONDS", "-1"), ("BANYAN_WINDOW", "1.5"), ("BANYAN_REPLICAS", "4"),
                        ("BANYAN_LOCAL", "nan"), ("BANYAN_TTL", "inf"), ("BANYAN_SESSION_PREFIX", "x" * 40)):  # fmt: skip
        with pytest.raises(config.Refused, match=name):
            config.Settings.of({"BANYAN_ENDPOINT": "e", name: value})


# ---- deadlines ----


def test_what_is_repeated():
    now = [0.0]
    said = []

    def slept(seconds):
        now[0] += seconds

    def failing(error, times):
        def call():
            said.append(now[0])
            if len(said) <= times:
                raise error
            return "done"

        return call

    for error in (banyan.Unavailable("x"), banyan.DeadlineExceeded("x"), banyan.Aborted("x")):
        said.clear()
        assert persist(failing(error, 3), Deadline(10, lambda: now[0], slept)) == "done"
        assert len(said) == 4
    for error in (banyan.NotFound("x"), banyan.DataLoss("x"), banyan.Closed("x")):
        said.clear()
        with pytest.raises(type(error)):
            persist(failing(error, 3), Deadline(10, lambda: now[0], slept))
        assert len(said) == 1
    said.clear()
    begin = now[0]
    with pytest.raises(banyan.Unavailable):
        persist(failing(banyan.Unavailable("x"), 1 << 30), Deadline(10, lambda: now[0], slept))
    assert now[0] - begin == pytest.approx(10) and 20 < len(said) < 40


# ---- an engine whose model is a formula ----


@pytest.fixture
def engine(cluster):
    engine = Engine(cluster)
    yield engine
    engine.stop()


def test_a_request(engine, client):
    """Chunks and single tokens; its session is deleted though no step follows."""
    r = request("r", TEXT[:50])
    assert run(engine, r, 16) == 0
    for token in TEXT[50:60]:
        r.all_token_ids.append(token)
        assert not engine.step((r, len(r.all_token_ids) - 1, 1))
    (info,) = client.sessions()
    assert info.length == 60 and info.name.startswith("vllm-test-")
    assert engine.end(r) is None
    wait_for(lambda: not client.sessions())


def test_a_deletion_holds_up_no_step(engine, client, monkeypatch):
    """A session without a name is deleted beside the steps, however long that takes."""
    go, real = threading.Event(), engine.book._reaper._delete

    def held(name):
        assert go.wait(60)
        real(name)

    monkeypatch.setattr(engine.book._reaper, "_delete", held)
    a, b = request("a", TEXT[:30]), request("b", TEXT[5:40])
    run(engine, a)
    engine.end(a)
    run(engine, b)
    assert sorted(info.length for info in client.sessions()) == [30, 35]
    go.set()
    wait_for(lambda: [info.length for info in client.sessions()] == [35])


def test_many_at_once(engine):
    """Requests of different lengths in one call, coming and going."""
    texts = [request(f"r{i}", TEXT[i : i + 30 + 11 * i]) for i in range(5)]
    at = {r.request_id: engine.matched(r) for r in texts}
    while texts:
        parts = [(r, at[r.request_id], min(9, len(r.all_token_ids) - at[r.request_id])) for r in texts]
        assert not engine.step(*parts)
        for r, start, count in parts:
            at[r.request_id] = start + count
        for r in [r for r in texts if at[r.request_id] == len(r.all_token_ids)]:
            engine.end(r)
            texts.remove(r)


def test_rows_that_go_by_attach(engine, monkeypatch):
    monkeypatch.setattr(forward, "APPEND_MAX", 1000)
    run(engine, request("r", TEXT))


def test_a_name_is_resumed(engine, cluster, client):
    assert run(engine, request("a", TEXT[:70], "talk")) == 0
    said = engine.end(request("a", []))
    assert said == {"banyan_session": "talk", "banyan_tokens": 70, "banyan_matched": 0}
    assert run(engine, request("b", TEXT[:100], "talk")) == 70
    engine.end(request("b", []))
    other = Engine(cluster)  # another process
    assert run(other, request("c", TEXT[:100], "talk")) == 99
    other.end(request("c", []))
    assert run(other, request("d", [*TEXT[:40], 1, 2, 3], "talk")) == 40
    other.stop()
    assert client.open("talk").info().length == 43


def test_a_name_of_another_model(engine, cluster, client):
    run(engine, request("a", TEXT[:70], "whose"))
    engine.end(request("a", []))
    other = Engine(cluster, mark=8)
    assert run(other, request("b", TEXT[:70], "whose")) == 0
    assert other.end(request("b", [])) is None
    other.stop()
    assert any("another model's" in sentence for sentence in other.said)
    assert run(engine, request("c", TEXT[:70], "whose")) == 69


def test_a_name_that_no_engine_made(engine, client):
    with client.create(banyan.Spec(layers=1, q_heads=1, kv_heads=1, k_dim=8), "book") as session:
        assert run(engine, request("a", TEXT[:70], "book")) == 0
        assert session.info().length == 0
        session.delete()


def test_salts(engine):
    run(engine, request("a", TEXT[:70], "s", salt="one"))
    engine.end(request("a", []))
    assert run(engine, request("b", TEXT[:70], "s", salt="two")) == 0
    assert run(engine, request("c", TEXT[:70], "s")) == 0
    assert run(engine, request("d", TEXT[:70], "s", salt="one")) == 69


def test_a_name_in_use(engine, client):
    """The second live request goes on with a fork, once there is enough of it; the first one keeps the
    name."""
    a, b = request("a", TEXT[:60], "busy"), request("b", [*TEXT[:50], 1, 2], "busy")
    assert engine.matched(a) == 0
    assert engine.matched(b) is None
    assert not engine.step((a, 0, 30))
    assert engine.matched(b) is None
    assert not engine.step((a, 30, 30))
    assert engine.matched(b) == 50
    a.all_token_ids.append(5)
    assert not engine.step((a, 60, 1), (b, 50, 2))
    assert engine.end(b) is None
    assert engine.end(a)["banyan_tokens"] == 61
    wait_for(lambda: "busy" in (names := [info.name for info in client.sessions()]) and not any(name.startswith("vllm-") for name in names))


def test_the_same_prompt(engine, client):
    """n > 1: computed once. Under another salt, or where it is short, each computes its own."""
    same = [request(f"r{i}", TEXT[: SHARED + 8]) for i in range(3)]
    assert [engine.matched(r) for r in same] == [0, None, None]
    assert engine.matched(request("salted", TEXT[: SHARED + 8], salt="x")) == 0
    assert not engine.step((same[0], 0, SHARED + 8))
    assert [engine.matched(r) for r in same[1:]] == [SHARED + 7] * 2
    assert not engine.step(*((r, SHARED + 7, 1) for r in same[1:]))
    assert [engine.matched(request(f"short{i}", TEXT[: SHARED - 1])) for i in range(2)] == [0, 0]


def test_a_leader_that_is_over(engine):
    """Who waits for another one's prompt computes it, when that one ends."""
    a, b = request("a", TEXT[:60]), request("b", TEXT[:60])
    assert engine.matched(a) == 0
    assert engine.matched(b) is None
    engine.end(a)
    assert run(engine, b) == 0


def test_a_name_that_becomes_free(engine):
    """Who waits for a session in use goes on with it, when the other one is over."""
    a, b = request("a", TEXT[:60], "next"), request("b", TEXT[:80], "next")
    assert engine.matched(a) == 0
    assert not engine.step((a, 0, 30))
    assert engine.matched(b) is None
    engine.end(a)
    assert run(engine, b) == 30
    assert engine.end(b)["banyan_session"] == "next"


def test_preemption(engine):
    """What was computed is there; the blocks are others."""
    a, b = request("a", TEXT[:40]), request("b", TEXT[20:50])
    engine.matched(a), engine.matched(b)
    assert not engine.step((a, 0, 40), (b, 0, 30))
    engine.preempt(a)
    b.all_token_ids.append(9)
    assert not engine.step((b, 30, 1))
    a.all_token_ids.append(4)
    assert engine.matched(a) == 40
    assert not engine.step((a, 40, 1))


def test_rows_that_were_not_announced(engine):
    """They are zeros, and their block is reported: never another request's keys."""
    a = request("a", TEXT[:10])
    engine.matched(a)
    announced = engine.book.row(a, 0, TEXT[:10], [5, 6], True)
    engine.worker.begin(Step([announced], []))
    out = torch.full((11, HEADS, DIM), float("nan"))
    q = torch.ones((11, HEADS, DIM))
    forward.attend("wide", SimpleNamespace(batch=[(6, 0, 10, 0), (99, 10, 11, 3)], parts=None), q, q[:, :KV], q[:, :KV], out)
    assert engine.worker.failed_blocks() == {99}
    assert not out[10].any() and out[:10].all()


@pytest.mark.parametrize("count", [9, 11])
def test_rows_that_are_not_as_announced(engine, count):
    a = request("a", TEXT[:10])
    engine.matched(a)
    engine.worker.begin(Step([engine.book.row(a, 0, TEXT[:10], [5, 6], True)], []))
    out = torch.full((count, HEADS, DIM), float("nan"))
    q = torch.ones((count, HEADS, DIM))
    forward.attend("wide", SimpleNamespace(batch=[(6, 0, count, 0)], parts=None), q, q[:, :KV], q[:, :KV], out)
    assert engine.worker.failed_blocks() == {6}
    assert not out.any()


def test_a_warm_up(engine):
    out = torch.full((3, HEADS, DIM), float("nan"))
    q = torch.ones((3, HEADS, DIM))
    forward.attend("wide", SimpleNamespace(batch=[(0, 0, 3, 0)], parts=None), q, q[:, :KV], q[:, :KV], out)
    assert not out.any() and not engine.worker.failed_blocks()


def test_a_mistake_ends_requests_alone(engine):
    """An exception in a layer fails the step's requests, and the next step is served."""
    a = request("a", TEXT[:10])
    engine.matched(a)
    engine.worker.begin(Step([engine.book.row(a, 0, TEXT[:10], [5, 6], True)], []))
    out = torch.full((10, HEADS, DIM), float("nan"))
    forward.attend("no such layer", SimpleNamespace(batch=[(6, 0, 10, 0)], parts=None), out, out, out, out)
    assert engine.worker.failed_blocks() == {6} and not out.any()
    engine.worker.end()
    engine.end(a)
    run(engine, request("b", TEXT[:20]))


def test_a_session_that_somebody_deletes(engine, client):
    """Its request fails; the others of the batch are served."""
    a, b = request("a", TEXT[:40]), request("b", TEXT[5:45])
    engine.matched(a), engine.matched(b)
    assert not engine.step((a, 0, 40), (b, 0, 40))
    name = engine.book._entries["a"].name
    client.open(name).delete()
    a.all_token_ids.append(1), b.all_token_ids.append(1)
    assert engine.step((a, 40, 1), (b, 40, 1)) == {"a"}
    b.all_token_ids.append(2)
    assert not engine.step((b, 41, 1))


def test_a_session_that_somebody_cuts(engine, client):
    """Another client truncates it and writes another text: the request fails, however long that is."""
    a = request("a", TEXT[:40], "shared")
    run(engine, a)
    with client.open("shared") as session:
        session.truncate(39)
        for layer, kind in enumerate(session.spec.table):
            k = np.ones((1, kind.kv_heads, kind.k_dim), np.float32)
            session.attend(layer, 39, np.ones((1, kind.q_heads, kind.k_dim), np.float32), k, k)
    a.all_token_ids.append(1)
    assert engine.step((a, 40, 1)) == {"a"}


def test_a_session_that_changes_after_the_look(engine, client):
    run(engine, request("a", TEXT[:40], "raced"))
    engine.end(request("a", []))
    b = request("b", TEXT[:60], "raced")
    assert engine.matched(b) == 40
    with client.open("raced") as session:
        session.truncate(39)
        for layer, kind in enumerate(session.spec.table):
            k = np.ones((1, kind.kv_heads, kind.k_dim), np.float32)
            session.attend(layer, 39, np.ones((1, kind.q_heads, kind.k_dim), np.float32), k, k)
    assert engine.step((b, 40, 20)) == {"b"}


@pytest.mark.parametrize("who", ["coordinator", "worker-0"])
def test_a_stall(who):
    """A daemon that is stopped for a second costs no request."""
    with banyan.local_cluster(workers=1, memory="64M", threads=1) as own:
        engine = Engine(own, BANYAN_RETRY_SECONDS="60")
        a = request("a", TEXT[:40])
        run(engine, a)
        os.kill(own.pid(who), signal.SIGSTOP)
        threading.Timer(1, os.kill, (own.pid(who), signal.SIGCONT)).start()
        a.all_token_ids.append(1)
        assert not engine.step((a, 40, 1))
        engine.stop()


def test_a_cluster_that_is_away():
    """After the deadline the request fails; when the cluster is back the next one is served."""
    with banyan.local_cluster(workers=1, memory="64M", threads=1) as own:
        engine = Engine(own, BANYAN_RETRY_SECONDS="0.5")
        a = request("a", TEXT[:40])
        run(engine, a)
        own.kill("coordinator")
        a.all_token_ids.append(1)
        assert engine.step((a, 40, 1)) == {"a"}
        b = request("b", TEXT[:20])
        engine.matched(b)
        assert engine.step((b, 0, 20)) == {"b"}
        own.start_coordinator()
        wait_for(lambda: engine.worker.client.cluster().workers)
        run(engine, request("c", TEXT[:20]))
        engine.stop()


def test_layers():
    model = model_of({"a": Layer(Kind(4, 2, 8)), "b": Layer(Kind(4, 2, 8), target="a")}, torch.bfloat16, 2)
    assert (model.spec.layers, model.spec.kv_type, model.spec.shares, model.spec.replicas) == (3, "bf16", (None, 0, None), 2)
    assert holds_tokens(model.spec) and not holds_tokens(banyan.Spec(layers=1, q_heads=1, kv_heads=1, k_dim=16))
    with pytest.raises(ValueError, match="does not come before"):
        model_of({"a": Layer(Kind(4, 2, 8), target="b"), "b": Layer(Kind(4, 2, 8))}, torch.float32, 0)
    with pytest.raises(ValueError, match="float16"):
        model_of({"a": Layer(Kind(4, 2, 8))}, torch.float64, 0)
