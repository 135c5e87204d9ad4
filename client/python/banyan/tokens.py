# SPDX-License-Identifier: Apache-2.0
"""The tokens of a session, and the model that they were fed to, kept in the session itself. For banyan.transformers and banyan.vllm.

A layer of its own behind the model's, with a window of one position: its row at position p sees the value at p alone,
so the service gives back exactly what was put there. Values are digits of 256, which every type of session holds
exactly: five of the token, six of the model's mark (marks.py), three of how much padding stands before the sequence, one of which
frequencies its keys were computed with (transformers/lengths.py), one of how its positions are counted
(transformers/positions.py). Where images have shifted positions (transformers/kept.py), all rows of a sequence but its first
say by how much instead of its padding. Truncates and forks take them along like any other layer's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ._abi import ffi
from .marks import BYTES
from .spec import Kind, Spec

DIM = 16
KIND = Kind(q_heads=1, kv_heads=1, k_dim=DIM, v_dim=DIM, scale=1.0, window=1)
# Of a layer behind it that reads the same rows, all of them, and is never asked: where windows forget, these are kept.
KEEPER = Kind(q_heads=1, kv_heads=1, k_dim=DIM, v_dim=DIM, scale=1.0)


def layer_of(spec: Spec) -> int:
    """Which of a session's layers holds the tokens."""
    return spec.layers - (2 if spec.forget else 1)


_TOKEN, _PADS = 5, 3  # bytes
_PAD = _TOKEN + BYTES
_FORM = _PAD + _PADS
_COUNT = _FORM + 1
_NO_SHIFT = 1 << 23  # what stands for 0 among shifts, which may be negative


def _shifts(n: int) -> torch.Tensor:
    return 8 * torch.arange(n)


class Stamp(NamedTuple):
    """What stands beside every token of a session.

    Attributes:
        mark: of the model.
        form: which of its frequencies the keys were computed with.
        counted: how positions are counted.
        shifts: of each sequence, by how much positions are shifted; (): not at all.
    """

    mark: int
    form: int = 0
    counted: int = 0
    shifts: tuple[int, ...] = ()


def values(tokens: torch.Tensor, stamp: Stamp, pads: list[int], dtype: torch.dtype, columns: int = 0) -> torch.Tensor:
    """[batch, rows, 1, DIM]: what is put for tokens [batch, rows], of which the first is in this column."""
    rows = torch.zeros((*tokens.shape, 1, DIM), dtype=torch.int64)
    rows[..., 0, :_TOKEN] = tokens[..., None] >> _shifts(_TOKEN) & 255
    rows[..., 0, _TOKEN:_PAD] = torch.tensor(list(stamp.mark.to_bytes(BYTES, "little")))
    said = torch.tensor(pads)[:, None].expand(tokens.shape)
    if stamp.shifts:
        first = columns + torch.arange(tokens.shape[1]) <= said
        said = torch.where(first, said, _NO_SHIFT + torch.tensor(stamp.shifts)[:, None])
    rows[..., 0, _PAD:_FORM] = said[..., None] >> _shifts(_PADS) & 255
    rows[..., 0, _FORM], rows[..., 0, _COUNT] = stamp.form, stamp.counted
    return rows.to(dtype)


class Digits:
    """values() of one token a sequence, put into the same memory at each step."""

    def __init__(self, batch: int, dtype: torch.dtype) -> None:
        size, integers = dtype.itemsize, torch.int32 if dtype.itemsize == 4 else torch.int16
        self._memory = bytearray(batch * DIM * size)
        cells = memoryview(self._memory)
        self._cells = cells.cast("I") if size == 4 else cells.cast("H")
        self._codes = [x & (1 << 8 * size) - 1 for x in torch.arange(256).to(dtype).view(integers).tolist()]
        self._said: tuple[Stamp, list[int]] | None = None
        self.address = int(ffi.cast("uintptr_t", ffi.from_buffer(self._memory)))

    def put(self, ids: list[list[int]], stamp: Stamp, pads: list[int], firsts: list[int]) -> None:
        """firsts: positions of the tokens in their sequences."""
        cells, codes = self._cells, self._codes
        if stamp.shifts:
            pads = [_NO_SHIFT + shift if first else pad for pad, shift, first in zip(pads, stamp.shifts, firsts)]
        if (stamp, pads) != self._said:
            for i, pad in enumerate(pads):
                for n, digit in enumerate(
                    (*stamp.mark.to_bytes(BYTES, "little"), *pad.to_bytes(_PADS, "little"), stamp.form, stamp.counted)
                ):
                    cells[DIM * i + _TOKEN + n] = codes[digit]
            self._said = stamp, list(pads)
        at = 0
        for (token,) in ids:
            for digit in token.to_bytes(_TOKEN, "little"):
                cells[at] = codes[digit]
                at += 1
            at += DIM - _TOKEN


class Said(NamedTuple):
    """What rows say: each [rows]."""

    tokens: torch.Tensor
    marks: torch.Tensor
    pads: torch.Tensor
    forms: torch.Tensor
    counts: torch.Tensor

    def shift(self) -> int:
        """Of a single row that is not the first of its sequence, whose `counts` says that there is one."""
        return int(self.pads) - _NO_SHIFT


def parsed(o: torch.Tensor) -> Said:
    """What answers [rows, 1, DIM] say."""
    digits = o[:, 0].round().to(torch.int64)

    def number(begin: int, end: int) -> torch.Tensor:
        return (digits[:, begin:end] << _shifts(end - begin)).sum(1)

    return Said(number(0, _TOKEN), number(_TOKEN, _PAD), number(_PAD, _FORM), digits[:, _FORM], digits[:, _COUNT])


def rows_of(ids: list[int], mark: int, kv_type: str) -> torch.Tensor:
    """[rows, 1, DIM]: what is put for the tokens of one sequence without padding, in a session of this type."""
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kv_type]
    return values(torch.tensor([ids]), Stamp(mark), [0], dtype)[0]
