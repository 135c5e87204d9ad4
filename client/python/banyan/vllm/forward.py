# SPDX-License-Identifier: Apache-2.0
"""A layer's attention for a batch: one call, an item a request; the first layer's brings the tokens.

Where recent tokens stay in the engine (window.py), the call asks for the older ones alone, and the engine
attends its own meanwhile; merge.py puts both together. Nothing raises in here: what fails is a request, whose
rows become zeros and whose tokens are never delivered.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from .. import tokens
from ..client import Session
from ..errors import BanyanError
from .calls import Items
from .live import Live, Worker
from .merge import merge
from .staging import Staging, address

APPEND_MAX = 1 << 20  # bytes of K and V that travel with a step; more go straight to the workers, by attach

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Part(NamedTuple):
    """Rows begin..end of a batch: of a request, from this position of its session on."""

    live: Live
    begin: int
    end: int
    first: int


class Forward:
    """What a worker's layers share."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._items = Items()
        self._staging = Staging()
        self._pool = ThreadPoolExecutor(1, "banyan-far") if worker.keep else None

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def attend(self, name: str, rows: Any, query: torch.Tensor, key: Any, value: Any, output: torch.Tensor) -> None:
        """query: [tokens, heads, k_dim]; key, value: [tokens, kv_heads, dim] or None; output: [tokens, heads,
        v_dim].
        """
        worker, staging = self.worker, self._staging
        if rows.parts is None:
            found = [(worker.whose(block, first, end - begin), begin, end, first) for block, begin, end, first in rows.batch]
            rows.parts = [Part(live, begin, end, first) for live, begin, end, first in found if live is not None]
        o = staging.answer(output)
        if sum(part.end - part.begin for part in rows.parts) < len(o):
            o.zero_()  # rows that are padding, or that were not announced: the blocks of those are reported
        if worker.keep:
            self._both(name, rows.parts, query, key, value, o)
        else:
            self._far(name, rows.parts, query, key, value, o)
        for part in rows.parts:
            if part.live.failed:
                o[part.begin : part.end] = 0
            elif worker.model.number[name] == worker.model.token_layer - 1:
                worker.computed(part.live)
        staging.deliver(o, output)

    # ---- everything is in the cluster ----

    def _far(self, name: str, parts: list[Part], query: torch.Tensor, key: Any, value: Any, o: torch.Tensor) -> None:
        model, staging, items = self.worker.model, self._staging, self._items
        index, dtype = model.number[name], _DTYPES[model.spec.kv_type]
        q, k, v = staging.out("q", query, torch.float32), staging.out("k", key, dtype), staging.out("v", value, dtype)
        staging.wait(query)
        items.clear(2 * len(parts))
        whose: list[Live] = []
        keep: list[torch.Tensor] = []
        for part in parts:
            live = part.live
            if live.failed:
                continue
            try:
                if index == 0:
                    keep += self._tokens(part)
                self._rows(index, part, q, k, v, o)
            except Exception as error:
                self.worker.fail(live, error)
            whose += [live] * (items.n - len(whose))
        self._ask(whose)

    def _ask(self, whose: list[Live]) -> None:
        """The call for the items that were put together; whose: of each."""
        if whose:
            try:
                failed = self._items.call(self.worker.client, self.worker.settings.retry_s, self.worker.same)
            except BanyanError as error:  # there is no client
                failed = dict.fromkeys(range(len(whose)), error)
            for i, why in failed.items():
                self.worker.fail(whose[i], why)

    def _tokens(self, part: Part) -> list[torch.Tensor]:
        """The item that notes which tokens these are, and of which model; the memory that it points to."""
        live, model = part.live, self.worker.model
        session, count = _open(live), part.end - part.begin
        said = tokens.rows_of(live.tokens, live.mark, model.spec.kv_type)
        if 2 * said.nbytes > APPEND_MAX:
            self.worker.put(session, model.token_layer, part.first, said, said)
            return []
        unwanted = torch.zeros((count, 1, tokens.DIM))
        self._items.add(session, model.token_layer, part.first, count, *map(address, (unwanted, said, said, unwanted)))
        return [said, unwanted]

    def _rows(self, index: int, part: Part, q: Any, k: Any, v: Any, o: torch.Tensor) -> None:
        session, begin, end = _open(part.live), part.begin, part.end
        if k is not None:
            row = k[0].nbytes + (0 if v is None else v[0].nbytes)
            if row * (end - begin) > APPEND_MAX:
                self.worker.put(session, index, part.first, k[begin:end], None if v is None else v[begin:end])
                k = v = None
        self._items.add(session, index, part.first, end - begin, address(q, begin), address(k, begin), address(v, begin), address(o, begin))

    # ---- old tokens in the cluster, recent ones here ----

    def _both(self, name: str, parts: list[Part], query: torch.Tensor, key: Any, value: Any, o: torch.Tensor) -> None:
        recent, model = self.worker.recent, self.worker.model
        assert recent is not None and self._pool is not None
        alive = [part for part in parts if not part.live.failed]
        if key is not None:
            for part in alive:
                recent.put(name, part.live, part.first, key[part.begin : part.end], None if value is None else value[part.begin : part.end])
        far = [part for part in alive if recent.far(name, part.live, part.first)]
        asked: Future[None] | None = None
        q: Any = None
        if far:
            q = self._staging.out("q", query, torch.float32)
            self._staging.wait(query)
            assert q is not None
            theirs, lse = torch.empty(o.shape, dtype=torch.float32), torch.empty(o.shape[:2], dtype=torch.float32)
            self._items.clear(len(far))
            for part in far:
                self._items.add(
                    _open(part.live), model.number[name], part.first, part.end - part.begin, address(q, part.begin), 0, 0,
                    address(theirs, part.begin), part.live.stored, address(lse, part.begin),
                )  # fmt: skip
            asked = self._pool.submit(self._ask, [part.live for part in far])
        asks = {part.begin for part in far}
        mine = {
            part.begin: recent.attend(name, part.live, part.first, query[part.begin : part.end], part.begin not in asks) for part in alive
        }
        if asked is not None:
            asked.result()
        for part in alive:
            near = mine[part.begin]
            if part.begin in asks and not part.live.failed:
                a, b = theirs[part.begin : part.end].to(near[0].device), lse[part.begin : part.end].to(near[0].device)
                near = merge(a, b, *near)
            o[part.begin : part.end] = near[0]


def _open(live: Live) -> Session:
    assert live.session is not None
    return live.session


_forward: Forward | None = None


def use(worker: Worker | None) -> None:
    """The worker of this process, for the layers; None: it has ended."""
    global _forward
    if _forward is not None:
        _forward.stop()
    _forward = None if worker is None else Forward(worker)


def finish(request: str) -> None:
    """A request is over: in the process of a worker that is done at once, else with the next step."""
    if _forward is not None:
        _forward.worker.finish(request)


def leaving(name: str, seconds: float) -> bool:
    """Worker.leaving; of a worker in another process nothing is seen here: it waits itself, when the session
    is opened.
    """
    return _forward is not None and _forward.worker.leaving(name, seconds)


def attend(name: str, rows: Any, query: torch.Tensor, key: Any, value: Any, output: torch.Tensor) -> None:
    """Of the layer of this name; see Forward.attend."""
    mine = _forward
    if mine is None or not mine.worker.stepping:  # a warm-up's
        output.zero_()
        return
    try:
        mine.attend(name, rows, query, key, value, output)
    except Exception as error:  # a mistake: it ends the step's requests, not the engine
        mine.worker.fail_all(error)
        output.zero_()
