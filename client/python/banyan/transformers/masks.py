# SPDX-License-Identifier: Apache-2.0
"""Transformers' masks, recognised: what a row may see, and how much padding stands before each sequence.

Transformers describes a mask as a function of (batch, head, query, key), composed of known parts, and asks
the attention implementation's mask function to make a tensor of it. Ours makes none: it reads how the
function is composed. A part that it does not know is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import masking_utils

from .generate import running
from .refused import Refused
from .tags import leave_tracing, uncompiled


class Rule(NamedTuple):
    """What the row at position p sees: keys > p - window, of its own run of `chunk` positions, up to p
    itself."""

    window: int = 0
    chunk: int = 0
    causal: bool = True


class Mask(torch.Tensor):
    """Stands where a mask tensor would: carries the rule. Code that computes with it does not ask the
    service."""

    rule: Rule
    pads: list[int] | None  # of each sequence, on its left; None: no padding at all
    blocks: torch.Tensor | None  # ids of blocks whose rows see each other, -1: none
    q_offset: int
    refused: Refused | None  # why the service cannot compute with it; then the three above do not count
    asked: dict[str, Any]  # what Transformers has asked for
    made: dict[Any, Any]  # tensors of it, by type

    def recognised(self) -> Mask:
        if self.refused is not None:
            raise self.refused
        return self

    def is_all(self) -> bool:
        """Whether every row sees every key."""
        return self.refused is None and not self.rule.causal and self.pads is None and self.blocks is None

    def tensor(self, dtype: torch.dtype | None) -> Any:
        """The mask that Transformers would have made: of floats to add, None: of what may be seen."""
        if dtype not in self.made:
            if dtype is None:
                self.made[None] = masking_utils.sdpa_mask(**{**self.asked, "allow_is_causal_skip": False})
            else:
                self.made[dtype] = masking_utils.eager_mask(**{**self.asked, "dtype": dtype})
        return self.made[dtype]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _LOOKS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        leave_tracing()
        raise Refused(
            f"this model computes with its attention mask itself ({getattr(func, '__name__', func)}): "
            "the service cannot know what it means; use another attn_implementation"
        )


# Attributes and questions that do not look at values.
_LOOKS = frozenset(
    {
        "__get__", "dim", "size", "is_contiguous", "numel", "is_floating_point", "is_complex", "element_size",
        "get_device", "data_ptr", "stride", "__repr__", "__hash__", "__len__",
    }
)  # fmt: skip


def _inside(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables that a function closes over."""
    names = function.__code__.co_freevars
    return dict(zip(names, (cell.cell_contents for cell in function.__closure__ or ())))


def _is(function: Callable[..., Any], maker: str) -> bool:
    """Whether it was made by masking_utils.`maker`."""
    return (
        getattr(function, "__module__", "") == masking_utils.__name__
        and getattr(function, "__qualname__", "").split(".<locals>")[0] == maker
        and ".<locals>" in function.__qualname__
    )


def rule_of(function: Callable[..., Any]) -> tuple[Rule, torch.Tensor | None]:
    """The rule that a mask function describes, and the ids of bidirectional blocks."""
    if function is masking_utils.causal_mask_function:
        return Rule(), None
    if function is masking_utils.bidirectional_mask_function:
        return Rule(causal=False), None
    if _is(function, "and_masks"):
        return _all_of(_inside(function)["mask_functions"])
    if _is(function, "or_masks"):
        rule, blocks = None, None
        for part in _inside(function)["mask_functions"]:
            if _is(part, "blockwise_overlay") and blocks is None:
                blocks = _inside(part)["block_sequence_ids"]
            elif rule is None:
                rule, more = rule_of(part)
                if more is not None:
                    rule = None
                    break
            else:
                rule = None
                break
        if rule is not None:
            return rule, blocks
    raise Refused(
        f"this model's attention mask is none that the service knows ({getattr(function, '__qualname__', function)}): "
        "causal, sliding-window, chunked and blockwise masks are; use another attn_implementation"
    )


def _all_of(parts: tuple[Callable[..., Any], ...]) -> tuple[Rule, torch.Tensor | None]:
    windows, chunk, causal, blocks = [], 0, False, None
    for part in parts:
        if _is(part, "sliding_window_overlay"):
            windows.append(int(_inside(part)["sliding_window"]))
        elif _is(part, "chunked_overlay"):
            chunk = int(_inside(part)["chunk_size"])
        else:
            rule, more = rule_of(part)
            if more is not None and (blocks is not None or len(parts) > 2):
                raise Refused("this model intersects several masks with blocks that see each other: the service does not know that")
            blocks = blocks if more is None else more
            windows += [rule.window] if rule.window else []
            chunk, causal = chunk or rule.chunk, causal or rule.causal
    if not causal and (windows or chunk):
        raise Refused("this model's attention mask has a window on both sides: the service does not know that")
    window = min(windows, default=0)
    # The service lets a block's rows see all of it. Here they see what is in their window: the same for
    # blocks that fit into it.
    if blocks is not None and (chunk or (window and _longest(blocks) > window)):
        raise Refused(f"a block of {_longest(blocks)} tokens that see each other, in a window of {window}: the service does not know that")
    return Rule(window, chunk, causal), blocks


def _longest(blocks: torch.Tensor) -> int:
    return max(sum(1 for _ in run) if key >= 0 else 0 for ids in blocks.tolist() for key, run in itertools.groupby(ids))


def _padding(attention_mask: torch.Tensor | None, kv_length: int) -> list[int] | None:
    """Padding on the left of each sequence; other holes are refused."""
    if attention_mask is None:
        return None
    if attention_mask.shape[-1] < kv_length:
        raise Refused(f"attention_mask is for {attention_mask.shape[-1]} tokens, and there are {kv_length}: give the mask of all tokens")
    seen = attention_mask[:, :kv_length].to(torch.bool)
    if bool(seen.all()):
        return None
    pads = (~seen).sum(-1)
    columns = torch.arange(seen.shape[1], device=seen.device)
    if not bool((seen == (columns[None, :] >= pads[:, None])).all()):
        call = running()
        if call is not None and call[2].mask is None:
            raise Refused(
                "generate() was given no attention_mask, and Transformers has made one of pad_token_id, which stands within the text: give "
                "attention_mask, torch.ones_like(input_ids) where nothing is padding"
            )
        raise Refused("attention_mask has holes or padding on the right: pad on the left (tokenizer.padding_side = 'left')")
    return [int(n) for n in pads]


@uncompiled
def banyan_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    **more: Any,
) -> Mask:
    """AttentionMaskInterface's function for "banyan"."""
    mask = torch.empty(0).as_subclass(Mask)
    mask.q_offset, mask.refused, mask.made = int(q_offset), None, {}
    mask.asked = dict(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, **more,
    )  # fmt: skip
    try:
        mask.rule, mask.blocks = rule_of(mask_function)
        if kv_offset != 0:
            raise Refused("a cache that forgets its first tokens: use BanyanCache")
        if attention_mask is not None and attention_mask.shape[0] != batch_size:
            raise Refused(f"attention_mask is for {attention_mask.shape[0]} sequences, and there are {batch_size}")
        mask.pads = _padding(attention_mask, kv_length)
    except Refused as refused:
        mask.rule, mask.blocks, mask.pads, mask.refused = Rule(), None, None, refused
    return mask
