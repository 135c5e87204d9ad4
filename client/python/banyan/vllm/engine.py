# SPDX-License-Identifier: Apache-2.0
"""How the plug-in gets into an engine: backends and connector by name, the engine's arguments completed."""

from __future__ import annotations

import functools
import os
from typing import Any

from .config import Refused, Settings, check
from .window import blocks_of, keep_of

BLOCK = 256  # tokens of a KV block: vLLM makes a Python object for each
SCHEDULER = "banyan.vllm.BanyanScheduler"
# In the place of which of vLLM's: the CPU platform chooses one of its own, whatever it is asked for.
_BACKENDS = {"banyan.vllm.backend.BanyanBackend": ("CUSTOM", "CPU_ATTN"), "banyan.vllm.mla.BanyanMLABackend": ("CPU_MLA", "AMX_MLA")}

_local: Any = None  # the local cluster of this process, which ends with it


def environment() -> Settings:
    """Of this process, where a local cluster has its endpoint in it."""
    settings = Settings.of(os.environ)
    if settings.endpoint is None:
        raise Refused("banyan: BANYAN_LOCAL is set, but no engine of this process has started the cluster")
    return settings


def start_local() -> None:
    """Starts the cluster that BANYAN_LOCAL asks for, once; processes that this one starts find it in
    BANYAN_ENDPOINT."""
    global _local
    settings = Settings.of(os.environ)
    if settings.endpoint is not None or not settings.local:
        return
    from ..local import local_cluster

    _local = local_cluster(workers=settings.local, memory=settings.local_memory)
    os.environ["BANYAN_ENDPOINT"] = _local.endpoint


def install() -> None:
    """Makes vLLM's registries and its EngineArgs Banyan's. May be called again."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if "BanyanConnector" not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector("BanyanConnector", "banyan.vllm.connector", "BanyanConnector")
    for backend, members in _BACKENDS.items():
        for member in members:
            register_backend(AttentionBackendEnum[member], backend)
    if not hasattr(EngineArgs.create_engine_config, "banyan"):
        EngineArgs.create_engine_config = _completed(EngineArgs.create_engine_config)


def _completed(real: Any) -> Any:
    @functools.wraps(real)
    def create_engine_config(self: Any, *args: Any, **more: Any) -> Any:
        start_local()
        fill(self)
        config = real(self, *args, **more)
        adjust(config)
        return config

    create_engine_config.banyan = True  # type: ignore[attr-defined]
    return create_engine_config


def defaults() -> dict[str, Any]:
    """What an engine needs beside its model, as arguments of LLM() or EngineArgs()."""
    from vllm.config import KVTransferConfig

    return {
        "kv_transfer_config": KVTransferConfig(kv_connector="BanyanConnector", kv_role="kv_both", kv_load_failure_policy="fail"),
        "enable_prefix_caching": False,
        "scheduler_cls": SCHEDULER,
        "async_scheduling": False,
    }


def fill(args: Any) -> None:
    """Sets of EngineArgs what the user has left open. Refused: what the user has set otherwise."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    for name, value in defaults().items():
        said = getattr(args, name)
        if said is None:
            setattr(args, name, value)
        elif name == "scheduler_cls" and said != value:
            raise Refused(f"banyan: the scheduler {said}: a failed request is ended by {SCHEDULER}, so leave --scheduler-cls out")
    if args.block_size is None:
        args.block_size = BLOCK
    if not current_platform.is_cpu():  # which chooses its own, that install() has replaced
        if args.attention_backend not in (None, AttentionBackendEnum.CUSTOM):
            raise Refused(
                f"banyan: the attention backend {args.attention_backend.name}: keys are in the cluster, so leave --attention-backend out"
            )
        args.attention_backend = AttentionBackendEnum.CUSTOM


def adjust(config: Any) -> None:
    """Refuses what is not served, and counts KV blocks: for as many requests and tokens as the engine may
    have, whatever its memory."""
    check(config)
    cache, scheduler = config.cache_config, config.scheduler_config
    if config.model_config.use_mla:
        cache.block_size = max(cache.block_size, BLOCK)  # vLLM's own kernel of CPUs takes blocks of 16 alone
    window, batch = environment().window, scheduler.max_num_batched_tokens
    if window:
        keep_of(window, batch)
    if cache.num_gpu_blocks_override is None:
        blocks = blocks_of(config.model_config.max_model_len, cache.block_size, window, batch)
        cache.num_gpu_blocks_override = scheduler.max_num_seqs * blocks + 1
