# SPDX-License-Identifier: Apache-2.0
"""A session over a local cluster, with nothing but the wheel: run by `run.sh bare` on a minimal system."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

import banyan

assert not any(shutil.which(tool) for tool in ("cc", "gcc", "banyan-worker")), "not a bare system"
loaded = {Path(line.split()[-1]).name for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
assert any(name.startswith("libcrypto-") for name in loaded), loaded  # the wheel's own
import _hashlib  # noqa: E402, F401
import ssl  # noqa: E402, F401

loaded = {Path(line.split()[-1]).name for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
assert "libcrypto.so.3" in loaded, loaded  # and Python's

rng = np.random.default_rng(1)
k, v = (rng.standard_normal((100, 2, 32), dtype=np.float32) for _ in range(2))
with banyan.local_cluster(workers=2, memory="64M") as cluster, cluster.connect() as client:
    session = client.create(banyan.Spec(layers=1, q_heads=2, kv_heads=2, k_dim=32), "book")
    session.attach(0, 0, k, v)
    session.commit(0, 0, 100)
    session.close()
    answer = client.open("book").attend(0, 0, np.ones((1, 2, 32), np.float32))
    np.testing.assert_allclose(answer.o, v[:1], rtol=1e-6)  # the first row sees the first key alone
    print(f"a session of {answer.length} tokens over {[w.name for w in client.cluster().workers]}, and both OpenSSLs loaded")
