# SPDX-License-Identifier: Apache-2.0
"""The tokens of a session, and the model that they were fed to, kept in the session itself.

A layer of its own behind the model's, with a window of one position: its row at position p sees the value at p alone,
so the service gives back exactly what was put there. Values are digits of 256, which every type of session holds
exactly: three of the token, five of a fingerprint of the model (identity.py), three of how much padding stands before the
sequence. Truncates and forks take them along like any other layer's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .._abi import ffi
from ..spec import Kind, Spec
from .identity import BYTES

DIM = 12  # the last one is not used
KIND = Kind(q_heads=1, kv_heads=1, k_dim=DIM, v_dim=DIM, scale=1.0, window=1)
# Of a layer behind it that reads the same rows, all of them, and is never asked: where windows forget, these are kept.
KEEPER = Kind(q_heads=1, kv_heads=1, k_dim=DIM, v_dim=DIM, scale=1.0)
UNKNOWN = (1 << 24) - 1  # no id: the model was fed embeddings


def layer_of(spec: Spec) -> int:
    """Which of a session's layers holds the tokens."""
    return spec.layers - (2 if spec.forget else 1)


_SHIFTS = torch.tensor([0, 8, 16])
_PAD = 3 + BYTES


def values(tokens: torch.Tensor, mark: int, pads: list[int], dtype: torch.dtype) -> torch.Tensor:
    """[batch, rows, 1, DIM]: what is put for tokens [batch, rows]."""
    rows = torch.zeros((*tokens.shape, 1, DIM), dtype=torch.int64)
    rows[..., 0, :3] = tokens[..., None] >> _SHIFTS & 255
    rows[..., 0, 3 : 3 + BYTES] = torch.tensor(list(mark.to_bytes(BYTES, "little")))
    rows[..., 0, _PAD : _PAD + 3] = (torch.tensor(pads)[:, None] >> _SHIFTS & 255)[:, None]
    return rows.to(dtype)


class Digits:
    """values() of one token a sequence, put into the same memory at each step."""

    def __init__(self, batch: int, dtype: torch.dtype) -> None:
        size, integers = dtype.itemsize, torch.int32 if dtype.itemsize == 4 else torch.int16
        self._memory = bytearray(batch * DIM * size)
        cells = memoryview(self._memory)
        self._cells = cells.cast("I") if size == 4 else cells.cast("H")
        self._codes = [x & (1 << 8 * size) - 1 for x in torch.arange(256).to(dtype).view(integers).tolist()]
        self._said: tuple[int, list[int]] | None = None
        self.address = int(ffi.cast("uintptr_t", ffi.from_buffer(self._memory)))

    def put(self, ids: list[list[int]], mark: int, pads: list[int]) -> None:
        cells, codes = self._cells, self._codes
        if (mark, pads) != self._said:
            for i, pad in enumerate(pads):
                for n, digit in enumerate((*mark.to_bytes(BYTES, "little"), *pad.to_bytes(3, "little"))):
                    cells[DIM * i + 3 + n] = codes[digit]
            self._said = mark, list(pads)
        at = 0
        for (token,) in ids:
            cells[at], cells[at + 1], cells[at + 2] = codes[token & 255], codes[token >> 8 & 255], codes[token >> 16 & 255]
            at += DIM


class Said(NamedTuple):
    """What rows say: each [rows]."""

    tokens: torch.Tensor
    marks: torch.Tensor
    pads: torch.Tensor


def parsed(o: torch.Tensor) -> Said:
    """What answers [rows, 1, DIM] say."""
    digits = o[:, 0].round().to(torch.int64)
    weights = torch.tensor([1 << (8 * i) for i in range(BYTES)])
    return Said(digits[:, :3] @ weights[:3], digits[:, 3:_PAD] @ weights, digits[:, _PAD : _PAD + 3] @ weights[:3])
