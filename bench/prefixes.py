#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a text of 16 k tokens takes to be found and forked, with many kept sessions in the cluster.

    bench/prefixes.py [--sessions 10000] [--tokens 16384] [--tries 50]

Run it with client/python in PYTHONPATH, BANYAN_LIBRARY and BANYAN_BIN set
(client/python/tests/run.sh does). It starts a cluster of its own: a coordinator with its store on
disk, and one worker. Each kept session has a text of its own; the rows are small (1 layer, 1 head,
4 dimensions), for their size does not matter to the search. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
import urllib.request

import numpy as np

import banyan

SPEC = banyan.Spec(layers=1, q_heads=1, kv_heads=1, k_dim=4, v_dim=4, replicas=1)
CHUNK = 256


def session_of(client: banyan.Client, tokens: int, **more: object) -> banyan.Session:
    session = client.create(SPEC, **more)
    rows = np.ones((tokens, 1, 4), dtype=np.float32)
    session.attach(0, 0, rows, rows)
    session.commit(0, 0, tokens)
    return session


def prefix_of(which: int, tokens: int) -> bytes:
    return banyan.prefix_hashes(np.arange(tokens) + (which << 32), chunk_tokens=CHUNK)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10000)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--short", type=int, default=16 * CHUNK, help="tokens of the other kept sessions (default: 4096)")
    parser.add_argument("--tries", type=int, default=50)
    given = parser.parse_args()
    options = {"workers": 1, "memory": "4G", "threads": 1, "coordinator_args": ["--prefix-cache=1T", "--http=127.0.0.1:0"]}
    with banyan.local_cluster(**options) as cluster, cluster.connect(timeout=60) as client:
        begun = time.monotonic()
        base = session_of(client, given.short)
        for i in range(given.sessions - 1):  # forks share its chunk: the search sees their hashes, which differ
            base.fork(given.short).keep(prefix_of(i + 1, given.short))
        session_of(client, given.tokens).keep(prefix_of(0, given.tokens))
        made = time.monotonic() - begun
        want, found, forked, hashed = prefix_of(0, given.tokens), [], [], []
        for _ in range(given.tries):
            begun = time.perf_counter()
            prefix_of(0, given.tokens)
            hashed.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            assert client.find_prefix(SPEC, want) == given.tokens
            found.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            session = client.create(SPEC, prefix=want)
            forked.append(time.perf_counter() - begun)
            assert session.found == given.tokens
            session.delete()
        http = json.loads((cluster.folder / "coordinator.json").read_text())["http"]
        text = urllib.request.urlopen(f"http://{http}/metrics").read().decode()
        metric = {name: float(re.search(rf"^banyan_prefix_{name} (\S+)$", text, re.MULTILINE)[1]) for name in ("sessions", "index_bytes")}
        chunks = (given.sessions - 1) * (given.short // CHUNK) + given.tokens // CHUNK
        print(
            json.dumps(
                {
                    "kept_sessions": int(metric["sessions"]), "chunks": chunks, "tokens": given.tokens,
                    "found_and_forked_ms": round(1e3 * statistics.median(forked), 3),
                    "found_and_forked_min_ms": round(1e3 * min(forked), 3),
                    "found_and_forked_p90_ms": round(1e3 * sorted(forked)[len(forked) * 9 // 10], 3),
                    "found_ms": round(1e3 * statistics.median(found), 3), "hashed_ms": round(1e3 * statistics.median(hashed), 3),
                    "index_bytes_a_chunk": round(metric["index_bytes"] / chunks, 1), "made_s": round(made, 1),
                }
            )
        )  # fmt: skip


if __name__ == "__main__":
    main()
