# SPDX-License-Identifier: Apache-2.0
"""Prefixes found by content, without a model: hashes, kept sessions, restarts of everything, two tenants."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from sessions import SPEC, filled, queries

import banyan
from banyan import programs

CHUNK = SPEC.chunk_tokens


@pytest.fixture(autouse=True)
def _empty(client):
    yield
    client.drop_prefixes()


def text(which, tokens):
    return list(range(1000 * which, 1000 * which + tokens))


def kept(client, rng, which, tokens, **life):
    session, k, v = filled(client, rng, tokens)
    found = session.keep(banyan.prefix_hashes(text(which, tokens), chunk_tokens=CHUNK), **life)
    assert (found.session, found.length, found.why) == (session.id, tokens // CHUNK * CHUNK, "")
    return session.id, k, v


def test_hashes():
    ids = np.arange(600)
    whole = banyan.prefix_hashes(ids, chunk_tokens=32)
    assert len(whole) == 18 * 16 and whole == banyan.prefix_hashes(ids.tolist(), chunk_tokens=32)
    other = ids.copy()
    other[40] = 7
    changed = banyan.prefix_hashes(other, chunk_tokens=32)
    assert changed[:16] == whole[:16] and all(changed[i : i + 16] != whole[i : i + 16] for i in range(16, len(whole), 16))
    assert banyan.prefix_hashes(ids, b"salt", 32)[:16] != whole[:16]
    assert banyan.prefix_hashes(ids[:31], chunk_tokens=32) == b""
    # Part of the format: other programs compute the same.
    assert banyan.prefix_hashes(range(32), b"salt", 16).hex() == _by_hand(range(32), b"salt", 16).hex()
    with pytest.raises(banyan.InvalidArgument):
        banyan.prefix_hashes([[1, 2]])


def _by_hand(tokens, salt, chunk):
    import hashlib

    tokens, h, out = list(tokens), hashlib.sha256(b"banyan prefix\0" + salt).digest()[:16], b""
    for at in range(0, len(tokens) // chunk * chunk, chunk):
        part = b"".join(t.to_bytes(8, "little", signed=True) for t in tokens[at : at + chunk])
        h = hashlib.sha256(h + part).digest()[:16]
        out += h
    return out


def test_found_and_forked(client, rng):
    tokens = 4 * CHUNK + 5
    session, k, v = kept(client, rng, 1, tokens)
    info = next(s for s in client.sessions() if s.id == session)
    assert info.kept
    want = banyan.prefix_hashes(text(1, 3 * CHUNK) + text(9, 3 * CHUNK), chunk_tokens=CHUNK)
    assert client.find_prefix(SPEC, want) == 3 * CHUNK
    q = queries(rng, 1)
    with client.create(SPEC, prefix=want) as fork, client.create(SPEC) as fresh:
        assert fork.found == fork.info().length == 3 * CHUNK and fresh.found == 0
        for layer in range(SPEC.layers):
            fresh.attach(layer, 0, k[: 3 * CHUNK], v[: 3 * CHUNK])
            fresh.commit(layer, 0, 3 * CHUNK)
            got, expected = (s.attend(layer, 3 * CHUNK - 1, q) for s in (fork, fresh))
            assert np.array_equal(got.o, expected.o) or np.allclose(got.o, expected.o, atol=2e-6)
            fork.attend(layer, 3 * CHUNK, q, k[:1], v[:1])  # it goes on, and the kept one does not
        assert fork.memory().shared_bytes > 0
        fork.delete()
        fresh.delete()
    one = client.prefixes()
    assert [(p.session, p.length, p.hits, p.pinned, p.ttl) for p in one] == [(session, 4 * CHUNK, 1, False, 0.0)]
    assert one[0].bytes > 0
    with pytest.raises(banyan.FailedPrecondition):
        client.open(session).truncate(CHUNK)
    with pytest.raises(banyan.FailedPrecondition):
        client.open(session).attend(0, tokens, q, k[:1], v[:1])
    with pytest.raises(banyan.NotFound):
        client.drop_prefixes(session + 1)
    assert client.drop_prefixes(session) == (1, one[0].bytes)
    with client.create(SPEC, prefix=want) as missed:
        assert missed.found == 0


def test_what_does_not_match(client, rng):
    kept(client, rng, 1, 2 * CHUNK)
    for spec, tokens, salt in ((replace(SPEC, v_dim=32), text(1, 64), b""), (SPEC, text(2, 64), b""), (SPEC, text(1, 64), b"mine")):
        assert client.find_prefix(spec, banyan.prefix_hashes(tokens, salt, CHUNK)) == 0
    assert client.find_prefix(replace(SPEC, idle_ttl=9.0), banyan.prefix_hashes(text(1, 64), chunk_tokens=CHUNK)) == 2 * CHUNK


def test_what_is_not_kept(client, rng):
    prefix = banyan.prefix_hashes(text(1, 2 * CHUNK), chunk_tokens=CHUNK)
    first = kept(client, rng, 1, 2 * CHUNK, ttl=3600.0, pin=True)[0]
    again = filled(client, rng, 2 * CHUNK)[0].keep(prefix)
    assert again.session == first and "already" in again.why
    assert [(p.pinned, p.ttl) for p in client.prefixes()] == [(True, 0.0)]  # the second one has set no time
    named = filled(client, rng, 2 * CHUNK, name="mine")[0]
    with pytest.raises(banyan.FailedPrecondition):
        named.keep(prefix)
    with pytest.raises(banyan.OutOfRange):
        filled(client, rng, 2 * CHUNK - 1)[0].keep(prefix)


def test_the_command_line(client, cluster, rng):
    session, _, _ = kept(client, rng, 1, 2 * CHUNK)
    env = {**os.environ, "BANYAN_ENDPOINT": cluster.endpoint}
    program = programs.find("banyanctl")

    def ctl(*words, code=0):
        done = subprocess.run([program, *words], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout

    listed = ctl("prefix", "list")
    assert f"0x{session:016x}" in listed and " at most " in listed
    assert "would drop" in ctl("prefix", "drop", "--all", "--dry-run")
    assert "dropped 1 sessions" in ctl("prefix", "drop", f"0x{session:016x}", "--yes")
    ctl("prefix", "drop", f"0x{session:016x}", "--yes", code=3)
    ctl("prefix", "drop", code=2)


def cluster_in(folder):
    return banyan.local_cluster(workers=1, memory="64M", threads=1, folder=folder, worker_args=[f"--store={folder}/rows"])


def test_restart_of_everything(tmp_path, rng):
    """Coordinator and workers end, and start again on their files: another process finds the text."""
    prefix = banyan.prefix_hashes(text(1, 3 * CHUNK), chunk_tokens=CHUNK)
    q = queries(rng, 1)
    with cluster_in(tmp_path) as cluster, cluster.connect() as client:
        kept(client, rng, 1, 3 * CHUNK)
        with client.create(SPEC, prefix=prefix) as session:
            want = session.attend(0, 3 * CHUNK - 1, q).o
            session.delete()
    with cluster_in(tmp_path) as cluster, cluster.connect() as client:
        assert [(p.length, p.hits) for p in client.prefixes()] == [(3 * CHUNK, 0)]
        with client.create(SPEC, prefix=prefix) as session:
            assert session.found == 3 * CHUNK
            assert np.array_equal(session.attend(0, 3 * CHUNK - 1, q).o, want)


def test_tenants_never_share(tmp_path, rng):
    prefix = banyan.prefix_hashes(text(1, 2 * CHUNK), chunk_tokens=CHUNK)
    with banyan.local_cluster(workers=1, memory="64M", threads=1) as cluster:

        def client_of(name, access, by):
            file = tmp_path / name
            file.write_text(by.create_token(name, access, None if access == "admin" else name))
            file.chmod(0o600)
            return banyan.Client(cluster.endpoint, token_file=str(file))

        with cluster.connect() as nobody:
            admin = client_of("root", "admin", nobody)
        with admin, client_of("red", "user", admin) as red, client_of("blue", "user", admin) as blue:
            kept(red, rng, 1, 2 * CHUNK)
            assert blue.find_prefix(SPEC, prefix) == 0 and blue.prefixes() == []
            with blue.create(SPEC, prefix=prefix) as session:
                assert session.found == 0
            kept(blue, rng, 1, 2 * CHUNK)
            assert len(red.prefixes()) == len(blue.prefixes()) == 1
            assert blue.drop_prefixes()[0] == 1
            with red.create(SPEC, prefix=prefix) as session:
                assert session.found == 2 * CHUNK
            assert [p.tenant for p in red.prefixes()] == [""] and [p.tenant for p in admin.prefixes()] == ["red"]
