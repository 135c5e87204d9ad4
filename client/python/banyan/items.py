# SPDX-License-Identifier: Apache-2.0
"""Attention calls: items as callers write them, and the C structures of one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import arrays, info, tracing
from ._abi import ffi, lib
from .errors import BanyanError, InvalidArgument, from_c
from .guard import Entered
from .spec import Kind

if TYPE_CHECKING:
    from .client import Session

ArrayT = TypeVar("ArrayT")


@dataclass
class Item:
    """One layer's attention for some rows of a session; appends k and v first if they are given.

    Attributes:
        session, layer: the session and its layer.
        first: position of the first row.
        q: float32, or float16 or bfloat16 (widened exactly), [rows, q_heads, k_dim] of the layer.
        k, v: of the session's type, [rows, kv_heads, k_dim] and [rows, kv_heads, v_dim]: appended at `first`. Both or neither;
            only k if the layer's values are part of its keys.
        k_scale, v_scale: float32, [rows, kv_heads], for int8 and fp8 sessions.
        visible: rows see only keys below it; 0: up to their own position, or as the layer's mask says.
        block: (first, count): rows at these positions see each other, also later ones; count 0: none.
        lse: whether the answer includes the rows' log-sum-exp.
        allow_partial: if tokens are missing, accept an answer over the others; Answer.missing lists the missing ones.
            Otherwise this is an error (DataLoss, Unavailable). At most 4096 rows and 16 MiB.
        mass_bins: the most bins of attention masses to divide the context into; 0: none. mass_per_head: for each query head.
        traceparent: the W3C trace context of this item; None: the call's.
    """

    session: Session
    layer: int
    first: int
    q: Any
    k: Any = None
    v: Any = None
    k_scale: Any = None
    v_scale: Any = None
    visible: int = 0
    block: tuple[int, int] = (0, 0)
    lse: bool = False
    mass_bins: int = 0
    mass_per_head: bool = False
    allow_partial: bool = False
    traceparent: str | None = None


@dataclass(frozen=True)
class Answer(Generic[ArrayT]):
    """The answer to an item.

    Attributes:
        o: float32, [rows, q_heads, v_dim], an array of the same library as q.
        lse: float32, [rows, q_heads], if requested: -inf for a row that saw no key.
        length: of the layer after the step.
        digest: the plan digest: the same data, request and digest give the same bits.
        mass: the attention masses, if requested.
        missing: for an item with allow_partial, the tokens that its rows together should have seen but did not, as
            (first, count), ascending; empty: the answer is complete. None: partial answers were not allowed.
        seen: for such an item, how many tokens its rows together saw.
    """

    o: ArrayT
    lse: ArrayT | None
    length: int
    digest: int
    mass: info.Mass | None = None
    missing: tuple[tuple[int, int], ...] | None = None
    seen: int | None = None


class Call:
    """The C side of one call: lives until the call has ended. Outputs belong to it until then."""

    def __init__(self, items: Sequence[Item], traceparent: str | None = None) -> None:
        self.items = items
        # What the sessions are held by while it is under way: they are not closed under it.
        self.entered = Entered([session.guard for session in {id(item.session): item.session for item in items}.values()])
        self.c = ffi.new("banyan_item[]", max(1, len(items)))
        self._errors = ffi.new("banyan_error[]", max(1, len(items)))
        self._keep: list[Any] = []
        self._traceparents: dict[str, Any] = {}
        traceparent = tracing.current() if traceparent is None else traceparent
        self._out: list[tuple[Any, Any, Any, Any]] = []
        for i, item in enumerate(items):
            try:
                self._fill(self.c[i], item)
            except BanyanError as error:
                error.args = (f"item {i}: {error.message}" if len(items) > 1 else error.message,)
                raise
            self.c[i].error = ffi.addressof(self._errors, i)
            own = traceparent if item.traceparent is None else item.traceparent
            if own is not None:
                if own not in self._traceparents:
                    self._traceparents[own] = ffi.new("char[]", own.encode())
                self.c[i].traceparent = self._traceparents[own]

    def _tensor(self, x: Any, name: str, dtype: str, shape: tuple[int, ...], c_type: str = "void *") -> Any:
        v = arrays.expect(x, name, dtype, shape)
        self._keep.append(v.keep)
        return ffi.cast(c_type, v.address)

    def _fill(self, c: Any, item: Item) -> None:
        spec = item.session.spec
        kind = spec.kind(item.layer)
        row = kind.q_heads * kind.k_dim
        q = arrays.widened(item.q, "q")
        count = 1
        for n in q.shape:
            count *= n
        if count == 0 or count % row or (len(q.shape) != 1 and q.shape[-2:] != (kind.q_heads, kind.k_dim)):
            raise InvalidArgument(f"q has the shape {list(q.shape)}, not [rows, {kind.q_heads}, {kind.k_dim}]")
        rows = count // row
        self._keep.append(q.keep)
        c.session = item.session.handle
        try:
            c.layer, c.first, c.rows, c.visible = item.layer, item.first, rows, item.visible
            c.block_first, c.block_count = item.block
        except (OverflowError, TypeError, ValueError) as error:
            raise InvalidArgument(f"first {item.first!r}, visible {item.visible!r}, block {item.block!r}: {error}") from None
        c.q = ffi.cast("float *", q.address)
        if kind.v_in_k and item.v is not None:
            raise InvalidArgument("v must be None: this layer's values are part of its keys")
        if not kind.v_in_k and (item.k is None) != (item.v is None):
            raise InvalidArgument("give both k and v, or neither")
        if item.k is not None:
            self._fill_rows(c, item, kind, rows)
        o, address = arrays.new_like(item.q, (rows, kind.q_heads, kind.v_dim))
        c.o = ffi.cast("float *", address)
        lse = None
        if item.lse:
            lse, address = arrays.new_like(item.q, (rows, kind.q_heads))
            c.lse = ffi.cast("float *", address)
        mass = None
        if item.mass_bins:
            # What the library puts into it is freed with it, also where the result is not asked for any more.
            mass = ffi.gc(ffi.new("banyan_mass *", {"bins": item.mass_bins, "per_head": item.mass_per_head}), lib.banyan_mass_free)
            c.mass = mass
        partial = None
        if item.allow_partial:
            partial = ffi.gc(ffi.new("banyan_partial *"), lib.banyan_partial_free)
            c.partial = partial
        self._out.append((o, lse, mass, partial))

    def _fill_rows(self, c: Any, item: Item, kind: Kind, rows: int) -> None:
        spec = item.session.spec
        c.k = self._tensor(item.k, "k", spec.kv_type, (rows, kind.kv_heads, kind.k_dim))
        if spec.scaled:
            c.k_scale = self._tensor(item.k_scale, "k_scale", "f32", (rows, kind.kv_heads), "float *")
        if not kind.v_in_k:
            c.v = self._tensor(item.v, "v", spec.kv_type, (rows, kind.kv_heads, kind.v_dim))
            if spec.scaled:
                c.v_scale = self._tensor(item.v_scale, "v_scale", "f32", (rows, kind.kv_heads), "float *")

    def result(self, i: int) -> Answer[Any] | BanyanError:
        """After the call as a whole was answered."""
        c, item = self.c[i], self.items[i]
        o, lse, mass, partial = self._out[i]
        try:
            if c.code != lib.BANYAN_OK:
                return from_c(c.code, self._errors[i])
            if mass is not None and mass.code != lib.BANYAN_OK:
                return BanyanError(info.text(mass.message), code="UNAVAILABLE")
            return Answer(
                arrays.given_back(item.q, o),
                None if lse is None else arrays.given_back(item.q, lse),
                c.length,
                c.digest,
                None if mass is None else info.mass(mass),
                None if partial is None else tuple((partial.missing[r].first, partial.missing[r].count) for r in range(partial.n)),
                None if partial is None else partial.seen,
            )
        finally:
            for made in (mass, partial):
                if made is not None:
                    ffi.release(made)

    def results(self) -> list[Answer[Any] | BanyanError]:
        return [self.result(i) for i in range(len(self.items))]
