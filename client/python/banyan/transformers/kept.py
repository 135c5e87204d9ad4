# SPDX-License-Identifier: Apache-2.0
"""What a model keeps in its modules from one forward to the next, beside any cache.

    what     found                             whose
    states   by trying: they differ by text    RecurrentGemma's recurrent layers
    shifts   by their name, rope_deltas        models that see images: positions of the text behind an image
                                               are not its columns, and this is by how much

A model has one of each, which the forward of any other text writes over. So a cache has its own: they are put
into the modules before each of its forwards, and read behind it. Shifts are kept in the session, too
(tokens.py): a process that opens it has its images' positions, but not its images.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from transformers import DynamicCache

from . import alone
from .layers import evaluating
from .refused import Refused
from .turns import Turn

_SHIFTS = "rope_deltas"
_SHARED = "which keeps a part of a text in its modules: give each thread a model of its own"
_TOKENS = 5  # of the texts that are tried

# Of configurations: tokens that stand for what is not text.
_NOT_TEXT = ("image_token_id", "image_token_index", "video_token_id", "video_token_index", "audio_token_id", "audio_token_index")

_known: weakref.WeakKeyDictionary[Any, list[tuple[Any, str]]] = weakref.WeakKeyDictionary()
_turns: weakref.WeakKeyDictionary[Any, Turn] = weakref.WeakKeyDictionary()
_looks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_making = threading.Lock()
_looking = threading.local()


def not_text(config: Any) -> dict[str, int]:
    """Tokens that stand for what is not text, by their names."""
    found = {name: getattr(config, name, None) for name in _NOT_TEXT}
    return {name: token for name, token in found.items() if isinstance(token, int)}


def _turn_of(model: Any) -> Turn:
    with _making:
        return _turns.setdefault(model, Turn(f"this model, a {type(model).__name__}, {_SHARED}"))


@contextlib.contextmanager
def looking(model: Any) -> Iterator[None]:
    """Forwards in here are looks at the model: one thread's at a time, and not within another text's."""
    with _making:
        look = _looks.setdefault(model, threading.RLock())
    with look, _turn_of(model).held("look"):
        before, _looking.now = is_looking(), True
        try:
            yield
        finally:
            _looking.now = before


def is_looking() -> bool:
    return getattr(_looking, "now", False)


class Kept:
    """Of one model: where it is kept."""

    def __init__(self, model: Any) -> None:
        if model not in _known:
            _known[model] = _look(model)
        self._states = _known[model]
        self._shifts = [weakref.ref(module) for module in model.modules() if hasattr(module, _SHIFTS)]
        self.turn = _turn_of(model)

    def __bool__(self) -> bool:
        return bool(self._states or self._shifts)

    def states(self) -> list[torch.Tensor | None]:
        found = (getattr(module(), name, None) for module, name in self._states)
        return [x.clone() if isinstance(x, torch.Tensor) else None for x in found]

    def put_states(self, states: list[torch.Tensor | None]) -> None:
        """None at all: of a text that begins."""
        for n, (module, name) in enumerate(self._states):
            setattr(module(), name, states[n] if states else None)

    def shifts(self, batch: int) -> list[int]:
        """Of each sequence; [] where positions are columns."""
        for found in self._shifts:
            x = getattr(found(), _SHIFTS, None)
            if isinstance(x, torch.Tensor) and bool(x.any()):
                each = [int(n) for n in x.flatten().tolist()]
                if batch % len(each):
                    raise Refused(f"{type(found()).__name__}.{_SHIFTS} is of {len(each)} sequences, and there are {batch}")
                return [n for n in each for _ in range(batch // len(each))]
        return []

    def put_shifts(self, shifts: list[int], device: torch.device) -> None:
        for found in self._shifts:
            setattr(found(), _SHIFTS, torch.tensor(shifts, device=device)[:, None] if shifts else None)


def _tensors(model: Any) -> dict[tuple[int, str], tuple[Any, str, Any]]:
    """That modules have beside parameters and buffers."""
    return {(id(m), name): (m, name, x) for m in model.modules() for name, x in vars(m).items() if isinstance(x, torch.Tensor)}


def _look(model: Any) -> list[tuple[Any, str]]:
    """Places whose tensors depend on which text was fed, not only on how long it was."""
    if not _tensors(model):  # the model has been called before, by the probe
        return []
    table = model.get_input_embeddings().weight
    device = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))
    seen = []
    with torch.no_grad(), alone.locally(), evaluating(model):
        for factor in (5, 7):
            ids = ((torch.arange(_TOKENS) * factor + 3) % int(table.shape[0])).to(device)[None]
            cache = DynamicCache(config=model.config.get_text_config(decoder=True))
            model(input_ids=ids, past_key_values=cache, use_cache=True)
            seen.append({key: (m, name, x.clone()) for key, (m, name, x) in _tensors(model).items()})
    return [
        (weakref.ref(module), name)
        for key, (module, name, x) in seen[1].items()
        if name != _SHIFTS and not (key in seen[0] and seen[0][key][2].shape == x.shape and torch.equal(seen[0][key][2], x))
    ]
