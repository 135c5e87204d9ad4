# SPDX-License-Identifier: Apache-2.0
"""The way of a layer's rows to the service and back: one call a layer, with as little Python as can be."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch

from .._abi import ffi, lib
from ..client import Client, Session
from ..errors import raise_c
from ..items import Item
from .layers import Latent, Layer, latent_rows
from .refused import Refused
from .tags import Tag
from .tokens import parsed, values

# Bytes of K and V that may travel with a step; what is larger goes straight to the workers, by attach.
_APPEND_MAX = 1 << 20

_TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class _Part(NamedTuple):
    """Rows begin..end of sequence `i`, of a block that sees itself in both directions, or of none (count 0)."""

    i: int
    begin: int
    end: int
    block_first: int
    block_count: int


def _split(i: int, ids: list[int], columns: int, skip: int, rows: int, pad: int) -> list[_Part]:
    """Rows skip..rows of a sequence whose columns have these ids (-1: no block), cut where blocks begin and end."""
    parts: list[_Part] = []
    runs = [(key, [c for c, _ in group]) for key, group in itertools.groupby(enumerate(ids[: columns + rows]), key=lambda x: x[1])]
    named = [key for key, _ in runs if key >= 0]
    if len(named) != len(set(named)):
        raise Refused("tokens that see each other in both directions are not next to each other: the service does not know such blocks")
    for key, run in runs:
        begin, end = max(run[0] - columns, skip), run[-1] + 1 - columns
        if begin < end:
            parts.append(_Part(i, begin, end, *((run[0] - pad, len(run)) if key >= 0 else (0, 0))))
    return parts


class Steps:
    """The sessions of a batch, and the C structures of their calls, made once."""

    def __init__(self, client: Client, sessions: list[Session], kv_type: str | None) -> None:
        self.client = client
        self._latents: dict[int, Latent] = {}
        self._kv_type = kv_type or sessions[0].spec.kv_type
        self._set_sessions(sessions)

    def _set_sessions(self, sessions: list[Session]) -> None:
        self.sessions = sessions
        self._make_room(len(sessions))

    def _make_room(self, items: int) -> None:
        self._room = items
        self._items = ffi.new("banyan_item[]", items)
        self._errors = ffi.new("banyan_error[]", items)
        for n in range(items):
            self._items[n].error = ffi.addressof(self._errors, n)

    def attend(
        self, index: int, layer: Layer, module: torch.nn.Module, tag: Tag, query: torch.Tensor, columns: int, pads: list[int],
        blocks: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """[B, S, H, v_dim]: attention of the rows of `query` [B, H, S, k_dim], their keys appended first."""
        latent = self._latent(index, module) if layer.latent else None
        q = (latent.query(query) if latent else query).detach()
        batch, heads, rows, _ = q.shape
        # The service's order: rows, then heads. For a single row both are the same memory.
        q = q.transpose(1, 2).to("cpu", torch.float32).contiguous()
        k = v = None
        if layer.source == index:
            kv = _TYPES[self._kv_type]
            k = (latent_rows(tag) if latent else tag.keys).detach().transpose(1, 2).to("cpu", kv).contiguous()
            v = None if latent else tag.values.detach().transpose(1, 2).to("cpu", kv).contiguous()
        o = torch.empty((batch, rows, heads, layer.v_dim), dtype=torch.float32)
        parts = self._parts(rows, columns, pads, blocks)
        if k is not None and (len(parts) > batch or (k[0].nbytes + (0 if v is None else v[0].nbytes)) > _APPEND_MAX):
            self._attach(index, columns, pads, k, v)
            k = v = None
        self._call(index, parts, columns, pads, q, k, v, o)
        out = o.to(query.device, query.dtype)
        return latent.answer(out) if latent else out

    def _latent(self, index: int, module: torch.nn.Module) -> Latent:
        found = self._latents.get(index)
        if found is None:
            found = self._latents[index] = Latent(module)
        return found

    def _parts(self, rows: int, columns: int, pads: list[int], blocks: torch.Tensor | None) -> list[_Part]:
        """The items of a call: all rows of a sequence but its padding; with blocks, the rows of each on their own."""
        parts: list[_Part] = []
        for i, pad in enumerate(pads):
            skip = pad - columns if pad > columns else 0
            if skip >= rows:
                continue
            if blocks is None:
                parts.append(_Part(i, skip, rows, 0, 0))
            else:
                parts.extend(_split(i, blocks[i].tolist(), columns, skip, rows, pad))
        return parts

    def _call(
        self, index: int, parts: list[_Part], columns: int, pads: list[int], q: torch.Tensor, k: torch.Tensor | None,
        v: torch.Tensor | None, o: torch.Tensor,
    ) -> None:  # fmt: skip
        if len(parts) > self._room:
            self._make_room(len(parts))
        items, (step_q, row_q, _, _), (step_o, row_o, _, _) = self._items, q.stride(), o.stride()
        at_q, at_o = q.data_ptr(), o.data_ptr()
        for n, (i, begin, end, block_first, block_count) in enumerate(parts):
            item, pad = items[n], pads[i]
            item.session = self.sessions[i].handle
            item.layer, item.first, item.rows = index, columns + begin - pad, end - begin
            item.block_first, item.block_count = block_first, block_count
            item.q = ffi.cast("float *", at_q + (i * step_q + begin * row_q) * 4)
            item.o = ffi.cast("float *", at_o + (i * step_o + begin * row_o) * 4)
            item.k = ffi.NULL if k is None else ffi.cast("void *", k[i, begin].data_ptr())
            item.v = ffi.NULL if v is None else ffi.cast("void *", v[i, begin].data_ptr())
        self._clear_padding(columns, pads, o)
        self.client.call(lib.banyan_attend, self.client.handle, items, len(parts), 0, ffi.NULL)
        for n in range(len(parts)):
            if items[n].code != lib.BANYAN_OK:
                raise_c(items[n].code, self._errors[n])

    @staticmethod
    def _clear_padding(columns: int, pads: list[int], o: torch.Tensor) -> None:
        for i, pad in enumerate(pads):
            if pad > columns:
                o[i, : pad - columns].zero_()

    def _attach(self, index: int, columns: int, pads: list[int], k: torch.Tensor, v: torch.Tensor | None) -> None:
        rows = k.shape[1]
        for i, (session, pad) in enumerate(zip(self.sessions, pads)):
            skip = max(0, pad - columns)
            if skip < rows:
                first = max(0, columns - pad)
                session.attach(index, first, k[i, skip:], None if v is None else v[i, skip:])
                session.commit(index, first, rows - skip)

    def put_tokens(self, ids: torch.Tensor, mark: int, columns: int, pads: list[int]) -> None:
        """Notes the tokens [batch, rows] of a forward, in the layer behind the model's."""
        layer, dtype = self.sessions[0].spec.layers - 1, _TYPES[self._kv_type]
        items = []
        for i, (session, pad) in enumerate(zip(self.sessions, pads)):
            rows = values(ids[i, max(0, pad - columns) :], mark, dtype)
            first = max(0, columns - pad)
            if 2 * rows.nbytes > _APPEND_MAX:
                session.attach(layer, first, rows, rows)
                session.commit(layer, first, rows.shape[0])
            elif rows.shape[0]:
                items.append(Item(session, layer, first, torch.zeros(rows.shape), rows, rows))
        if items:
            self.client.attend(items)

    def tokens(self, session: Session, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens at [first, first + count), and the marks of the models that they were fed to."""
        q = torch.zeros((count, 1, 8))
        return parsed(session.attend(session.spec.layers - 1, first, q).o) if count else (torch.zeros(0, dtype=torch.int64),) * 2

    def truncate(self, lengths: list[int]) -> None:
        for session, length in zip(self.sessions, lengths):
            if any(n > length for n in session.info().layer_lengths):
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
