# SPDX-License-Identifier: Apache-2.0
"""A long prompt's blocks as a wavefront: while the workers compute a block's attention, the client computes
the next block.

    layer   block i               block i + 1
      l     attention (workers)   waits until block i's rows of layer l are there
      l+1   its keys, values      attention of layer l (workers)
      …

A block's attention needs the rows of the blocks before it, not their answers. So block i + 1 is at most one
layer behind.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .refused import Refused

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .cache import BanyanCache

# Modules that alter themselves in a forward: two forwards at once would see each other's.
_ROPES = ("dynamic", "longrope")
_ALTERED = ("make_weights", "cached_rotary_positional_embedding")


def possible(model: PreTrainedModel, cache: BanyanCache, block: int) -> bool:
    """Whether two blocks may be computed at once: nothing but the service keeps a state, of the model or of
    this thread."""
    if cache.has_local_layers or cache.shares_modules or any(0 < s.spec.forget < 2 * block for s in cache.sessions):
        return False
    modes = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    if modes or any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        return False
    return not any(_alters(module) for module in model.modules())


def _alters(module: torch.nn.Module) -> bool:
    ropes = str(getattr(module, "rope_type", "")) + str(getattr(module, "rope_types", ""))
    return any(name in ropes for name in _ROPES) or any(hasattr(module, name) for name in _ALTERED)


def _device_of(cache: BanyanCache) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """The caller's GPU and stream, for other threads."""
    device = cache.device
    if device.type != "cuda":
        return contextlib.nullcontext
    stream = torch.cuda.current_stream(device)
    return lambda: torch.cuda.stream(stream)


class _Stopped(Exception):
    """Another block has failed."""


class _Order:
    """How far the blocks' rows have come, layer by layer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._there: dict[int, int] = {}  # of a layer: blocks whose rows are there
        self.failed: BaseException | None = None

    def wait(self, layer: int, block: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.failed is not None or self._there.get(layer, 0) >= block)
            if self.failed is not None:
                raise _Stopped

    def passed(self, layer: int, block: int) -> None:
        with self._changed:
            self._there[layer] = block + 1
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            if self.failed is None and not isinstance(error, _Stopped):
                self.failed = error
            self._changed.notify_all()


class _Turn:
    """The gate (steps.Gate) of one block: its rows of a layer go in behind those of the block before it."""

    def __init__(self, order: _Order, block: int) -> None:
        self._order, self._block = order, block

    def enter(self, layer: int) -> None:
        self._order.wait(layer, self._block)

    def leave(self, layer: int) -> None:
        self._order.passed(layer, self._block)


def run(cache: BanyanCache, parts: list[tuple[int, int]], feed: Callable[[BanyanCache, int, int], Any], done: Callable[[int], Any]) -> None:
    """Feeds the parts [begin, end) of a prompt that follow what the cache has. done: after each, with its
    tokens, in any thread.

    When one fails the cache stands behind the last one before it, as after an interrupted forward.
    """
    order = _Order()
    finished = [False] * len(parts)
    faces: list[BanyanCache] = []  # made and ended here: hooks of a model are not altered while it runs
    threads: list[threading.Thread] = []
    here = _device_of(cache)

    def serve(which: int) -> None:
        try:
            with torch.no_grad(), here():
                for n in range(which, len(parts), 2):
                    faces[which].stand(parts[n][0], _Turn(order, n))
                    feed(faces[which], *parts[n])
                    finished[n] = True
                    done(parts[n][1] - parts[n][0])
        except BaseException as error:  # raised in the caller's thread
            order.fail(error)

    try:
        for _ in range(2):
            faces.append(cache.beside(parts[-1][1]))
        for n in range(2):
            thread = threading.Thread(target=serve, args=(n,), name=f"banyan-prefill-{n}")
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
    except BaseException as error:  # an interrupt, no more threads
        order.fail(error)
    for thread in threads:
        thread.join()
    for face in faces:
        face.let_go()
    if not cache.sessions:  # whichever call met it first
        raise Refused("the cache was closed in the middle of prefill") from order.failed
    whole = finished.index(False) if False in finished else len(parts)
    cache.stand(parts[whole - 1][1] if whole else parts[0][0], interrupted=whole < len(parts))
    if order.failed is not None:
        raise order.failed
