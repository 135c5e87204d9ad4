# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side: which session a request gets, how many of its tokens are there, and which sessions
are over.

    plan      a request is seen for the first time (or again while it waits):
              its session's name is free           read its tokens: what agrees with the prompt counts
              … is in use by a live request        a fork of what that one has, deleted at the end
              same prompt as a live request        waits until that one has computed it, then a fork (n > 1)
              no name                              empty, deleted at the end
    row       it is scheduled: what the worker's side is to do
    ended     it is over: a session without a name is deleted, in a thread of its own

Nothing of a session counts but tokens that were read from it, with this model's mark beside each: another
text, another model or a session that no engine made counts for nothing, and is left alone where it is not an
engine's.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import tokens
from ..client import Client, Session
from ..errors import BanyanError, NotFound, Unavailable
from .config import Settings
from .layers import holds_tokens
from .names import of_rank, wish
from .retry import Deadline, connect, passing, persist
from .steps import Row
from .window import handed_after

AWAY = 1.0  # seconds after a look-up that has failed in which others are not tried: each would hold the engine up
READ = 1 << 16  # tokens of a call that reads them
SOON = 0.005  # seconds that an idle engine waits before it asks again whether a session is there
SHARED = 32  # tokens that a prompt must have for a request to wait for another one of the same: fewer are computed again


@dataclass(eq=False)
class Entry:
    """A request that is not over.

    Attributes:
        prompt: its tokens when it came.
        name: of its session; lasts: that stays at the end.
        salt, mark: what a session's tokens must have been computed under to be shared.
        matched: tokens of the prompt that are there; None: not known yet.
        parent: the session that it forks; "": none.
        computed: tokens that were computed, or there, after the last step that was scheduled.
        held: of these, how many its session has, or is about to get: all, where none stay in the engine.
        begun: a worker has been given a row of it.
        private: its tokens do not say what it was computed from (images, embeddings): nothing is shared.
        refused: why it is not served; "": it is.
        got: tokens that were there when it began.
        seen: incarnations of its session at each rank when they were read.
        asked: the name that it is to have, when the request that has it now is over; "": none.
    """

    request: str
    prompt: Sequence[int]
    name: str
    lasts: bool
    salt: str
    mark: int
    ttl_s: float
    matched: int | None = None
    parent: str = ""
    computed: int = 0
    held: int = 0
    begun: bool = False
    private: bool = False
    refused: str = ""
    got: int = 0
    seen: list[int] = field(default_factory=list)
    asked: str = ""


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens are the same from the beginning."""
    n = min(len(a), len(b))
    if list(a[:n]) == list(b[:n]):
        return n
    return next(i for i in range(n) if a[i] != b[i])


class Reaper:
    """Deletes sessions by name in a thread of its own: an engine that has nothing to do makes no step that
    could."""

    def __init__(self, delete: Callable[[str], None], log: Callable[[str], None]) -> None:
        self._delete, self._log = delete, log
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, name: str) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="banyan-reaper", daemon=True)
            self._thread.start()
        self._queue.put(name)

    def _run(self) -> None:
        while (name := self._queue.get()) is not None:
            try:
                self._delete(name)
            except Exception as error:
                self._log(f"session {name} is left to its time to live: {error}")

    def stop(self) -> None:
        """Waits for the deletions, some seconds at most."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(5)
            self._thread = None


class Book:
    """Of one engine. All but the reaper runs in the scheduler's thread.

    Args:
        settings: the environment.
        mark_of: a request's mark (mark.py); raises OSError.
        ranks: of tensor parallelism: each has a session of its own.
        engine: makes names of this engine's sessions its own.
        log: takes a sentence.
        keep: tokens of a request that stay in the engine after a step (window.py); 0: none.
        leaving: whether rows of an earlier request are on their way to the session of this name; waits so
        many seconds for them.
    """

    def __init__(
        self, settings: Settings, mark_of: Callable[[Any], int], ranks: int, engine: str, log: Callable[[str], None], keep: int = 0,
        leaving: Callable[[str, float], bool] = lambda name, seconds: False,
    ) -> None:  # fmt: skip
        self._settings, self._mark_of, self._ranks, self._engine, self._log = settings, mark_of, ranks, engine, log
        self._keep, self._leaving = keep, leaving
        self._client: Client | None = None
        self._entries: dict[str, Entry] = {}
        self._made = 0
        self._away = -AWAY  # when the cluster last did not answer
        self._reaper = Reaper(self._delete, log)

    @property
    def client(self) -> Client:
        if self._client is None or self._client.closed:
            self._client = connect(self._settings)
        return self._client

    # ---- a request comes ----

    def matched(self, request: Any) -> int | None:
        """How many of the request's tokens are there; None: it waits for another one that computes them.
        Never raises."""
        entry = self._entries.get(request.request_id)
        if entry is None:
            entry = self._entries[request.request_id] = self._entered(request)
        if entry.begun:  # it was preempted: its blocks are gone, its session is there
            return entry.held
        try:
            return self._planned(entry)
        except Exception as error:
            entry.refused, entry.matched = f"its session cannot be looked up: {error}", 0
            return 0

    def _entered(self, request: Any) -> Entry:
        asked = wish(request.kv_transfer_params, getattr(request, "session_id", None), request.cache_salt)
        settings, refused = self._settings, asked.refused
        try:
            mark = self._mark_of(request)
        except Exception as error:
            mark, refused = 0, refused or str(error)
        # Images and embeddings are not in the token ids: what they stand for cannot be compared.
        private = bool(getattr(request, "mm_features", None)) or getattr(request, "prompt_embeds", None) is not None
        lasts = asked.name is not None and not private and not refused
        entry = Entry(
            request=request.request_id, prompt=list(request.all_token_ids), name=asked.name if lasts and asked.name else self._new_name(),
            lasts=lasts, salt=request.cache_salt or "", mark=mark, ttl_s=settings.ttl_s if asked.ttl_s is None else asked.ttl_s,
            private=private, refused=refused,
        )  # fmt: skip
        if private or refused:
            entry.matched = 0
        return entry

    def _new_name(self) -> str:
        self._made += 1
        return f"{self._settings.prefix}-{self._engine}-{self._made}"

    def _planned(self, entry: Entry) -> int | None:
        if entry.parent and not any(e.name == entry.parent for e in self._entries.values()):
            entry.matched, entry.parent = None, ""  # the request that it was to fork is over
            if entry.asked:
                entry.lasts, entry.name, entry.asked = True, entry.asked, ""
        if entry.matched is not None and not entry.parent:
            return entry.matched
        others = [e for e in self._entries.values() if e is not entry and not e.refused and not e.private]
        if entry.lasts:
            busy = next((e for e in others if e.name == entry.name and e.lasts), None)
            if busy is None:
                # What an earlier request left is on its way: another step may be made meanwhile, if there is
                # one to make.
                entry.matched = None if self._leaving(entry.name, 0.0 if others else SOON) else self._looked_up(entry)
                return entry.matched
            entry.asked, entry.lasts, entry.name = entry.name, False, self._new_name()  # one request at a time goes on with a session
            return self._fork_of(entry, busy)
        leader = self._leader(entry, others)
        if leader is None:
            entry.matched, entry.parent = 0, ""
            return 0
        return self._fork_of(entry, leader)

    def _leader(self, entry: Entry, others: list[Entry]) -> Entry | None:
        """An earlier request of the same text under the same salt and model: n > 1 comes as n requests."""
        named = next((e for e in others if e.name == entry.parent), None) if entry.parent else None
        if named is not None:
            return named
        for other in others:
            if other.parent or (other.mark, other.salt) != (entry.mark, entry.salt) or len(other.prompt) < SHARED:
                continue
            if other.prompt == entry.prompt:
                return other
        return None

    def _fork_of(self, entry: Entry, other: Entry) -> int | None:
        """As much of the other one's text as agrees; None: it is about to compute more of it."""
        same = common(entry.prompt, other.prompt) if (entry.mark, entry.salt) == (other.mark, other.salt) else 0
        wanted = min(same, len(entry.prompt) - 1)
        if wanted <= self._keep:  # nothing in common, or nothing of it will be in the cluster
            entry.matched, entry.parent = 0, ""
            return 0
        entry.parent = other.name
        if other.computed < min(wanted, len(other.prompt) - 1):
            entry.matched = None
            return None
        entry.matched = min(wanted, other.held)
        return entry.matched

    # ---- what a session has ----

    def _looked_up(self, entry: Entry) -> int:
        """Tokens of the prompt that every rank's session of this name has, computed by this model."""
        if time.monotonic() < self._away + AWAY:
            raise Unavailable("the cluster has not answered for another request")
        found, entry.seen = len(entry.prompt), []
        for rank in range(self._ranks):
            name = of_rank(entry.name, rank, self._ranks)
            try:
                agrees, incarnation = persist(functools.partial(self._read, entry, name), Deadline(self._settings.retry_s))
            except BanyanError as error:
                if passing(error):
                    self._away = time.monotonic()
                raise
            found = min(found, agrees)
            entry.seen.append(incarnation)
            if not found:
                break
        return found

    def _read(self, entry: Entry, name: str) -> tuple[int, int]:
        """And the incarnation in which it was so."""
        try:
            session = self.client.open(name)
        except NotFound:
            return 0, 0
        with session:
            if not holds_tokens(session.spec):
                self._unnamed(entry, "was not made by an engine")
                return 0, 0
            info = session.info()
            return self._agrees(entry, session, min(len(entry.prompt), info.length)), info.incarnation

    def _agrees(self, entry: Entry, session: Session, length: int) -> int:
        prompt = torch.tensor(entry.prompt[:length], dtype=torch.int64)
        for at in range(0, length, READ):
            n = min(READ, length - at)
            said = tokens.parsed(session.attend(session.spec.layers - 1, at, torch.zeros((n, 1, tokens.DIM))).o)
            if at == 0 and int(said.marks[0]) != entry.mark:
                self._unnamed(entry, "is another model's")
                return 0
            if bool(said.counts.any()):  # transformers/positions.py: a program has fed it so
                self._unnamed(entry, "has positions that count something else than tokens")
                return 0
            differ = ((said.tokens != prompt[at : at + n]) | (said.marks != entry.mark)).nonzero()
            if len(differ):
                return at + int(differ[0])
        return length

    def _unnamed(self, entry: Entry, why: str) -> None:
        """The request is served, but not from that session, which stays as it is."""
        self._log(f"request {entry.request}: the session {entry.name} {why}: it is left alone, and the answer comes without it")
        entry.lasts, entry.name = False, self._new_name()

    # ---- a request is scheduled, and ends ----

    def row(self, request: Any, start: int, ids: list[int], blocks: list[int], fresh: bool) -> Row:
        """What the worker's side is to do for `ids` at `start`. blocks: new ones, all of them where
        `fresh`."""
        entry = self._entries.get(request.request_id)
        if entry is None:  # no scheduler asked how much of it is there
            entry = self._entries[request.request_id] = self._entered(request)
            entry.matched = 0
        opens = parent = ""
        if not entry.begun:
            entry.begun, entry.got, entry.held = True, start, start
            opens = "create" if start == 0 else "fork" if entry.parent else "resume"
            parent = entry.parent if start else ""
        entry.parent = ""
        entry.computed = start + len(ids)
        entry.held = handed_after(entry.held, entry.computed, self._keep)
        return Row(
            request.request_id, entry.name, start, ids, blocks, fresh, entry.mark, opens, parent, entry.lasts,
            tuple(entry.seen) if opens == "resume" else (), entry.ttl_s, entry.refused,
        )  # fmt: skip

    def preempted(self, request: str) -> None:
        """Its blocks are lost: what was in them alone goes to its session (live.py), from where it goes
        on."""
        entry = self._entries.get(request)
        if entry is not None:
            entry.held = entry.computed

    def ended(self, request: Any) -> dict[str, Any] | None:
        """The request is over. What its answer says about its session; None: it has none that lasts."""
        entry = self._entries.pop(request.request_id, None)
        if entry is None:
            return None
        if entry.lasts:
            return {"banyan_session": entry.name, "banyan_tokens": entry.computed, "banyan_matched": entry.got}
        if entry.begun:
            self._reaper.put(entry.name)
        return None

    def _delete(self, name: str) -> None:
        for rank in range(self._ranks):

            def once(own: str = of_rank(name, rank, self._ranks)) -> None:
                try:
                    with self.client.open(own) as session:
                        session.delete()
                except NotFound:
                    pass

            persist(once, Deadline(self._settings.retry_s))

    def stop(self) -> None:
        """Deletes what is not to last, and disconnects. Blocks some seconds at most."""
        for entry in self._entries.values():
            if entry.begun and not entry.lasts:
                self._reaper.put(entry.name)
        self._entries.clear()
        self._reaper.stop()
        if self._client is not None:
            self._client.close()
