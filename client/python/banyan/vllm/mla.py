# SPDX-License-Identifier: Apache-2.0
"""MLA: latents are the keys, their first kv_lora_rank elements the values. Every row goes the weight-absorbed
way."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend, CPUMLAImpl
from vllm.v1.kv_cache_interface import AttentionSpec

from ..spec import Kind
from . import forward
from .backend import BanyanBuilder, spec_of
from .layers import Layer


class BanyanMLABackend(CPUMLABackend):
    """In the place of the CPU platform's own."""

    @staticmethod
    def get_impl_cls() -> type[BanyanMLAImpl]:
        return BanyanMLAImpl

    @staticmethod
    def get_builder_cls() -> type[BanyanBuilder]:
        return BanyanBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        return spec_of(spec, 1, spec.head_size, 0)

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(1)]

    @classmethod
    def supports_block_size(cls, block_size: int | None) -> bool:
        return True


class BanyanMLAImpl(CPUMLAImpl):
    """vLLM's layer projects queries into the latents and answers out of them; what is between is here."""

    _rows: torch.Tensor | None = None

    def banyan(self) -> Layer:
        dim = self.kv_lora_rank + self.qk_rope_head_dim
        return Layer(Kind(q_heads=self.num_heads, kv_heads=1, k_dim=dim, v_dim=self.kv_lora_rank, scale=float(self.scale), v_in_k=True))

    def do_kv_cache_update(
        self, kv_c_normed: torch.Tensor, k_pe: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor, kv_cache_dtype: str,
        k_scale: torch.Tensor,
    ) -> None:  # fmt: skip
        """The step's latents, which forward_mqa() appends."""
        self._rows = torch.cat((kv_c_normed, k_pe.reshape(k_pe.shape[0], -1)), dim=-1).unsqueeze(1)

    def forward_mqa(self, q: Any, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: Any, layer: Any) -> tuple[torch.Tensor, None]:
        query = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        out = torch.zeros((query.shape[0], self.num_heads, self.kv_lora_rank), dtype=query.dtype, device=query.device)
        rows, self._rows = self._rows, None
        if rows is None:  # a warm-up
            return out, None
        forward.attend(layer.layer_name, attn_metadata, query, rows[: query.shape[0]], None, out)
        return out, None
