# SPDX-License-Identifier: Apache-2.0
"""The way of a layer's rows to the service and back: one call a layer, with as little Python as can be."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple, Protocol

import torch

from .._abi import ffi, lib
from ..client import Client, Session
from ..errors import raise_c
from ..guard import Entered
from ..info import SessionInfo
from ..tokens import DIM, Said, Stamp, layer_of, parsed, values
from .layers import Latent, Layer, latent_rows
from .refused import NotThisModels, Refused
from .rows import RowCall
from .tags import Tag

# Bytes of K and V that may travel with a step; what is larger goes straight to the workers, by attach.
_APPEND_MAX = 1 << 20

_READ = 1 << 16  # rows of a call that reads tokens

_TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class _Part(NamedTuple):
    """Rows begin..end of sequence `i`, of a block that sees itself in both directions, or of none (count
    0)."""

    i: int
    begin: int
    end: int
    block_first: int
    block_count: int


def _split(i: int, ids: list[int], columns: int, skip: int, rows: int, pad: int) -> list[_Part]:
    """Rows skip..rows of a sequence whose columns have these ids (-1: no block), cut where blocks begin and
    end."""
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


_FLOATS, _BYTES = ffi.typeof("float *"), ffi.typeof("void *")


class _Rows:
    """Memory [batch, rows, heads, dim] as the C library takes it."""

    __slots__ = ("_c_type", "_keep", "_row", "_start", "_step")

    def __init__(self, x: torch.Tensor, c_type: Any, rows: int, row_bytes: int) -> None:
        self._start, self._row, self._step = x.data_ptr(), row_bytes, rows * row_bytes
        self._c_type, self._keep = c_type, x

    def at(self, i: int, row: int) -> Any:
        return ffi.cast(self._c_type, self._start + i * self._step + row * self._row)


def _rows_first(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[B, H, S, D] in the service's order [B, S, H, D], dense, in the processor's memory."""
    if x.shape[2] == 1 and x.dtype is dtype and x.is_cpu and x.is_contiguous():
        return x  # of a single row both are the same memory
    return x.detach().transpose(1, 2).to("cpu", dtype).contiguous()


class Gate(Protocol):
    """Who may put rows into a layer when: several forwards of one batch are under way (wave.py)."""

    def enter(self, layer: int) -> None: ...
    def leave(self, layer: int) -> None: ...


class Steps:
    """The sessions of a batch, and the C structures of their calls, made once."""

    def __init__(self, client: Client, sessions: list[Session], kv_type: str | None) -> None:
        self.client = client
        self.gate: Gate | None = None  # no other forward is under way
        self.replaying = False  # the rows that are fed are there already: they are attended over, and not put again
        self._latents: dict[int, Latent] = {}
        self._kv_type = kv_type or sessions[0].spec.kv_type
        self._set_sessions(sessions)

    def _set_sessions(self, sessions: list[Session]) -> None:
        self.sessions = sessions
        self._histories: list[set[int]] = [set() for _ in sessions]  # incarnations that this process has seen or made; none: unknown
        self._overtaken = ""  # why the sessions are no longer what this process has fed or read
        self._tokens: tuple[torch.Tensor, Stamp] | None = None  # of the forward under way, which its first call brings
        self._calls: dict[int, RowCall] = {}
        self._make_room(2 * len(sessions))

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
        self._check_alone()
        latent = self._latent(index, module) if layer.latent else None
        batch, _, rows, _ = query.shape
        q = _rows_first(latent.query(query) if latent else query, torch.float32)
        o = torch.empty((batch, rows, layer.q_heads, layer.v_dim), dtype=torch.float32)
        if rows == 1 and blocks is None and columns >= max(pads):
            self._one_row(index, layer, tag, columns, pads, q, o)
        else:
            self._many_rows(index, layer, tag, rows, columns, pads, blocks, q, o)
        out = o if query.dtype is torch.float32 and query.is_cpu else o.to(query.device, query.dtype)
        return latent.answer(out) if latent else out

    def _one_row(self, index: int, layer: Layer, tag: Tag, columns: int, pads: list[int], q: torch.Tensor, o: torch.Tensor) -> None:
        firsts = [columns - pad for pad in pads]
        kv = _TYPES[self._kv_type]
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = RowCall(self.client, self.sessions, index, layer, kv)
        k = v = None
        if layer.source == index and not self.replaying:
            k = _rows_first(latent_rows(tag) if layer.latent else tag.keys, kv)
            v = None if layer.latent else _rows_first(tag.values, kv)
        tokens, self._tokens = self._tokens, None
        if tokens is not None:
            call.tokens(tokens[0].tolist(), tokens[1], pads, firsts)
        gate = self.gate if k is not None else None
        if gate is not None:
            gate.enter(index)
        k_at, v_at = 0 if k is None else k.data_ptr(), 0 if v is None else v.data_ptr()
        call.run(firsts, q.data_ptr(), k_at, v_at, o.data_ptr(), tokens is not None)
        if gate is not None:
            gate.leave(index)

    def _many_rows(
        self, index: int, layer: Layer, tag: Tag, rows: int, columns: int, pads: list[int], blocks: torch.Tensor | None,
        q: torch.Tensor, o: torch.Tensor,
    ) -> None:  # fmt: skip
        rows_k = rows_v = None
        parts = self._parts(rows, columns, pads, blocks)
        own = layer.source == index and not self.replaying
        if own and self.gate is not None:
            self.gate.enter(index)
        put = self._tokens_of(rows, columns, pads)
        if own:
            kv = _TYPES[self._kv_type]
            k = _rows_first(latent_rows(tag) if layer.latent else tag.keys, kv)
            v = None if layer.latent else _rows_first(tag.values, kv)
            bytes_k, bytes_v = (layer.kv_heads * dim * kv.itemsize for dim in (layer.k_dim, 0 if layer.latent else layer.v_dim))
            large = rows * (bytes_k + bytes_v) > _APPEND_MAX or self.gate is not None
            if rows > 1 and (len(parts) > len(pads) or large):
                self._attach(index, columns, pads, k, v)
            else:
                rows_k = _Rows(k, _BYTES, rows, bytes_k)
                rows_v = None if v is None else _Rows(v, _BYTES, rows, bytes_v)
            if self.gate is not None and rows_k is None:
                self.gate.leave(index)
        rows_q = _Rows(q, _FLOATS, rows, layer.q_heads * layer.k_dim * 4)
        rows_o = _Rows(o, _FLOATS, rows, layer.q_heads * layer.v_dim * 4)
        self._call(index, parts, rows, columns, pads, rows_q, rows_k, rows_v, rows_o, put)
        if self.gate is not None and rows_k is not None:
            self.gate.leave(index)
        self._clear_padding(columns, pads, o)

    def _latent(self, index: int, module: torch.nn.Module) -> Latent:
        found = self._latents.get(index)
        if found is None or found.state != Latent.state_of(module):
            if not Latent.fits(module):
                raise Refused(f"layer {index} expands its latents in another way than when the model was first looked at")
            found = self._latents[index] = Latent(module)
        return found

    def _parts(self, rows: int, columns: int, pads: list[int], blocks: torch.Tensor | None) -> list[_Part]:
        """The items of a call: all rows of a sequence but its padding; with blocks, the rows of each on their
        own."""
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
        self, index: int, parts: list[_Part], rows: int, columns: int, pads: list[int], q: _Rows, k: _Rows | None, v: _Rows | None,
        o: _Rows, put: _Rows | None,
    ) -> None:  # fmt: skip
        if len(parts) + len(pads) > self._room:
            self._make_room(len(parts) + len(pads))
        n = 0
        for part in parts:
            self._fill(n, index, part, columns - pads[part.i], q, k, v, o)
            n += 1
        if put is not None:
            unwanted = _Rows(torch.zeros((len(pads), rows, DIM)), _FLOATS, rows, 4 * DIM)  # what comes back is not used
            for part in self._parts(rows, columns, pads, None):
                self._fill(n, layer_of(self.sessions[0].spec), part, columns - pads[part.i], unwanted, put, put, unwanted)
                n += 1
        items = self._items
        with Entered([session.guard for session in self.sessions]):
            self.client.call(lib.banyan_attend, self.client.handle, items, n, 0, ffi.NULL)
        for i in range(n):
            if items[i].code:
                raise_c(items[i].code, self._errors[i])

    def _fill(self, n: int, layer: int, part: _Part, at: int, q: _Rows, k: _Rows | None, v: _Rows | None, o: _Rows) -> None:
        item, (i, begin, end, block_first, block_count) = self._items[n], part
        item.session = self.sessions[i].handle
        item.layer, item.first, item.rows = layer, at + begin, end - begin
        item.block_first, item.block_count = block_first, block_count
        item.q, item.o = q.at(i, begin), o.at(i, begin)
        item.k = ffi.NULL if k is None else k.at(i, begin)
        item.v = ffi.NULL if v is None else v.at(i, begin)

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

    def put_tokens(self, codes: torch.Tensor, stamp: Stamp) -> None:
        """Notes the numbers of a forward's tokens [batch, rows], in the layer behind the model's: with the
        forward's first call."""
        if not self.replaying:
            self._tokens = codes, stamp

    def put_nothing(self) -> None:
        """Forgets the tokens that were noted."""
        self._tokens = None

    def _tokens_of(self, rows: int, columns: int, pads: list[int]) -> _Rows | None:
        """The noted tokens, for a call that begins; large ones have gone by attach."""
        if self._tokens is None:
            return None
        (codes, stamp), self._tokens = self._tokens, None
        put = values(codes, stamp, pads, _TYPES[self._kv_type], columns)
        if rows > 1 and (2 * put[0].nbytes > _APPEND_MAX or self.gate is not None):
            self._attach(layer_of(self.sessions[0].spec), columns, pads, put, put)
            return None
        return _Rows(put, _BYTES, rows, DIM * put.element_size())

    def said(self, session: Session, first: int, count: int) -> Said:
        """What is said of the tokens at [first, first + count)."""
        if not count:
            return Said(*(torch.zeros(0, dtype=torch.int64) for _ in Said._fields))
        layer, end, parts = layer_of(session.spec), first + count, []
        for at in range(first, end, _READ):
            parts.append(parsed(session.attend(layer, at, torch.zeros((min(_READ, end - at), 1, DIM))).o))
        return parts[0] if len(parts) == 1 else Said(*(torch.cat(column) for column in zip(*parts)))

    def look(self, held: list[int] | None = None) -> list[SessionInfo]:
        """The sessions' states. Refused, from then on, where another cache or process has written to one.

        held: the most tokens that this process has put into each; None: an interrupted forward may have left
            more.
        The library takes a session as it was when its state was last read, so states are read here alone.
        """
        self._check_alone()
        found = [session.info() for session in self.sessions]
        for i, info in enumerate(found):
            name = info.name or info.id
            if self._histories[i] and info.incarnation not in self._histories[i]:
                self._overtaken = f"session {name!r} was cut, and may hold other tokens than this cache has fed or read"
            elif held is not None and any(n > held[i] for n in info.layer_lengths):
                self._overtaken = f"session {name!r} has got other tokens behind the {held[i]} that this cache has fed or read"
        self._check_alone()
        self._histories = [{info.incarnation} for info in found]
        return found

    def _check_alone(self) -> None:
        if self._overtaken:
            raise NotThisModels(
                f"{self._overtaken}: another cache or process writes to it. One writes, others use cache.fork(); a new cache sees what is "
                "there now"
            )

    def truncate(self, lengths: list[int], held: list[int] | None) -> None:
        """held: see look()."""
        for i, (info, length) in enumerate(zip(self.look(held), lengths)):
            if any(n > length for n in info.layer_lengths):
                self._histories[i].add(info.incarnation + 1)  # also of a call that fails, which may have been carried out
                self.sessions[i].truncate(length)
                self._histories[i] = {info.incarnation + 1}

    def select(self, sources: list[int]) -> None:
        """Session i becomes a continuation of what session sources[i] is now. Those that none goes on from
        are deleted."""
        kept: set[int] = set()
        chosen: list[Session] = []
        for source in sources:
            chosen.append(self.sessions[source].fork(states=False) if source in kept else self.sessions[source])
            kept.add(source)
        for i, session in enumerate(self.sessions):
            if i not in kept:
                session.delete()
        self._set_sessions(chosen)

    def replace(self, sessions: list[Session]) -> None:
        """Others take the sessions' places, which are released and live on."""
        old = self.sessions
        self._set_sessions(sessions)
        for session in old:
            session.close()
