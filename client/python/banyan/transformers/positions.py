# SPDX-License-Identifier: Apache-2.0
"""How positions are counted where padding stands before a text; each forward counts as those before it did.

    kind       position of the token in column c, behind p columns of padding
    TOKENS     c - p    generate() gives these
    COLUMNS    c        most models count so by themselves, where they are given no position_ids
    OTHER      what else a caller gives
    SHIFTED    as the model counts behind images: its columns and a shift (kept.py)

No single forward could be given a text whose parts were counted in different ways: rotary embeddings would
see distances between its tokens that it does not have. The way is kept beside each token (tokens.py), for
the processes that go on with it.
"""

from __future__ import annotations

import inspect
import weakref
from typing import Any, NamedTuple

import torch

from . import alone
from .blocks import answer_of
from .layers import evaluating
from .refused import Refused

TOKENS, COLUMNS, OTHER, SHIFTED = range(4)

_known: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


class Counted(NamedTuple):
    """The positions of what a batch holds.

    Attributes:
        offsets: of each sequence's last token: its position less its column; None: it has no token yet.
        even: whether all tokens of a sequence have the same.
    """

    offsets: tuple[int | None, ...]
    even: bool = True

    @staticmethod
    def of(kind: int, pads: list[int]) -> Counted | None:
        """Of a session that says so; None: it is not known."""
        if kind in (OTHER, SHIFTED):
            return None
        return Counted(tuple(-pad if kind == TOKENS else 0 for pad in pads))

    def kind(self, pads: list[int]) -> int:
        there = [(offset, pad) for offset, pad in zip(self.offsets, pads) if offset is not None]
        if self.even and all(offset == -pad for offset, pad in there):
            return TOKENS
        return COLUMNS if self.even and all(offset == 0 for offset, _ in there) else OTHER

    def select(self, sources: list[int]) -> Counted:
        return Counted(tuple(self.offsets[i] for i in sources), self.even)


def given_to(model: Any, keywords: dict[str, Any], pads: list[int]) -> Any:
    """The position_ids of a forward; COLUMNS or TOKENS if it has none and the model counts so by itself."""
    positions, mask = keywords.get("position_ids"), keywords.get("attention_mask")
    if isinstance(positions, torch.Tensor):
        if mask is None and positions.dim() == 2 and bool((positions.diff(dim=1) != 1).any()):
            raise Refused(
                "position_ids that do not go on one by one, without attention_mask: Transformers takes that for several texts that are "
                "packed into one and do not see each other. Give the texts as a batch; or, where one text has such positions, "
                "attention_mask=torch.ones_like(input_ids)"
            )
        return positions
    padded = any(pads) or (isinstance(mask, torch.Tensor) and mask.dim() == 2 and not bool(mask.all()))
    return TOKENS if padded and _leaves_padding_out(model) else COLUMNS


def go_on(held: Counted | None, given: Any, columns: int, rows: int, pads: list[int], shifts: list[int]) -> Counted:
    """Of a batch that gets so many rows behind its columns. Refused if they are counted otherwise."""
    several = isinstance(given, torch.Tensor) and (given.dim() > 2 or given.shape[-1] != rows)
    if several or (shifts and not isinstance(given, torch.Tensor)):
        # Of several axes: these are the model's own affair.
        return Counted(tuple(shift - pad for shift, pad in zip(shifts or [0] * len(pads), pads)))
    mine = None  # of each token its position less its column
    if isinstance(given, torch.Tensor) and rows:
        mine = given.reshape(-1, rows).cpu() - torch.arange(columns, columns + rows)
        firsts, lasts = mine[:, 0].tolist(), mine[:, -1].tolist()
    offsets, even = list(held.offsets if held else [None] * len(pads)), held is None or held.even
    unknown = held is None and columns > 0
    for i, pad in enumerate(pads):
        skip = max(0, pad - columns)
        if skip >= rows:
            continue
        if mine is not None:
            row = i if len(mine) > 1 else 0
            first = firsts[row] if skip == 0 else int(mine[row, skip])
            last = lasts[row]
            even = even and (rows == 1 or bool((mine[row, skip:] == first).all()))
        else:
            first = last = -pad if given == TOKENS else 0
        if pad < columns and (unknown or offsets[i] != first):
            _refuse(i, columns, first, offsets[i])
        offsets[i] = last
    return Counted(tuple(offsets), even)


def _refuse(i: int, columns: int, first: int, before: int | None) -> None:
    ended = "in a way that its session does not say" if before is None else f"so that the last one is {columns - 1 + before}"
    raise Refused(
        f"position_ids of sequence {i} go on at {columns + first}, and the tokens before it were counted {ended}: in one forward over the "
        "whole text all would be counted alike. generate() and prefill() count tokens, without padding; where a forward is given no "
        "position_ids, most models count padding, too. Give position_ids that go on, or begin again with cache.reset()"
    )


def _leaves_padding_out(model: Any) -> bool:
    """Whether a model with a mask and without position_ids counts tokens, not columns. Tried once a model."""
    if model not in _known:
        _known[model] = _look(model)
    return _known[model]


def _look(model: Any) -> bool:
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return True  # whatever it does, it does it alike each time
    device = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))
    ids = torch.tensor([[1, 1, 1, 2, 3, 4]], device=device)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1]], device=device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    try:
        with torch.no_grad(), alone.locally(), evaluating(model):
            own, tokens, columns = (
                answer_of(model(input_ids=ids, attention_mask=mask, use_cache=False, **more))[:, 3:].float()
                for more in ({}, {"position_ids": positions}, {"position_ids": torch.arange(6, device=device)[None]})
            )
    except Exception:  # positions of several axes, which are the model's own affair
        return True
    return float((own - tokens).abs().max()) <= float((own - columns).abs().max())
