# SPDX-License-Identifier: Apache-2.0
"""banyan.vllm without vLLM: names, deadlines, the book of sessions and the worker over a real cluster, with a
model that is a formula."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from reference import attend

import banyan

torch = pytest.importorskip("torch")

from banyan.spec import Kind  # noqa: E402
from banyan.vllm import config, forward, near, window  # noqa: E402
from banyan.vllm.layers import Layer, holds_tokens, model_of  # noqa: E402
from banyan.vllm.leaving import Lane, Leaving, Load  # noqa: E402
from banyan.vllm.live import Worker  # noqa: E402
from banyan.vllm.names import NAME_MAX, of_rank, wish  # noqa: E402
from banyan.vllm.recent import Recent  # noqa: E402
from banyan.vllm.retry import Deadline, persist  # noqa: E402
from banyan.vllm.sessions import SHARED, Book  # noqa: E402
from banyan.vllm.steps import Step  # noqa: E402

HEADS, KV, DIM, BLOCK, BATCH = 4, 2, 16, 8, 37
LAYERS = {"wide": Layer(Kind(HEADS, KV, DIM, scale=0.25)), "narrow": Layer(Kind(HEADS, KV, DIM, window=5), sinks=(0.1, 0.2, -0.3, 0.4))}


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


def rows(what, layer, tokens, first, heads):
    """Keys, values or queries of tokens at positions: of both alone, so that nothing depends on how they were
    fed."""
    out = [
        np.random.default_rng([what, layer, token, first + i]).standard_normal((heads, DIM), dtype=np.float32)
        for i, token in enumerate(tokens)
    ]
    return np.stack(out) if out else np.zeros((0, heads, DIM), np.float32)


def expected(tokens, first, count):
    """Each layer's answer for rows first..first+count of a text."""
    q, k, v = ([rows(what, layer, tokens, 0, heads) for layer in range(2)] for what, heads in ((0, HEADS), (1, KV), (2, KV)))
    end = first + count
    wide, _ = attend(q[0][first:end], k[0][:end], v[0][:end], first, scale=0.25)
    narrow, _ = attend(q[1][first:end], k[1][:end], v[1][:end], first, window=5, sinks=LAYERS["narrow"].sinks)
    return [wide, narrow]


def request(name, tokens, session=None, params=None, salt=None):
    return SimpleNamespace(
        request_id=name, all_token_ids=list(tokens), kv_transfer_params=params, session_id=session, cache_salt=salt, lora_request=None
    )


class Engine:
    """A scheduler and a worker, and no more: each step is what the test says."""

    def __init__(self, cluster, mark=7, keep=0, **environment):
        self.window = keep + 1 + BATCH if keep else 0
        environment = {"BANYAN_RETRY_SECONDS": "20", "BANYAN_WINDOW": str(self.window), **environment}
        settings = config.Settings.of({"BANYAN_ENDPOINT": cluster.endpoint, **environment})
        self.said = []
        self.book = Book(settings, lambda request: mark, 1, "test", self.said.append, keep, forward.leaving)
        self.worker = Worker(settings, lambda: LAYERS, torch.float32, 0, 1, self.said.append, keep)
        forward.use(self.worker)
        self.caches = {name: torch.full((200, BLOCK, KV, 2 * DIM), float("nan")) for name in LAYERS}
        if keep:
            self.worker.recent = Recent(self.caches, LAYERS, BLOCK)
        self.free = itertools.count(1)
        self.blocks = {}
        self.over = []
        self.preempted = {}

    def use(self):
        """One of several in this process: the layers are its."""
        if forward._forward is None or forward._forward.worker is not self.worker:
            forward.use(self.worker)

    def matched(self, request):
        self.use()
        found = self.book.matched(request)
        return found if found is None else min(found, len(request.all_token_ids) - 1)

    def step(self, *parts):
        """parts: (request, start, count). Outputs of each: a list of layers, checked where nothing failed.
        Which failed."""
        self.use()
        announced = []
        for request, start, count in parts:
            fresh = request.request_id not in self.blocks
            have = self.blocks.setdefault(request.request_id, [])
            new = [next(self.free) for _ in range(-(-(start + count) // BLOCK) - len(have))]
            have += new
            freed = have[: max(0, start - self.window + 1) // BLOCK] if self.window else []  # vLLM gives them back
            self.lose(freed)
            announced.append(self.book.row(request, start, request.all_token_ids[start : start + count], new, fresh))
        self.worker.begin(Step(announced, self.over, list(self.preempted)))
        self.lose(block for blocks in self.preempted.values() for block in blocks)
        self.over, self.preempted = [], {}
        batch, at = [], 0
        for request, start, count in parts:
            batch.append((self.blocks[request.request_id][(start + count - 1) // BLOCK], at, at + count, start))
            at += count
        meta = SimpleNamespace(batch=batch, parts=None)
        outputs = []
        for layer, name in enumerate(LAYERS):
            q, k, v = (
                torch.from_numpy(np.concatenate([rows(what, layer, r.all_token_ids[s : s + n], s, heads) for r, s, n in parts]))
                for what, heads in ((0, HEADS), (1, KV), (2, KV))
            )
            out = torch.full((at, HEADS, DIM), float("nan"))
            forward.attend(name, meta, q, k, v, out)
            outputs.append(out.numpy())
        self.worker.spill()
        bad = self.worker.failed_blocks()
        self.worker.end()
        failed = {r.request_id for r, *_ in parts if bad & set(self.blocks[r.request_id])}
        for (request, start, count), (_, begin, end, _) in zip(parts, batch):
            if request.request_id not in failed:
                for out, want in zip(outputs, expected(request.all_token_ids, start, count)):
                    np.testing.assert_allclose(out[begin:end], want, atol=3e-6)
        for request_id in failed:
            self.end(next(r for r, *_ in parts if r.request_id == request_id))
        return failed

    def end(self, request):
        self.over.append(request.request_id)
        self.worker.finish(request.request_id)
        self.blocks.pop(request.request_id, None)
        return self.book.ended(request)

    def preempt(self, request):
        """Its blocks are others' from the next step on."""
        self.preempted[request.request_id] = self.blocks.pop(request.request_id)
        self.book.preempted(request.request_id)

    def lose(self, blocks):
        for block in blocks:
            for cache in self.caches.values():
                cache[block] = float("nan")

    def stop(self):
        forward.use(None)
        self.book.stop()
        self.worker.stop()


@pytest.fixture
def engine(cluster):
    engine = Engine(cluster)
    yield engine
    engine.stop()


TEXT = [int(x) for x in np.random.default_rng(3).integers(3, 999, 120)]


def wait_for(what):
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def run(engine, request, chunk=BATCH):
    """The whole text in chunks; how many tokens were there."""
    wait_for(lambda: engine.matched(request) is not None)
    start = engine.matched(request)
    for at in range(start, len(request.all_token_ids), chunk):
        assert not engine.step((request, at, min(chunk, len(request.all_token_ids) - at))), engine.said
    return start


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


# ---- recent tokens in the engine ----


@pytest.fixture
def small(monkeypatch):
    """Chunks of 8 tokens, of which 16 stay in the engine."""
    monkeypatch.setattr(window, "CHUNK", 8)
    return 16


@pytest.mark.parametrize("batch", [1, 64, 300, 2048])
def test_the_lines(batch):
    """Nothing that vLLM frees is missing, and what must be stored was handed over a step before."""
    with pytest.raises(config.Refused, match=f"at least {512 + batch}"):
        window.keep_of(511 + batch, batch)
    for size in (512 + batch, 640 + batch, 3 * batch + 1000):
        keep = window.keep_of(size, batch)
        for begin in (0, 1234):
            stored = handed = before = start = begin
            while start < 20000:
                stored = window.stored_before(stored, start, size)
                assert stored <= before <= handed, "a whole step has gone by"
                assert stored >= start - size + 1, "vLLM frees what is before that"
                start += batch
                before, handed = handed, window.handed_after(handed, start, keep)
                assert handed in (begin, before) or handed % window.CHUNK == 0
                assert start - keep <= handed <= start
    assert window.handed_after(7, 100, 0) == 100


@pytest.mark.parametrize("more", [{}, {"window": 7}, {"soft_cap": 0.7}, {"scale": 0.3}])
def test_near(rng, more, monkeypatch):
    """As the reference, of all keys and of two halves that are merged; whatever is computed at a time."""
    monkeypatch.setattr(near, "_CELLS", 300)
    kind, sinks = Kind(HEADS, KV, DIM, **more), np.array([0.3, -0.2, 0.1, 0.9], np.float32)
    q, k, v = (torch.from_numpy(rng.standard_normal((n, h, DIM), dtype=np.float32)) for n, h in ((9, HEADS), (40, KV), (40, KV)))
    for with_sinks in (None, sinks):
        want, want_lse = attend(q, k, v, 31, more.get("scale"), more.get("window", 0), more.get("soft_cap", 0.0), with_sinks)
        given = None if with_sinks is None else torch.from_numpy(with_sinks)
        o, lse = near.attention(q, k, v, 31, 0, kind, given)
        np.testing.assert_allclose(o, want, atol=2e-6)
        np.testing.assert_allclose(lse, want_lse, atol=2e-6)
    empty = near.attention(q, k[:0], v[:0], 31, 31, kind)
    assert not empty[0].any() and bool(empty[1].isneginf().all())


@pytest.mark.parametrize("length", [10, 30, 120])
def test_both_sides(engine, cluster, client, small, length):
    """Prefill in chunks and decode: as one softmax over everything, while the engine keeps no more than its
    window."""
    recent = Engine(cluster, keep=small)
    r = request("r", TEXT[: length - 8])
    run(recent, r, 11)
    for token in TEXT[length - 8 : length]:
        r.all_token_ids.append(token)
        assert not recent.step((r, len(r.all_token_ids) - 1, 1)), recent.said
        live = recent.worker.live["r"]
        assert len(live.recent) <= recent.window and live.handed == recent.book._entries["r"].held
    if length <= small:
        assert not client.sessions(), "a text that fits asks the cluster nothing"
    else:
        wait_for(lambda: [info.length for info in client.sessions()] == [live.handed])
    recent.end(r)
    wait_for(lambda: not client.sessions())
    recent.stop()


def test_both_sides_at_once(cluster, client, small):
    recent = Engine(cluster, keep=small)
    parts = [request(f"r{i}", TEXT[i : i + 5 + 17 * i]) for i in range(5)]
    at = dict.fromkeys((r.request_id for r in parts), 0)
    while parts:
        step = [(r, at[r.request_id], min(7, len(r.all_token_ids) - at[r.request_id])) for r in parts]
        assert not recent.step(*step), recent.said
        for r, start, count in step:
            at[r.request_id] = start + count
        parts = [r for r in parts if at[r.request_id] < len(r.all_token_ids)]
    recent.stop()


def test_a_name_gets_everything_at_the_end(engine, cluster, client, small):
    """Also what is in the engine's blocks alone: another engine, with or without a window, has all of it."""
    recent = Engine(cluster, keep=small)
    a = request("a", TEXT[:70], "talk")
    assert run(recent, a) == 0
    assert recent.end(a)["banyan_tokens"] == 70
    assert run(recent, request("b", TEXT[:100], "talk")) == 70
    recent.end(request("b", []))
    recent.stop()
    assert run(engine, request("c", TEXT[:110], "talk")) == 100


def test_preemption_of_recent_tokens(cluster, small):
    """What only the blocks had leaves before they are others', and nothing is computed again."""
    recent = Engine(cluster, keep=small)
    a, b = request("a", TEXT[:60]), request("b", TEXT[5:15])
    run(recent, a, 20)
    assert recent.worker.live["a"].handed < 60
    run(recent, b)
    recent.preempt(a)
    b.all_token_ids.append(1)
    assert not recent.step((b, 10, 1)), recent.said
    assert recent.matched(a) == 59  # of 60 tokens the last one is computed in any case
    a.all_token_ids.append(1)
    assert recent.matched(a) == 60
    assert not recent.step((a, 60, 1)), recent.said
    recent.stop()


class Held:
    """Holds up what a worker sends, until `go` is set."""

    def __init__(self, worker, monkeypatch):
        self.go, self.error, self.real = threading.Event(), None, worker.put
        monkeypatch.setattr(worker, "put", self.put)

    def put(self, *arguments):
        assert self.go.wait(60)
        if self.error:
            raise self.error
        self.real(*arguments)


def test_a_step_does_not_wait_for_rows_that_leave(cluster, small, monkeypatch):
    """Nothing arrives, and steps go on until the window moves past what has left; that one waits, and goes
    on when it has arrived.
    """
    recent = Engine(cluster, keep=small)
    held = Held(recent.worker, monkeypatch)
    a = request("a", TEXT[:small])
    run(recent, a)
    steps = 0
    while recent.window - 1 >= len(a.all_token_ids):
        a.all_token_ids.append(TEXT[len(a.all_token_ids)])
        assert not recent.step((a, len(a.all_token_ids) - 1, 1)), recent.said
        steps += 1
    live = recent.worker.live["a"]
    assert steps == BATCH + 1 and live.handed >= 3 * 8 and live.stored == 0
    a.all_token_ids.append(1)
    waiting = threading.Thread(target=lambda: failed.append(recent.step((a, len(a.all_token_ids) - 1, 1))))
    failed = []
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    held.go.set()
    waiting.join(60)
    assert failed == [set()] and live.stored == 8
    recent.stop()


def test_an_error_comes_with_the_next_step_of_its_request(cluster, small, monkeypatch):
    """And with no other one's."""
    recent = Engine(cluster, keep=small)
    held = Held(recent.worker, monkeypatch)
    a, b = request("a", TEXT[:30]), request("b", TEXT[5:15])
    run(recent, a)
    run(recent, b)
    held.error = banyan.DataLoss("gone")
    held.go.set()
    wait_for(lambda: recent.worker.live["a"].lane.error)
    for r in (a, b):
        r.all_token_ids.append(1)
    assert recent.step((a, 30, 1), (b, 10, 1)) == {"a"}
    b.all_token_ids.append(1)
    assert not recent.step((b, 11, 1))
    recent.stop()


def test_a_request_that_ends_while_rows_leave(cluster, client, small, monkeypatch):
    """A session without a name is gone, though its rows came after it was deleted; one with a name is whole
    before it is looked up.
    """
    recent = Engine(cluster, keep=small)
    held = Held(recent.worker, monkeypatch)
    a, b = request("a", TEXT[:50]), request("b", TEXT[3:50], "stays")
    for r in (a, b):
        run(recent, r, 30)
        recent.end(r)
    again = request("again", TEXT[3:50], "stays")
    assert recent.matched(again) is None
    held.go.set()
    assert run(recent, again) == 46
    recent.end(again)
    wait_for(lambda: [info.name for info in client.sessions()] == ["stays"])
    recent.stop()
    assert client.open("stays").info().length == 47
    client.open("stays").delete()


def test_an_engine_that_is_stopped(engine, cluster, small):
    """What lasts is whole, though its request was not over."""
    recent = Engine(cluster, keep=small)
    run(recent, request("a", TEXT[:70], "stopped"))
    recent.stop()
    assert run(engine, request("b", TEXT[:80], "stopped")) == 70


def test_what_is_on_its_way_is_bounded():
    said, sent, begun, go = [], [], [], threading.Event()

    def load(lane, end, size=40, error=None):
        def send():
            begun.append((lane, end))
            assert go.wait(60)
            if error:
                raise error
            sent.append((lane, end))

        return Load(end, size, send)

    leaving = Leaving(said.append, most=100, threads=2)
    a, b = Lane(), Lane()
    leaving.hand(a, load("a", 1), 60)
    leaving.hand(a, load("a", 2), 60)
    with pytest.raises(banyan.DeadlineExceeded, match="has not taken"):
        leaving.hand(b, load("b", 1), 0.05)
    with pytest.raises(banyan.DeadlineExceeded, match="have not reached"):
        leaving.wait(a, 1, 0.05)
    go.set()
    leaving.hand(b, load("b", 1, 1000), 60)  # alone, however large it is
    leaving.wait(b, 1, 60)
    leaving.wait(a, 2, 60)
    assert [entry for entry in sent if entry[0] == "a"] == [("a", 1), ("a", 2)]
    go.clear()
    leaving.hand(a, load("a", 3, error=banyan.DataLoss("x")), 60)
    leaving.hand(a, load("a", 4), 60)
    go.set()
    for call in (lambda: leaving.wait(a, 4, 60), lambda: leaving.hand(a, load("a", 5), 60)):
        with pytest.raises(banyan.DataLoss):
            call()
    over = []
    assert not leaving.end(a, lambda: over.append("a"), drop=False)
    go.clear()
    leaving.hand(b, load("b", 2), 60)
    leaving.hand(b, load("b", 3), 60)
    wait_for(lambda: ("b", 2) in begun)
    assert leaving.end(b, lambda: over.append("b"), drop=True)
    assert not leaving.ended(b)
    go.set()
    assert leaving.ended(a, 60) and leaving.ended(b, 60)
    leaving.stop(60)
    assert sorted(over) == ["a", "b"] and ("b", 3) not in begun and ("a", 4) not in begun and not said


def test_many_lanes_and_few_threads():
    """Each in its order, whatever the others do; nothing is lost."""
    leaving, sent = Leaving([].append, most=1000, threads=3), []
    lanes = [Lane() for _ in range(20)]
    for end in range(1, 30):
        for i, lane in enumerate(lanes):
            leaving.hand(lane, Load(end, 7, lambda i=i, end=end: sent.append((i, end))), 60)
    for lane in lanes:
        leaving.wait(lane, 29, 60)
    leaving.stop(60)
    assert all([end for j, end in sent if j == i] == list(range(1, 30)) for i in range(20))
