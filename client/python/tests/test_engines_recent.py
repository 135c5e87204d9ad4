# SPDX-License-Identifier: Apache-2.0
"""banyan.vllm without vLLM: recent tokens that stay in the engine's memory, and rows that leave it beside the
steps."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from reference import attend

import banyan

torch = pytest.importorskip("torch")

from formula import BATCH, DIM, HEADS, KV, TEXT, Engine, request, run, wait_for  # noqa: E402

from banyan.spec import Kind  # noqa: E402
from banyan.vllm import config, near, window  # noqa: E402
from banyan.vllm.leaving import Lane, Leaving, Load  # noqa: E402


@pytest.fixture
def engine(cluster):
    engine = Engine(cluster)
    yield engine
    engine.stop()


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
