# SPDX-License-Identifier: Apache-2.0
"""The way of a layer's rows to the service and back: one call a layer, with as little Python as can be."""

from __future__ import annotations

import torch

from .._abi import ffi, lib
from ..client import Client, Session
from ..errors import raise_c
from .layers import Latent, Layer, latent_rows
from .tags import Tag

# Bytes of K and V that may travel with a step; what is larger goes straight to the workers, by attach.
_APPEND_MAX = 1 << 20

_TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Steps:
    """The sessions of a batch, and the C structures of their calls, made once."""

    def __init__(self, client: Client, sessions: list[Session], plan: dict[int, Layer], kv_type: str | None) -> None:
        self.client = client
        self._latents: dict[int, Latent] = {}
        self._kv_type = kv_type or sessions[0].spec.kv_type
        self._set_sessions(sessions)
        self.set_plan(plan)

    def set_plan(self, plan: dict[int, Layer]) -> None:
        self.own = sum(layer.source == index for index, layer in plan.items())  # layers with keys of their own

    def _set_sessions(self, sessions: list[Session]) -> None:
        self.sessions = sessions
        self._items = ffi.new("banyan_item[]", len(sessions))
        self._errors = ffi.new("banyan_error[]", len(sessions) + 1)
        for i, session in enumerate(sessions):
            self._items[i].session = session.handle
            self._items[i].error = ffi.addressof(self._errors, i)

    def attend(
        self, index: int, layer: Layer, module: torch.nn.Module, tag: Tag, query: torch.Tensor, columns: int, pads: list[int]
    ) -> torch.Tensor:
        """[B, S, H, v_dim]: attention of the rows of `query` [B, H, S, k_dim], their keys appended first."""
        latent = self._latent(index, module) if layer.latent else None
        append = layer.source == index
        keys, values = (latent_rows(tag), tag.keys) if latent else (tag.keys, tag.values)
        q = (latent.query(query) if latent else query).detach()
        batch, heads, rows, _ = q.shape
        device, dtype = q.device, q.dtype
        # The service's order: rows, then heads. For a single row both are the same memory.
        q = q.transpose(1, 2).to("cpu", torch.float32).contiguous()
        kv = _TYPES[self._kv_type]
        k = keys.detach().transpose(1, 2).to("cpu", kv).contiguous() if append else None
        v = values.detach().transpose(1, 2).to("cpu", kv).contiguous() if append else None
        o = torch.empty((batch, rows, heads, layer.v_dim), dtype=torch.float32)
        self._call(index, columns, pads, q, k, v, o)
        out = o.to(device, dtype)
        return latent.answer(out) if latent else out

    def _latent(self, index: int, module: torch.nn.Module) -> Latent:
        found = self._latents.get(index)
        if found is None:
            found = self._latents[index] = Latent(module)
        return found

    def _call(
        self, index: int, columns: int, pads: list[int], q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None,
        o: torch.Tensor,
    ) -> None:  # fmt: skip
        if k is not None and v is not None and (k[0].numel() + v[0].numel()) * k.element_size() > _APPEND_MAX:
            self._attach(index, columns, pads, k, v)
            k = v = None
        items, n, rows = self._items, 0, q.shape[1]
        at_q, at_o = q.data_ptr(), o.data_ptr()
        step_q, step_o = q.stride(0) * 4, o.stride(0) * 4
        row_q, row_o = q.stride(1) * 4, o.stride(1) * 4
        for i, pad in enumerate(pads):
            skip = pad - columns if pad > columns else 0  # rows of padding
            if skip >= rows:
                o[i].zero_()
                continue
            item = items[n]
            n += 1
            item.session = self.sessions[i].handle
            item.layer, item.first, item.rows = index, max(0, columns - pad), rows - skip
            item.q = ffi.cast("float *", at_q + i * step_q + skip * row_q)
            item.o = ffi.cast("float *", at_o + i * step_o + skip * row_o)
            if k is not None and v is not None:
                item.k = ffi.cast("void *", k.data_ptr() + (i * k.stride(0) + skip * k.stride(1)) * k.element_size())
                item.v = ffi.cast("void *", v.data_ptr() + (i * v.stride(0) + skip * v.stride(1)) * v.element_size())
            else:
                item.k = item.v = ffi.NULL
            if skip:
                o[i, :skip].zero_()
        self._run(n)

    def _attach(self, index: int, columns: int, pads: list[int], k: torch.Tensor, v: torch.Tensor) -> None:
        rows = k.shape[1]
        for i, (session, pad) in enumerate(zip(self.sessions, pads)):
            skip = max(0, pad - columns)
            if skip < rows:
                first = max(0, columns - pad)
                session.attach(index, first, k[i, skip:], v[i, skip:])
                session.commit(index, first, rows - skip)

    def _run(self, n: int) -> None:
        self.client.call(lib.banyan_attend, self.client._c, self._items, n, 0, ffi.NULL)
        for i in range(n):
            if self._items[i].code != lib.BANYAN_OK:
                raise_c(self._items[i].code, self._errors[i])

    def truncate(self, lengths: list[int]) -> None:
        for session, length in zip(self.sessions, lengths):
            if session.info().length != length or max(session.info().layer_lengths, default=0) != length:
                session.truncate(length)

    def select(self, sources: list[int], names: list[str | None]) -> None:
        """Session i becomes a continuation of what session sources[i] is now."""
        if sources == list(range(len(self.sessions))):
            return
        kept: set[int] = set()
        chosen: list[Session] = []
        for source in sources:
            if source in kept:
                chosen.append(self.sessions[source].fork())
            else:
                kept.add(source)
                chosen.append(self.sessions[source])
        for i, session in enumerate(self.sessions):
            if i not in kept:
                session.delete()
        self._set_sessions(chosen)
