# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json
import os
import signal
import time

import numpy as np
import pytest
from reference import attend
from sessions import SPEC, filled, queries

import banyan
from banyan import Spec


def test_snapshots(client, rng, tmp_path):
    session, k, v = filled(client, rng, 100, name="kept as files")
    q = queries(rng, 3)
    before = session.attend(1, 97, q, lse=True)
    made = session.snapshot(tmp_path / "plain")
    assert made.path == str(tmp_path / "plain") and made.tokens == made.longest_layer == 100
    assert made.files == 2 and made.bytes == k.nbytes * 2 + v.nbytes * 2 and made.stored_bytes >= made.bytes
    with pytest.raises(banyan.AlreadyExists, match="already exists"):
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
    """What a file of safetensors holds, read with nothing of ours: 8 bytes with the header's length, the
    header (JSON: types, shapes, and where in the rest the bytes are), the rest without a gap."""
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


def test_progress(client, rng, tmp_path):
    session, _, _ = filled(client, rng, 100)
    seen = []

    def slowly(done, total):  # all may be there before the first report has ended
        seen.append((done, total))
        time.sleep(0.1)

    made = session.snapshot(tmp_path / "s", progress=slowly)
    assert seen[0] == (0, made.bytes) and seen[-1] == (made.bytes, made.bytes) and seen == sorted(seen)
    again = []
    client.restore(tmp_path / "s", progress=lambda *at: again.append(at)).delete()
    assert again[0] == (0, made.bytes) and again == sorted(again)
    assert again[-1] == (made.bytes, made.bytes)


@pytest.mark.parametrize("why", [KeyboardInterrupt, ValueError])
def test_an_exception_ends_it(client, rng, tmp_path, why):
    session = filled(client, rng, 100)[0]
    session.snapshot(tmp_path / "whole")
    there = {s.id for s in client.sessions()}

    def end(done, total):
        raise why("enough")

    with pytest.raises(why, match="enough"):
        session.snapshot(tmp_path / "part", progress=end)
    with pytest.raises(why, match="enough"):
        client.restore(tmp_path / "whole", progress=end)
    assert {s.id for s in client.sessions()} == there
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


@pytest.fixture
def heeds_ctrl_c():
    """Programs that a shell has put into the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_ends_it(client, rng, tmp_path):
    session = filled(client, rng, 100)[0]

    def slow(done, total):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        session.snapshot(tmp_path / "part", progress=slow)
    assert not list(tmp_path.iterdir())
