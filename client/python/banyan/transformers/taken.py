# SPDX-License-Identifier: Apache-2.0
"""The states of a model at one place of a text: taken out of a cache's layers, put back, and as bytes.

    layers of the model that are not attention    Transformers' cache layers keep a convolution's last columns
                                                  and a recurrent state (faces.py)
    states that modules keep                      kept.py

Tensors have a row for each sequence of a batch. The bytes are of one sequence: it may go on in another batch,
in another process.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import torch
import transformers

_FORM = 1  # of the bytes
_DTYPES = {str(x): x for x in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)}

# A state is of what this version of Transformers keeps: another one may keep it in another order.
VERSION = f"{_FORM} {transformers.__version__}"


class Part(NamedTuple):
    """What one layer keeps under one number."""

    kernel: int | None
    has_previous: bool
    conv: torch.Tensor | None
    recurrent: torch.Tensor | None


class Taken(NamedTuple):
    """Behind so many columns of a batch."""

    columns: int
    layers: dict[int, list[Part]]
    kept: list[torch.Tensor | None]

    def select(self, sources: list[int]) -> Taken:
        def rows(x: torch.Tensor | None) -> torch.Tensor | None:
            return None if x is None else x[sources]

        layers = {i: [p._replace(conv=rows(p.conv), recurrent=rows(p.recurrent)) for p in parts] for i, parts in self.layers.items()}
        return Taken(self.columns, layers, [rows(x) for x in self.kept])


def _copy(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.detach().clone()


@torch.inference_mode(False)
def take(columns: int, layers: dict[int, Any], kept: list[torch.Tensor | None]) -> Taken:
    """Copies: a forward writes over the states."""
    found: dict[int, list[Part]] = {}
    for i, layer in layers.items():
        parts = found[i] = []
        for n in range(layer.number_of_states):
            conv, kernel = layer.conv_states[n], layer.conv_kernel_size[n]
            if conv is not None and kernel:
                conv = conv[..., -kernel:]  # there are more where the past is recorded
            parts.append(Part(kernel, layer.has_previous_state[n], _copy(conv), _copy(layer.recurrent_states[n])))
    return Taken(columns, found, [_copy(x) for x in kept])


@torch.inference_mode(False)
def put_back(taken: Taken, layers: dict[int, Any]) -> list[torch.Tensor | None]:
    """Into the cache's layers. Returns what belongs into the model's modules."""
    for i, layer in layers.items():
        for n, part in enumerate(taken.layers[i]):
            layer.conv_states[n], layer.recurrent_states[n] = _copy(part.conv), _copy(part.recurrent)
            layer.is_conv_states_initialized[n] = part.conv is not None
            layer.is_recurrent_states_initialized[n] = part.recurrent is not None
            layer.has_previous_state[n], layer.conv_kernel_size[n] = part.has_previous, part.kernel
            if part.conv is not None:
                layer.dtype, layer.device = part.conv.dtype, part.conv.device
    return [_copy(x) for x in taken.kept]


def begin(layers: dict[int, Any]) -> None:
    """As before the first token."""
    for layer in layers.values():
        layer.reset()


# ---- bytes ----


def pack(taken: Taken, i: int) -> bytearray:
    """Of sequence i: how long a description is, the description, the tensors one behind the other."""
    raw: list[torch.Tensor] = []

    def about(x: torch.Tensor | None) -> Any:
        if x is None:
            return None
        row = x[i].contiguous().cpu()
        raw.append(row.reshape(-1).view(torch.uint8))
        return [str(row.dtype), list(row.shape)]

    said = {
        "layers": [
            [n, [[p.kernel, p.has_previous, about(p.conv), about(p.recurrent)] for p in parts]] for n, parts in taken.layers.items()
        ],
        "kept": [about(x) for x in taken.kept],
    }
    head = json.dumps(said).encode()
    out = bytearray(len(head).to_bytes(8, "little") + head)
    for x in raw:
        out += x.numpy().data
    return out


class _Reader:
    """Tensors of the bytes of one sequence, in the order of pack()."""

    def __init__(self, data: bytearray) -> None:
        self._data, self._at = data, 8 + int.from_bytes(data[:8], "little")
        self.said = json.loads(bytes(data[8 : self._at]))

    def tensor(self, about: Any) -> torch.Tensor | None:
        if about is None:
            return None
        dtype, shape = _DTYPES[about[0]], [int(n) for n in about[1]]
        count = 1
        for n in shape:
            count *= n
        end = self._at + count * dtype.itemsize
        if min(shape, default=1) < 0 or end > len(self._data):
            raise ValueError("a state is shorter than it says")
        part, self._at = self._data[self._at : end], end
        return torch.frombuffer(part, dtype=dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


@torch.inference_mode(False)
def unpack(columns: int, each: list[bytearray | None], devices: dict[int, torch.device], kept: torch.device) -> Taken:
    """Of a batch, by the bytes of each sequence; None: one that is nothing but padding there. devices: of
    each layer. ValueError, KeyError: the bytes are of something else."""
    readers = [None if data is None else _Reader(data) for data in each]
    first = next(reader for reader in readers if reader is not None)

    def rows(abouts: list[Any], device: torch.device) -> torch.Tensor | None:
        found = [None if r is None else r.tensor(about) for r, about in zip(readers, abouts)]
        one = next((x for x in found if x is not None), None)
        return None if one is None else torch.stack([torch.zeros_like(one) if x is None else x for x in found]).to(device)

    def of_each(*path: Any) -> list[Any]:
        out = []
        for reader in readers:
            at = None if reader is None else reader.said
            for key in path:
                at = None if at is None else at[key]
            out.append(at)
        return out

    layers: dict[int, list[Part]] = {}
    for at, (index, parts) in enumerate(first.said["layers"]):
        layers[int(index)] = [
            Part(
                part[0], bool(part[1]), rows(of_each("layers", at, 1, n, 2), devices[int(index)]),
                rows(of_each("layers", at, 1, n, 3), devices[int(index)]),
            )
            for n, part in enumerate(parts)
        ]  # fmt: skip
    return Taken(columns, layers, [rows(of_each("kept", n), kept) for n in range(len(first.said["kept"]))])
