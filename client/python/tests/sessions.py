# SPDX-License-Identifier: Apache-2.0
"""Sessions with random context, for the tests."""

from __future__ import annotations

import numpy as np

from banyan import Spec

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
