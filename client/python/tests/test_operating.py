# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import subprocess
import threading
import time
import warnings

import numpy as np
import pytest
from reference import attend
from sessions import SPEC, context, filled, queries

import banyan
from banyan import Item

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


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
                theirs, _, _ = filled(a, rng, 40, name="same")
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
                now = admin.set_quotas("b", sessions=1, steps_per_s=1)
                assert (now.tenant, now.quotas["sessions"].max, now.quotas["sessions"].used) == ("b", 1, 1)
                with pytest.raises(banyan.ResourceExhausted) as full:
                    b.create(SPEC)
                assert full.value.reason == "QUOTA" and full.value.retry_after == 0.0
                with pytest.raises(banyan.ResourceExhausted) as soon:
                    for _ in range(100):
                        ours.attend(0, 19, queries(rng, 1))
                assert soon.value.reason == "QUOTA" and 0 < soon.value.retry_after <= 1
                assert [t.tenant for t in b.quotas()] == ["b"] and b.quotas()[0].quotas["sessions"].refused == 1
                assert [t.tenant for t in admin.quotas()] == ["default", "a", "b"]
                with pytest.raises(banyan.PermissionDenied):
                    b.set_quotas("b", sessions=0)
                with pytest.raises(banyan.InvalidArgument):
                    admin.set_quotas("b", patience=1)
                admin.revoke_token("b")
                with pytest.raises(banyan.Unauthenticated):
                    for _ in range(1000):  # its link goes in another turn
                        b.sessions()
                assert a.sessions()[0].id == theirs.id


def test_a_worker_is_drained_and_used_again(rng):
    with banyan.local_cluster(2, worker_args=["--bandwidth", "8G"]) as cluster, cluster.connect() as client:
        # One whole chunk each, and the next one placed ahead: chunks of which rows are not committed move
        # when the ticket of the attach has ended.
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
        client.cordon(holder, "a loud fan")
        info = next(w for w in client.cluster().workers if w.name == holder)
        assert (info.cordoned, info.draining, info.drain_reason, info.drain_by) == (True, False, "a loud fan", "")
        assert abs(info.drain_at - time.time()) < 600
        assert not client.resume(holder).draining
        assert not next(w for w in client.cluster().workers if w.name == holder).cordoned
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


def test_fewer_workers_than_replicas(client):
    """The cluster of the tests has three workers."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.create(dataclasses.replace(SPEC, replicas=3))
    with banyan.local_cluster(2, memory="16M") as own, own.connect() as other:
        with pytest.warns(UserWarning, match=r"replicas=3: the cluster has 2 workers, so 2 copies of each part until more workers join"):
            session = other.create(dataclasses.replace(SPEC, replicas=3))
        assert session.spec.replicas == 3
