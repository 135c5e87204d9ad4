# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import array
import asyncio
import dataclasses
import gc
import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from reference import attend, from_fp8, to_bf16

import banyan
from banyan import Item, Spec

SPEC = Spec(layers=2, q_heads=8, kv_heads=2, k_dim=32, v_dim=16, chunk_tokens=32)


def context(rng, n, spec=SPEC):
    return (
        rng.standard_normal((n, spec.kv_heads, spec.k_dim), dtype=np.float32),
        rng.standard_normal((n, spec.kv_heads, spec.v_dim), dtype=np.float32),
    )


def queries(rng, n, spec=SPEC):
    return rng.standard_normal((n, spec.q_heads, spec.k_dim), dtype=np.float32)


def filled(client, rng, n, spec=SPEC, name=None):
    session = client.create(spec, name)
    k, v = context(rng, n, spec)
    for layer in range(spec.layers):
        assert session.attach(layer, 0, k, v) == n
        session.commit(layer, 0, n)
    return session, k, v


def test_answers_are_the_reference(client, rng):
    session, k, v = filled(client, rng, 300)
    q = queries(rng, 5)
    answer = session.attend(1, 200, q, lse=True)
    o, lse = attend(q, k, v, 200)
    assert answer.length == 300
    np.testing.assert_allclose(answer.o, o, atol=2e-6)
    np.testing.assert_allclose(answer.lse, lse, atol=2e-6)
    again = session.attend(1, 200, q, lse=True)
    assert again.digest == answer.digest
    assert (again.o == answer.o).all()


def test_appends_and_every_field_of_the_spec(client, rng):
    sinks, alibi = (0.5, -1.0) * 4, (0.0,) * 8
    spec = Spec(
        layers=1, q_heads=8, kv_heads=4, k_dim=16, scale=0.375, soft_cap=5.0, window=20, sinks=sinks, alibi=alibi,
        chunk_tokens=16, members=2, idle_ttl=60, forget=7, replicas=2,
    )  # fmt: skip
    session = client.create(spec)
    assert session.spec == spec
    k, v = context(rng, 60, spec)
    for at in range(0, 60, 20):
        q = queries(rng, 20, spec)
        answer = session.attend(0, at, q, k[at : at + 20], v[at : at + 20], lse=True)
        o, lse = attend(q, k[: at + 20], v[: at + 20], at, 0.375, 20, 5.0, sinks)
        np.testing.assert_allclose(answer.o, o, atol=2e-6)
        np.testing.assert_allclose(answer.lse, lse, atol=2e-6)
    info, memory = session.info(), session.memory()
    assert info.layer_lengths == (60,)
    assert memory.bytes == info.bytes and memory.shared_bytes == 0 and set(memory.holdings) == set(info.members)


@pytest.mark.parametrize("kv_type", ["f16", "bf16", "int8", "fp8"])
def test_other_types(client, rng, kv_type):
    spec = Spec(layers=1, q_heads=4, kv_heads=2, k_dim=32, kv_type=kv_type)
    session = client.create(spec)
    k, v = context(rng, 100, spec)
    q = queries(rng, 1, spec)
    if kv_type == "f16":
        exact = k.astype(np.float16), v.astype(np.float16)
        session.attach(0, 0, *exact)
    elif kv_type == "bf16":
        (kb, k), (vb, v) = to_bf16(k), to_bf16(v)
        exact = k, v
        session.attach(0, 0, kb, vb)
    else:
        (kc, ks), (vc, vs) = banyan.quantise(k, kv_type), banyan.quantise(v, kv_type)
        session.attach(0, 0, kc, vc, ks, vs)
        values = np.asarray if kv_type == "int8" else from_fp8
        exact = values(kc) * ks[..., None], values(vc) * vs[..., None]
    session.commit(0, 0, 100)
    np.testing.assert_allclose(session.attend(0, 99, q).o, attend(q, *exact, 99)[0], atol=1e-5)


def test_memory_of_others(client, rng):
    """Anything with the buffer protocol or DLPack; what is not dense is copied."""

    class Other:  # an array library that has nothing but DLPack
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **more):
            return self.x.__dlpack__()

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    session, k, v = filled(client, rng, 50)
    q = queries(rng, 1)
    want = session.attend(0, 49, q).o
    assert (session.attend(0, 49, array.array("f", q.ravel().tolist())).o == want).all()
    assert (session.attend(0, 49, memoryview(q)).o == want).all()
    assert (session.attend(0, 49, Other(q)).o == want).all()
    assert (session.attend(0, 49, np.asfortranarray(q)).o == want).all()
    with pytest.raises(banyan.InvalidArgument, match="dense"):
        session.attend(0, 49, Other(np.asfortranarray(q)))
    other, *_ = filled(client, rng, 1)
    other.truncate(0)
    other.attach(0, 0, Other(k), Other(v))
    other.commit(0, 0, 50)
    assert (other.attend(0, 49, q).o == want).all()


def test_masses_traces_plans_and_watches(client, rng):
    session, *_ = filled(client, rng, 200)
    answer = session.attend(0, 197, queries(rng, 3), mass_bins=4, mass_per_head=True)
    assert answer.mass.bin.shape == (3, 8, 4)
    np.testing.assert_allclose(answer.mass.bin.sum(-1) + answer.mass.sink, 1, atol=1e-5)
    np.testing.assert_allclose(answer.mass.worker.sum(-1), 1, atol=1e-5)
    assert sum(answer.mass.tokens) == 200
    answers, trace = client.attend_traced([Item(session, 0, 199, queries(rng, 1))])
    assert answers[0].length == 200
    assert trace.total > 0
    assert {w.worker for w in trace.workers} <= {"worker-0", "worker-1", "worker-2"}
    plan = session.plan()
    assert sum(node.tokens for node in plan.nodes) >= 200
    seen = []
    watcher = threading.Thread(target=lambda: seen.extend(session.watch(2, wait=20, layer=1)))
    watcher.start()
    while watcher.is_alive():
        session.attend(1, 199, queries(rng, 1))
    watcher.join()
    assert seen
    assert all(step.layer == 1 for step in seen)


def test_masses_of_cancelled_calls_are_freed(client, rng, monkeypatch):
    """The library allocates them when the call has ended, whether or not its task still waits."""
    session, *_ = filled(client, rng, 200)
    real, freed = banyan.items.lib, []

    class Library:
        def __getattr__(self, name):
            return getattr(real, name)

        def banyan_mass_free(self, mass):
            freed.append(mass.bin != banyan.items.ffi.NULL)
            real.banyan_mass_free(mass)

    monkeypatch.setattr(banyan.items, "lib", Library())

    async def cancelled():
        items = [Item(session, 0, 199, queries(rng, 1), mass_bins=4)]
        tasks = [asyncio.ensure_future(client.attend_async(items)) for _ in range(8)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while client._waiting:
            await asyncio.sleep(0.01)

    asyncio.run(cancelled())
    gc.collect()
    assert freed == [True] * 8


def test_items_fail_alone(client, rng):
    session, *_ = filled(client, rng, 10)
    q = queries(rng, 1)
    items = [Item(session, 0, 9, q), Item(session, 0, 5000, q), Item(session, 1, 9, q)]
    good, beyond, also = client.attend(items, return_errors=True)
    assert good.length == also.length == 10
    assert isinstance(beyond, banyan.OutOfRange)
    with pytest.raises(banyan.BanyanError):
        client.attend(items)


def test_errors_say_what_is_wrong(client, rng):
    session, k, v = filled(client, rng, 40)
    q = queries(rng, 1)
    with pytest.raises(banyan.InvalidArgument, match=r"q holds float64.*float32"):
        session.attend(0, 39, q.astype(np.float64))
    with pytest.raises(banyan.InvalidArgument, match=r"shape \[1, 7, 32\].*\[rows, 8, 32\]"):
        session.attend(0, 39, q[:, :7])
    with pytest.raises(banyan.InvalidArgument, match="both or none"):
        session.attend(0, 40, q, k[:1])
    with pytest.raises(banyan.InvalidArgument, match="k holds f16, this session wants f32"):
        session.attend(0, 40, q, k[:1].astype(np.float16), v[:1])
    with pytest.raises(banyan.InvalidArgument, match="DLPack or the buffer protocol"):
        session.attend(0, 39, [1.0])
    with pytest.raises(banyan.InvalidArgument, match="above 0"):
        session.attend(0, 39, q, timeout=-1)
    with pytest.raises(banyan.InvalidArgument, match="first -1"):
        session.attend(0, -1, q)
    with pytest.raises(banyan.InvalidArgument, match="kv_type 'f8'"):
        Spec(layers=1, q_heads=1, kv_heads=1, k_dim=8, kv_type="f8")
    with pytest.raises(banyan.InvalidArgument, match="2 layers, 0 to 1"):
        session.attend(2, 39, q)
    with pytest.raises(banyan.InvalidArgument, match="query heads"):
        client.create(Spec(layers=1, q_heads=3, kv_heads=2, k_dim=8))
    with pytest.raises(banyan.FailedPrecondition) as refused:
        session.commit(0, 40, 10)
    assert refused.value.reason == "HOLE"
    assert refused.value.ranges == ((40, 10),)
    assert refused.value.code == "FAILED_PRECONDITION"
    with pytest.raises(LookupError):
        client.open("nobody")
    client.create(SPEC, "taken")
    with pytest.raises(banyan.AlreadyExists):
        client.create(SPEC, "taken")


def test_forks_truncates_and_names(client, rng):
    session, k, v = filled(client, rng, 100, name="book")
    q = queries(rng, 1)
    with client.open("book") as other:
        assert other.id == session.id
        assert other.spec == session.spec
    fork = session.fork(64, "chapter")
    fork.truncate(50)
    session.delete()  # a fork outlives its parent
    np.testing.assert_allclose(fork.attend(0, 49, q).o, attend(q, k[:50], v[:50], 49)[0], atol=2e-6)
    assert [s.name for s in client.sessions()] == ["chapter"]
    with pytest.raises(banyan.Closed):
        session.info()


def test_another_clients_truncate(cluster, client, rng):
    session, *_ = filled(client, rng, 64, name="shared")
    with cluster.connect() as other, other.open("shared") as theirs:
        theirs.truncate(32)
        with pytest.raises(banyan.Aborted):
            session.attend(0, 31, queries(rng, 1))
        assert session.info().length == 32
        assert session.attend(0, 31, queries(rng, 1)).length == 32


def test_asyncio(client, rng):
    session, *_ = filled(client, rng, 100)
    q = queries(rng, 20)

    async def many():
        calls = [client.attend_async([Item(session, 0, 80 + i, q[i])]) for i in range(20)]
        bad = client.attend_async([Item(session, 0, 9999, q[0])])
        answers = await asyncio.gather(*calls)
        with pytest.raises(banyan.OutOfRange):
            await bad
        return answers

    for _ in range(2):  # a second loop takes over
        for i, (answer,) in enumerate(asyncio.run(many())):
            assert (answer.o == session.attend(0, 80 + i, q[i]).o).all()


def test_threads(client, rng):
    session, *_ = filled(client, rng, 100)
    q = queries(rng, 1)
    want = session.attend(0, 99, q).o
    wrong = []

    def work():
        for _ in range(50):
            if not (session.attend(0, 99, q).o == want).all():
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_close_with_calls_under_way(cluster, rng):
    """Other threads' calls end; none crashes; nothing is usable afterwards."""
    client = cluster.connect()
    session, *_ = filled(client, rng, 100)
    q, ends = queries(rng, 1), []
    started = threading.Barrier(4)

    def work():
        started.wait()
        try:
            while True:
                session.attend(0, 99, q)
        except banyan.BanyanError as error:
            ends.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    time.sleep(0.05)
    client.close()
    for thread in threads:
        thread.join(30)
    assert len(ends) == 3
    assert all(isinstance(e, (banyan.Cancelled, banyan.Closed)) for e in ends)
    client.close()
    with pytest.raises(banyan.Closed):
        session.attend(0, 99, q)
    with pytest.raises(banyan.Closed):
        client.ping()
    session.close()


def test_close_waits_for_a_thread_that_is_about_to_call(cluster):
    """The library's client must not go between a thread's decision to call and its call."""
    done = run_python(
        cluster,
        """
        import banyan.client
        from banyan._abi import ffi, lib
        class Watched:
            def __getattr__(self, name):
                return getattr(lib, name)
            def banyan_disconnect(self, handle):
                ends.append("gone")
                lib.banyan_disconnect(handle)
        banyan.client.lib = Watched()
        entered, ends = threading.Event(), []
        def late(*arguments):
            entered.set()
            time.sleep(0.3)
            code = lib.banyan_ping(*arguments)
            ends.append("called")  # before the client's guard is left; the order after that is nobody's promise
            return code
        def work():
            try:
                client.call(late, client.handle, ffi.NULL)
            except banyan.Cancelled:
                ends.append("cancelled")
        thread = threading.Thread(target=work)
        thread.start()
        entered.wait()
        client.close()
        thread.join()
        print(ends)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout in ("['called', 'gone', 'cancelled']\n", "['called', 'cancelled', 'gone']\n")


def test_sessions_closed_under_calls(client, rng):
    """A session that another thread closes is freed when the last call over it has ended."""
    session, *_ = filled(client, rng, 400)
    q = queries(rng, 1)
    for _ in range(20):
        hold = client.open(session.id)
        ends = []

        def work(hold=hold, ends=ends):
            try:
                while True:
                    hold.attend(0, 399, q)
            except banyan.Closed as error:
                ends.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.005)
        hold.close()
        for thread in threads:
            thread.join(30)
        assert len(ends) == 3

    async def cancelled():
        hold = client.open(session.id)
        tasks = [asyncio.ensure_future(client.attend_async([Item(hold, 0, 399, q)])) for _ in range(8)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        hold.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(cancelled())
    assert sum(isinstance(r, list) for r in results) == 4


def run_python(cluster, text):
    program = "import sys, os, threading, time, numpy as np, banyan\nclient = banyan.Client(sys.argv[1])\n" + textwrap.dedent(text)
    return subprocess.run([sys.executable, "-c", program, cluster.endpoint], capture_output=True, text=True, timeout=60)


def test_interpreter_exit_with_calls_under_way(cluster):
    done = run_python(
        cluster,
        """
        spec = banyan.Spec(layers=1, q_heads=4, kv_heads=2, k_dim=32)
        session = client.create(spec)
        q, k = np.zeros((1, 4, 32), np.float32), np.zeros((1, 2, 32), np.float32)
        session.attend(0, 0, q, k, k)
        def work():
            while True:
                session.attend(0, 0, q)
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        print("leaving", flush=True)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "leaving\n"


def test_a_forked_process_is_told(cluster):
    done = run_python(
        cluster,
        """
        session = client.create(banyan.Spec(layers=1, q_heads=4, kv_heads=2, k_dim=32))
        child = os.fork()
        if child == 0:
            for call in (client.ping, session.info, lambda: session.attend(0, 0, np.zeros((1, 4, 32), np.float32))):
                try:
                    call()
                    os._exit(1)
                except banyan.Closed as error:
                    assert "fork" in str(error) or "another process" in str(error), error
            client.close()
            session.close()
            with banyan.Client(sys.argv[1]) as own:
                own.ping()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert session.info().length == 0
        session.delete()
        """,
    )
    assert done.returncode == 0, done.stderr


def test_a_coordinator_that_goes_and_comes_back(rng):
    with banyan.local_cluster(workers=2, memory="64M", threads=1) as cluster, cluster.connect(timeout=20) as client:
        session, k, v = filled(client, rng, 100, name="kept")
        cluster.kill("coordinator")
        with pytest.raises((banyan.Unavailable, banyan.DeadlineExceeded)):
            session.attend(0, 99, queries(rng, 1), timeout=0.2)
        cluster.start_coordinator()
        q = queries(rng, 1)
        np.testing.assert_allclose(session.attend(0, 99, q).o, attend(q, k, v, 99)[0], atol=2e-6)


def test_a_cluster_that_cannot_start(tmp_path, monkeypatch):
    monkeypatch.setenv("BANYAN_BIN", str(tmp_path))
    with pytest.raises(banyan.Unavailable, match=r"banyan-coordinator was not found in .*, which BANYAN_BIN names"):
        banyan.local_cluster(1)


def test_a_library_that_is_not_there():
    done = subprocess.run(
        [sys.executable, "-c", "import banyan"], env={**os.environ, "BANYAN_LIBRARY": "/no.so"}, capture_output=True, text=True
    )
    assert "cannot open /no.so" in done.stderr
    assert "BANYAN_LIBRARY names it: unset that" in done.stderr


def test_a_daemon_that_ends_at_once_is_shown(tmp_path):
    with pytest.raises(banyan.Unavailable, match="no-such-option"):
        banyan.local_cluster(1, coordinator_args=["--no-such-option"])


def test_nobody_there():
    with pytest.raises(banyan.Unavailable):
        banyan.Client("unix:///nowhere/at/all.sock", connect_timeout=0.2)
    with pytest.raises(banyan.InvalidArgument):
        banyan.Client("what is this")


def test_cluster_information(client, rng):
    filled(client, rng, 10)
    info = client.cluster()
    assert len(info.workers) == 3
    assert info.sessions >= 1
    assert info.endpoints and all("://" in endpoint for endpoint in info.endpoints)
    assert not info.needs_token
    assert any(limit.flag == "--max-sessions" for limit in info.limits)
    assert client.ping() > 0
    assert client.quarantine() == []
    with pytest.raises(banyan.NotFound):
        client.drop_quarantined("no-such-worker")


def test_two_tenants_do_not_see_each_other(rng, tmp_path):
    def keep(name, token):
        path = tmp_path / name
        path.touch(mode=0o600)
        path.write_text(token + "\n")
        return str(path)

    with banyan.local_cluster(workers=1, memory="64M", threads=1) as cluster:
        with cluster.connect() as anybody:
            with pytest.raises(banyan.FailedPrecondition):
                anybody.create_token("early", "user", "a")
            root = keep("root", anybody.create_token("root", "admin"))
        with pytest.raises(banyan.Unauthenticated):
            banyan.Client(cluster.endpoint, timeout=10)
        with banyan.Client(cluster.endpoint, token_file=root) as admin:
            files = {name: keep(name, admin.create_token(name, "user", name, life=3600)) for name in "ab"}
            assert {(t.name, t.tenant, t.access) for t in admin.tokens()} == {
                ("root", "default", "admin"), ("a", "a", "user"), ("b", "b", "user")}  # fmt: skip
            with (
                banyan.Client(cluster.endpoint, token_file=files["a"]) as a,
                banyan.Client(cluster.endpoint, token_file=files["b"]) as b,
            ):
                theirs, k, v = filled(a, rng, 40, name="same")
                ours, _, _ = filled(b, rng, 20, name="same")  # its own: names are a tenant's
                np.testing.assert_allclose(theirs.attend(0, 39, queries(rng, 1)).o.shape, (1, SPEC.q_heads, SPEC.v_dim))
                assert [s.id for s in b.sessions()] == [ours.id] and b.sessions()[0].tenant == ""
                assert (b.cluster().sessions, b.cluster().workers, b.cluster().tenant) == (1, (), "b")
                never = theirs.id ^ (0x5A << 32)
                said = []
                for other in (theirs.id, never):
                    with pytest.raises(banyan.NotFound) as failure:
                        b.open(other)
                    said.append(str(failure.value))
                assert said[0] == said[1]  # in the words of one that never was
                with pytest.raises(banyan.PermissionDenied):
                    b.tokens()
                assert sorted(s.tenant for s in admin.sessions()) == ["a", "b"]
                admin.revoke_token("b")
                with pytest.raises(banyan.Unauthenticated):
                    for _ in range(1000):  # its link goes in another turn
                        b.sessions()
                assert a.sessions()[0].id == theirs.id


def test_a_worker_is_drained_and_used_again(rng):
    with banyan.local_cluster(2, worker_args=["--bandwidth", "8G"]) as cluster, cluster.connect() as client:
        # One whole chunk each, and the next one placed ahead: chunks of which rows are not committed move when the
        # ticket of the attach has ended.
        sessions = [filled(client, rng, SPEC.chunk_tokens)[0] for _ in range(4)]
        holder = next(w.name for w in client.cluster().workers if w.chunks)
        q = queries(rng, 1)
        before = [session.attend(0, 31, q).o for session in sessions]
        state = client.drain(holder, "a test", wait=True, timeout=60)
        assert state.draining and state.chunks == 0 and state.stuck == ""
        info = next(w for w in client.cluster().workers if w.name == holder)
        assert (info.draining, info.drain_reason, info.chunks, info.state) == (True, "a test", 0, "active")
        assert client.cluster().moved_chunks > 0
        for session, o in zip(sessions, before, strict=True):
            np.testing.assert_allclose(session.attend(0, 31, q).o, o, atol=1e-6)
        assert not client.resume(holder).draining
        plan = client.rebalance(dry_run=True)
        assert plan.chunks == len(plan.moves) == 4 and plan.bytes == sum(m.bytes for m in plan.moves)
        assert all(m.target == holder for m in plan.moves)
        for session in sessions:
            session.delete()
        k, v = context(rng, 1)
        client.create(SPEC).attend(0, 0, q, k, v)
        assert client.rebalance(dry_run=True).chunks == 0  # the other worker would only be where this one is now
        with pytest.raises(banyan.NotFound):
            client.drain("no-such-worker")
        with pytest.raises(banyan.NotFound):
            client.resume("no-such-worker")


def test_events_are_read_and_followed():
    with banyan.local_cluster(2) as cluster, cluster.connect() as client:
        joined = list(client.events(kinds=["worker-joined"]))
        assert len(joined) == 2 and len({event.worker for event in joined}) == 2
        assert all(event.severity == "info" and event.count == 1 and event.time > 1e9 for event in joined)
        page = client.read_events(kinds=["worker", "coordinator-started"], max=2)
        assert len(page.events) == 2 and page.more and not page.anew and page.lost == 0
        assert client.read_events(page.term, page.seq, max=1).events[0].seq == page.seq + 1
        assert client.read_events(session="nobody's").events == ()
        assert list(client.events(since=time.time() + 3600)) == []
        with pytest.raises(banyan.InvalidArgument):
            client.read_events(kinds=["no-such-kind"])
        with pytest.raises(banyan.InvalidArgument):
            client.read_events(severity="debug")
        with pytest.raises(banyan.InvalidArgument):
            client.read_events(wait=51)
        followed = client.events(follow=True, kinds=["session-created"])
        made = threading.Timer(0.2, lambda: client.create(SPEC, "followed").close())
        made.start()
        event = next(followed)  # waits for it
        made.join()
        assert event.session_name == "followed" and event.session != 0
        assert [e.session for e in client.events(session="followed")] == [event.session]


def test_a_drain_that_cannot_end_says_why(rng):
    with banyan.local_cluster(1) as cluster, cluster.connect() as client:
        filled(client, rng, 300)
        name = client.cluster().workers[0].name
        with pytest.raises(banyan.DeadlineExceeded, match="no other worker"):
            client.drain(name, wait=True, timeout=0.5)
        assert client.drain_state(name).chunks > 0


def test_a_partial_answer_says_what_it_lacks(rng):
    spec = Spec(layers=1, q_heads=8, kv_heads=2, k_dim=32, v_dim=16, chunk_tokens=32, members=3, replicas=1)
    with banyan.local_cluster(3, worker_args=["--bandwidth", "8G"]) as cluster, cluster.connect() as client:
        session, k, v = filled(client, rng, 300, spec)
        q = queries(rng, 4, spec)
        whole = session.attend(0, 296, q, lse=True)
        assert whole.missing is None and whole.seen is None
        allowed = session.attend(0, 296, q, lse=True, allow_partial=True)
        assert allowed.missing == () and allowed.seen == 300 and allowed.digest == whole.digest
        assert (allowed.o == whole.o).all() and (allowed.lse == whole.lse).all()
        cluster.kill("worker-1")
        partial = session.attend(0, 296, q, lse=True, allow_partial=True)
        left = [i for i in range(300) if not any(first <= i < first + count for first, count in partial.missing)]
        assert 0 < len(left) < 300 and partial.seen == len(left)
        o, lse = attend(q, k, v, 296)
        assert not np.allclose(partial.o, o, atol=1e-3)
        for row in range(4):
            seen = [i for i in left if i <= 296 + row]
            o, lse = attend(q[row : row + 1], k[seen], v[seen], len(seen) - 1)
            np.testing.assert_allclose(partial.o[row], o[0], atol=2e-6)
            np.testing.assert_allclose(partial.lse[row], lse[0], atol=2e-6)
        with pytest.raises(banyan.Unavailable) as caught:
            session.attend(0, 296, q)
        assert caught.value.reason == "MISSING_RANGE" and tuple(caught.value.ranges) == partial.missing
        with pytest.raises(banyan.InvalidArgument, match="fewer rows"):
            session.attend(0, 0, np.zeros((4097, 8, 32), np.float32), allow_partial=True)


def test_snapshots(client, rng, tmp_path):
    session, k, v = filled(client, rng, 100, name="kept as files")
    q = queries(rng, 3)
    before = session.attend(1, 97, q, lse=True)
    made = session.snapshot(tmp_path / "plain")
    assert made.path == str(tmp_path / "plain") and made.tokens == made.longest_layer == 100
    assert made.files == 2 and made.bytes == k.nbytes * 2 + v.nbytes * 2 and made.stored_bytes >= made.bytes
    with pytest.raises(banyan.FailedPrecondition, match="exists already"):
        session.snapshot(tmp_path / "plain")
    packed = session.snapshot(tmp_path / "packed", zstd=True)
    assert packed.bytes == made.bytes and packed.stored_bytes != made.stored_bytes
    session.delete()
    with pytest.raises(banyan.Closed):
        session.snapshot(tmp_path / "closed")
    for folder in ("plain", "packed"):
        restored = client.restore(tmp_path / folder, folder, chunk_tokens=16)
        assert restored.info().length == 100 and restored.info().name == folder and restored.spec.chunk_tokens == 16
        answer = restored.attend(1, 97, q, lse=True)
        np.testing.assert_allclose(answer.o, before.o, atol=2e-6)
        np.testing.assert_allclose(answer.lse, before.lse, atol=2e-6)
        with pytest.raises(banyan.AlreadyExists):
            client.restore(tmp_path / folder, folder)
    file = next((tmp_path / "plain").glob("*.safetensors"))
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    n = len(client.sessions())
    with pytest.raises(banyan.InvalidArgument, match=file.name):
        client.restore(tmp_path / "plain")
    file.unlink()
    with pytest.raises(OSError, match=file.name):
        client.restore(tmp_path / "plain")
    with pytest.raises(banyan.InvalidArgument):
        client.restore(tmp_path / "packed", replicas=9)
    assert len(client.sessions()) == n


def test_a_floor(client, rng, tmp_path):
    spec = dataclasses.replace(SPEC, window=20, forget=8, chunk_tokens=16)
    session, k, v = filled(client, rng, 200, spec)
    for layer in range(spec.layers):
        session.attend(layer, 200, queries(rng, 1), k[:1], v[:1])
    while not session.info().forgotten:
        time.sleep(0.01)
    floor = session.info().forgotten
    assert session.info().layer_forgotten == (floor - 19,) * spec.layers
    made = session.snapshot(tmp_path / "late")
    assert made.forgotten == floor and made.tokens == 201
    restored = client.restore(tmp_path / "late")
    assert restored.info().forgotten == floor and restored.info().length == 201
    q = queries(rng, 1)
    np.testing.assert_allclose(restored.attend(1, floor, q).o, session.attend(1, floor, q).o, atol=2e-6)
    with pytest.raises(banyan.FailedPrecondition, match="forgotten"):
        restored.attend(1, floor - 1, q)
    by_hand = client.create(spec, floor=100)
    assert by_hand.info().layer_lengths == by_hand.info().layer_forgotten == (81,) * spec.layers
    for layer in range(spec.layers):
        by_hand.attach(layer, 81, k[81:], v[81:])
        by_hand.commit(layer, 81, 119)
    np.testing.assert_allclose(by_hand.attend(0, 150, q).o, attend(q, k[131:151], v[131:151], 19)[0], atol=2e-6)
    with pytest.raises(banyan.InvalidArgument, match="forgets nothing"):
        client.create(SPEC, floor=100)


def tensors_by_the_specification(path):
    """What a file of safetensors holds, read with nothing of ours: 8 bytes with the header's length, the header (JSON:
    types, shapes, and where in the rest the bytes are), the rest without a gap."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start].decode("utf-8"))
    header.pop("__metadata__", None)
    types, tensors, end = {"F32": np.float32, "F16": np.float16}, {}, 0
    for name, about in sorted(header.items(), key=lambda one: one[1]["data_offsets"]):
        first, last = about["data_offsets"]
        assert first == end and start % 8 == 0, name
        end = last
        tensors[name] = np.frombuffer(raw[start + first : start + last], types[about["dtype"]]).reshape(about["shape"])
    assert start + end == len(raw)
    return tensors


def tensors_by_the_package(path):
    return pytest.importorskip("safetensors.numpy").load_file(path)


@pytest.mark.parametrize("read", [tensors_by_the_specification, tensors_by_the_package])
@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_other_readers_open_a_snapshot(client, rng, tmp_path, kv_type, read):
    spec = Spec(layers=2, q_heads=8, kv_heads=2, k_dim=32, v_dim=16, kv_type=kv_type)
    session = client.create(spec)
    k = rng.standard_normal((2, 100, 2, 32), dtype=np.float32).astype(np.float16 if kv_type == "f16" else np.float32)
    v = rng.standard_normal((2, 100, 2, 16), dtype=np.float32).astype(k.dtype)
    for layer in range(2):
        session.attach(layer, 0, k[layer], v[layer])
        session.commit(layer, 0, 100)
    session.snapshot(tmp_path / "s")
    found = {}
    for file in sorted((tmp_path / "s").glob("*.safetensors")):
        tensors = read(file)
        assert not found.keys() & tensors.keys()
        found.update(tensors)
    assert sorted(found) == ["layers.0.k", "layers.0.v", "layers.1.k", "layers.1.v"]
    for layer in range(2):
        for name, want in (("k", k[layer]), ("v", v[layer])):
            got = found[f"layers.{layer}.{name}"]
            assert got.dtype == want.dtype and got.shape == want.shape
            assert got.tobytes() == want.tobytes()


def test_a_snapshot_without_banyanctl(client, rng, tmp_path, monkeypatch):
    session = filled(client, rng, 10)[0]
    monkeypatch.setenv("BANYAN_BIN", str(tmp_path))
    with pytest.raises(banyan.Unavailable, match="banyanctl was not found"):
        session.snapshot(tmp_path / "s")


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def exported(path):
    """(trace, parent, position) of the library's spans."""
    for line in path.read_text().splitlines():
        for span in json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            assert span["name"] == "banyan.attend"
            number = {a["key"]: a["value"] for a in span["attributes"]}["banyan.position"]["intValue"]
            yield span["traceId"], span["parentSpanId"], int(number)


def test_traceparents(cluster, client, rng, tmp_path, monkeypatch):
    session, *_ = filled(client, rng, 60)
    q = queries(rng, 1)
    for bad in ("", TRACE.upper(), TRACE[:-1], TRACE + "-", "ff" + TRACE[2:]):
        with pytest.raises(banyan.InvalidArgument, match="traceparent"):
            client.attend([Item(session, 0, 59, q)], traceparent=bad)
        assert client.attend([Item(session, 0, 59, q, traceparent=TRACE)], traceparent=bad)  # the item's own counts
    monkeypatch.setenv("BANYAN_TRACE_FILE", str(tmp_path / "spans"))
    with cluster.connect() as other:
        mine = other.open(session.id)
        other.attend([Item(mine, 0, 10, q), Item(mine, 0, 11, q, traceparent=TRACE.replace("0af7", "1af7"))], traceparent=TRACE)
        other.attend_traced([Item(mine, 0, 12, q)], traceparent=TRACE)
        asyncio.run(other.attend_async([Item(mine, 0, 13, q)], traceparent=TRACE))
        mine.attend(0, 14, q, traceparent=TRACE)
        mine.attend(0, 15, q)
        mine.attend(0, 16, q, traceparent=TRACE[:-2] + "00")
    ids = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    assert sorted(exported(tmp_path / "spans"), key=lambda s: s[2]) == [
        (*ids, 10), ("1af7651916cd43dd8448eb211c80319c", ids[1], 11), (*ids, 12), (*ids, 13), (*ids, 14)
    ]  # fmt: skip


def test_the_current_span_of_opentelemetry(cluster, client, rng, tmp_path, monkeypatch):
    trace = pytest.importorskip("opentelemetry.trace")
    session, *_ = filled(client, rng, 60)
    q = queries(rng, 1)
    context = trace.SpanContext(0x1234, 0x56, is_remote=False, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED))
    monkeypatch.setenv("BANYAN_TRACE_FILE", str(tmp_path / "spans"))
    with cluster.connect() as other:
        mine = other.open(session.id)
        mine.attend(0, 20, q)  # in no span
        with trace.use_span(trace.NonRecordingSpan(context)):
            mine.attend(0, 21, q)
            mine.attend(0, 22, q, traceparent=TRACE)
        unsampled = trace.SpanContext(0x1234, 0x57, is_remote=False)
        with trace.use_span(trace.NonRecordingSpan(unsampled)):
            mine.attend(0, 23, q)
    assert list(exported(tmp_path / "spans")) == [
        (f"{0x1234:032x}", f"{0x56:016x}", 21), ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 22)
    ]  # fmt: skip


def test_tls(tmp_path, rng):
    """Over TLS, with certificates of banyanctl: the client's own, which this cluster asks for."""

    def pki(*words):
        subprocess.run([banyan.programs.find("banyanctl"), "pki", *words], check=True, stdout=subprocess.DEVNULL)

    ca, files = str(tmp_path), {}
    pki("init", ca)
    for role in "coordinator", "worker", "client":
        pki("issue", ca, "--role", role, "--host=127.0.0.1,localhost", "--name", role)
        files[role] = {"cert": f"{ca}/{role}.pem", "key": f"{ca}/{role}.key", "ca": f"{ca}/ca.pem"}

    def flags(role):
        return [word for name, path in files[role].items() for word in (f"--tls-{name}", path)] + ["--tls-client-cert=require"]

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    endpoint = f"tls://127.0.0.1:{port}"
    with banyan.local_cluster(
        workers=1,
        memory="64M",
        coordinator_args=[*flags("coordinator"), "--listen", f"{endpoint},unix://{tmp_path}/c.sock"],
        worker_args=[*flags("worker"), "--coordinator", endpoint, "--listen", "tls://127.0.0.1:0"],
        folder=tmp_path,
    ):
        mine = {f"tls_{name}": path for name, path in files["client"].items()}
        with banyan.Client(endpoint, **mine) as client:
            session, k, v = filled(client, rng, 64)
            q = queries(rng, 1)
            np.testing.assert_allclose(session.attend(1, 60, q).o, attend(q, k, v, 60)[0], atol=2e-6)
            assert client.cluster().workers[0].endpoint.startswith("tls://")
            session.delete()
        with pytest.raises(banyan.Unauthenticated, match="--tls-cert"):
            banyan.Client(endpoint, tls_ca=mine["tls_ca"], connect_timeout=5)
        with pytest.raises(banyan.InvalidArgument, match="--tls-ca"):
            banyan.Client(endpoint, connect_timeout=5)
        with pytest.raises(banyan.NotFound, match="absent"):
            banyan.Client(endpoint, tls_ca=f"{ca}/absent.pem")
