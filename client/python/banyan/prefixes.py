# SPDX-License-Identifier: Apache-2.0
"""Prefixes found by content: hashes of tokens (docs/concepts/prefixes.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._abi import ffi, lib
from .errors import InvalidArgument, raise_c
from .info import text

HASH = 16  # bytes of a hash


def prefix_hashes(tokens: Sequence[int] | Any, salt: bytes = b"", chunk_tokens: int = 256) -> bytes:
    """The hashes of the whole chunks of these tokens, 16 bytes each, for Client.create and Session.keep.

    salt: what decides keys and values beside the tokens (which model, which weights), and what is to keep texts
    apart within a tenant: hashes with different salts never match.

    >>> len(prefix_hashes(range(600)))
    32
    >>> prefix_hashes(range(600)) == prefix_hashes(range(512))
    True
    """
    ids: Any = np.ascontiguousarray(np.asarray(tokens, dtype=np.int64))
    if ids.ndim != 1:
        raise InvalidArgument(f"tokens has the shape {list(ids.shape)}, not [tokens]")
    if chunk_tokens < 1:
        raise InvalidArgument(f"chunks of {chunk_tokens} tokens")
    out, error = ffi.new("char[]", max(1, len(ids) // chunk_tokens * HASH)), ffi.new("banyan_error *")
    pointer = ffi.cast("int64_t *", ids.ctypes.data)
    code = lib.banyan_prefix_hashes(ffi.from_buffer(salt), len(salt), pointer, len(ids), chunk_tokens, out, error)
    if code:
        raise_c(code, error)
    return bytes(ffi.buffer(out, len(ids) // chunk_tokens * HASH))


@dataclass(frozen=True)
class Kept:
    """What became of a session that was to be kept.

    session: the id that has the text now: this one, or another that had the same text already; 0: none.
    length: tokens that can be found. why: why this one is not kept; "": it is.
    """

    session: int
    length: int
    why: str


@dataclass(frozen=True)
class Prefix:
    """An ended session that is kept as cache.

    bytes: that it counts in its tenant's quota. hits: sessions created from it, since the coordinator's start.
    idle, ttl: in seconds; ttl 0: none. hash: the first bytes of its last hash. tenant: only for operators and
    admins.
    """

    session: int
    length: int
    bytes: int
    hits: int
    idle: float
    ttl: float
    hash: int
    pinned: bool
    tenant: str = ""


def prefix(c: Any) -> Prefix:
    return Prefix(
        session=c.session, length=c.length, bytes=c.bytes, hits=c.hits, idle=c.idle_ns / 1e9, ttl=c.ttl_ns / 1e9, hash=c.hash,
        pinned=bool(c.pinned), tenant=text(c.tenant),
    )  # fmt: skip
