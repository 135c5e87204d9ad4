# SPDX-License-Identifier: Apache-2.0
"""Layers that limit their time steps in a forward of several tokens, and not in one of a single token: Mamba
2's in Transformers.

    forward    dt = clamp(softplus(x + dt_bias), low, high)
    step       dt = softplus(x + dt_bias)

One forward over the whole text limits every token's, so a step's are limited here, too, with any cache's
states: x is the last columns of what in_proj gives, and is kept between the values of which softplus makes
the limits.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from .refused import Refused
from .tags import uncompiled


class Limits:
    """Of one model. Refused where a layer has limits and is made in another way than those that are known."""

    def __init__(self, model: Any) -> None:
        self._layers = [weakref.ref(module) for module in model.modules() if _limit_of(module) is not None]
        for layer in self._layers:
            _check_made_so(layer())

    def __bool__(self) -> bool:
        return bool(self._layers)

    def in_step(self) -> list[Any]:
        """Hooks of a forward behind tokens that are held; who calls removes them. With several tokens it is
        as it is."""
        return [_hook(module) for layer in self._layers if (module := layer()) is not None]

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Forwards in here are steps."""
        hooks = self.in_step()
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _limit_of(module: Any) -> tuple[float, float] | None:
    """None: there is none that softplus could pass."""
    limit = getattr(module, "time_step_limit", None)
    if not isinstance(limit, (tuple, list)) or len(limit) != 2:
        return None
    low, high = (float(x) for x in limit)
    return (low, high) if low > 0 or high < math.inf else None


def _check_made_so(module: Any) -> None:
    bias, projection = getattr(module, "dt_bias", None), getattr(module, "in_proj", None)
    sizes = [getattr(module, name, None) for name in ("intermediate_size", "conv_dim", "num_heads")]
    fits = (
        isinstance(bias, torch.Tensor)
        and isinstance(projection, torch.nn.Module)
        and all(isinstance(size, int) for size in sizes)
        and getattr(projection, "out_features", None) == sum(sizes)  # type: ignore[arg-type]
        and bias.shape == (module.num_heads,)
        and not hasattr(module, "mup_vector")  # scales what in_proj gives
    )
    if not fits:
        raise Refused(
            f"{type(module).__name__} limits its time steps (time_step_limit {module.time_step_limit}) in a forward of several tokens, but "
            "not token by token, and is made in a way that is not known here: what generate() gives would differ from one forward over "
            "the whole text. Models whose limit is (0, inf) are served"
        )


def _inverse_softplus(y: float) -> float:
    if y <= 0:
        return -math.inf
    return y if y > 30 else math.log(math.expm1(y))


def _hook(module: Any) -> Any:
    limit = _limit_of(module)
    assert limit is not None
    low, high = map(_inverse_softplus, limit)
    bias, heads = module.dt_bias, module.num_heads

    @uncompiled
    def behind(projection: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor | None:
        if output.shape[1] != 1:
            return None
        x = output[..., -heads:]
        shift = bias.to(x.device, x.dtype)
        return torch.cat((output[..., :-heads], torch.minimum(torch.maximum(x, low - shift), high - shift)), dim=-1)

    return module.in_proj.register_forward_hook(behind)
