# SPDX-License-Identifier: Apache-2.0
"""The worker's side: open sessions of live requests, whose a row of a batch is, and which requests have
failed.

A request's life here:

    (announced) ──begin()──▶ open ──forward: rows appended, attended──▶ open … ──ended──▶ (released)
                    │                        │
                    └──────── failed ◀───────┘     its rows are zeros, its blocks are reported, the scheduler
                    ends it

Where recent tokens stay in the engine (window.py), their rows are handed over after a forward, and threads
send them (leaving.py); a session is then created by the first of them.

Nothing in here raises for the cluster's sake: an exception in a step ends the engine, an error of the cluster
one request.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import tokens
from ..client import Client, Session
from ..errors import BanyanError, DeadlineExceeded, FailedPrecondition
from .config import Settings
from .layers import Layer, Model, model_of
from .leaving import Lane, Leaving, Load
from .opening import Opening
from .retry import Deadline, connect, persist
from .steps import Row, Step
from .window import handed_after, stored_before

if TYPE_CHECKING:
    from .recent import Recent

STOP = 5.0  # seconds that an engine which is ended waits for what is on its way


@dataclass(eq=False)
class Live:
    """A request that the worker has rows of.

    Attributes:
        stored: tokens that its session has in all layers, and that are attended there.
        recent: ids of the tokens behind these that are in the engine's blocks.
        handed: tokens that its session has, or that are on their way to it.
        lane: of these.
        pending: the row that says how its session is come by, where nothing has arrived there yet.
        lasts: its session stays at the end.
        start, tokens, mark: of the step at hand.
        incarnation: of its session as this worker left it: another one means that another client has
            truncated it.
        table: its KV blocks, in the order of positions; 0: one that was given back.
        failed: why it fails; "": it does not.
    """

    request: str
    name: str
    session: Session | None = None
    stored: int = 0
    recent: list[int] = field(default_factory=list)
    handed: int = 0
    lane: Lane = field(default_factory=Lane)
    pending: Row | None = None
    lasts: bool = False
    start: int = 0
    tokens: list[int] = field(default_factory=list)
    mark: int = 0
    incarnation: int = 0
    table: list[int] = field(default_factory=list)
    failed: str = ""


class Worker:
    """Of one rank. All but what closes and sends runs in the thread of the model's forward.

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
        self._layers, self._dtype, self._log = layers, dtype, log
        self._connecting = threading.Lock()
        self._client: Client | None = None
        self._model: Model | None = None
        self._leaving = Leaving(log)
        self._opening = Opening(lambda: self.client, lambda: self.model, rank, ranks)
        self._ending: dict[str, Lane] = {}  # of lasting sessions whose request is over, by name
        self.live: dict[str, Live] = {}
        self.by_block: dict[int, Live] = {}
        self.recent: Recent | None = None  # where tokens stay in the engine: set when its blocks are there
        self.stepping = False  # a step's metadata is bound: rows are requests', not a warm-up's
        self._here: dict[str, Live] = {}  # of this step, by request
        self._strange: set[int] = set()  # blocks of rows that were not announced
        self._patience = Deadline(settings.retry_s)  # of all that a step does to sessions before its forward

    @property
    def client(self) -> Client:
        with self._connecting:
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
        """Before the forward. Blocks for sessions that are opened, truncated or forked, and for rows that the
        window moves past.
        """
        self.stepping = True
        self._here, self._strange, self._patience = {}, set(), Deadline(self.settings.retry_s)
        for request in step.preempted:
            self._preempted(request)
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
        """The request's blocks are still as they were: what is only in them leaves now, if its session
        stays.
        """
        live = self.live.pop(request, None)
        if live is not None:
            if live.lasts:
                self._hand_all(live)
            self._disown(live)
        return live

    def _let_go(self, live: Live) -> None:
        """What it still has to get is sent, or dropped, and its handle closed: in a thread, since that takes
        round trips.
        """
        if live.lasts and self.keep:
            self._ending = {name: lane for name, lane in self._ending.items() if not self._leaving.ended(lane)}
            self._ending[live.name] = live.lane
        self._leaving.end(live.lane, functools.partial(self._closed, live), drop=not live.lasts)

    def _closed(self, live: Live) -> None:
        """In a thread, when nothing more comes for the session."""
        if live.session is None:
            return
        try:
            if self.keep and not live.lasts:  # the scheduler's side may have deleted it before its first rows made it
                live.session.delete()
        except BanyanError:  # it is gone, or its time to live ends it
            pass
        live.session.close()

    def leaving(self, name: str, seconds: float = 0.0) -> bool:
        """Whether rows of a request that is over are still on their way to this session; waits so long for
        them. Thread-safe.
        """
        lane = self._ending.get(name)
        return lane is not None and not self._leaving.ended(lane, seconds)

    def _preempted(self, request: str) -> None:
        """Its blocks are given to others with this step: what is in them leaves now, and is there when the
        request goes on.
        """
        live = self.live.get(request)
        if live is not None:
            self._hand_all(live)
            self._disown(live)
            live.table = []

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
        """The session is open and has exactly the tokens before `start` that the engine has not, or the
        request has failed.
        """
        live = self.live[row.request]
        if live.failed:
            return
        if row.refused:
            return self.fail(live, row.refused)
        if row.opens and self._patience.left <= 0:
            return self.fail(live, "the cluster has not answered for other requests of this step")
        try:
            if row.opens and self.leaving(row.name, self._patience.left):
                raise DeadlineExceeded(f"rows of an earlier request have not reached session {row.name}")
            if row.opens == "create" and self.keep:
                live.pending = row  # until something leaves for it
            elif row.opens:
                self._open(live, row)
            elif self.keep:
                self._move(live, row.start if row.fresh else stored_before(live.stored, row.start, self.settings.window))
            if live.stored + len(live.recent) != row.start:
                self._cut(live, row.start)
        except Exception as error:  # the cluster's, or a mistake: this request's alone
            self.fail(live, error)

    def _open(self, live: Live, row: Row) -> None:
        parent: Live | None = None
        if row.opens == "fork":
            parent = next((other for other in self.live.values() if other.name == row.parent), None)
            if parent is None or parent.failed:
                raise FailedPrecondition(f"the request that computes the same prompt has failed (session {row.parent})")
            if self.keep:
                self._leaving.wait(parent.lane, row.start, self._patience.left)
        self._opened(live, row, None if parent is None else parent.session, self._patience)
        live.stored, live.handed, live.lane = row.start, row.start, Lane(row.start)

    def _opened(self, live: Live, row: Row, parent: Session | None, deadline: Deadline) -> None:
        live.session, live.incarnation = self._opening.open(row, parent, deadline)

    def _cut(self, live: Live, length: int) -> None:
        session = live.session
        if live.recent or live.stored < length or session is None:
            raise FailedPrecondition(f"session {live.name} has {live.stored} tokens, {length} are counted upon")
        persist(lambda: session.truncate(length), self._patience)
        live.incarnation = self._opening.incarnation(session, self._patience)
        live.stored, live.handed, live.lane = length, length, Lane(length)

    # ---- what leaves the engine's blocks ----

    def computed(self, live: Live) -> None:
        """All layers of the step have been computed for it."""
        if self.keep:
            live.recent += live.tokens
        else:
            live.stored = live.start + len(live.tokens)

    def spill(self) -> None:
        """After a forward: rows that a later step could push out are handed over."""
        for live in list(self._here.values()) if self.keep else []:
            if not live.failed:
                self._hand(live, handed_after(live.handed, live.stored + len(live.recent), self.keep))

    def _move(self, live: Live, line: int) -> None:
        """Tokens up to the line are attended in the cluster from now on. Blocks until they are there."""
        if line <= live.stored:
            if live.lane.error is not None:
                raise live.lane.error
            return
        self._leaving.wait(live.lane, line, self._patience.left)
        del live.recent[: line - live.stored]
        live.stored = line

    def _hand_all(self, live: Live) -> None:
        if self.keep and not live.failed:
            self._hand(live, live.stored + len(live.recent))

    def _hand(self, live: Live, end: int) -> None:
        """Copies of the rows up to `end` leave for the session. Blocks only where too much is on its way."""
        begin, recent, model = live.handed, self.recent, self.model
        if end <= begin:
            return
        assert recent is not None
        try:
            ids = live.recent[begin - live.stored : end - live.stored]
            said = tokens.rows_of(ids, live.mark, model.spec.kv_type)
            rows = [(model.token_layer, said, said)]
            for name, index in model.number.items():
                found = recent.rows(name, live, begin, end, model.spec.kv_type)
                if found is not None:
                    rows.append((index, *found))
            size = sum(k.nbytes + (0 if v is None else v.nbytes) for _, k, v in rows)
            self._leaving.hand(live.lane, Load(end, size, functools.partial(self._send, live, begin, rows)), self.settings.retry_s)
            live.handed = end
        except Exception as error:
            self.fail(live, error)

    def _send(self, live: Live, begin: int, rows: list[tuple[int, Any, Any]]) -> None:
        """In a thread: rows of each layer, from position `begin` on."""
        if live.pending is not None:
            self._opened(live, live.pending, None, Deadline(self.settings.retry_s))
            live.pending = None
        assert live.session is not None
        for index, k, v in rows:
            self.put(live.session, index, begin, k, v)

    # ---- rows ----

    def whose(self, block: int, first: int, count: int) -> Live | None:
        """The request of a batch row: it has this block, and `count` tokens from position `first` on. None:
        it was not announced.
        """
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
        """Disconnects, when what lasts has left: blocks for that some seconds at most."""
        for request in list(self.live) if self.keep else []:
            self.finish(request)
        self._leaving.stop(STOP)
        if self._client is not None:
            self._client.close()
