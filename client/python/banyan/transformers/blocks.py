# SPDX-License-Identifier: Apache-2.0
"""Whether a model computes the same in several forwards as in one, found out by a few short forwards of the
model itself.

Some do not: their layers leave out the state that they had (Jamba's, Zamba's, RecurrentGemma's, in a forward
of several tokens behind others), or count positions from zero again (Bamba's, where position_ids are not
given). That is not the service's doing, and eager attention with Transformers' own cache gives the same; but
it is not what one forward over the whole text gives.
"""

from __future__ import annotations

import inspect
import weakref
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache

from . import alone
from .faces import stateful
from .layers import evaluating
from .limits import Limits

_TOKENS, _BORDER, _ALONE = 14, 8, 3  # of the text; of its first block; of its last tokens, one by one
# Of the largest logit, in the middle of the rows behind the border: a row or two may differ by more where
# experts are chosen by rounding. What is left out shows in all of them.
_MOST = 5e-3
_MOST_HALF = 0.08  # in types that round to 8 or 11 bits
_MOST_HALF_STATES = 0.02  # where the doubt costs speed alone: such models are fed token by token


class Ways(NamedTuple):
    """What may be fed behind tokens that are held.

    Attributes:
        blocks: several tokens in one forward.
        steps: one token.
        from_one: whether steps may follow a first forward of one token.
        positions: whether position_ids must be given, since the model counts from zero without them.
    """

    blocks: bool = True
    steps: bool = True
    from_one: bool = True
    positions: bool = False


_known: weakref.WeakKeyDictionary[Any, Ways] = weakref.WeakKeyDictionary()


def ways_of(model: Any) -> Ways:
    """Looked at once a model."""
    found = _known.get(model)
    if found is None:
        found = _known[model] = _look(model)
    return found


def _look(model: Any) -> Ways:
    try:
        with torch.no_grad(), alone.locally(), evaluating(model):
            return _compare(model)
    except Exception:  # a model that takes no ids alone
        return Ways(blocks=not _has_states(model))


def answer_of(output: Any) -> torch.Tensor:
    """Logits; of a model without a head, what it computes for each token."""
    logits = getattr(output, "logits", None)
    out: torch.Tensor = output[0] if logits is None else logits
    return out


def _has_states(model: Any) -> bool:
    return any(stateful(layer) for layer in DynamicCache(config=model.config.get_text_config(decoder=True)).layers)


def _compare(model: Any) -> Ways:
    table = model.get_input_embeddings().weight
    device = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))
    ids = ((torch.arange(_TOKENS) * 7 + 11) % min(int(table.shape[0]), 997)).to(device)[None]
    config = model.config.get_text_config(decoder=True)
    whole = answer_of(model(input_ids=ids, use_cache=False)).float()
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    states = _has_states(model)
    most = _MOST if model.dtype in (torch.float32, torch.float64) else _MOST_HALF_STATES if states else _MOST_HALF

    def same(ends: list[int], positions: bool) -> bool:
        cache, at, wrong = DynamicCache(config=config), 0, []
        for end in ends:
            more = {"position_ids": torch.arange(at, end, device=device)[None]} if positions else {}
            got = answer_of(model(input_ids=ids[:, at:end], past_key_values=cache, use_cache=True, **more)).float()
            if at:
                wrong.append((got - whole[:, at:end]).abs().amax(-1)[0])
            at = end
        return bool(torch.cat(wrong).median() <= most * whole.abs().max())

    block = [_BORDER, _TOKENS]
    blocks = same(block, takes_positions)
    if blocks and not states:
        return Ways(positions=takes_positions and not same(block, False))
    one_by_one = [*range(_TOKENS - _ALONE, _TOKENS + 1)]
    with Limits(model).held():
        steps = same(one_by_one, takes_positions)
        return Ways(
            blocks, steps, same([*range(1, _TOKENS + 1)], takes_positions), takes_positions and steps and not same(one_by_one, False)
        )  # fmt: skip
