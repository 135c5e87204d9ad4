# SPDX-License-Identifier: Apache-2.0
"""The tokens of a session, and the model that they were fed to, kept in the session itself.

A layer of its own behind the model's, with a window of one position: its row at position p sees the value at p alone,
so the service gives back exactly what was put there. Values are digits of 256, which every type of session holds
exactly: three of the token, five of a fingerprint of the model (identity.py). Truncates and forks take them along like any other
layer's.
"""

from __future__ import annotations

import torch

from .._abi import ffi
from ..spec import Kind, Spec
from .identity import BYTES

KIND = Kind(q_heads=1, kv_heads=1, k_dim=8, v_dim=8, scale=1.0, window=1)
# Of a layer behind it that reads the same rows, all of them, and is never asked: where windows forget, these are kept.
KEEPER = Kind(q_heads=1, kv_heads=1, k_dim=8, v_dim=8, scale=1.0)
UNKNOWN = (1 << 24) - 1  # no id: the model was fed embeddings


def layer_of(spec: Spec) -> int:
    """Which of a session's layers holds the tokens."""
    return spec.layers - (2 if spec.forget else 1)


_SHIFTS = torch.tensor([0, 8, 16])


def values(tokens: torch.Tensor, mark: int, dtype: torch.dtype) -> torch.Tensor:
    """[..., 1, 8]: what is put for tokens [...]."""
    rows = torch.tensor([0, 0, 0, *mark.to_bytes(BYTES, "little")]).expand(*tokens.shape, 1, 8).contiguous()
    rows[..., 0, :3] = tokens[..., None] >> _SHIFTS & 255
    return rows.to(dtype)


class Digits:
    """values() of one token a sequence, put into the same memory at each step."""

    def __init__(self, batch: int, dtype: torch.dtype) -> None:
        size, integers = dtype.itemsize, torch.int32 if dtype.itemsize == 4 else torch.int16
        self._memory = bytearray(batch * 8 * size)
        cells = memoryview(self._memory)
        self._cells = cells.cast("I") if size == 4 else cells.cast("H")
        self._codes = [x & (1 << 8 * size) - 1 for x in torch.arange(256).to(dtype).view(integers).tolist()]
        self._mark: int | None = None
        self.address = int(ffi.cast("uintptr_t", ffi.from_buffer(self._memory)))

    def put(self, ids: list[list[int]], mark: int) -> None:
        cells, codes = self._cells, self._codes
        if mark != self._mark:
            for i in range(len(ids)):
                for n, digit in enumerate(mark.to_bytes(BYTES, "little")):
                    cells[8 * i + 3 + n] = codes[digit]
            self._mark = mark
        at = 0
        for (token,) in ids:
            cells[at], cells[at + 1], cells[at + 2] = codes[token & 255], codes[token >> 8 & 255], codes[token >> 16 & 255]
            at += 8


def parsed(o: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens and the marks of answers [rows, 1, 8]."""
    digits = o[:, 0].round().to(torch.int64)
    weights = torch.tensor([1 << (8 * i) for i in range(BYTES)])
    return digits[:, :3] @ weights[:3], digits[:, 3:] @ weights
