# SPDX-License-Identifier: Apache-2.0
"""An engine without vLLM: the book, the worker and a model that is a formula, over a real cluster."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest
from reference import attend

torch = pytest.importorskip("torch")

from banyan.spec import Kind  # noqa: E402
from banyan.vllm import config, forward  # noqa: E402
from banyan.vllm.layers import Layer  # noqa: E402
from banyan.vllm.live import Worker  # noqa: E402
from banyan.vllm.recent import Recent  # noqa: E402
from banyan.vllm.sessions import Book  # noqa: E402
from banyan.vllm.steps import Step  # noqa: E402

HEADS, KV, DIM, BLOCK, BATCH = 4, 2, 16, 8, 37
LAYERS = {"wide": Layer(Kind(HEADS, KV, DIM, scale=0.25)), "narrow": Layer(Kind(HEADS, KV, DIM, window=5), sinks=(0.1, 0.2, -0.3, 0.4))}


def rows(what, layer, tokens, first, heads):
    """Keys, values or queries of tokens at positions: of both alone, so that nothing depends on how they were
    fed."""
    out = [
        np.random.default_rng([what, layer, token, first + i]).standard_normal((heads, DIM), dtype=np.float32)
        for i, token in enumerate(tokens)
    ]
    return np.stack(out) if out else np.zeros((0, heads, DIM), np.float32)


def expected(tokens, first, count):
    """Each layer's answer for rows first..first+count of a text."""
    q, k, v = ([rows(what, layer, tokens, 0, heads) for layer in range(2)] for what, heads in ((0, HEADS), (1, KV), (2, KV)))
    end = first + count
    wide, _ = attend(q[0][first:end], k[0][:end], v[0][:end], first, scale=0.25)
    narrow, _ = attend(q[1][first:end], k[1][:end], v[1][:end], first, window=5, sinks=LAYERS["narrow"].sinks)
    return [wide, narrow]


def request(name, tokens, session=None, params=None, salt=None):
    return SimpleNamespace(
        request_id=name, all_token_ids=list(tokens), kv_transfer_params=params, session_id=session, cache_salt=salt, lora_request=None
    )


class Engine:
    """A scheduler and a worker, and no more: each step is what the test says."""

    def __init__(self, cluster, mark=7, keep=0, **environment):
        self.window = keep + 1 + BATCH if keep else 0
        environment = {"BANYAN_RETRY_SECONDS": "20", "BANYAN_WINDOW": str(self.window), **environment}
        settings = config.Settings.of({"BANYAN_ENDPOINT": cluster.endpoint, **environment})
        self.said = []
        self.book = Book(settings, lambda request: mark, 1, "test", self.said.append, keep, forward.leaving)
        self.worker = Worker(settings, lambda: LAYERS, torch.float32, 0, 1, self.said.append, keep)
        forward.use(self.worker)
        self.caches = {name: torch.full((200, BLOCK, KV, 2 * DIM), float("nan")) for name in LAYERS}
        if keep:
            self.worker.recent = Recent(self.caches, LAYERS, BLOCK)
        self.free = itertools.count(1)
        self.blocks = {}
        self.over = []
        self.preempted = {}

    def use(self):
        """One of several in this process: the layers are its."""
        if forward._forward is None or forward._forward.worker is not self.worker:
            forward.use(self.worker)

    def matched(self, request):
        self.use()
        found = self.book.matched(request)
        return found if found is None else min(found, len(request.all_token_ids) - 1)

    def step(self, *parts):
        """parts: (request, start, count). Outputs of each: a list of layers, checked where nothing failed.
        Which failed."""
        self.use()
        announced = []
        for request, start, count in parts:
            fresh = request.request_id not in self.blocks
            have = self.blocks.setdefault(request.request_id, [])
            new = [next(self.free) for _ in range(-(-(start + count) // BLOCK) - len(have))]
            have += new
            freed = have[: max(0, start - self.window + 1) // BLOCK] if self.window else []  # vLLM gives them back
            self.lose(freed)
            announced.append(self.book.row(request, start, request.all_token_ids[start : start + count], new, fresh))
        self.worker.begin(Step(announced, self.over, list(self.preempted)))
        self.lose(block for blocks in self.preempted.values() for block in blocks)
        self.over, self.preempted = [], {}
        batch, at = [], 0
        for request, start, count in parts:
            batch.append((self.blocks[request.request_id][(start + count - 1) // BLOCK], at, at + count, start))
            at += count
        meta = SimpleNamespace(batch=batch, parts=None)
        outputs = []
        for layer, name in enumerate(LAYERS):
            q, k, v = (
                torch.from_numpy(np.concatenate([rows(what, layer, r.all_token_ids[s : s + n], s, heads) for r, s, n in parts]))
                for what, heads in ((0, HEADS), (1, KV), (2, KV))
            )
            out = torch.full((at, HEADS, DIM), float("nan"))
            forward.attend(name, meta, q, k, v, out)
            outputs.append(out.numpy())
        self.worker.spill()
        bad = self.worker.failed_blocks()
        self.worker.end()
        failed = {r.request_id for r, *_ in parts if bad & set(self.blocks[r.request_id])}
        for (request, start, count), (_, begin, end, _) in zip(parts, batch):
            if request.request_id not in failed:
                for out, want in zip(outputs, expected(request.all_token_ids, start, count)):
                    np.testing.assert_allclose(out[begin:end], want, atol=3e-6)
        for request_id in failed:
            self.end(next(r for r, *_ in parts if r.request_id == request_id))
        return failed

    def end(self, request):
        self.over.append(request.request_id)
        self.worker.finish(request.request_id)
        self.blocks.pop(request.request_id, None)
        return self.book.ended(request)

    def preempt(self, request):
        """Its blocks are others' from the next step on."""
        self.preempted[request.request_id] = self.blocks.pop(request.request_id)
        self.book.preempted(request.request_id)

    def lose(self, blocks):
        for block in blocks:
            for cache in self.caches.values():
                cache[block] = float("nan")

    def stop(self):
        forward.use(None)
        self.book.stop()
        self.worker.stop()


TEXT = [int(x) for x in np.random.default_rng(3).integers(3, 999, 120)]


def wait_for(what):
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def run(engine, request, chunk=BATCH):
    """The whole text in chunks; how many tokens were there."""
    wait_for(lambda: engine.matched(request) is not None)
    start = engine.matched(request)
    for at in range(start, len(request.all_token_ids), chunk):
        assert not engine.step((request, at, min(chunk, len(request.all_token_ids) - at))), engine.said
    return start
