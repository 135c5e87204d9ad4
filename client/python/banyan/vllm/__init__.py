# SPDX-License-Identifier: Apache-2.0
"""vLLM with its KV cache in a Banyan cluster.

    pip install 'banyan[vllm]'
    BANYAN_ENDPOINT=tcp://coordinator:7412 vllm serve MODEL        # or BANYAN_LOCAL=4: a cluster on this machine

No flag is needed: where the environment names a cluster, the plug-in completes the engine's arguments
(engine.py), and refuses what it cannot serve exactly, with the reason. Without those variables it does
nothing and prints nothing.

Environment (config.py):
    BANYAN_ENDPOINT         the coordinator; turns the plug-in on
    BANYAN_LOCAL            N: a cluster of N workers on this machine, for as long as the server runs; turns
    it on, too
    BANYAN_LOCAL_MEMORY     of each of these workers ("2G")
    BANYAN_TOKEN_FILE, BANYAN_TLS_CA, BANYAN_TLS_CERT, BANYAN_TLS_KEY    as for banyanctl
    BANYAN_RETRY_SECONDS    30: so long a step waits for a cluster that does not answer; then its requests
    fail
    BANYAN_WINDOW           0; W: the last W tokens stay in the engine, older ones in the cluster
    BANYAN_TTL              3600: seconds without use after which a session is deleted; 0: never
    BANYAN_REPLICAS         0: the cluster's default; 2 or 3 copies of each part
    BANYAN_SESSION_PREFIX   what stands before the names of requests without one ("vllm")

A request's session: kv_transfer_params {"banyan_session": name, "banyan_ttl": seconds, "banyan_pin": bool},
else session_id or the header X-Session-ID, else cache_salt; names.py has the rules. The answer's
kv_transfer_params say {"banyan_session": name, "banyan_tokens": how many tokens it has now, "banyan_matched":
how many of the prompt it had}.

By hand (LLM(...), a config of one's own): kv_connector "BanyanConnector" with kv_role "kv_both",
enable_prefix_caching False, scheduler_cls "banyan.vllm.BanyanScheduler", async_scheduling False.
engine.defaults() returns them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .scheduler import BanyanScheduler

__all__ = ["BanyanScheduler", "register"]


def register() -> None:
    """The entry point `vllm.general_plugins`: vLLM calls it in each of its processes, in some twice.

    Raises hooks.Moved where this vLLM is not one that the plug-in fits, with the hook and what has changed.
    """
    if not (os.environ.get("BANYAN_ENDPOINT") or os.environ.get("BANYAN_LOCAL")):
        return
    from . import engine, hooks

    hooks.insist()
    engine.install()


def __getattr__(name: str) -> Any:
    """vLLM finds the scheduler by the name banyan.vllm.BanyanScheduler; importing it imports vLLM."""
    if name == "BanyanScheduler":
        from .scheduler import BanyanScheduler

        return BanyanScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
