# SPDX-License-Identifier: Apache-2.0
"""Clients and sessions. Long: two classes, whose methods are the C API, one each."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, overload

from . import arrays
from . import info as infos
from . import spec as specs
from ._abi import ffi, lib
from .errors import AlreadyExists, BanyanError, Closed, DeadlineExceeded, FailedPrecondition, InvalidArgument, Unavailable, from_c, raise_c
from .guard import Guard
from .items import Answer, Call, Item
from .prefixes import HASH, Kept, Prefix
from .prefixes import prefix as prefix_from
from .spec import Spec
from .states import DIGEST, State, state, states

_LOOK = 0.2  # seconds between two looks at a draining worker
_EVENTS_WAIT = 30.0  # seconds that one call waits for events
_LAST_CALL_S = 10.0  # that close() waits for calls that shutdown has already ended
_EMPTY_LOOKS = 10  # sessions release a worker soon after its last chunk is gone

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _close_all() -> None:
    for client in list(_clients):
        client.close()


atexit.register(_close_all)


def _timeout_ns(seconds: float | None) -> int:
    if seconds is None:
        return 0
    if not seconds > 0:
        raise InvalidArgument(f"a timeout must be above 0, not {seconds} s")
    return max(1, int(min(seconds, 1e9) * 1e9))


def _name(text: str | None) -> Any:
    return ffi.NULL if text is None else ffi.new("char[]", text.encode())


Progress = Callable[[int, int], object]


def _path(path: str | os.PathLike[str]) -> Any:
    return ffi.new("char[]", os.fsencode(os.path.abspath(path)))


@contextlib.contextmanager
def _reported(options: Any, progress: Progress | None) -> Iterator[None]:
    """Around a call with these options: calls progress; what it raises ends the call and is raised here."""
    raised: list[BaseException] = []

    def report(_arg: Any, done: int, total: int) -> bool:
        if progress is not None:  # else it is there for interrupts, which Python raises on this thread
            progress(done, total)
        return True

    def failed(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
        raised.append(error)

    callback = ffi.callback("bool(void *, uint64_t, uint64_t)", report, error=False, onerror=failed)
    options.progress = callback
    try:
        yield
    except BanyanError as error:
        if raised:
            raise raised[0] from None
        if error.reason == "FILE" and not isinstance(error, (AlreadyExists, InvalidArgument)):
            raise OSError(error.message) from None
        raise


class Client:
    """A connection to a coordinator. Thread-safe; a call releases the interpreter's lock while it waits.

    Args:
        endpoint: "tcp://127.0.0.1:7412", "nng+tcp://…" or "unix:///path" (lowest latency); if the coordinator may run at
            several addresses, all of them: "tcp://a:7412,tcp://b:7412". None: the environment's BANYAN_ENDPOINT, else
            "tcp://127.0.0.1:7412".
        token_file: the file with the token, if the coordinator requires one.
        tls_ca: CA certificates to trust, for "tls://host:7413" and "nng+tls://name:7414".
        tls_cert, tls_key: the client's certificate and its key, if the cluster requires one.
        timeout: seconds, for calls that give none.
        connect_timeout: seconds to wait for the first answer; None: `timeout`.

    >>> with cluster.connect() as client:
    ...     client.cluster().workers[0].state
    'active'
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        token_file: str | None = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        timeout: float = 30.0,
        connect_timeout: float | None = None,
        calls_max: int = 0,
    ) -> None:
        self._guard = Guard("client")
        files = {"token_file": token_file, "tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._tags = itertools.count(1)
        self._waiting: dict[int, tuple[Call, asyncio.Future[Any], asyncio.AbstractEventLoop]] = {}
        self._loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
        names = {name: _name(path) for name, path in files.items()}  # the options borrow them
        options = ffi.new("banyan_options *")
        for name, path in names.items():
            setattr(options, name, path)
        options.timeout_ns = _timeout_ns(timeout)
        options.connect_timeout_ns = _timeout_ns(connect_timeout)
        options.calls_max = calls_max
        out, error = ffi.new("banyan_client **"), ffi.new("banyan_error *")
        code = lib.banyan_connect(_name(endpoint), options, out, error)
        if code != lib.BANYAN_OK:
            self._guard.close(lambda: None)
            raise_c(code, error)
        self._c = out[0]
        _clients.add(self)

    # ---- life ----

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._guard.closed

    def close(self) -> None:
        """Ends calls in progress with Cancelled, releases all sessions (which remain in the service) and disconnects."""
        over = threading.Event()
        if not self._guard.close(over.set):
            return
        self._forget_loops()
        lib.banyan_shutdown(self._c)
        # A thread may have entered, and be about to call the library. Where one does not leave, the library's client, which is shut
        # down, stays until the process ends.
        if over.wait(_LAST_CALL_S):
            lib.banyan_disconnect(self._c)
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        for call, future, loop in waiting:
            call.entered.leave()
            _settle(loop, future, Closed("the client was closed"))
        for session in list(self._sessions):
            session.close()

    @property
    def handle(self) -> Any:
        """The banyan_client, for calls through call()."""
        return self._c

    def call(self, function: Callable[..., int], *arguments: Any) -> None:
        """Makes one blocking call of the C library; the last parameter of `function` is a banyan_error."""
        error = ffi.new("banyan_error *")
        with self._guard.entered():
            code = function(*arguments, error)
        if code != lib.BANYAN_OK:
            raise_c(code, error)

    # ---- sessions ----

    def create(self, spec: Spec, name: str | None = None, *, floor: int = 0, prefix: bytes | None = None) -> Session:
        """Creates an empty session. name: unique in the cluster; None: no name.

        Warns if the cluster has fewer workers than Spec.replicas: each part then has as many copies as there are workers.

        floor: for a session with Spec.forget that begins as if it had forgotten all rows that no row at or past the floor
        sees. In each layer the rows below SessionInfo.layer_forgotten count but cannot be read; the session holds only what
        is attached after them.

        prefix: of prefix_hashes(). If the cluster keeps a session with the same spec whose text begins like
        this one, the new session begins with what both have in common: Session.found is how many tokens.
        """
        c, keep = spec.to_c()
        out, found = ffi.new("banyan_session **"), ffi.new("uint64_t *")
        if prefix and floor:
            raise InvalidArgument("floor and prefix: a session begins with one of the two")
        if prefix:
            hashes, n = ffi.from_buffer(prefix), len(prefix) // HASH
            self.call(lib.banyan_session_create_from, self._c, c, _name(name), hashes, n, out, found)
        else:
            self.call(lib.banyan_session_create_at, self._c, c, _name(name), floor, out)
        del keep
        session = Session(self, out[0])
        session.found = int(found[0])
        if spec.replicas > 1:
            self._warn_of_few_workers(spec.replicas)
        return session

    def _warn_of_few_workers(self, replicas: int) -> None:
        """Not an error: more workers may join, and then get their copies."""
        try:
            workers = [w for w in self.cluster().workers if w.state in ("active", "suspect") and not w.draining]
        except BanyanError:
            return
        if 0 < len(workers) < replicas:  # none: this client's token does not see them
            there = "1 worker, so one copy" if len(workers) == 1 else f"{len(workers)} workers, so {len(workers)} copies"
            warnings.warn(f"replicas={replicas}: the cluster has {there} of each part until more workers join", stacklevel=3)

    def open(self, session: int | str) -> Session:
        """Opens the session with this id or name."""
        out = ffi.new("banyan_session **")
        by_id = isinstance(session, int)
        self.call(lib.banyan_session_open, self._c, session if by_id else 0, ffi.NULL if by_id else _name(str(session)), out)
        return Session(self, out[0])

    def restore(
        self, path: str | os.PathLike[str], name: str | None = None, *, replicas: int | None = None, members: int | None = None,
        chunk_tokens: int | None = None, ttl: float | None = None, progress: Progress | None = None,
    ) -> Session:  # fmt: skip
        """Creates a session from a folder written by Session.snapshot, in this or another cluster.

        It has all of the snapshot's tokens and its floor, or it is not created. Arguments that are None are as in the snapshot.
        progress: as in Session.snapshot. InvalidArgument: the snapshot is damaged or invalid; OSError: it cannot be read.
        """
        options, c_name = ffi.new("banyan_restore_options *"), _name(name)
        options.name = c_name
        options.replicas, options.members, options.chunk_tokens = replicas or 0, members or 0, chunk_tokens or 0
        options.idle_ttl_ns = 0 if ttl is None else int(ttl * 1e9)
        out = ffi.new("banyan_session **")
        with _reported(options, progress):
            self.call(lib.banyan_session_restore, self._c, _path(path), options, out, ffi.NULL)
        return Session(self, out[0])

    def sessions(self) -> list[infos.SessionInfo]:
        """Lists all sessions, without their layers."""
        out = ffi.new("banyan_session_list *")
        self.call(lib.banyan_session_get_list, self._c, out)
        try:
            return [infos.session_info(out.sessions[i]) for i in range(out.n)]
        finally:
            lib.banyan_session_list_free(out)

    # ---- attention ----

    @overload
    def attend(
        self,
        items: Sequence[Item],
        *,
        timeout: float | None = None,
        return_errors: Literal[False] = False,
        traceparent: str | None = None,
    ) -> list[Answer[Any]]: ...

    @overload
    def attend(
        self, items: Sequence[Item], *, timeout: float | None = None, return_errors: Literal[True], traceparent: str | None = None
    ) -> list[Answer[Any] | BanyanError]: ...

    def attend(
        self, items: Sequence[Item], *, timeout: float | None = None, return_errors: bool = False, traceparent: str | None = None
    ) -> list[Answer[Any]] | list[Answer[Any] | BanyanError]:
        """Computes attention for any number of items, of any sessions of this client, in one call.

        A failed item does not fail the others. The first failure is raised, unless `return_errors` is set: then errors take
        the place of answers. traceparent: the W3C trace context of the call; None: OpenTelemetry's current span, if the
        program has imported opentelemetry and there is one (docs/operating/tracing.md).
        """
        call = Call(items, traceparent)
        with call.entered:
            self.call(lib.banyan_attend, self._c, call.c, len(items), _timeout_ns(timeout), ffi.NULL)
        return _answers(call, return_errors)

    def attend_traced(
        self, items: Sequence[Item], *, timeout: float | None = None, traceparent: str | None = None
    ) -> tuple[list[Answer[Any]], infos.Trace]:
        """The same as attend, and also returns where the call's time went."""
        call = Call(items, traceparent)
        trace = ffi.new("banyan_trace *")
        with call.entered:
            self.call(lib.banyan_attend, self._c, call.c, len(items), _timeout_ns(timeout), trace)
        try:
            return _answers(call, False), infos.trace(trace)
        finally:
            lib.banyan_trace_free(trace)

    async def attend_async(
        self, items: Sequence[Item], *, timeout: float | None = None, return_errors: bool = False, traceparent: str | None = None
    ) -> list[Answer[Any] | BanyanError]:
        """The same as attend, for asyncio: many calls may be in progress. Cancelling the task does not undo its appends."""
        loop = asyncio.get_running_loop()
        self._listen(loop)
        call, tag = Call(items, traceparent), next(self._tags)
        future: asyncio.Future[Any] = loop.create_future()
        call.entered.enter()
        with self._lock:  # from here on the library may have it: it keeps its memory until it is done, though Ctrl-C comes here
            self._waiting[tag] = (call, future, loop)
        try:
            self.call(lib.banyan_attend_queue, self._c, call.c, len(items), _timeout_ns(timeout), ffi.cast("void *", tag))
        except BanyanError:
            with self._lock:
                self._waiting.pop(tag, None)
            call.entered.leave()
            raise
        await future
        return list(_answers(call, return_errors))

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._guard.entered():
            if loop not in self._loops:
                loop.add_reader(lib.banyan_poll_fd(self._c), self._drain)
                self._loops.add(loop)

    def _forget_loops(self) -> None:
        fd = lib.banyan_poll_fd(self._c)
        for loop in list(self._loops):
            if not loop.is_closed():
                try:
                    loop.call_soon_threadsafe(loop.remove_reader, fd)
                except RuntimeError:
                    pass  # it was closed just now

    def _drain(self) -> None:
        """Fetches completions of all loops and passes each to its loop."""
        done = ffi.new("banyan_completion[16]")
        with contextlib.suppress(Closed), self._guard.entered():
            while n := lib.banyan_poll(self._c, done, 16):
                for i in range(n):
                    with self._lock:
                        entry = self._waiting.pop(int(ffi.cast("uintptr_t", done[i].tag)), None)
                    if entry is not None:
                        entry[0].entered.leave()
                        error = None if done[i].code == lib.BANYAN_OK else from_c(done[i].code, done[i].error)
                        _settle(entry[2], entry[1], error)

    # ---- cluster ----

    def cluster(self) -> infos.ClusterInfo:
        """Reads the state of the cluster, its workers and its limits."""
        out = ffi.new("banyan_cluster_info *")
        self.call(lib.banyan_cluster_get_info, self._c, out)
        try:
            return infos.cluster_info(out)
        finally:
            lib.banyan_cluster_info_free(out)

    def ping(self) -> float:
        """Measures a round trip to the coordinator, in seconds."""
        out = ffi.new("uint64_t *")
        self.call(lib.banyan_ping, self._c, out)
        return float(out[0]) / 1e9

    def read_events(
        self, term: int = 0, seq: int = 0, *, kinds: Sequence[str] = (), severity: str | None = None, worker: str | None = None,
        session: int | str | None = None, since: float | None = None, max: int = 256, wait: float = 0.0,
    ) -> infos.Events:  # fmt: skip
        """Reads a page of events: workers joining and leaving, sessions losing copies, refusals, each with its reason.

        term and seq: where an earlier page ended; 0: from the oldest event kept. kinds: kinds, or groups of them ("worker").
        severity: "warn" or "error": this severity or above. session: an id or a name. since: seconds since 1970. wait: how many
        seconds to wait for the first event, at most 50. InvalidArgument: no such kind or severity.
        """
        words = [ffi.new("char[]", kind.encode()) for kind in kinds]
        options = ffi.new("banyan_events_options *")
        keep = [ffi.new("const char *[]", words), _name(severity), _name(worker)]
        options.term, options.seq, options.max, options.wait_ns = term, seq, max, int(wait * 1e9)
        options.kinds, options.n_kinds = keep[0], len(words)
        options.severity, options.worker = keep[1], keep[2]
        if isinstance(session, int):
            options.session = session
        elif session is not None:
            keep.append(_name(session))
            options.session_name = keep[-1]
        options.since_ns = 0 if since is None else int(since * 1e9)
        out = ffi.new("banyan_events *")
        self.call(lib.banyan_events_read, self._c, options, out)
        try:
            return infos.events(out)
        finally:
            lib.banyan_events_free(out)

    def events(
        self, *, follow: bool = False, kinds: Sequence[str] = (), severity: str | None = None, worker: str | None = None,
        session: int | str | None = None, since: float | None = None,
    ) -> Iterator[infos.Event]:  # fmt: skip
        """Yields events, the oldest first; follow: also new ones, until the client is closed (Cancelled or Closed).

        Continues across restarts of the coordinator; Unavailable: it has not returned within the client's timeout. Gaps in
        `term` and `seq` show lost events.

        >>> with cluster.connect() as client:
        ...     [event.kind for event in client.events(kinds=["worker-joined"])][:1]
        ['worker-joined']
        """
        page = infos.Events((), 0, 0, True, False, 0)
        while follow or page.more:
            page = self.read_events(
                page.term, page.seq, kinds=kinds, severity=severity, worker=worker, session=session, since=since,
                wait=_EVENTS_WAIT if follow else 0.0,
            )  # fmt: skip
            yield from page.events

    def create_token(self, name: str, access: str, tenant: str | None = None, life: float | None = None) -> str:
        """Creates a token for clients and returns it this once (docs/operating/tenants.md).

        access: read-only, user, operator or admin. life: seconds. For admins; the first token must be an admin's.
        PermissionDenied: this client's token is not an admin's.
        """
        out = ffi.new("char[65]")
        self.call(lib.banyan_token_create, self._c, _name(name), _name(access), _name(tenant), int(life or 0), out, ffi.NULL)
        return infos.text(out)

    def tokens(self) -> list[infos.Token]:
        """Lists all tokens, without their secrets. For admins."""
        out = ffi.new("banyan_token_list *")
        self.call(lib.banyan_token_get_list, self._c, out)
        try:
            return [
                infos.Token(
                    id=t.id,
                    name=infos.text(t.name),
                    tenant=infos.text(t.tenant),
                    access=infos.text(t.access),
                    created=t.created_s,
                    expires=t.expires_s,
                    used=t.used_s,
                )
                for t in out.tokens[0 : out.n]
            ]
        finally:
            lib.banyan_token_list_free(out)

    def revoke_token(self, name: str) -> None:
        """Revokes a token: clients with it are refused, and connections that used it are closed. For admins."""
        self.call(lib.banyan_token_revoke, self._c, _name(name), 0)

    def quarantine(self, worker: str | None = None) -> list[infos.Quarantined]:
        """Lists sessions that workers hold and the coordinator's store does not have; of one worker, or of all."""
        out = ffi.new("banyan_quarantine_list *")
        self.call(lib.banyan_quarantine_get_list, self._c, _name(worker), out)
        try:
            entries = (out.sessions[i] for i in range(out.n))
            return [infos.Quarantined(infos.text(e.worker), e.session, e.life, e.bytes, e.newer) for e in entries]
        finally:
            lib.banyan_quarantine_list_free(out)

    def drop_quarantined(self, worker: str, session: int = 0) -> tuple[int, int]:
        """Drops one session, or all (0), that a worker has in quarantine. Returns how many sessions and bytes were dropped."""
        sessions, size = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        self.call(lib.banyan_quarantine_drop, self._c, _name(worker), session, sessions, size)
        return int(sessions[0]), int(size[0])

    def find_prefix(self, spec: Spec, prefix: bytes) -> int:
        """How many tokens of a text (prefix_hashes()) the cluster keeps for this spec. Creates nothing."""
        c, keep = spec.to_c()
        found = ffi.new("uint64_t *")
        self.call(lib.banyan_prefix_find, self._c, c, ffi.from_buffer(prefix), len(prefix) // HASH, found)
        del keep
        return int(found[0])

    def prefixes(self) -> list[Prefix]:
        """Lists ended sessions that are kept as cache: of all tenants for operators and admins."""
        out = ffi.new("banyan_prefix_list *")
        self.call(lib.banyan_prefix_get_list, self._c, out)
        try:
            return [prefix_from(out.prefixes[i]) for i in range(out.n)]
        finally:
            lib.banyan_prefix_list_free(out)

    def drop_prefixes(self, session: int = 0) -> tuple[int, int]:
        """Deletes a kept session, or all of the caller's tenant (0). Returns how many sessions and bytes."""
        sessions, size = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        self.call(lib.banyan_prefix_drop, self._c, session, sessions, size)
        return int(sessions[0]), int(size[0])

    def quotas(self, tenant: str | None = None) -> list[infos.TenantQuotas]:
        """Lists tenants' quotas and their use: of all tenants for operators and admins, of the caller's for others; or of one.

        >>> with cluster.connect() as client:
        ...     client.quotas("default")[0].quotas["sessions"].max
        0
        """
        out = ffi.new("banyan_quota_list *")
        self.call(lib.banyan_quota_get_list, self._c, _name(tenant), out)
        try:
            return [infos.tenant_quotas(out.tenants[i]) for i in range(out.n)]
        finally:
            lib.banyan_quota_list_free(out)

    def set_quotas(self, tenant: str, **max: int) -> infos.TenantQuotas:
        """Sets the given quotas (such as `sessions=10`), at once and permanently; 0: no limit. For admins.

        Anything beyond a quota is refused with ResourceExhausted, reason QUOTA.
        """
        wanted = ffi.new("banyan_quota[]", len(max))
        for i, (name, most) in enumerate(max.items()):
            wanted[i].name = name.encode()[:31]
            wanted[i].max = most
        out = ffi.new("banyan_tenant_quotas *")
        self.call(lib.banyan_quota_set, self._c, _name(tenant), wanted, len(max), out)
        return infos.tenant_quotas(out)

    def drain(self, worker: str, reason: str | None = None, wait: bool = False, timeout: float | None = None) -> infos.Drain:
        """Takes a worker out of use, durably: its chunks move to others while their sessions stay in use.

        Returns at once, or with `wait` once the worker has no chunks and can be stopped without loss. DeadlineExceeded: this
        took longer than `timeout` seconds; the drain continues. FailedPrecondition: the worker was resumed meanwhile.
        """
        out = ffi.new("banyan_drain *")
        self.call(lib.banyan_worker_drain, self._c, _name(worker), _name(reason), out)
        until = None if timeout is None else time.monotonic() + timeout
        empty = 0
        while wait:
            state = self.drain_state(worker)
            empty = 0 if state.chunks else empty + 1
            if not state.draining:
                raise FailedPrecondition(f"{worker} is back in use: someone has resumed it")
            if empty and (not state.sessions or empty >= _EMPTY_LOOKS):
                return state
            if until is not None and time.monotonic() >= until:
                left = f"{worker} still has {state.chunks} chunks after {timeout} s, still moving"
                raise DeadlineExceeded(f"{left}. Now: {state.stuck}" if state.stuck else left)
            time.sleep(_LOOK)
        return infos.drain(out)

    def drain_state(self, worker: str) -> infos.Drain:
        """Reads the progress of a drain, or what a worker that is not draining has."""
        out = ffi.new("banyan_drain *")
        self.call(lib.banyan_worker_get_drain, self._c, _name(worker), out)
        return infos.drain(out)

    def cordon(self, worker: str, reason: str | None = None) -> infos.Drain:
        """Gives a worker no new chunks, durably; what it has stays and is served. `resume` ends it."""
        out = ffi.new("banyan_drain *")
        self.call(lib.banyan_worker_cordon, self._c, _name(worker), _name(reason), out)
        return infos.drain(out)

    def resume(self, worker: str) -> infos.Drain:
        """Puts a drained or cordoned worker back into use. Chunks that have moved stay there until a rebalance."""
        out = ffi.new("banyan_drain *")
        self.call(lib.banyan_worker_resume, self._c, _name(worker), out)
        return infos.drain(out)

    def rebalance(self, dry_run: bool = False) -> infos.Balance:
        """Moves chunks so that load matches worker speed, or only reports which. Returns at once."""
        out = ffi.new("banyan_balance *")
        self.call(lib.banyan_rebalance, self._c, dry_run, out)
        try:
            return infos.balance(out)
        finally:
            lib.banyan_balance_free(out)


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], error: BanyanError | None) -> None:
    def settle() -> None:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        pass  # the loop is closed: no one waits


@overload
def _answers(call: Call, return_errors: Literal[False]) -> list[Answer[Any]]: ...
@overload
def _answers(call: Call, return_errors: bool) -> list[Answer[Any] | BanyanError]: ...
def _answers(call: Call, return_errors: bool) -> Any:
    results = call.results()
    if not return_errors:
        for result in results:
            if isinstance(result, BanyanError):
                raise result
    return results


class Session:
    """A handle of a session, whose keys and values live in the service, even after close(). Thread-safe.

    Returned by Client.create, Client.open and Session.fork.

    Attributes:
        found: tokens that it began with, where Client.create was given a prefix.
    """

    found = 0

    def __init__(self, client: Client, c: Any) -> None:
        self.client = client
        self.guard = Guard("session")  # for calls in progress on this handle
        self._c = c
        self.id = int(lib.banyan_session_id(c))
        self.spec = specs.from_c(lib.banyan_session_spec(c))
        client._sessions.add(self)
        if client.closed:  # between the call that made it and here
            self.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<banyan.Session {self.id:016x}{' closed' if self.guard.closed else ''}>"

    @property
    def handle(self) -> Any:
        if self.guard.closed or self.guard.foreign or self.client.closed:
            raise Closed(f"session {self.id:016x} was closed, or belongs to another process")
        return self._c

    def _call(self, function: Callable[..., int], *arguments: Any) -> None:
        with self.guard.entered():
            self.client.call(function, *arguments)

    def close(self) -> None:
        """Releases this handle once its calls in progress have ended; the session remains. delete() deletes it."""
        self.guard.close(self._release)

    def _release(self) -> None:
        c, self._c = self._c, ffi.NULL
        lib.banyan_session_close(c)

    def __del__(self) -> None:
        if hasattr(self, "guard"):
            self.close()

    def memory(self) -> infos.SessionMemory:
        """Reads where the session takes memory. The coordinator goes through all its sessions for this."""
        out = ffi.new("banyan_session_memory *")
        self._call(lib.banyan_session_get_memory, self._c, out)
        try:
            return infos.session_memory(out)
        finally:
            lib.banyan_session_memory_free(out)

    def info(self) -> infos.SessionInfo:
        """Reads the session's state. After another client's truncate, calls are Aborted until this has been called."""
        out = ffi.new("banyan_session_info *")
        self._call(lib.banyan_session_get_info, self._c, out)
        try:
            return infos.session_info(out)
        finally:
            lib.banyan_session_info_free(out)

    def snapshot(self, path: str | os.PathLike[str], *, zstd: bool = False, progress: Progress | None = None) -> infos.Snapshot:
        """Writes the tokens that all layers have, and the spec, to a new folder while the session stays in use.

        The folder appears only when all of it is on disk. If the session has forgotten rows, it has the
        others and the floor. zstd: compress each file. progress: called with the bytes that are done and all
        bytes, on this thread, several times a second; an exception that it raises, and an interrupt, ends the
        snapshot, and nothing is left of it. AlreadyExists: something is at the path. OSError: it cannot be
        written.
        """
        options, out = ffi.new("banyan_snapshot_options *"), ffi.new("banyan_snapshot *")
        options.zstd = zstd
        with _reported(options, progress):
            self._call(lib.banyan_session_snapshot, self._c, _path(path), options, out)
        return infos.snapshot(os.path.abspath(path), out)

    def delete(self) -> None:
        """Deletes the session and all its data, and closes this handle."""
        self._call(lib.banyan_session_delete, self._c)
        self.close()

    def keep(self, prefix: bytes, *, ttl: float | None = None, pin: bool = False) -> Kept:
        """Ends a session without a name, and closes this handle: it is kept as cache, or else deleted.

        prefix: of prefix_hashes(), of its first chunks, all of which must be full: others with these hashes
        get its keys and values. ttl: it is deleted after so many seconds without use. pin: it is never
        deleted to make room.
        """
        out = ffi.new("banyan_kept *")
        ttl_ns = 0 if ttl is None else int(ttl * 1e9)
        self._call(lib.banyan_session_keep, self._c, ffi.from_buffer(prefix), len(prefix) // HASH, ttl_ns, pin, out)
        self.close()
        return Kept(session=out.session, length=out.length, why=infos.text(out.why))

    def put_state(self, layer: int, position: int, data: Any, digest: bytes) -> None:
        """Puts a state: bytes that stand for the tokens before `position` (docs/concepts/states.md).

        data: anything with contiguous memory. digest: 16 bytes that say what it stands for, such as a hash of
        the tokens before it: compare it before the state is used. Positions ascend; the same state again
        changes nothing. FailedPrecondition: the layer has another one there, or there are some past it.
        OutOfRange: past the session's end.
        """
        if len(digest) != DIGEST:
            raise InvalidArgument(f"a digest has {DIGEST} bytes, not {len(digest)}")
        memory = ffi.from_buffer(data)
        self._call(lib.banyan_state_put, self._c, layer, position, memory, len(memory), ffi.from_buffer(digest))

    def get_state(self, layer: int, position: int) -> State:
        """Reads the newest state of a layer at or before a position. NotFound: there is none."""
        out = ffi.new("banyan_state *")
        self._call(lib.banyan_state_get, self._c, layer, position, out)
        try:
            return state(out)
        finally:
            lib.banyan_state_free(out)

    def states(self) -> list[State]:
        """Lists the states of all layers by ascending positions, without their bytes."""
        out = ffi.new("banyan_state_list *")
        self._call(lib.banyan_state_get_list, self._c, out)
        return states(out)

    def cut_states(self, position: int) -> None:
        """Removes all states past a position, and nothing else."""
        self._call(lib.banyan_state_cut, self._c, position)

    def truncate(self, length: int) -> None:
        """Keeps the first `length` tokens of every layer."""
        self._call(lib.banyan_session_truncate, self._c, length)

    def fork(self, length: int | None = None, name: str | None = None, *, states: bool = True) -> Session:
        """Creates a session with the first `length` tokens (None: all that every layer has); full chunks are shared.

        states: with the states up to there, which are shared, too.
        With None: Unavailable if workers of the session are away, because their last appends are unknown.
        """
        out = ffi.new("banyan_session **")
        if length is None:
            info = self.info()
            if info.unknown_chunks:
                raise Unavailable(f"the session may have more than {info.length} tokens, on workers that are away: give a length")
            length = info.length
        if states:
            self._call(lib.banyan_session_fork, self._c, length, _name(name), out)
        else:
            self._call(lib.banyan_session_pin, self._c, length, 0, _name(name), out)
        return Session(self.client, out[0])

    def attach(self, layer: int, first: int, k: Any, v: Any = None, k_scale: Any = None, v_scale: Any = None) -> int:
        """Sends K and V of a range directly to the workers that will hold it; returns the number of tokens.

        In any order, from any number of threads; not visible before commit(). v: None if the layer's values are part of its keys.
        """
        spec, kind = self.spec, self.spec.kind(layer)
        shape = arrays.view(k, "k").shape
        count, rest = divmod(math.prod(shape), kind.kv_heads * kind.k_dim)
        if count == 0 or rest:
            raise InvalidArgument(f"k has the shape {list(shape)}, not [tokens, {kind.kv_heads}, {kind.k_dim}]")
        if kind.v_in_k and v is not None:
            raise InvalidArgument("v must be None: this layer's values are part of its keys")

        def memory(x: Any, name: str, dtype: str, *last: int) -> tuple[Any, Any]:
            if kind.v_in_k and name[0] == "v":
                return ffi.NULL, None
            found = arrays.expect(x, name, dtype, (count, kind.kv_heads, *last))
            return ffi.cast("float *" if dtype == "f32" and not last else "void *", found.address), found.keep

        ks, keep_k = memory(k, "k", spec.kv_type, kind.k_dim)
        vs, keep_v = memory(v, "v", spec.kv_type, kind.v_dim)
        if spec.scaled:
            kss, keep_ks = memory(k_scale, "k_scale", "f32")
            vss, keep_vs = memory(v_scale, "v_scale", "f32")
            self._call(lib.banyan_attach_scaled, self._c, layer, first, count, ks, kss, vs, vss)
            del keep_ks, keep_vs
        else:
            self._call(lib.banyan_attach, self._c, layer, first, count, ks, vs)
        del keep_k, keep_v
        return count

    def commit(self, layer: int, first: int, count: int) -> None:
        """Makes a range visible once its holders have it, as it was attached."""
        self._call(lib.banyan_commit, self._c, layer, first, count)

    def attend(self, layer: int, first: int, q: Any, k: Any = None, v: Any = None, **more: Any) -> Answer[Any]:
        """Computes one item: see Item."""
        timeout = more.pop("timeout", None)
        return self.client.attend([Item(self, layer, first, q, k, v, **more)], timeout=timeout)[0]

    def plan(self) -> infos.Plan:
        """Reads the tree over which the session's steps are reduced."""
        out = ffi.new("banyan_plan_info *")
        self._call(lib.banyan_session_get_plan, self._c, out)
        try:
            return infos.plan(out)
        finally:
            lib.banyan_plan_info_free(out)

    def watch(
        self, steps: int = 1, *, wait: float = 10.0, layer: int | None = None, trace: bool | None = None, mass_bins: int = 0,
        mass_per_head: bool = False,
    ) -> list[infos.WatchedStep]:  # fmt: skip
        """Watches what the session's next steps attend to and where their time goes; their client is not affected.

        `trace` None: traces if no masses are requested.
        """
        options = ffi.new("banyan_watch_options *")
        options.steps, options.wait_ns = steps, int(wait * 1e9)
        options.trace = mass_bins == 0 if trace is None else trace
        options.all_layers, options.layer = layer is None, layer or 0
        options.mass_bins, options.mass_per_head = mass_bins, mass_per_head
        out = ffi.new("banyan_watch *")
        self._call(lib.banyan_session_watch, self._c, options, out)
        try:
            return [infos.watched(out.steps[i]) for i in range(out.n)]
        finally:
            lib.banyan_watch_free(out)


def quantise(x: Any, kv_type: str) -> tuple[Any, Any]:
    """Quantises rows of float32 [..., dim] to "int8" or "fp8". Returns (codes, scales): codes as int8 or uint8, scales [...]."""
    import numpy as np

    v = arrays.view(x, "x")
    if v.dtype != "f32" or not v.shape:
        raise InvalidArgument(f"x holds {v.dtype} of shape {list(v.shape)}: it must hold rows of float32")
    codes = np.empty(v.shape, dtype=np.int8 if kv_type == "int8" else np.uint8)
    scales = np.empty(v.shape[:-1], dtype=np.float32)
    code = lib.banyan_quantise(
        specs.KV_TYPES.get(kv_type, 0), ffi.cast("float *", v.address), scales.size, v.shape[-1],
        ffi.cast("void *", codes.ctypes.data), ffi.cast("float *", scales.ctypes.data),
    )  # fmt: skip
    if code != lib.BANYAN_OK:
        raise InvalidArgument(f"kv_type {kv_type!r}: only int8 and fp8 are quantised")
    return codes, scales
