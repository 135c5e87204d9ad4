# SPDX-License-Identifier: Apache-2.0
"""Models whose keys depend on how long the text is, or was: exact means what one forward over the whole text
gives.

    rope_type   keys of n tokens                          here
    longrope    n <= original: short factors, else long   a session has one form; where a text passes the
    border, it is fed again
                                                          in the other form
    dynamic     n <= original: as trained, else others    refused behind the border: each further token would
    change all keys
                for each n

Types are read from the model's rotary embeddings, where Transformers has put them from whichever field of a
configuration had them (rope_parameters, rope_scaling; one for all layers, or one for each type of layers).
Types of layers may have different borders: a form is the number of borders that the text has passed.

    text of n tokens    n <= a       a < n <= b     b < n
    form                0            1              2
    layers with a       short        long           long
    layers with b       short        short          long

A block of a long text must have the long factors though it ends before the border. Transformers chooses them
by the largest position that it sees: in the long form the embedding is given one position more, behind the
border, and its row is cut off.
"""

from __future__ import annotations

import copy
import threading
import weakref
from typing import Any, NamedTuple

import torch

from . import alone
from .blocks import answer_of
from .layers import evaluating
from .refused import Refused
from .tags import uncompiled

SHORT = 0  # the form of a text that passes no border

_FAR = 1 << 22  # a position behind every border

_turns: weakref.WeakKeyDictionary[Any, threading.Lock] = weakref.WeakKeyDictionary()
_independent: weakref.WeakSet[Any] = weakref.WeakSet()  # modules that were looked at


class _Rope(NamedTuple):
    """A rotary embedding, or what a module that is one for each type of layers has for one type."""

    module: Any  # a weak reference to it
    layer_type: str | None
    dynamic: bool
    border: int  # the longest text that is computed as trained


def _types_of(module: Any) -> list[tuple[str | None, Any]]:
    types = getattr(module, "rope_type", None)
    return list(types.items()) if isinstance(types, dict) else [(None, types)]


def _depends(kind: Any) -> bool:
    return isinstance(kind, str) and ("dynamic" in kind or kind == "longrope")


def _of_module(module: Any) -> list[_Rope]:
    config = getattr(module, "config", None)
    found = []
    for name, kind in _types_of(module):
        if not _depends(kind):
            continue
        if "dynamic" in kind:
            border = module.original_max_seq_len
        else:
            parameters = config.rope_parameters if name is None else config.rope_parameters[name]  # type: ignore[union-attr]
            border = parameters["original_max_position_embeddings"]
        found.append(_Rope(weakref.ref(module), name, "dynamic" in kind, int(border)))
    return found


class Lengths:
    """Of one model. Refused where its frequencies depend on the length in a way that is not known.

    Attributes:
        borders: of longrope, ascending.
    """

    def __init__(self, model: Any) -> None:
        self._ropes = [rope for module in model.modules() for rope in _of_module(module)]
        self.borders = sorted({rope.border for rope in self._ropes if not rope.dynamic})
        for module in model.modules():
            if module not in _independent:
                _check_independent(model, module)
                _independent.add(module)

    def __bool__(self) -> bool:
        return bool(self._ropes)

    def form_of(self, length: int) -> int:
        """Which form a text of so many positions has; Refused where it would have another one with each
        token."""
        for rope in self._ropes:
            module = rope.module()
            if rope.dynamic and (length > rope.border or (length == rope.border and _has_grown(module))):
                raise Refused(
                    f"{length} tokens, where this model's rotary embedding (rope_type 'dynamic') is as it was trained up to {rope.border}: "
                    "behind that its frequencies change with every token, and with them all keys that are held. Use a rope_type that "
                    "does not depend on the length (yarn, linear, llama3), or a shorter text"
                )
        return sum(length > border for border in self.borders)

    def least(self, form: int) -> int:
        """How many positions the shortest text of this form has."""
        return self.borders[form - 1] + 1 if form else 0

    def in_form(self, form: int) -> list[Any]:
        """Hooks of a forward that is computed in this form; who calls removes them."""
        ropes: dict[int, list[_Rope]] = {}
        for rope in self._ropes:
            if not rope.dynamic:
                ropes.setdefault(id(rope.module()), []).append(rope)
        hooks: list[Any] = []
        for of_module in ropes.values():
            hooks += _hooks(of_module[0].module(), {r.layer_type: r.border for r in of_module}, set(self.borders[:form]))
        return hooks


def _hooks(module: Any, borders: dict[str | None, int], passed: set[int]) -> list[Any]:
    """borders: by type of layers. passed: those behind which keys have the long factors.

    They are for this thread's forward. Others may be under way, in another form, and the module keeps the
    frequencies that it has chosen: one call at a time.
    """
    mine, turn = threading.get_ident(), _turns.setdefault(module, threading.Lock())
    seen: list[int] = []  # rows of a call under way; 0: as it is

    @uncompiled
    def before(module: Any, arguments: Any, keywords: Any = None) -> Any:
        if threading.get_ident() != mine or keywords is None:  # removed while hooks run (watching.py)
            return None
        ids = keywords["position_ids"] if "position_ids" in keywords else arguments[1]
        border = borders.get(keywords.get("layer_type", arguments[2] if len(arguments) > 2 else None))
        if border is not None and border not in passed and int(ids.max()) + 1 > border:
            raise Refused(f"position {int(ids.max())}, in a text that was said to end before: give position_ids that count tokens")
        turn.acquire()
        seen.append(0 if border not in passed else ids.shape[-1])
        if not seen[-1]:
            return None
        more = torch.cat((ids, ids.new_full((*ids.shape[:-1], 1), border)), dim=-1)
        if "position_ids" in keywords:
            return arguments, {**keywords, "position_ids": more}
        return (arguments[0], more, *arguments[2:]), keywords

    @uncompiled
    def behind(module: Any, arguments: Any, *rest: Any) -> Any:
        output = rest[-1]  # behind the keywords, if the hook is still registered
        if threading.get_ident() != mine or not seen:
            return None
        rows = seen.pop()
        turn.release()
        if not rows or output is None:  # an error has ended it
            return None
        if not isinstance(output, tuple) or any(x.shape[-2] != rows + 1 for x in output):
            raise Refused("this model's rotary embedding gives something else than a cosine and a sine for each position")
        return tuple(x[..., :rows, :] for x in output)

    return [
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(behind, with_kwargs=True, always_call=True),
    ]


def _has_grown(module: Any) -> bool:
    """Whether it keeps the frequencies of a longer text that it has seen."""
    grown = [value for name, value in vars(module).items() if name.endswith("max_seq_len_cached")]
    return any(int(value) > module.original_max_seq_len for value in grown)


def _check_independent(model: Any, module: Any) -> None:
    """That a rotary embedding of no type that is known to depend on the length gives a position the same,
    whatever comes behind."""
    if not any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False)):
        return
    for name, kind in _types_of(module):
        if not _depends(kind) and _sees_length(module, () if name is None else (name,)) and _text_sees_length(model):
            raise Refused(
                f"{type(module).__name__}, a rotary embedding of this model, gives a position other frequencies where a longer text "
                "follows, in a way that is not known here: keys that are held would be wrong. Use a rope_type that does not depend on "
                "the length"
            )


def _sees_length(module: Any, more: tuple[str, ...]) -> bool:
    near = torch.arange(4)[None]
    far = torch.cat((near, near.new_full((1, 1), _FAR)), dim=1)
    try:
        module = copy.deepcopy(module).cpu()  # it keeps what it has seen; and a GPU would not survive a table's end
        with torch.no_grad():
            a, b = (module(torch.zeros(1, 1), ids, *more) for ids in (near, far))
        pairs = [(a, b)] if isinstance(a, torch.Tensor) else list(zip(a, b))
        return any(x.shape[1] == 4 and y.shape[1] == 5 and not torch.equal(x, y[:, :4]) for x, y in pairs)
    except Exception:  # an embedding of images, or one that is called in another way
        return False


def _text_sees_length(model: Any) -> bool:
    """The same of the model's logits: what was seen may be an embedding of images."""
    device = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))
    positions = torch.arange(5, device=device)[None]
    ids = positions + 1  # that differ: attention to equal ones is the same whatever their positions
    try:
        with torch.no_grad(), alone.locally(), evaluating(model):
            a = answer_of(model(input_ids=ids[:, :4], position_ids=positions[:, :4], use_cache=False))
            positions[0, 4] = _FAR
            b = answer_of(model(input_ids=ids, position_ids=positions, use_cache=False))
        most = 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.05
        return float((a - b[:, :4]).abs().max()) > most * float(a.abs().max())
    except Exception:  # it cannot be shown that text is not concerned
        return True
