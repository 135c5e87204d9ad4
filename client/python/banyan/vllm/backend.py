# SPDX-License-Identifier: Apache-2.0
"""vLLM's attention backend: a layer's rows go to the cluster, its keys live there. On the CPU and the CUDA
platform."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder, AttentionType
from vllm.v1.kv_cache_interface import AttentionSpec, FullAttentionSpec, SlidingWindowSpec

from ..spec import Kind
from . import forward
from .config import Refused
from .engine import environment
from .layers import Layer

logger = init_logger("vllm.banyan")


class BanyanBackend(AttentionBackend):
    """Everything but MLA."""

    forward_includes_kv_cache_update: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        """A member of AttentionBackendEnum: the CPU platform takes one of its own only."""
        return "CPU_ATTN" if current_platform.is_cpu() else "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[BanyanImpl]:
        return BanyanImpl

    @staticmethod
    def get_builder_cls() -> type[BanyanBuilder]:
        return BanyanBuilder

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        return spec_of(spec, spec.num_kv_heads, spec.head_size, spec.head_size_v)


def spec_of(spec: AttentionSpec, kv_heads: int, k_dim: int, v_dim: int) -> AttentionSpec:
    """What vLLM keeps of a layer; the same for all layers, with windows or without, so that they share one
    block table.

    The memory is the cluster's: a byte a token stays here. With BANYAN_WINDOW that many tokens do.
    """
    window = environment().window
    if window:
        return SlidingWindowSpec(
            block_size=spec.block_size, num_kv_heads=kv_heads, head_size=k_dim, head_size_v=v_dim, dtype=spec.dtype, sliding_window=window
        )
    return FullAttentionSpec(
        block_size=spec.block_size, num_kv_heads=1, num_head_slots=1, head_size=1, head_size_v=0, dtype=torch.int8, state_content_bytes=1
    )


@dataclass
class Rows:
    """A step's rows, and what vLLM's MLA layer asks of metadata: all is decode, so that no layer expands
    heads.

    batch: of each request (block, begin, end, position of its first row), found out when the batch is built;
    whose they are is looked up in the first layer, when the step's announcement has come.
    """

    batch: list[tuple[int, int, int, int]] = field(default_factory=list)
    num_actual_tokens: int = 0
    num_decode_tokens: int = 0
    num_decodes: int = 0
    num_prefills: int = 0
    prefill: Any = None
    decode: Any = True
    causal: bool = True
    parts: list[forward.Part] | None = None


class BanyanBuilder(AttentionMetadataBuilder[Rows]):
    """Makes no tensors: whose rows, from which position."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._block = kv_cache_spec.block_size

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Rows:
        m = common_attn_metadata
        starts, lens = m.query_start_loc_cpu.tolist(), m.seq_lens.tolist()
        table = m.block_table_tensor
        last = [max(0, n - 1) // self._block for n in lens[: m.num_reqs]]
        blocks = table[torch.arange(m.num_reqs, device=table.device), torch.tensor(last, device=table.device)].tolist()
        batch = [
            (blocks[i], starts[i], starts[i + 1], lens[i] - (starts[i + 1] - starts[i]))
            for i in range(m.num_reqs)
            if starts[i + 1] > starts[i]
        ]
        return Rows(batch, m.num_actual_tokens, m.num_actual_tokens, m.num_reqs)


class BanyanImpl(AttentionImpl[Rows]):
    """One layer. `banyan` is what the session's specification has of it."""

    def __init__(
        self, num_heads: int, head_size: int, scale: float, num_kv_heads: int | None = None, alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None, kv_cache_dtype: str = "auto", logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER, kv_sharing_target_layer_name: str | None = None, sinks: Any = None, **more: Any,
    ) -> None:  # fmt: skip
        if attn_type != AttentionType.DECODER:
            raise Refused(f"banyan: attention of the kind '{attn_type}': only a decoder's own is served")
        if any(value not in (None, False) for value in more.values()):
            raise Refused(f"banyan: attention with {', '.join(sorted(more))}: it has not been tried")
        self.num_heads, self.head_size, self.scale, self.num_kv_heads = num_heads, head_size, float(scale), num_kv_heads or num_heads
        self.kv_cache_dtype, self.attn_type, self.sinks = kv_cache_dtype, attn_type, sinks
        self.alibi_slopes, self.sliding_window, self.logits_soft_cap = alibi_slopes, sliding_window, logits_soft_cap
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name

    def banyan(self) -> Layer:
        slopes = self.alibi_slopes if self.alibi_slopes is not None else ()
        kind = Kind(
            q_heads=self.num_heads, kv_heads=self.num_kv_heads, k_dim=self.head_size, v_dim=self.head_size, scale=self.scale,
            soft_cap=float(self.logits_soft_cap or 0.0), window=max(0, int(self.sliding_window or 0)), alibi=tuple(map(float, slopes)),
        )  # fmt: skip
        sinks = () if self.sinks is None else tuple(self.sinks.detach().float().cpu().tolist())
        return Layer(kind, self.kv_sharing_target_layer_name, sinks)

    def forward(
        self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, attn_metadata: Any,
        output: torch.Tensor, output_scale: Any = None, output_block_scale: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        if attn_metadata is None:  # a warm-up
            return output.zero_()
        shared = self.kv_sharing_target_layer_name is not None
        forward.attend(layer.layer_name, attn_metadata, query, None if shared else key, None if shared else value, output)
        return output
