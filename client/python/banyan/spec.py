# SPDX-License-Identifier: Apache-2.0
"""What a session holds: its layers, heads, dimensions, masks and types."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ._abi import ffi
from .errors import InvalidArgument

KV_TYPES = {"f32": 1, "f16": 2, "bf16": 3, "int8": 4, "fp8": 5}
_KV_NAMES = {number: name for name, number in KV_TYPES.items()}
_NONE = 0xFFFFFFFF  # BANYAN_LAYER_LOCAL, BANYAN_SHARES_NONE
_KIND_NUMBERS = ("q_heads", "kv_heads", "k_dim", "v_dim", "scale", "soft_cap", "window", "mask_chunk", "not_causal", "v_in_k")


@dataclass(frozen=True)
class Kind:
    """The heads, dimensions and mask of one kind of layer.

    Attributes:
        q_heads, kv_heads: query heads, a multiple of the heads of K and V.
        k_dim, v_dim: dimensions of a head of K and of V; v_dim 0: k_dim.
        scale: of the logits; 0: 1 / sqrt(k_dim).
        soft_cap: logits become cap * tanh(x / cap); 0: none.
        window: positions that a row sees, its own included; 0: all.
        mask_chunk: the row at p sees keys from p - p % mask_chunk onwards; 0: all.
        not_causal: rows also see later keys.
        v_in_k: V is the first v_dim elements of K (MLA): v is None everywhere, and only K is held.
        alibi: a slope for each query head, or empty.
    """

    q_heads: int
    kv_heads: int
    k_dim: int
    v_dim: int = 0
    scale: float = 0.0
    soft_cap: float = 0.0
    window: int = 0
    mask_chunk: int = 0
    not_causal: bool = False
    v_in_k: bool = False
    alibi: Sequence[float] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "v_dim", self.v_dim or self.k_dim)

    @property
    def group(self) -> int:
        """The number of query heads for each head of K and V."""
        return self.q_heads // self.kv_heads


@dataclass(frozen=True)
class Spec:
    """The specification of a session; it never changes. Layers are alike, or each has one of `kinds`.

    Attributes:
        layers: number of attention layers.
        q_heads … v_in_k, alibi: as in Kind, if layers are alike.
        sinks: the logit of an attention sink for each query head, or empty; if layers are alike.
        kv_type: the type of stored K and V: "f32", "f16", "bf16", "int8" or "fp8".
        chunk_tokens: the unit of placement; 0: 256.
        members: workers to use; 0: as few as the length requires.
        idle_ttl: seconds without use after which the service deletes the session; 0: never.
        kinds: the kinds of layers, if layers differ.
        layer_kind: for each layer its index in `kinds`; None: it holds nothing in the service.
        shares: for each layer the lower layer whose K and V it reads, or None; empty: no layer does.
        layer_sinks: for each layer its sinks, or empty; empty: no layer has any.
        replicas: workers that hold each part, 1 to 3: losing all but one of them loses nothing; 0: the coordinator's choice.
        forget: 0: keep everything; n: forget rows that windows have left behind, except those that a truncate by n tokens needs.

    >>> Spec(layers=2, q_heads=8, kv_heads=2, k_dim=64).kind(1).group
    4
    >>> narrow, wide = Kind(8, 2, 64, window=1024), Kind(8, 2, 64)
    >>> Spec(layers=4, kinds=(narrow, wide), layer_kind=(0, 1, 0, 1)).kind(2).window
    1024
    """

    layers: int
    q_heads: int = 0
    kv_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    kv_type: str = "f32"
    scale: float = 0.0
    soft_cap: float = 0.0
    window: int = 0
    alibi: Sequence[float] = field(default=())
    sinks: Sequence[float] = field(default=())
    chunk_tokens: int = 0
    members: int = 0
    idle_ttl: float = 0.0
    mask_chunk: int = 0
    not_causal: bool = False
    v_in_k: bool = False
    kinds: Sequence[Kind] = field(default=())
    layer_kind: Sequence[int | None] = field(default=())
    shares: Sequence[int | None] = field(default=())
    layer_sinks: Sequence[Sequence[float]] = field(default=())
    forget: int = 0
    replicas: int = 0

    def __post_init__(self) -> None:
        if self.kv_type not in KV_TYPES:
            raise InvalidArgument(f"kv_type {self.kv_type!r}: one of {', '.join(KV_TYPES)} is allowed")
        object.__setattr__(self, "v_dim", self.v_dim or self.k_dim)
        for name, wanted in (("layer_kind", bool(self.kinds)), ("shares", False), ("layer_sinks", False)):
            values = getattr(self, name)
            if len(values) != self.layers and (values or wanted):
                raise InvalidArgument(f"{len(values)} entries of {name} for {self.layers} layers: give one for each")
        for layer, kind in enumerate(self.layer_kind):
            if kind is not None and not 0 <= kind < len(self.kinds):
                raise InvalidArgument(f"layer {layer} is of kind {kind}: there are {len(self.kinds)} kinds")
        alike = Kind(**{name: getattr(self, name) for name in _KIND_NUMBERS}, alibi=self.alibi)
        table = [alike] * self.layers if not self.kinds else [None if k is None else self.kinds[k] for k in self.layer_kind]
        object.__setattr__(self, "_table", tuple(table))

    @property
    def table(self) -> tuple[Kind | None, ...]:
        """The kind of each layer; None: the layer holds nothing in the service."""
        found: tuple[Kind | None, ...] = self._table  # type: ignore[attr-defined]
        return found

    def kind(self, layer: int) -> Kind:
        """The kind of layer `layer`."""
        if not isinstance(layer, int) or not 0 <= layer < self.layers:
            raise InvalidArgument(f"layer {layer!r}: this session has {self.layers} layers, 0 to {self.layers - 1}")
        found = self.table[layer]
        if found is None:
            raise InvalidArgument(f"layer {layer} holds nothing in the service")
        return found

    def matches(self, other: Spec) -> bool:
        """Whether sessions with the one and the other hold the same: layers, types, masks, sharing, sinks.

        Session.spec is never == the Spec that the session was created with: the service fills in defaults and holds numbers as
        float32. Here numbers count as float32, a default as what it stands for, and layers by what they are, however they were
        written. How a session is held (chunk_tokens, members, idle_ttl, forget, replicas) does not count.

        >>> Spec(layers=2, q_heads=8, kv_heads=2, k_dim=64).matches(Spec(layers=2, q_heads=8, kv_heads=2, k_dim=64, scale=0.125))
        True
        """
        return difference(self, other) == ""

    @property
    def scaled(self) -> bool:
        """Whether K and V have a scale for each token and head (int8, fp8)."""
        return self.kv_type in ("int8", "fp8")

    def to_c(self) -> tuple[Any, list[Any]]:
        """A banyan_spec, and what it points to."""
        c = ffi.new("banyan_spec *")
        keep: list[Any] = []
        _numbers(c, self, ("layers", "chunk_tokens", "members", "forget", "replicas"))
        c.kv_type = KV_TYPES[self.kv_type]
        c.idle_ttl_ns = int(self.idle_ttl * 1e9)
        if not self.kinds:
            _numbers(c, self, _KIND_NUMBERS)
            c.alibi = _floats(self.alibi, self.q_heads, "alibi", keep)
            c.sinks = _floats(self.sinks, self.q_heads, "sinks", keep)
        else:
            self._kinds_to_c(c, keep)
        return c, keep

    def _kinds_to_c(self, c: Any, keep: list[Any]) -> None:
        kinds = ffi.new("banyan_kind[]", len(self.kinds))
        for i, kind in enumerate(self.kinds):
            _numbers(kinds[i], kind, _KIND_NUMBERS)
            kinds[i].alibi = _floats(kind.alibi, kind.q_heads, f"alibi of kind {i}", keep)
        c.n_kinds, c.kinds = len(self.kinds), kinds
        keep.append(kinds)
        for name in ("layer_kind", "shares"):
            if getattr(self, name):
                keep.append(ffi.new("uint32_t[]", [_NONE if x is None else x for x in getattr(self, name)]))
                setattr(c, name, keep[-1])
        if self.layer_sinks:
            heads = [kind.q_heads if kind is not None else 0 for kind in self.table]
            sinks = [_floats(x, heads[i], f"sinks of layer {i}", keep) for i, x in enumerate(self.layer_sinks)]
            keep.append(ffi.new("float *[]", sinks))
            c.layer_sinks = keep[-1]


def _numbers(c: Any, values: Any, names: Sequence[str]) -> None:
    for name in names:
        try:
            setattr(c, name, getattr(values, name))
        except (OverflowError, TypeError) as error:
            raise InvalidArgument(f"{name} = {getattr(values, name)!r}: {error}") from None


def _floats(values: Sequence[float], count: int, name: str, keep: list[Any]) -> Any:
    if len(values) == 0:
        return ffi.NULL
    if len(values) != count:
        raise InvalidArgument(f"{len(values)} {name} for {count} query heads: give one for each")
    keep.append(ffi.new("float[]", [float(x) for x in values]))
    return keep[-1]


def _read(pointer: Any, count: int) -> tuple[float, ...]:
    return tuple(pointer[i] for i in range(count)) if pointer != ffi.NULL else ()


def _indices(pointer: Any, count: int) -> tuple[int | None, ...]:
    return tuple(None if pointer[i] == _NONE else pointer[i] for i in range(count)) if pointer != ffi.NULL else ()


def from_c(c: Any) -> Spec:
    def fields(x: Any) -> dict[str, Any]:
        return {name: getattr(x, name) for name in _KIND_NUMBERS}

    common = {
        "layers": c.layers,
        "kv_type": _KV_NAMES[c.kv_type],
        "chunk_tokens": c.chunk_tokens,
        "members": c.members,
        "idle_ttl": c.idle_ttl_ns / 1e9,
        "forget": c.forget,
        "replicas": c.replicas,
    }
    if c.n_kinds == 0:
        return Spec(**common, **fields(c), alibi=_read(c.alibi, c.q_heads), sinks=_read(c.sinks, c.q_heads))
    kinds = tuple(Kind(**fields(k), alibi=_read(k.alibi, k.q_heads)) for k in (c.kinds[i] for i in range(c.n_kinds)))
    layer_kind = _indices(c.layer_kind, c.layers)
    heads = [0 if k is None else kinds[k].q_heads for k in layer_kind]
    sinks = () if c.layer_sinks == ffi.NULL else tuple(_read(c.layer_sinks[i], heads[i]) for i in range(c.layers))
    return Spec(**common, kinds=kinds, layer_kind=layer_kind, shares=_indices(c.shares, c.layers), layer_sinks=sinks)


def _single(x: float) -> float:
    return float(ffi.cast("float", x))


def _held(kind: Kind) -> dict[str, Any]:
    """A kind's fields as the service holds them."""
    said: dict[str, Any] = {name: getattr(kind, name) for name in _KIND_NUMBERS}
    said["scale"] = _single(kind.scale) if kind.scale > 0 else float(np.float32(1) / np.sqrt(np.float32(kind.k_dim)))
    said["soft_cap"] = _single(kind.soft_cap)
    said["alibi"] = tuple(map(_single, kind.alibi))
    return said


def _sinks_of(spec: Spec, layer: int) -> tuple[float, ...]:
    own = spec.layer_sinks[layer] if spec.layer_sinks else () if spec.kinds else spec.sinks
    return tuple(map(_single, own))


def difference(found: Spec, wanted: Spec) -> str:
    """What a session with the one holds otherwise than one with the other, for messages; "": nothing (Spec.matches)."""
    for name in ("layers", "kv_type"):
        if getattr(found, name) != getattr(wanted, name):
            return f"it has {name} {getattr(found, name)}, not {getattr(wanted, name)}"
    for layer, (a, b) in enumerate(zip(found.table, wanted.table)):
        if a is None or b is None:
            if a is not b:
                return f"layer {layer} is held by the {'service' if b is None else 'client'} there"
            continue
        there, here = _held(a), _held(b)
        for name, value in here.items():
            if there[name] != value:
                return f"layer {layer} has {name} {there[name]}, not {value}"
        if (found.shares[layer] if found.shares else None) != (wanted.shares[layer] if wanted.shares else None):
            return f"layer {layer} reads another layer's keys there"
        if _sinks_of(found, layer) != _sinks_of(wanted, layer):
            return f"layer {layer} has other attention sinks"
    return ""


PLACEMENT = ("chunk_tokens", "members", "idle_ttl", "forget", "replicas")


def check_placement(given: Iterable[str]) -> None:
    """Rejects names that are not placement fields of Spec; for callers that set a session's layers themselves."""
    for name in given:
        if name not in PLACEMENT:
            near = difflib.get_close_matches(name, PLACEMENT, 1)
            raise TypeError(f"{name!r} is unknown: " + (f"did you mean {near[0]!r}?" if near else f"use {', '.join(PLACEMENT)}"))
