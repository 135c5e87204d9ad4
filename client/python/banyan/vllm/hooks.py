# SPDX-License-Identifier: Apache-2.0
"""Whether this vLLM is one that the plug-in fits: each interface that it uses is there and takes what was
recorded.

vLLM promises none of them. One that has moved is refused at the start, by name, before it can compute
something else or end the engine in the middle of a request. The table is data, and check() needs no vLLM: a
test gives it modules of its own.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

# Versions over which the tests of client/python/tests/vllm have passed.
TESTED = ("0.32.0",)


class Moved(RuntimeError):
    """This vLLM has other interfaces than those that the plug-in was written for."""


class Hook(NamedTuple):
    """An interface of vLLM.

    Attributes:
        module, name: where it is; a dot for what is in a class.
        parameters: names that are relied on, in their order; (): it need only be there.
        exact: vLLM calls our method in its place: parameters of other names are refused, too.
    """

    module: str
    name: str
    parameters: tuple[str, ...] = ()
    exact: bool = False


_BACKEND = "vllm.v1.attention.backend"
_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base"
_FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"
_SPECS = "vllm.v1.kv_cache_interface"
_MLA = "vllm.v1.attention.backends.mla.cpu_mla"
_SCHEDULER = "vllm.v1.core.sched.scheduler"
_OUTPUT = "vllm.v1.core.sched.output"
_PAGES = ("num_kv_heads", "head_size", "dtype", "head_size_v")
_RUNNER = "vllm.v1.worker.kv_connector_model_runner_mixin"

HOOKS: tuple[Hook, ...] = (
    # how the plug-in gets in
    Hook("vllm.v1.attention.backends.registry", "register_backend", ("backend", "class_path")),
    Hook("vllm.v1.attention.backends.registry", "AttentionBackendEnum.CUSTOM"),
    Hook("vllm.v1.attention.backends.registry", "AttentionBackendEnum.CPU_ATTN"),
    Hook("vllm.v1.attention.backends.registry", "AttentionBackendEnum.CPU_MLA"),
    Hook("vllm.v1.attention.backends.registry", "AttentionBackendEnum.AMX_MLA"),
    Hook(_FACTORY, "KVConnectorFactory._registry"),
    Hook(_FACTORY, "KVConnectorFactory.register_connector", ("name", "module_path", "class_name")),
    Hook("vllm.engine.arg_utils", "EngineArgs.create_engine_config", ("self", "usage_context", "headless"), exact=True),
    Hook(
        "vllm.engine.arg_utils", "EngineArgs.__init__",
        ("block_size", "enable_prefix_caching", "scheduler_cls", "kv_transfer_config", "attention_backend", "async_scheduling"),
    ),
    Hook("vllm.config", "KVTransferConfig"),
    # attention
    Hook(_BACKEND, "AttentionBackend.customize_spec", ("spec",), exact=True),
    Hook(_BACKEND, "AttentionBackend.get_supported_kernel_block_sizes", ("kv_cache_spec",), exact=True),
    Hook(_BACKEND, "AttentionMetadataBuilder.__init__", ("self", "kv_cache_spec", "layer_names", "vllm_config", "device"), exact=True),
    Hook(_BACKEND, "AttentionMetadataBuilder.build", ("self", "common_prefix_len", "common_attn_metadata", "fast_build"), exact=True),
    Hook(
        _BACKEND, "CommonAttentionMetadata.__init__",
        ("query_start_loc_cpu", "seq_lens", "num_reqs", "num_actual_tokens", "block_table_tensor"),
    ),
    Hook(
        _BACKEND, "AttentionImpl.__init__",
        (
            "self", "num_heads", "head_size", "scale", "num_kv_heads", "alibi_slopes", "sliding_window", "kv_cache_dtype",
            "logits_soft_cap", "attn_type", "kv_sharing_target_layer_name",
        ), exact=True,
    ),
    Hook(
        _BACKEND, "AttentionImpl.forward",
        ("self", "layer", "query", "key", "value", "kv_cache", "attn_metadata", "output", "output_scale", "output_block_scale"), exact=True,
    ),
    Hook(_SPECS, "FullAttentionSpec.__init__", (*_PAGES, "num_head_slots", "state_content_bytes")),
    Hook(_SPECS, "SlidingWindowSpec.__init__", (*_PAGES, "sliding_window")),
    Hook(_MLA, "CPUMLABackend"),
    Hook(
        _MLA, "CPUMLAImpl.do_kv_cache_update",
        ("self", "kv_c_normed", "k_pe", "kv_cache", "slot_mapping", "kv_cache_dtype", "k_scale"), exact=True,
    ),
    Hook(_MLA, "CPUMLAImpl.forward_mqa", ("self", "q", "kv_c_and_k_pe_cache", "attn_metadata", "layer"), exact=True),
    # the connector, and in which order the model runner calls it
    Hook(_CONNECTOR, "SupportsHMA.request_finished_all_groups", ("self", "request", "block_ids"), exact=True),
    Hook(_CONNECTOR, "KVConnectorBase_V1.__init__", ("self", "vllm_config", "role", "kv_cache_config")),
    Hook(_CONNECTOR, "KVConnectorBase_V1.register_kv_caches", ("self", "kv_caches"), exact=True),
    Hook(_CONNECTOR, "KVConnectorBase_V1.bind_connector_metadata", ("self", "connector_metadata"), exact=True),
    Hook(_CONNECTOR, "KVConnectorBase_V1.clear_connector_metadata", ("self",), exact=True),
    Hook(_CONNECTOR, "KVConnectorBase_V1.wait_for_save", ("self",), exact=True),
    Hook(_CONNECTOR, "KVConnectorBase_V1.get_block_ids_with_load_errors", ("self",), exact=True),
    Hook(_CONNECTOR, "KVConnectorBase_V1.get_num_new_matched_tokens", ("self", "request", "num_computed_tokens"), exact=True),
    Hook(_CONNECTOR, "KVConnectorBase_V1.update_state_after_alloc", ("self", "request", "blocks", "num_external_tokens"), exact=True),
    Hook(_CONNECTOR, "KVConnectorBase_V1.build_connector_meta", ("self", "scheduler_output"), exact=True),
    Hook(_CONNECTOR, "KVConnectorBase_V1.request_finished", ("self", "request", "block_ids"), exact=True),
    Hook(_CONNECTOR, "KVConnectorBase_V1.shutdown", ("self",), exact=True),
    Hook(_RUNNER, "KVConnectorModelRunnerMixin._get_kv_connector_output", ("scheduler_output", "defer_finalize"), exact=True),
    # the scheduler
    Hook(_SCHEDULER, "Scheduler._handle_invalid_blocks", ("self", "invalid_block_ids", "num_scheduled_tokens"), exact=True),
    Hook("vllm.v1.core.kv_cache_manager", "KVCacheManager.get_block_ids", ("self", "request_id")),
    Hook(_OUTPUT, "NewRequestData.__init__", ("req_id", "block_ids", "num_computed_tokens")),
    Hook(_OUTPUT, "CachedRequestData.__init__", ("req_ids", "resumed_req_ids", "new_block_ids", "num_computed_tokens")),
    Hook(
        _OUTPUT, "SchedulerOutput.__init__",
        ("scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens", "finished_req_ids", "preempted_req_ids"),
    ),
    Hook("vllm.v1.request", "Request.__init__", ("request_id", "prompt_embeds", "mm_features", "lora_request", "cache_salt", "session_id")),
    Hook("vllm.v1.request", "Request.num_tokens"),
)  # fmt: skip


def _trouble(hook: Hook, load: Callable[[str], Any]) -> str:
    """What is wrong with one hook; "": nothing."""
    where = f"{hook.name} of {hook.module}"
    try:
        found = load(hook.module)
        for part in hook.name.split("."):
            found = getattr(found, part)
        if not hook.parameters:
            return ""
        takes = list(inspect.signature(found).parameters)
    except (ImportError, AttributeError) as error:
        return f"{where} is gone ({error})"
    except (TypeError, ValueError):
        return f"{where} is not a function that takes {', '.join(hook.parameters)}"
    missing = [name for name in hook.parameters if name not in takes]
    if missing:
        return f"{where} takes ({', '.join(takes)}), and no {', '.join(missing)}"
    if [name for name in takes if name in hook.parameters] != list(hook.parameters):
        return f"{where} takes ({', '.join(takes)}), in another order than ({', '.join(hook.parameters)})"
    added = [name for name in takes if name not in hook.parameters]
    if hook.exact and added:
        return f"{where} takes {', '.join(added)}, too"
    return ""


def check(load: Callable[[str], Any] = importlib.import_module) -> list[str]:
    """A sentence for each hook that has moved; load: imports a module by its name."""
    return [why for why in (_trouble(hook, load) for hook in HOOKS) if why]


def insist() -> None:
    """Raises Moved where a hook has moved in the vLLM that is installed."""
    moved = check()
    if moved:
        import vllm

        raise Moved(
            f"banyan: vLLM {vllm.__version__} has changed interfaces that this plug-in uses; it was tested with {', '.join(TESTED)}. "
            f"Install one of these, or unset BANYAN_ENDPOINT and BANYAN_LOCAL to serve without Banyan. {'. '.join(moved)}."
        )
