# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import array
import asyncio
import dataclasses
import gc
import threading

import numpy as np
import pytest
from reference import attend, from_fp8, to_bf16
from sessions import SPEC, context, filled, queries

import banyan
from banyan import Item, Spec
from banyan.spec import check_placement


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
    np.testing.assert_allclose(other.attend(0, 49, q).o, want, atol=2e-6)  # other workers may have it, and add up in another order


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


def test_queries_of_two_bytes(client, rng):
    """They are widened: the answer is that of the same values as float32."""
    session, *_ = filled(client, rng, 50)
    half = queries(rng, 2).astype(np.float16)
    answer = session.attend(0, 40, half)
    assert answer.o.dtype == np.float32
    assert (answer.o == session.attend(0, 40, half.astype(np.float32)).o).all()
    with pytest.raises(banyan.InvalidArgument, match="q holds int8"):
        session.attend(0, 40, half.astype(np.int8))


def test_specs_that_match(client):
    """A session's spec is not == the one that it was made with, and matches it, however that was written."""
    kind = banyan.Kind(8, 2, 24, scale=0.1, soft_cap=0.3, alibi=[0.1 * i for i in range(8)])
    spec = Spec(layers=2, kinds=(kind, banyan.Kind(8, 2, 24)), layer_kind=(0, 1), layer_sinks=((), [0.1] * 8), idle_ttl=60)
    with client.create(spec) as session:
        assert session.spec != spec and session.spec.matches(spec) and spec.matches(session.spec)
        for other in (
            dataclasses.replace(spec, kv_type="f16"),
            dataclasses.replace(spec, layer_kind=(1, 1)),
            dataclasses.replace(spec, layer_sinks=((), [0.2] * 8)),
            dataclasses.replace(spec, kinds=(dataclasses.replace(kind, scale=0.1001), banyan.Kind(8, 2, 24))),
            dataclasses.replace(spec, kinds=(dataclasses.replace(kind, alibi=()), banyan.Kind(8, 2, 24))),
            dataclasses.replace(spec, shares=(None, 0)),
            dataclasses.replace(spec, layers=3, layer_kind=(0, 1, 1), layer_sinks=()),
        ):
            assert not session.spec.matches(other) and not other.matches(session.spec)
        session.delete()
    alike = Spec(layers=2, q_heads=8, kv_heads=2, k_dim=24, sinks=[0.5] * 8)
    with client.create(alike) as session:
        assert session.spec.matches(alike)
        assert session.spec.matches(Spec(layers=2, kinds=(banyan.Kind(8, 2, 24),), layer_kind=(0, 0), layer_sinks=([0.5] * 8,) * 2))
        session.delete()


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
    with pytest.raises(banyan.InvalidArgument, match="both k and v, or neither"):
        session.attend(0, 40, q, k[:1])
    with pytest.raises(banyan.InvalidArgument, match="k holds f16, this session needs f32"):
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


def test_fields_of_placement():
    check_placement(["chunk_tokens", "replicas"])
    with pytest.raises(TypeError, match="'chunk_token' is unknown: did you mean 'chunk_tokens'"):
        check_placement(["replicas", "chunk_token"])
    with pytest.raises(TypeError, match="'kv_heads' is unknown: use chunk_tokens, members"):
        check_placement(["kv_heads"])
