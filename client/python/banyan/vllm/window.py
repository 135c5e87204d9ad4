# SPDX-License-Identifier: Apache-2.0
"""Recent tokens in the engine's own KV blocks, older ones in the cluster: where the line between them is, and what crosses it.

         0                    stored               computed
    text ├──────── cluster ────────┼──── engine's blocks ────┤
                                   └─ at most BANYAN_WINDOW ─┘

vLLM frees blocks that lie wholly more than the window behind. So rows leave in whole chunks after each step, as soon as the next
step could push them out; where a text fits into the window, nothing leaves and the cluster is asked nothing.
"""

from __future__ import annotations

from .config import Refused

CHUNK = 256  # tokens that leave at once, from positions that are multiples of it on


def keep_of(window: int, batch: int) -> int:
    """How many tokens of a request may stay behind after a step, where the next step has at most `batch` more. Raises Refused."""
    least = 2 * CHUNK + batch
    if window < least:
        raise Refused(
            f"banyan: BANYAN_WINDOW={window}: with steps of up to {batch} tokens (--max-num-batched-tokens) at least {least} are needed"
        )
    return window - batch


def stored_after(stored: int, computed: int, keep: int) -> int:
    """Where the line is after a step; keep 0: everything is stored. The scheduler's side and the workers' agree on it without a word."""
    if keep == 0:
        return computed
    if computed - stored <= keep:
        return stored
    return computed - keep + (-(computed - keep)) % CHUNK


def blocks_of(length: int, block: int, window: int, batch: int) -> int:
    """KV blocks of a request. With a window they hold keys, and vLLM frees those behind it: twice what a step needs is enough for
    models with two kinds of layers, whose blocks are counted apart; however long the text is.
    """
    whole = -(-length // block)
    return min(whole, 2 * (-(-(window + batch) // block) + 1)) if window else whole
