# SPDX-License-Identifier: Apache-2.0
"""Models whose keys depend on how long the text is, or was: exact means what one forward over the whole text gives.

    rope_type   keys of n tokens                          here
    longrope    n <= original: short factors, else long   a session has one form, 0 (short) or 1 (long); where a text passes the
                                                          border, it is fed again in the other form
    dynamic     n <= original: as trained, else others    refused behind the border: each further token would change all keys
                for each n

A block of a long text must have the long factors though it ends before the border. Transformers chooses them by the largest
position that it sees: in the long form the embedding is given one position more, behind the border, and its row is cut off.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch

from .refused import Refused
from .tags import uncompiled

SHORT, LONG = 0, 1


class _Rope(NamedTuple):
    module: Any  # a weak reference to it
    dynamic: bool
    border: int  # the longest text that is computed as trained


def _of_module(module: Any) -> list[_Rope]:
    types = getattr(module, "rope_type", None)
    config = getattr(module, "config", None)
    found = []
    for name, kind in types.items() if isinstance(types, dict) else ((None, types),):
        if not isinstance(kind, str) or ("dynamic" not in kind and kind != "longrope"):
            continue
        if "dynamic" in kind:
            border = module.original_max_seq_len
        else:
            parameters = config.rope_parameters if name is None else config.rope_parameters[name]  # type: ignore[union-attr]
            border = parameters["original_max_position_embeddings"]
        found.append(_Rope(weakref.ref(module), "dynamic" in kind, int(border)))
    return found


class Lengths:
    """Of one model."""

    def __init__(self, model: Any) -> None:
        self._ropes = [rope for module in model.modules() for rope in _of_module(module)]

    def __bool__(self) -> bool:
        return bool(self._ropes)

    @property
    def borders(self) -> list[int]:
        return [rope.border for rope in self._ropes if not rope.dynamic]

    def form_of(self, length: int) -> int:
        """Which form a text of so many positions has; Refused where it would have another one with each token."""
        for rope in self._ropes:
            module = rope.module()
            if rope.dynamic and (length > rope.border or (length == rope.border and _has_grown(module))):
                raise Refused(
                    f"{length} tokens, where this model's rotary embedding (rope_type 'dynamic') is as it was trained up to {rope.border}: "
                    "behind that its frequencies change with every token, and with them all keys that are held. Use a rope_type that "
                    "does not depend on the length (yarn, linear, llama3), or a shorter text"
                )
        return LONG if any(length > border for border in self.borders) else SHORT

    def in_form(self, form: int) -> list[Any]:
        """Hooks of a forward that is computed in this form; who calls removes them."""
        hooks: list[Any] = []
        for module, border in {id(r.module()): (r.module(), r.border) for r in self._ropes if not r.dynamic}.values():
            seen: list[int] = []

            @uncompiled
            def before(module: Any, arguments: Any, keywords: Any, border: int = border, seen: list[int] = seen) -> Any:
                ids = keywords["position_ids"] if "position_ids" in keywords else arguments[1]
                if form == SHORT:
                    if int(ids.max()) + 1 > border:
                        raise Refused(
                            f"position {int(ids.max())}, in a text that was said to end before: give position_ids that count tokens"
                        )
                    return None
                seen.append(ids.shape[-1])
                more = torch.cat((ids, ids.new_full((*ids.shape[:-1], 1), border)), dim=-1)
                if "position_ids" in keywords:
                    return arguments, {**keywords, "position_ids": more}
                return (arguments[0], more, *arguments[2:]), keywords

            @uncompiled
            def behind(module: Any, arguments: Any, keywords: Any, output: Any, seen: list[int] = seen) -> Any:
                if form == SHORT:
                    return None
                rows = seen.pop()
                if not isinstance(output, tuple) or any(x.shape[-2] != rows + 1 for x in output):
                    raise Refused("this model's rotary embedding gives something else than a cosine and a sine for each position")
                return tuple(x[..., :rows, :] for x in output)

            hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
            hooks.append(module.register_forward_hook(behind, with_kwargs=True))
        return hooks


def _has_grown(module: Any) -> bool:
    """Whether it keeps the frequencies of a longer text that it has seen."""
    grown = [value for name, value in vars(module).items() if name.endswith("max_seq_len_cached")]
    return any(int(value) > module.original_max_seq_len for value in grown)
