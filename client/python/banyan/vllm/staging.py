# SPDX-License-Identifier: Apache-2.0
"""A layer's rows in memory that the service reads and writes, and back.

On a CPU that is the tensors' own memory where type and order allow. On a GPU it is pinned memory, reused from
layer to layer: copies of one stream follow each other, so what a layer has fetched is out of the buffer
before the next one comes in.
"""

from __future__ import annotations

from typing import Any

import torch


class Staging:
    """Of one worker. Not thread-safe."""

    def __init__(self) -> None:
        self._pinned: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def _buffer(self, what: str, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        held = self._pinned.get((what, dtype))
        if held is None or held.numel() < like.numel():
            held = self._pinned[what, dtype] = torch.empty(max(1, like.numel()), dtype=dtype, pin_memory=True)
        return held[: like.numel()].view(like.shape)

    def out(self, what: str, x: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
        """x as dense memory of the processor, of this type. Of a GPU's tensor it is there after wait()."""
        if x is None:
            return None
        if x.is_cpu:
            return x.detach().to(dtype).contiguous()
        buffer = self._buffer(what, x, dtype)
        buffer.copy_(x.detach().to(dtype), non_blocking=True)
        return buffer

    def wait(self, like: torch.Tensor) -> None:
        """Until what out() has begun on the tensor's device is there."""
        if not like.is_cpu:
            torch.cuda.current_stream(like.device).synchronize()

    def answer(self, output: torch.Tensor) -> torch.Tensor:
        """float32 memory of the processor for an answer of this shape: the output's own where it is such."""
        if output.is_cpu:
            if output.dtype is torch.float32 and output.is_contiguous():
                return output
            return torch.empty(output.shape, dtype=torch.float32)
        return self._buffer("o", output, torch.float32)

    def deliver(self, answer: torch.Tensor, output: torch.Tensor) -> None:
        if answer.data_ptr() != output.data_ptr() or not output.is_cpu:
            output.copy_(answer, non_blocking=True)


def address(x: Any, row: int = 0) -> int:
    """Of a row of a dense tensor; None: 0."""
    return 0 if x is None else int(x.data_ptr()) + row * int(x.stride(0)) * int(x.element_size())
