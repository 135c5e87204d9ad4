# SPDX-License-Identifier: Apache-2.0
"""States of sessions, without a model: put, got back, shared, cut, restored."""

from __future__ import annotations

import os

import numpy as np
import pytest
from sessions import filled

import banyan

DIGEST = bytes(range(16))


def test_put_and_get(client, rng):
    session, *_ = filled(client, rng, 100)
    assert session.states() == []
    with pytest.raises(banyan.NotFound, match="no state"):
        session.get_state(0, 100)
    small, large = os.urandom(10), np.frombuffer(os.urandom(4 * 10_001), dtype=np.float32)
    session.put_state(0, 40, small, DIGEST)
    session.put_state(1, 60, large, DIGEST[::-1])
    assert [(s.layer, s.position, s.size, s.digest, s.data) for s in session.states()] == [
        (0, 40, 10, DIGEST, None),
        (1, 60, large.nbytes, DIGEST[::-1], None),
    ]
    found = session.get_state(1, 99)
    assert (found.position, found.digest, bytes(found.data)) == (60, DIGEST[::-1], large.tobytes())
    assert bytes(session.get_state(0, 40).data) == small
    with pytest.raises(banyan.InvalidArgument, match="16 bytes"):
        session.put_state(0, 70, small, b"short")
    with pytest.raises(banyan.FailedPrecondition, match="ascending") as raised:
        session.put_state(0, 50, small, DIGEST)
    with pytest.raises(banyan.FailedPrecondition) as raised:
        session.put_state(0, 40, large, DIGEST)
    assert raised.value.reason == "OTHER_BYTES"
    with pytest.raises(banyan.OutOfRange, match="101"):
        session.put_state(0, 101, small, DIGEST)
    session.cut_states(59)
    session.put_state(0, 50, small, DIGEST)
    assert [s.position for s in session.states()] == [40, 50]
    session.delete()
    assert client.sessions() == []  # the session that held them went first


def test_forks_truncates_and_snapshots(client, rng, tmp_path):
    session, *_ = filled(client, rng, 100)
    for position in (30, 60, 90):
        session.put_state(0, position, bytes([position]) * 9000, DIGEST)
    with session.fork(70) as fork, session.fork(70, states=False) as bare:
        assert [s.position for s in fork.states()] == [30, 60] and bare.states() == []
        session.truncate(45)
        assert [s.position for s in session.states()] == [30]
        session.delete()
        assert bytes(fork.get_state(0, 70).data) == bytes([60]) * 9000
        fork.snapshot(tmp_path / "taken")
        for one in (fork, bare):
            one.delete()
    restored = client.restore(tmp_path / "taken")
    assert bytes(restored.get_state(0, 70).data) == bytes([60]) * 9000
    restored.delete()
    os.truncate(next((tmp_path / "taken" / "states").glob("*.safetensors")), 100)
    with pytest.raises(banyan.InvalidArgument):
        client.restore(tmp_path / "taken")
    assert client.sessions() == []
