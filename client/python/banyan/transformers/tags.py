# SPDX-License-Identifier: Apache-2.0
"""New keys and values on their way from a cache's update() to the attention function.

The cache keeps nothing: update() gives back the new rows alone, in tensors that only our attention function
may open. A model that computed its attention itself would see the new rows without the old ones: it fails at
its first operation on them instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from .refused import Refused

_UNCOMPILED = "the service computes attention, which torch.compile cannot see into"

CallableT = TypeVar("CallableT", bound=Callable[..., Any])


def uncompiled(function: CallableT) -> CallableT:
    """torch.compile leaves it as it is."""
    made: CallableT = torch.compiler.disable(function, reason=_UNCOMPILED)  # type: ignore[no-untyped-call]
    return made


def leave_tracing() -> None:
    """torch.compile cannot carry what stands for keys and masks: the frame at hand runs as it is."""
    if torch._guards.TracingContext.try_get() is not None:
        raise torch._dynamo.exc.SkipFrame(_UNCOMPILED)


class Owner(Protocol):
    """Who made a tag: a cache, or a probe, which looks how a model treats what it is given."""

    def attend(
        self, module: torch.nn.Module, tag: Tag, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        mask: Any, scaling: float | None, keywords: dict[str, Any],
    ) -> torch.Tensor: ...  # fmt: skip


class Tag:
    """One update: whose, of which layer, and the new rows."""

    __slots__ = ("keys", "layer", "opened", "owner", "soft", "touched", "values")

    def __init__(self, owner: Owner, layer: int, keys: torch.Tensor, values: torch.Tensor, soft: bool = False) -> None:
        self.owner, self.layer, self.keys, self.values = owner, layer, keys, values
        self.soft = soft  # the model may compute with the new rows: it is looked at, or expands latents
        self.opened = 0  # attention calls that were made with it
        self.touched = ""  # the first operation of the model's own on it

    def index_for(self, module: torch.nn.Module) -> int:
        """Which layer asks: another one than the tag's where keys are shared; modules that are shared do not
        know."""
        index = getattr(module, "layer_idx", None)
        return index if isinstance(index, int) and index >= 0 else self.layer


# Questions that do not look at values, and operations that give back what they were given.
_LOOKS = frozenset(
    {
        "__get__", "dim", "size", "is_contiguous", "numel", "is_floating_point", "is_complex", "element_size",
        "get_device", "stride", "__repr__", "__hash__", "__len__", "is_cuda", "ndimension",
    }
)  # fmt: skip
_SAME = frozenset({"contiguous", "to", "type_as", "detach", "clone"})


class Tagged(torch.Tensor):
    """Keys or values that belong to the service."""

    tag: Tag

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        with torch._C.DisableTorchFunctionSubclass():
            if name in _LOOKS:
                return func(*args, **(kwargs or {}))
            tag = next(x.tag for x in args if isinstance(x, Tagged)) if any(isinstance(x, Tagged) for x in args) else None
            if name in _SAME and args and isinstance(args[0], Tagged):
                out = func(*args, **(kwargs or {}))
                if out.dtype == args[0].dtype and out.shape == args[0].shape and out.device == args[0].device:
                    return args[0]
            leave_tracing()
            if tag is not None and tag.soft:
                tag.touched = tag.touched or name or str(func)
                return func(*(_opened(a) for a in args), **{k: _opened(v) for k, v in (kwargs or {}).items()})
        layer = f"layer {tag.layer} of this model" if tag is not None else "this model"
        raise Refused(
            f"{layer} computes with cached keys or values itself ({name or func}) instead of asking the attention "
            "implementation 'banyan': its attention cannot move to the service; use another cache"
        )


def _opened(x: Any) -> Any:
    if isinstance(x, Tagged):
        return x.as_subclass(torch.Tensor)
    if isinstance(x, (list, tuple)):
        return type(x)(_opened(y) for y in x)
    return x


def give(tag: Tag) -> tuple[torch.Tensor, torch.Tensor]:
    """What update() gives back for it."""
    pending.tag = tag
    keys, values = tag.keys.as_subclass(Tagged), tag.values.as_subclass(Tagged)
    keys.tag = values.tag = tag
    return keys, values


def stand_in(tag: Tag, any_held: bool) -> torch.Tensor:
    """What stands for all keys or values that a layer holds, and may only be asked whether there are any."""
    held = torch.empty(int(any_held)).as_subclass(Tagged)
    held.tag = tag
    return held


def tag_of(x: Any) -> Tag | None:
    return x.tag if isinstance(x, Tagged) else None


class _Pending(threading.local):
    tag: Tag | None = None


# The update that this thread has made and whose attention call is yet to come: models that cache latents
# (MLA) expand them in between, and what arrives then carries no tag.
pending = _Pending()
