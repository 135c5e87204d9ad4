# SPDX-License-Identifier: Apache-2.0
"""What a session holds: its layers, heads, dimensions and types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ._abi import ffi
from .errors import InvalidArgument

KV_TYPES = {"f32": 1, "f16": 2, "bf16": 3, "int8": 4, "fp8": 5}
_KV_NAMES = {number: name for name, number in KV_TYPES.items()}


@dataclass(frozen=True)
class Spec:
    """The specification of a session; it never changes.

    Attributes:
        layers: how many attention layers.
        q_heads, kv_heads: query heads, a multiple of the heads of K and V.
        k_dim, v_dim: dimensions of a head of K and of V; v_dim 0: k_dim.
        kv_type: how K and V are held: "f32", "f16", "bf16", "int8" or "fp8".
        scale: of the logits; 0: 1 / sqrt(k_dim).
        soft_cap: logits become cap * tanh(x / cap); 0: none.
        window: positions that a row sees, its own included; 0: all.
        alibi: a slope for each query head, or nothing.
        sinks: the logit of an attention sink for each query head, or nothing.
        chunk_tokens: the unit of placement; 0: 256.
        members: workers to use; 0: as few as the length deserves.
        idle_ttl: seconds without use after which the service deletes the session; 0: never.

    >>> Spec(layers=2, q_heads=8, kv_heads=2, k_dim=64).group
    4
    """

    layers: int
    q_heads: int
    kv_heads: int
    k_dim: int
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

    def __post_init__(self) -> None:
        if self.kv_type not in KV_TYPES:
            raise InvalidArgument(f"kv_type {self.kv_type!r}: one of {', '.join(KV_TYPES)} is allowed")
        object.__setattr__(self, "v_dim", self.v_dim or self.k_dim)

    @property
    def group(self) -> int:
        """Query heads of one head of K and V."""
        return self.q_heads // self.kv_heads

    @property
    def scaled(self) -> bool:
        """Whether K and V have a scale for each token and head (int8, fp8)."""
        return self.kv_type in ("int8", "fp8")

    def to_c(self) -> tuple[Any, list[Any]]:
        """A banyan_spec, and what it points to."""
        c = ffi.new("banyan_spec *")
        keep: list[Any] = []
        for name in ("layers", "q_heads", "kv_heads", "k_dim", "v_dim", "scale", "soft_cap", "window", "chunk_tokens", "members"):
            try:
                setattr(c, name, getattr(self, name))
            except (OverflowError, TypeError) as error:
                raise InvalidArgument(f"{name} = {getattr(self, name)!r}: {error}") from None
        c.kv_type = KV_TYPES[self.kv_type]
        c.idle_ttl_ns = int(self.idle_ttl * 1e9)
        for name in ("alibi", "sinks"):
            values = getattr(self, name)
            if len(values) == 0:
                continue
            if len(values) != self.q_heads:
                raise InvalidArgument(f"{len(values)} {name} for {self.q_heads} query heads: one for each is wanted")
            keep.append(ffi.new("float[]", [float(x) for x in values]))
            setattr(c, name, keep[-1])
        return c, keep


def from_c(c: Any) -> Spec:
    def floats(pointer: Any) -> tuple[float, ...]:
        return tuple(pointer[i] for i in range(c.q_heads)) if pointer != ffi.NULL else ()

    return Spec(
        layers=c.layers, q_heads=c.q_heads, kv_heads=c.kv_heads, k_dim=c.k_dim, v_dim=c.v_dim, kv_type=_KV_NAMES[c.kv_type],
        scale=c.scale, soft_cap=c.soft_cap, window=c.window, alibi=floats(c.alibi), sinks=floats(c.sinks),
        chunk_tokens=c.chunk_tokens, members=c.members, idle_ttl=c.idle_ttl_ns / 1e9,
    )  # fmt: skip
