# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from reference import attend
from sessions import SPEC, context, filled, queries

import banyan
import banyan.client
from banyan import Item
from banyan.guard import Entered, Guard


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


def python_words(cluster, text):
    program = "import sys, os, threading, time, numpy as np, banyan\nclient = banyan.Client(sys.argv[1])\n" + textwrap.dedent(text)
    return [sys.executable, "-c", program, cluster.endpoint]


def run_python(cluster, text):
    return subprocess.run(python_words(cluster, text), capture_output=True, text=True, timeout=60)


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


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_daemons_end_with_an_interpreter_that_is_killed(cluster, how):
    """Whichever thread started them, and though a process that was forked from it lives on."""
    program = """
        own = []
        thread = threading.Thread(target=lambda: own.append(banyan.local_cluster(2, memory="16M")))
        thread.start()
        thread.join()
        child = os.fork()
        if child == 0:
            time.sleep(600)
        print(own[0].folder, child, *(own[0].pid(name) for name in ("coordinator", "worker-0", "worker-1")), flush=True)
        time.sleep(600)
    """
    process = subprocess.Popen(python_words(cluster, program), stdout=subprocess.PIPE, text=True)
    folder, *pids = process.stdout.readline().split()
    child, *daemons = map(int, pids)
    try:
        assert all(map(lives, daemons))
        process.send_signal(how)
        assert process.wait(60) == -how
        end = time.monotonic() + 60
        while any(map(lives, daemons)):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert lives(child)
    finally:
        for pid in (child, *daemons):
            if lives(pid):
                os.kill(pid, signal.SIGKILL)
        process.communicate()
        shutil.rmtree(folder)


def lives(pid):
    """Whether there is such a process, one that was not waited for yet aside."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_session_that_the_garbage_collector_ends_while_cffi_holds_its_lock(cluster):
    done = run_python(
        cluster,
        """
        from banyan._abi import ffi
        session = client.create(banyan.Spec(layers=1, q_heads=4, kv_heads=2, k_dim=32))
        with ffi._lock:  # as in the first ffi.new() of a type
            del session
        print("gone")
        """,
    )
    assert done.stdout == "gone\n", done.stderr


def test_a_guard_is_entered_again_by_the_thread_that_holds_it():
    """As the garbage collector does it, which may run in the middle of enter() and end a session there."""
    guard, ends = Guard("thing"), []

    class Collecting:
        def __init__(self, lock):
            self.lock = lock

        def __enter__(self):
            self.lock.__enter__()
            guard._lock = self.lock  # once
            with guard.entered():
                pass
            guard.close(lambda: ends.append("closed"))

        def __exit__(self, *error):
            return self.lock.__exit__(*error)

    def work():
        guard._lock = Collecting(guard._lock)
        with pytest.raises(banyan.Closed, match="was closed"), guard.entered():
            pass

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert ends == ["closed"]


def interrupted_at(n, call):
    """Runs it, and raises KeyboardInterrupt before the n-th instruction of what it runs in Python. Whether
    there were so many."""
    left = [n]

    def trace(frame, event, argument):
        frame.f_trace_opcodes = True
        if event == "opcode" and left[0] >= 0:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # CPython 3.12 reports instructions only if some frame had this before settrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return left[0] < 0


def test_an_interrupt_at_any_instruction_leaves_no_call_behind():
    """Before, in and behind enter() and leave(): the guard is closed at once, and what it was given runs
    once."""
    n = 0
    while True:
        guards, ends = [Guard("thing"), Guard("other thing")], []

        def call(guards=guards):
            with Entered(guards):
                pass

        more = interrupted_at(n, call)
        for guard in guards:
            assert guard.close(lambda ends=ends: ends.append("closed"))
        assert ends == ["closed", "closed"], n
        if not more:
            break
        n += 1
    assert n > 50


def test_an_interrupt_of_the_last_call_of_a_closed_guard():
    n = 0
    while True:
        guard, ends = Guard("thing"), []

        def call(guard=guard, ends=ends):
            with guard.entered():
                guard.close(lambda: ends.append("closed"))

        more = interrupted_at(n, call)
        guard.close(lambda ends=ends: ends.append("closed"))
        assert len(ends) <= 1  # an interrupt may come in what it was given, too
        assert not guard._calls, n
        if not more:
            break
        n += 1
    assert n > 50 and ends == ["closed"]


def test_close_does_not_wait_for_ever_for_a_call_that_never_leaves(cluster, monkeypatch):
    monkeypatch.setattr(banyan.client, "_LAST_CALL_S", 0.1)
    client = cluster.connect()
    under_way = client._guard.entered()
    under_way.enter()
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive() and client.closed


def test_a_forked_process_gets_an_error(cluster):
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


def wait_for(what):
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def answered(call):
    try:
        call()
    except (banyan.DeadlineExceeded, banyan.Unavailable):
        return False
    return True


@pytest.mark.parametrize("named", [False, True])
def test_sessions_of_calls_that_timed_out(named, rng):
    """Without a name they are deleted: they could never be reached. With one they stay: who repeats the call
    may have opened them."""
    own = banyan.local_cluster(workers=1, memory="64M", threads=1)
    with own as cluster, cluster.connect() as watching, cluster.connect(timeout=0.5) as client:
        session, *_ = filled(client, rng, 10)
        left = [session.id]
        for call, name in ((lambda name: client.create(SPEC, name), "made"), (lambda name: session.fork(5, name), "forked")):
            os.kill(cluster.pid("coordinator"), signal.SIGSTOP)
            try:
                with pytest.raises((banyan.DeadlineExceeded, banyan.Unavailable)):
                    call(name if named else None)
            finally:
                os.kill(cluster.pid("coordinator"), signal.SIGCONT)
            wait_for(lambda: answered(client.ping))  # behind the call, over the same connection
            if named:
                try:
                    late = watching.create(SPEC, name)
                except banyan.AlreadyExists:
                    late = watching.open(name)
                if name == "made":
                    k, v = context(rng, 10, SPEC)
                    late.attend(0, 0, queries(rng, 10, SPEC), k=k, v=v)
                time.sleep(0.5)
                left.append(late.id)
                late.close()
            wait_for(lambda: sorted(info.id for info in watching.sessions()) == sorted(left))
        assert session.info().length == 10


def test_a_fork_of_all_while_a_worker_is_away(rng):
    spec = dataclasses.replace(SPEC, members=2, replicas=1)
    with banyan.local_cluster(workers=2, memory="64M", threads=1) as cluster, cluster.connect(timeout=30) as client:
        session = client.create(spec)
        k, v = context(rng, 96, spec)
        for at in range(0, 96, 32):
            for layer in range(spec.layers):
                session.attend(layer, at, queries(rng, 32, spec), k=k[at : at + 32], v=v[at : at + 32])
        cluster.kill("coordinator")
        cluster.kill("worker-1")
        cluster.start_coordinator()
        with pytest.raises(banyan.Unavailable):
            session.fork()
        with pytest.raises(banyan.BanyanError):
            session.fork(96)


def test_a_cluster_that_cannot_start(tmp_path, monkeypatch):
    monkeypatch.setenv("BANYAN_BIN", str(tmp_path))
    with pytest.raises(banyan.Unavailable, match=r"banyan-coordinator was not found in .*, the folder of BANYAN_BIN"):
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


def test_no_listener():
    with pytest.raises(banyan.Unavailable):
        banyan.Client("unix:///nowhere/at/all.sock", connect_timeout=0.2)
    with pytest.raises(banyan.InvalidArgument):
        banyan.Client("what is this")
