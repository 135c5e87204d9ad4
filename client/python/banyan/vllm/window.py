# SPDX-License-Identifier: Apache-2.0
"""Recent tokens in the engine's own KV blocks, older ones in the cluster: where the lines between them are,
and what crosses them.

         0                 stored          handed        computed
    text ├───── cluster ─────┼─ on its way ──┼───── here ────┤
                             └── at most BANYAN_WINDOW - 1 ──┘

Rows up to `stored` are attended in the cluster, later ones here. vLLM frees blocks that lie wholly more than
the window behind. So whole chunks are handed over after each step, as soon as the step after the next could
push them out, and a thread sends them (leaving.py). The line of what is stored follows once it must: by then
a whole step at least has gone by, at decode as many as a step may have tokens. Both lines depend on the
text's length alone, so that the same requests give the same bits. Where a text fits into the window, nothing
leaves and the cluster is asked nothing.
"""

from __future__ import annotations

from .config import Refused

CHUNK = 256  # tokens that leave at once, from positions that are multiples of it on


def keep_of(window: int, batch: int) -> int:
    """How many tokens of a request may stay here after a step, where the next step has at most `batch` more.
    Raises Refused.
    """
    least = 2 * CHUNK + batch
    if window < least:
        raise Refused(
            f"banyan: BANYAN_WINDOW={window}: with steps of up to {batch} tokens (--max-num-batched-tokens) at least {least} are needed"
        )
    return window - 1 - batch


def _moved(line: int, length: int, most: int) -> int:
    """The line such that at most so many tokens of `length` are behind it, at a whole chunk where it has to
    move.
    """
    if length - line <= most:
        return line
    return length - most + (-(length - most)) % CHUNK


def handed_after(handed: int, computed: int, keep: int) -> int:
    """What was handed over after a step; keep 0: all. The scheduler's side and the workers' agree on it
    without a word.
    """
    return computed if keep == 0 else _moved(handed, computed, keep)


def stored_before(stored: int, start: int, window: int) -> int:
    """What must be stored before a step from `start` on: by then vLLM has freed what no row at `start` would
    see in its window.
    """
    return _moved(stored, start, window - 1)


def blocks_of(length: int, block: int, window: int, batch: int) -> int:
    """KV blocks of a request. With a window they hold keys, and vLLM frees those behind it: twice what a step
    needs is enough for models with two kinds of layers, whose blocks are counted apart; however long the text
    is.
    """
    whole = -(-length // block)
    return min(whole, 2 * (-(-(window + batch) // block) + 1)) if window else whole
