# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV connector: on the scheduler's side the book of sessions, on the worker's side the sessions
themselves."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole, SupportsHMA
from vllm.logger import init_logger

from . import forward
from .config import Settings, check
from .engine import environment
from .layers import Layer
from .live import Worker
from .mark import Marks
from .recent import Recent
from .sessions import Book
from .steps import Step
from .window import keep_of

logger = init_logger("vllm.banyan")


@dataclass
class Meta(KVConnectorMetadata):
    """A step, on its way to the workers."""

    step: Step = field(default_factory=Step)


def layers_of(config: Any) -> dict[str, Layer]:
    """The attention layers that vLLM has made, in the model's order."""
    context = config.compilation_config.static_forward_context
    made = {name: getattr(getattr(layer, "impl", None), "banyan", None) for name, layer in context.items()}
    return {name: banyan() for name, banyan in made.items() if banyan is not None}


def kv_dtype(config: Any) -> Any:
    """torch's type of keys and values."""
    import torch

    named = config.cache_config.cache_dtype
    return config.model_config.dtype if named == "auto" else getattr(torch, named)


class BanyanConnector(KVConnectorBase_V1, SupportsHMA):
    """Registered by name (engine.py). Methods of the scheduler's side never raise: an exception there ends
    the engine."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        check(vllm_config)
        settings: Settings = environment()
        ranks = vllm_config.parallel_config.tensor_parallel_size
        keep = keep_of(settings.window, vllm_config.scheduler_config.max_num_batched_tokens) if settings.window else 0
        self._config = vllm_config
        self._book: Book | None = None
        self._worker: Worker | None = None
        self._requests: dict[str, Any] = {}
        if role == KVConnectorRole.SCHEDULER:
            marks = Marks(vllm_config)
            if not marks.lasting:
                logger.warning("Banyan: the weights come from no files here: sessions of this process cannot be resumed by another")
            self._book = Book(
                settings, lambda request: marks.of_request(request.lora_request), ranks, secrets.token_hex(3), _warn, keep, forward.leaving
            )
        else:
            self._worker = Worker(settings, lambda: layers_of(vllm_config), kv_dtype(vllm_config), _rank(ranks), ranks, _warn, keep)
            forward.use(self._worker)

    # ---- worker ----

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """The layers are made: what they want is looked at now, so that what is not served is refused at the
        start."""
        assert self._worker is not None
        spec = self._worker.model.spec
        if self._worker.keep:
            layers, dtype = layers_of(self._config), kv_dtype(self._config)
            caches = {name: kv_caches[name].view(dtype).permute(0, 2, 1, 3) for name, layer in layers.items() if layer.target is None}
            self._worker.recent = Recent(caches, layers, self._config.cache_config.block_size)
        logger.info("Banyan: %d layers, keys of type %s at %s", spec.layers - 1, spec.kv_type, self._worker.settings.endpoint)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None:
            self._worker.begin(connector_metadata.step)  # start_load_kv may run after the forward

    def clear_connector_metadata(self) -> None:
        super().clear_connector_metadata()
        if self._worker is not None:
            self._worker.end()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        assert self._worker is not None
        self._worker.spill()

    def get_block_ids_with_load_errors(self) -> set[int]:
        assert self._worker is not None
        return self._worker.failed_blocks()

    # ---- scheduler ----

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self._book is not None
        self._requests[request.request_id] = request
        found = self._book.matched(request)
        if found is None:
            return None, False
        return max(0, min(found, request.num_tokens - 1) - num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> Meta:
        assert self._book is not None
        out, rows = scheduler_output, []
        for new in out.scheduled_new_reqs:
            rows.append(self._row(out, new.req_id, new.num_computed_tokens, new.block_ids, True))
        cached = out.scheduled_cached_reqs
        for i, request in enumerate(cached.req_ids):
            fresh = request in cached.resumed_req_ids
            rows.append(self._row(out, request, cached.num_computed_tokens[i], cached.new_block_ids[i] or (), fresh))
        preempted = sorted(out.preempted_req_ids or ())
        for request in preempted:
            self._book.preempted(request)
        return Meta(Step(rows, list(out.finished_req_ids), preempted))

    def _row(self, out: Any, request: str, start: int, blocks: Any, fresh: bool) -> Any:
        assert self._book is not None
        held, n = self._requests[request], out.num_scheduled_tokens[request]
        ids = list(held.all_token_ids[start : start + n])
        return self._book.row(held, start, ids, [block for group in blocks for block in group], fresh)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        assert self._book is not None
        self._requests.pop(request.request_id, None)
        forward.finish(request.request_id)
        return False, self._book.ended(request)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def shutdown(self) -> None:
        if self._book is not None:
            self._book.stop()
        if self._worker is not None:
            forward.use(None)
            self._worker.stop()


def _rank(ranks: int) -> int:
    if ranks == 1:
        return 0
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())


def _warn(sentence: str) -> None:
    logger.warning("Banyan: %s", sentence)
