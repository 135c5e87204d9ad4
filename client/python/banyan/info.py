# SPDX-License-Identifier: Apache-2.0
"""Information from the service: plain values, copied out of the C structures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._abi import ffi


def text(c: Any) -> str:
    return str(ffi.string(c).decode(errors="replace"))


@dataclass(frozen=True)
class SessionInfo:
    """A session's state. `length` is that of its shortest layer; fields about layers, and `members`, are empty in lists.

    forgotten: its floor; truncates and forks cannot go further back, except to 0 (Spec.forget). layer_forgotten: each layer's
    first row that is not forgotten. unknown_chunks: chunks whose last appends are unknown, because their workers have been
    away since the coordinator's start; there may be more tokens than `length`.
    """

    id: int
    name: str
    state: str
    length: int
    layer_lengths: tuple[int, ...]
    members: tuple[str, ...]
    chunks: int
    bytes: int
    steps: int
    idle: float
    incarnation: int
    epoch: int
    forgotten: int
    layer_forgotten: tuple[int, ...]
    tenant: str = ""  # its owner; only for operators and admins
    unknown_chunks: int = 0
    kept: bool = False  # it has ended and is kept as cache (Session.keep)


def session_info(c: Any) -> SessionInfo:
    return SessionInfo(
        id=c.id, name=text(c.name), state=text(c.state), length=c.length,
        layer_lengths=tuple(c.layer_lengths[i] for i in range(c.n_layers)) if c.layer_lengths != ffi.NULL else (),
        members=tuple(text(c.members[i]) for i in range(c.n_members)),
        chunks=c.chunks, bytes=c.bytes, steps=c.steps, idle=c.idle_ns / 1e9, incarnation=c.incarnation, epoch=c.epoch,
        forgotten=c.forgotten,
        layer_forgotten=tuple(c.layer_forgotten[i] for i in range(c.n_layers)) if c.layer_forgotten != ffi.NULL else (),
        tenant=text(c.tenant), unknown_chunks=c.unknown_chunks, kept=bool(c.kept),
    )  # fmt: skip


@dataclass(frozen=True)
class SessionMemory:
    """bytes: one copy of each row; shared_bytes: of these, bytes shared with other sessions (forks). holdings: bytes of all
    copies by worker.
    """

    bytes: int
    shared_bytes: int
    holdings: dict[str, int]


def session_memory(c: Any) -> SessionMemory:
    holdings = {text(c.holdings[i].worker): int(c.holdings[i].bytes) for i in range(c.n_holdings)}
    return SessionMemory(bytes=c.bytes, shared_bytes=c.shared_bytes, holdings=holdings)


@dataclass(frozen=True)
class WorkerInfo:
    name: str
    host: str
    endpoint: str
    state: str
    kernel: str
    engine: str
    capacity_bytes: int
    used_bytes: int
    free_bytes: int  # for new chunks; the rest of capacity_bytes - used_bytes is reserved
    bandwidth: int
    chunks: int
    tokens: int
    steps: int
    threads: int
    heartbeat_age: float
    quarantined_bytes: int
    quarantined_sessions: int
    draining: bool
    drain_reason: str
    cordoned: bool  # it gets no new chunks, and keeps those that it has
    drain_by: str  # the name of the token that drained or cordoned it; "": unknown
    drain_at: int  # when, in seconds since 1970; 0: unknown
    moves: int
    slow: bool
    seen_bandwidth: int
    cold_bytes: int
    version: str
    no_device: str  # why a worker with --device auto uses its processor; "": no reason to report


@dataclass(frozen=True)
class Limit:
    """How much of something may be in use at once. `flag` raises it ("": none does); `refused`: how often it was reached.

    `worker`: for a limit of workers, the one closest to it; else "".
    """

    name: str
    flag: str
    used: int
    max: int
    refused: int
    worker: str


@dataclass(frozen=True)
class ClusterInfo:
    name: str
    version: str
    term: int
    uptime: float
    sessions: int
    steps: int
    frames: int
    chunks: int
    clients: int
    workers: tuple[WorkerInfo, ...]
    limits: tuple[Limit, ...]
    thin_chunks: int
    moves: int
    moved_chunks: int
    moved_bytes: int
    wished_chunks: int
    audit_every: int
    audited: int
    audit_differences: int
    audit_skipped: int
    endpoints: tuple[str, ...]
    needs_token: bool
    tenant: str  # the tenant of this client
    access: str  # the access of its token: read-only, user, operator or admin
    readiness: str  # "ready", or why it is not; "": an older build
    restricted: bool  # the access does not show workers, limits and figures of the whole cluster


def cluster_info(c: Any) -> ClusterInfo:
    def worker(w: Any) -> WorkerInfo:
        return WorkerInfo(
            name=text(w.name), host=text(w.host), endpoint=text(w.endpoint), state=text(w.state), kernel=text(w.kernel),
            engine=text(w.engine), capacity_bytes=w.capacity_bytes, used_bytes=w.used_bytes, free_bytes=w.free_bytes, bandwidth=w.bandwidth,
            chunks=w.chunks, tokens=w.tokens, steps=w.steps, threads=w.threads, heartbeat_age=w.heartbeat_age_ns / 1e9,
            quarantined_bytes=w.quarantined_bytes, quarantined_sessions=w.quarantined_sessions,
            draining=w.draining, drain_reason=text(w.drain_reason), moves=w.moves,
            cordoned=w.cordoned, drain_by=text(w.drain_by), drain_at=w.drain_at_s,
            slow=w.slow, seen_bandwidth=w.seen_bandwidth,
            cold_bytes=w.cold_bytes, version=text(w.version), no_device=text(w.no_device),
        )  # fmt: skip

    return ClusterInfo(
        name=text(c.cluster), version=text(c.version), term=c.term, uptime=c.uptime_ns / 1e9, sessions=c.sessions,
        steps=c.steps, frames=c.frames, chunks=c.chunks, clients=c.clients,
        workers=tuple(worker(c.workers[i]) for i in range(c.n_workers)),
        limits=tuple(
            Limit(text(x.name), text(x.flag), x.used, x.max, x.refused, text(x.worker)) for x in (c.limits[i] for i in range(c.n_limits))
        ),
        thin_chunks=c.thin_chunks, moves=c.moves, moved_chunks=c.moved_chunks, moved_bytes=c.moved_bytes, wished_chunks=c.wished_chunks,
        audit_every=c.audit_every, audited=c.audited, audit_differences=c.audit_differences, audit_skipped=c.audit_skipped,
        endpoints=tuple(text(c.endpoints[i]) for i in range(c.n_endpoints)),
        tenant=text(c.tenant), access=text(c.access), needs_token=c.needs_token, readiness=text(c.readiness), restricted=c.restricted,
    )  # fmt: skip


@dataclass(frozen=True)
class Token:
    """A token for clients, without its secret. Times are seconds since 1970; expires 0: never; used 0: not yet."""

    id: int
    name: str
    tenant: str
    access: str
    created: int
    expires: int
    used: int


@dataclass(frozen=True)
class Quarantined:
    """A session that a worker holds and the coordinator's store does not have."""

    worker: str
    session: int
    life: int
    bytes: int
    newer: bool


@dataclass(frozen=True)
class Quota:
    """A tenant's limit (0: none) and use of something; `refused`: how often, since the coordinator's start."""

    max: int
    used: int
    refused: int


@dataclass(frozen=True)
class TenantQuotas:
    """The quotas of a tenant by name: bytes, sessions, steps_per_s, steps_in_flight, connections, watches."""

    tenant: str
    quotas: dict[str, Quota]


def tenant_quotas(t: Any) -> TenantQuotas:
    of = (t.quotas[i] for i in range(t.n))
    return TenantQuotas(text(t.tenant), {text(q.name): Quota(q.max, q.used, q.refused) for q in of})


@dataclass(frozen=True)
class Event:
    """An event in the cluster, at `time` (seconds since 1970), with the worker and session concerned.

    (term, seq) rises, also across restarts of the coordinator. `count`: how many events this one stands for.
    """

    term: int
    seq: int
    time: float
    kind: str
    severity: str
    worker: str
    session: int
    session_name: str
    epoch: int
    count: int
    text: str


@dataclass(frozen=True)
class Events:
    """A page of events. `term` and `seq`: where the next page continues; `more`: it would find events at once.

    `anew`: the coordinator has restarted since then; `lost`: how many events are no longer kept.
    """

    events: tuple[Event, ...]
    term: int
    seq: int
    more: bool
    anew: bool
    lost: int


def events(c: Any) -> Events:
    def event(e: Any) -> Event:
        return Event(
            term=e.term, seq=e.seq, time=e.time_ns / 1e9, kind=text(e.kind), severity=text(e.severity), worker=text(e.worker),
            session=e.session, session_name=text(e.session_name), epoch=e.epoch, count=e.count, text=text(e.text),
        )  # fmt: skip

    return Events(tuple(event(c.events[i]) for i in range(c.n)), c.term, c.seq, c.more, c.anew, c.lost)


@dataclass(frozen=True)
class Drain:
    """The progress of a drain. `stuck`: why nothing moves now; "": chunks are moving, or none are left."""

    draining: bool
    chunks: int
    bytes: int
    sessions: int
    stuck: str


def drain(c: Any) -> Drain:
    return Drain(draining=c.draining, chunks=c.chunks, bytes=c.bytes, sessions=c.sessions, stuck=text(c.stuck))


@dataclass(frozen=True)
class ChunkMove:
    """A move of a rebalance: the chunk that begins at token `first` goes from one worker to another."""

    session: int
    first: int
    source: str
    target: str
    bytes: int


@dataclass(frozen=True)
class Balance:
    """What moves or would move: `chunks` and `bytes` in total; `moves` has the first 1024."""

    chunks: int
    bytes: int
    moves: tuple[ChunkMove, ...]


def balance(c: Any) -> Balance:
    moves = (c.moves[i] for i in range(c.n_moves))
    return Balance(
        chunks=c.chunks, bytes=c.bytes,
        moves=tuple(ChunkMove(m.session, m.first, text(getattr(m, "from")), text(m.to), m.bytes) for m in moves),
    )  # fmt: skip


@dataclass(frozen=True)
class PlanNode:
    rank: int
    parent: int
    worker: str
    host: str
    chunks: int
    tokens: int


@dataclass(frozen=True)
class Plan:
    """The tree over which a session's steps are reduced."""

    plan: int
    epoch: int
    digest: int
    engine: str
    why: str
    predicted_us: float
    nodes: tuple[PlanNode, ...]


def plan(c: Any) -> Plan:
    return Plan(
        plan=c.plan, epoch=c.epoch, digest=c.digest, engine=text(c.engine), why=text(c.why), predicted_us=c.predicted_us,
        nodes=tuple(
            PlanNode(n.rank, n.parent, text(n.worker), text(n.host), n.chunks, n.tokens)
            for n in (c.nodes[i] for i in range(c.n_nodes))
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class WorkerTrace:
    """Where one worker's time in a call went, in seconds."""

    worker: str
    rank: int
    parent: int
    queue: float
    compute: float
    wait: float
    tokens: int


@dataclass(frozen=True)
class Trace:
    """Where a call's time went, in seconds."""

    total: float
    coordinator: float
    tree: float
    mass: float
    workers: tuple[WorkerTrace, ...]


def trace(c: Any) -> Trace:
    return Trace(
        total=c.total_ns / 1e9, coordinator=c.coordinator_ns / 1e9, tree=c.tree_ns / 1e9, mass=c.mass_ns / 1e9,
        workers=tuple(
            WorkerTrace(text(w.worker), w.rank, w.parent, w.queue_ns / 1e9, w.compute_ns / 1e9, w.wait_ns / 1e9, w.tokens)
            for w in (c.workers[i] for i in range(c.n_workers))
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class Mass:
    """The share of a row's attention that each part of the context received.

    `bin` is [rows, heads, bins], bin b holds positions [b * bin_tokens, (b + 1) * bin_tokens) below `visible`;
    `worker` is [rows, heads, workers]; `sink` is [rows, heads]. bin + sink = worker + sink = 1.
    """

    bin_tokens: int
    visible: int
    bin: NDArray[np.float32]
    worker: NDArray[np.float32]
    sink: NDArray[np.float32]
    workers: tuple[str, ...]
    tokens: tuple[int, ...]


def _floats(pointer: Any, *shape: int) -> NDArray[np.float32]:
    count = int(np.prod(shape))
    if count == 0 or pointer == ffi.NULL:
        return np.zeros(shape, dtype=np.float32)
    floats: NDArray[np.float32] = np.frombuffer(ffi.buffer(pointer, count * 4), dtype=np.float32)
    return np.array(floats.reshape(shape))


def mass(c: Any) -> Mass:
    return Mass(
        bin_tokens=c.bin_tokens, visible=c.visible,
        bin=_floats(c.bin, c.rows, c.heads, c.n_bins),
        worker=_floats(c.worker, c.rows, c.heads, c.n_workers),
        sink=_floats(c.sink, c.rows, c.heads),
        workers=tuple(text(c.workers[i].name) for i in range(c.n_workers)),
        tokens=tuple(c.workers[i].tokens for i in range(c.n_workers)),
    )  # fmt: skip


@dataclass(frozen=True)
class WatchedStep:
    """One of a session's recent steps, as operators see it; missing: tokens that a partial answer lacked."""

    step: int
    layer: int
    rows: int
    attempts: int
    first: int
    visible: int
    append: bool
    missing: int
    age: float
    trace: Trace | None
    mass: Mass | None


def watched(c: Any) -> WatchedStep:
    return WatchedStep(
        step=c.step, layer=c.layer, rows=c.rows, attempts=c.attempts, first=c.first, visible=c.visible, append=c.append, missing=c.missing,
        age=c.age_ns / 1e9, trace=trace(c.trace) if c.trace.n_workers else None, mass=mass(c.mass) if c.mass.n_bins else None,
    )  # fmt: skip


@dataclass(frozen=True)
class Snapshot:
    """A snapshot. tokens: of each layer; longest_layer: tokens of the session's longest layer, which may have more; bytes: of keys
    and values; stored_bytes: of the files; forgotten: the session's floor, which a restored session also has."""

    path: str
    tokens: int
    longest_layer: int
    files: int
    bytes: int
    stored_bytes: int
    forgotten: int


def snapshot(path: str, c: Any) -> Snapshot:
    return Snapshot(
        path=path, tokens=c.tokens, longest_layer=c.longest_layer, files=c.files, bytes=c.bytes, stored_bytes=c.stored_bytes,
        forgotten=c.forgotten,
    )  # fmt: skip
