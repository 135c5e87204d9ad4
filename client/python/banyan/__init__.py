# SPDX-License-Identifier: Apache-2.0
"""Exact attention over a context that lives in a Banyan cluster.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> spec = Spec(layers=1, q_heads=8, kv_heads=2, k_dim=64)
>>> k, v = (rng.standard_normal((1000, 2, 64), dtype=np.float32) for _ in range(2))
>>> q = rng.standard_normal((1, 8, 64), dtype=np.float32)
>>> with cluster.connect() as client, client.create(spec) as session:
...     count = session.attach(0, 0, k, v)        # directly to the workers
...     session.commit(0, 0, count)               # now it is visible
...     answer = session.attend(0, 999, q)        # the last row sees all of it
...     session.delete()
>>> answer.o.shape, answer.length
((1, 8, 64), 1000)
"""

from ._abi import VERSION as __version__
from .client import Client, Session, quantise
from .errors import (
    Aborted,
    AlreadyExists,
    BanyanError,
    Cancelled,
    Closed,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from .info import (
    Balance,
    ChunkMove,
    ClusterInfo,
    Drain,
    Event,
    Events,
    Limit,
    Mass,
    Plan,
    PlanNode,
    Quarantined,
    Quota,
    SessionInfo,
    SessionMemory,
    Snapshot,
    TenantQuotas,
    Trace,
    WatchedStep,
    WorkerInfo,
    WorkerTrace,
)
from .items import Answer, Item
from .local import LocalCluster, local_cluster
from .prefixes import Kept, Prefix, prefix_hashes
from .spec import Kind, Spec
from .states import State

__all__ = [
    "Aborted", "AlreadyExists", "Answer", "Balance", "BanyanError", "Cancelled", "ChunkMove", "Client", "Closed", "ClusterInfo",
    "DataLoss", "DeadlineExceeded", "Drain", "Event", "Events", "FailedPrecondition", "Internal", "InvalidArgument", "Item",
    "Kept", "Kind", "Limit", "LocalCluster", "Mass", "NotFound", "OutOfRange", "PermissionDenied", "Plan", "PlanNode", "Prefix",
    "Quarantined", "Quota", "ResourceExhausted", "Session", "SessionInfo", "SessionMemory", "Snapshot", "Spec", "State", "TenantQuotas",
    "Trace",
    "Unauthenticated", "Unavailable", "Unimplemented", "WatchedStep", "WorkerInfo", "WorkerTrace", "__version__", "local_cluster",
    "prefix_hashes", "quantise",
]  # fmt: skip
