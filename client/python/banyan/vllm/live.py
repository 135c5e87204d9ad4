# SPDX-License-Identifier: Apache-2.0
"""The worker's side: open sessions of live requests, whose a row of a batch is, and which requests have failed.

A request's life here:

    (announced) ──begin()──▶ open ──forward: rows appended, attended──▶ open … ──ended──▶ (released)
                    │                        │
                    └──────── failed ◀───────┘     its rows are zeros, its blocks are reported, the scheduler ends it

Nothing in here raises for the cluster's sake: an exception in a step ends the engine, an error of the cluster one request.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .. import tokens
from ..client import Client, Session
from ..errors import AlreadyExists, FailedPrecondition
from ..spec import difference
from .config import Settings
from .layers import Layer, Model, model_of
from .names import of_rank
from .retry import Deadline, connect, persist
from .steps import Row, Step
from .window import stored_after

if TYPE_CHECKING:
    from .recent import Recent


@dataclass(eq=False)
class Live:
    """A request that the worker has rows of.

    Attributes:
        stored: tokens that its session has in all layers.
        recent: ids of the tokens behind these that are in the engine's blocks.
        pending: the row that says how its session is come by, where nothing has left for that yet.
        lasts: its session stays at the end.
        start, tokens, mark: of the step at hand.
        incarnation: of its session as this worker left it: another one means that another client has truncated it.
        table: its KV blocks, in the order of positions; 0: one that was given back.
        failed: why it fails; "": it does not.
    """

    request: str
    name: str
    session: Session | None = None
    stored: int = 0
    recent: list[int] = field(default_factory=list)
    pending: Row | None = None
    lasts: bool = False
    start: int = 0
    tokens: list[int] = field(default_factory=list)
    mark: int = 0
    incarnation: int = 0
    table: list[int] = field(default_factory=list)
    failed: str = ""


class Closer:
    """Closes handles of sessions in a thread of its own: that takes a round trip, which no step waits for."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Session | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def close(self, session: Session) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="banyan-closer", daemon=True)
            self._thread.start()
        self._queue.put(session)

    def _run(self) -> None:
        while (session := self._queue.get()) is not None:
            session.close()

    def stop(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(5)
            self._thread = None


class Worker:
    """Of one rank. All but its closer runs in the thread of the model's forward.

    Args:
        settings: the environment.
        layers: gives the model's layers by name, once they are there.
        dtype: torch's, of keys and values.
        rank, ranks: of tensor parallelism.
        log: takes a sentence.
        keep: tokens of a request that stay in the engine after a step (window.py); 0: none.
    """

    def __init__(
        self, settings: Settings, layers: Callable[[], Mapping[str, Layer]], dtype: Any, rank: int, ranks: int, log: Callable[[str], None],
        keep: int = 0,
    ) -> None:  # fmt: skip
        self.settings, self.keep = settings, keep
        self._layers, self._dtype, self._rank, self._ranks, self._log = layers, dtype, rank, ranks, log
        self._client: Client | None = None
        self._model: Model | None = None
        self._closer = Closer()
        self.live: dict[str, Live] = {}
        self.by_block: dict[int, Live] = {}
        self.recent: Recent | None = None  # where tokens stay in the engine: set when its blocks are there
        self.stepping = False  # a step's metadata is bound: rows are requests', not a warm-up's
        self._here: dict[str, Live] = {}  # of this step, by request
        self._strange: set[int] = set()  # blocks of rows that were not announced
        self._patience = Deadline(settings.retry_s)  # of all that a step does to sessions before its forward

    @property
    def client(self) -> Client:
        if self._client is None or self._client.closed:
            self._client = connect(self.settings)
        return self._client

    @property
    def model(self) -> Model:
        if self._model is None:
            self._model = model_of(self._layers(), self._dtype, self.settings.replicas)
        return self._model

    # ---- a step ----

    def begin(self, step: Step) -> None:
        """Before the forward. Blocks for sessions that are opened, truncated, forked or filled."""
        self.stepping = True
        self._here, self._strange, self._patience = {}, set(), Deadline(self.settings.retry_s)
        over = [live for live in map(self._over, step.ended) if live is not None]
        for row in step.rows:
            self._announce(row)
        for row in step.rows:
            self._ready(row)
        for live in over:  # after the forks of them
            self._let_go(live)

    def end(self) -> None:
        """After the forward, when failures have been asked for."""
        self.stepping = False

    def finish(self, request: str) -> None:
        """A request is over, and no step in progress: what begin() would do for it with the next step."""
        self._patience = Deadline(self.settings.retry_s)
        live = self._over(request)
        if live is not None:
            self._let_go(live)

    def _over(self, request: str) -> Live | None:
        """The request's blocks are still as they were: what is only in them leaves now, if its session stays."""
        live = self.live.pop(request, None)
        if live is not None:
            self._disown(live)
            if live.lasts and live.recent and not live.failed:
                self.store(live, live.stored + len(live.recent))
        return live

    def _let_go(self, live: Live) -> None:
        if live.session is not None:
            self._closer.close(live.session)

    def _disown(self, live: Live) -> None:
        for block in live.table:
            if self.by_block.get(block) is live:
                del self.by_block[block]

    def _announce(self, row: Row) -> None:
        live = self.live.get(row.request)
        if live is None:
            live = self.live[row.request] = Live(row.request, row.name, lasts=row.lasts)
        if row.fresh:
            self._disown(live)
            live.table, live.recent = [], []
        live.table += row.blocks
        for block in row.blocks:
            if block:
                self.by_block[block] = live
        live.start, live.tokens, live.mark = row.start, row.tokens, row.mark
        self._here[row.request] = live

    def _ready(self, row: Row) -> None:
        """The session is open and has exactly the tokens before `start` that the engine has not, or the request has failed."""
        live = self.live[row.request]
        if live.failed:
            return
        if row.refused:
            return self.fail(live, row.refused)
        if row.opens and self._patience.left <= 0:
            return self.fail(live, "the cluster has not answered for other requests of this step")
        try:
            if row.opens == "create" and self.keep:
                live.pending = row  # until something leaves for it
            elif row.opens:
                self._open(live, row)
            elif live.stored + len(live.recent) != row.start:
                self._cut(live, row.start)
        except Exception as error:  # the cluster's, or a mistake: this request's alone
            self.fail(live, error)

    def _open(self, live: Live, row: Row) -> None:
        live.session = self._opened(row)
        live.stored, live.incarnation, live.pending = row.start, self._incarnation(live.session), None

    def _cut(self, live: Live, length: int) -> None:
        session = live.session
        if live.recent or live.stored < length or session is None:
            raise FailedPrecondition(f"session {live.name} has {live.stored} tokens, {length} are counted upon")
        persist(lambda: session.truncate(length), self._patience)
        live.stored, live.incarnation = length, self._incarnation(session)

    # ---- what leaves the engine's blocks ----

    def computed(self, live: Live) -> None:
        """All layers of the step have been computed for it."""
        if self.keep:
            live.recent += live.tokens
        else:
            live.stored = live.start + len(live.tokens)

    def spill(self) -> None:
        """After a forward: rows that the next step could push out leave for the cluster."""
        for live in list(self._here.values()) if self.keep else []:
            if not live.failed:
                self.store(live, stored_after(live.stored, live.stored + len(live.recent), self.keep))

    def store(self, live: Live, end: int) -> None:
        """The session gets the tokens up to `end` from the engine's blocks."""
        if end <= live.stored:
            return
        try:
            if live.pending is not None:
                self._open(live, live.pending)
            self._send(live, end)
        except Exception as error:
            self.fail(live, error)

    def _send(self, live: Live, end: int) -> None:
        session, begin, model, recent = live.session, live.stored, self.model, self.recent
        assert session is not None and recent is not None
        said = tokens.rows_of(live.recent[: end - begin], live.mark, model.spec.kv_type)
        self.put(session, model.token_layer, begin, said, said)
        for name, index in model.number.items():
            rows = recent.rows(name, live, begin, end, model.spec.kv_type)
            if rows is not None:
                self.put(session, index, begin, *rows)
        del live.recent[: end - begin]
        live.stored = end

    def _incarnation(self, session: Session) -> int:
        return persist(session.info, self._patience).incarnation

    # ---- sessions ----

    def _opened(self, row: Row) -> Session:
        how = {"create": self._created, "resume": self._resumed, "fork": self._forked}.get(row.opens)
        if how is None:
            raise FailedPrecondition(f"the session of {row.request} was closed")
        return persist(lambda: how(row), self._patience)

    def _own(self, name: str) -> str:
        return of_rank(name, self._rank, self._ranks)

    def _checked(self, name: str) -> Session:
        session = self.client.open(self._own(name))
        why = difference(session.spec, self.model.spec)
        if why:
            session.close()
            raise FailedPrecondition(f"session {name} is another model's: {why}")
        return session

    def _created(self, row: Row) -> Session:
        spec = replace(self.model.spec, idle_ttl=row.ttl_s)
        try:
            return self.client.create(spec, self._own(row.name))
        except AlreadyExists:  # an earlier attempt has made it, or what it has does not count
            session = self._checked(row.name)
            if any(session.info().layer_lengths):
                session.truncate(0)
            return session

    def _resumed(self, row: Row) -> Session:
        session = self._checked(row.name)
        info = session.info()
        if info.length < row.start or (row.seen and row.seen[self._rank] != info.incarnation):
            session.close()
            raise FailedPrecondition(f"session {row.name} was changed by another client since its tokens were read: ask again")
        persist(
            lambda: session.truncate(row.start), self._patience
        )  # even where it has no more: a truncate of a process that has ended cannot come after it
        return session

    def _forked(self, row: Row) -> Session:
        parent = next((live for live in self.live.values() if live.name == row.parent), None)
        if parent is None or parent.session is None or parent.failed:
            raise FailedPrecondition(f"the request that computes the same prompt has failed (session {row.parent})")
        try:
            return parent.session.fork(row.start, self._own(row.name))
        except AlreadyExists:  # an earlier attempt has made it
            return self._resumed(row)

    # ---- rows ----

    def whose(self, block: int, first: int, count: int) -> Live | None:
        """The request of a batch row: it has this block, and `count` tokens from position `first` on. None: it was not announced."""
        live = self.by_block.get(block)
        if live is None or live.request not in self._here:
            self._strange.add(block)
            return None
        if (live.start, len(live.tokens)) != (first, count):
            self.fail(live, f"rows {first}+{count} were computed, {live.start}+{len(live.tokens)} announced")
        return live

    def fail(self, live: Live, error: Exception | str) -> None:
        """The request gets an error. Its session, where it has a name, keeps what all layers have."""
        if not live.failed:
            live.failed = str(error) or type(error).__name__
            self._log(f"request {live.request} fails: {live.failed}")

    def fail_all(self, error: Exception) -> None:
        for live in self._here.values():
            self.fail(live, error)

    def failed_blocks(self) -> set[int]:
        """A block of each request that has failed, and those of rows that were not announced."""
        return {max(live.table) for live in self._here.values() if live.failed and live.table} | self._strange

    def same(self, session: Session) -> bool:
        """Whether no other client has truncated a session of a live request. Asks the service."""
        live = next((live for live in self._here.values() if live.session is session), None)
        return live is not None and session.info().incarnation == live.incarnation

    def put(self, session: Session, layer: int, first: int, k: Any, v: Any) -> None:
        """Attaches rows and commits them, repeated as the environment says."""

        def once() -> None:
            session.commit(layer, first, session.attach(layer, first, k, v))

        persist(once, Deadline(self.settings.retry_s))

    def stop(self) -> None:
        self._closer.stop()
        if self._client is not None:
            self._client.close()
