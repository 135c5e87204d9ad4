# SPDX-License-Identifier: Apache-2.0
"""The engine's memory does not grow with the context: that of the workers does."""

from __future__ import annotations

from pathlib import Path

import models
import texts
from engine import Engine

import banyan

LONG = 128 << 10
GROWTH = 48 << 20  # bytes allowed between 1 k and 128 k tokens: token ids in Python's lists, and the allocator's slack


def test_flat(folder: Path) -> None:
    options = dict(max_model_len=LONG + 1024, max_num_batched_tokens=2048, max_num_seqs=4)
    with banyan.local_cluster(workers=2, memory="1G", threads=1) as own, own.connect() as client:
        with Engine(models.make(folder, "long"), {"BANYAN_ENDPOINT": own.endpoint}, **options) as engine:
            small, large = texts.prompts(1024, LONG)
            engine.generate([large[:8192]], 2, logprobs=None)  # buffers of a whole step are there
            engine.generate([small], 8, logprobs=None, params={"banyan_session": "small"})
            before = engine.call("resident")
            out = engine.generate([large], 8, logprobs=None, params={"banyan_session": "large"})
            after = engine.call("resident")
            blocks = engine.call("blocks")
        held = {info.length: info.bytes for info in client.sessions()}
    assert out[0].finish == "length"
    large_bytes = held[max(held)]
    assert max(held) >= LONG and large_bytes >= 4096 * LONG, held  # it is all there
    print(f"engine {before >> 20} MiB at 1 k, {after >> 20} MiB at 128 k; {large_bytes >> 20} MiB in the workers; {blocks} blocks")
    assert after - before <= GROWTH, f"{(after - before) >> 20} MiB more"
    assert blocks <= 4 * (-(-(LONG + 1024) // 256)) + 1  # a Python object each
