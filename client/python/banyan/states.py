# SPDX-License-Identifier: Apache-2.0
"""States: bytes that stand for a session's tokens before a position (docs/concepts/states.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._abi import ffi, lib

DIGEST = 16  # bytes


@dataclass(frozen=True)
class State:
    """One state of a session.

    position: it stands for the tokens before this one. digest: as it was put. data: its bytes; None in a
    list.
    """

    layer: int
    position: int
    size: int
    digest: bytes
    data: bytearray | None = None


def state(c: Any) -> State:
    """With a copy of its bytes, if it has some."""
    data = None if c.data == ffi.NULL else bytearray(ffi.buffer(c.data, c.bytes))
    return State(c.layer, c.position, c.bytes, bytes(ffi.buffer(c.digest, DIGEST)), data)


def states(c: Any) -> list[State]:
    try:
        return [state(c.states[i]) for i in range(c.n)]
    finally:
        lib.banyan_state_list_free(c)
