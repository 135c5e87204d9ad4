# SPDX-License-Identifier: Apache-2.0
"""Recent tokens of live requests in vLLM's KV blocks (window.py): written there, attended there, and sent
from there to the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from . import near
from .layers import Layer
from .live import Live

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Recent:
    """The blocks of one worker.

    Args:
        caches: of each layer, [blocks, block, kv_heads, content]: K and behind it V in `content`, or K alone
        where V lies in it. layers: as the session's specification has them.
    """

    def __init__(self, caches: Mapping[str, torch.Tensor], layers: Mapping[str, Layer], block: int) -> None:
        self._caches, self._layers, self._block = dict(caches), dict(layers), block

    def _source(self, name: str) -> str:
        return self._layers[name].target or name

    def _places(self, live: Live, begin: int, end: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks of positions, and the places in them."""
        at = torch.arange(begin, end)
        first = begin // self._block
        table = torch.tensor(live.table[first : -(-end // self._block)], dtype=torch.int64)
        return table[at // self._block - first].to(device), (at % self._block).to(device)

    def put(self, name: str, live: Live, first: int, k: torch.Tensor, v: torch.Tensor | None) -> None:
        """Rows from position `first` on: [rows, kv_heads, dim]."""
        cache = self._caches[name]
        blocks, offsets = self._places(live, first, first + len(k), cache.device)
        rows = k if v is None else torch.cat((k, v), dim=-1)
        cache[blocks, offsets] = rows.to(cache.dtype)

    def get(self, name: str, live: Live, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of positions: [rows, kv_heads, dim]."""
        cache, kind = self._caches[self._source(name)], self._layers[name].kind
        rows = cache[self._places(live, begin, end, cache.device)]
        return rows[..., : kind.k_dim], rows[..., : kind.v_dim] if kind.v_in_k else rows[..., kind.k_dim :]

    def attend(self, name: str, live: Live, first: int, q: torch.Tensor, sinks: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """(o, lse) of rows from position `first` on, over the engine's own tokens. sinks: they are not in
        another part."""
        layer, end = self._layers[name], first + len(q)
        begin = live.stored if not layer.kind.window else max(live.stored, first - layer.kind.window + 1)
        k, v = self.get(name, live, begin, end)
        logits = torch.tensor(layer.sinks, device=q.device) if sinks and layer.sinks else None
        return near.attention(q, k, v, first, begin, layer.kind, logits)

    def far(self, name: str, live: Live, first: int) -> bool:
        """Whether a row at `first` sees tokens of the cluster."""
        window = self._layers[name].kind.window
        return live.stored > 0 and (not window or first - window + 1 < live.stored)

    def rows(self, name: str, live: Live, begin: int, end: int, kv_type: str) -> tuple[Any, Any] | None:
        """What leaves for the cluster, dense; None: the layer reads another one's keys."""
        if self._layers[name].target is not None:
            return None
        k, v = self.get(name, live, begin, end)
        dtype = _DTYPES[kv_type]
        return k.to(dtype).contiguous(), None if self._layers[name].kind.v_in_k else v.to(dtype).contiguous()
