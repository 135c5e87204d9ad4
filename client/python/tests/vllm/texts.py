# SPDX-License-Identifier: Apache-2.0
"""Prompts, and how answers are compared."""

from __future__ import annotations

import random

from engine import Output

MOST = 2e-4  # largest difference of a log-probability between plain vLLM and ours, in float32


def prompts(*lengths: int, seed: int = 1) -> list[list[int]]:
    """Random tokens: the same at every call, and none of the special ones."""
    drawn = random.Random(seed)
    return [[drawn.randrange(3, 999) for _ in range(n)] for n in lengths]


def compare(plain: list[Output], ours: list[Output], most: float = MOST) -> float:
    """Fails unless they are equal: the same tokens, up to a tie, and log-probabilities within `most`. Returns
    the largest difference.

    A tie: where plain vLLM finds both tokens equally likely, within `most`. Behind one the texts are
    different, and no longer compared.
    """
    assert len(plain) == len(ours)
    largest = 0.0
    for i, (a, b) in enumerate(zip(plain, ours)):
        assert b.finish == a.finish, f"sequence {i} ended with {b.finish!r}, plain with {a.finish!r}"
        assert len(a.tokens) == len(b.tokens), f"sequence {i} has {len(b.tokens)} tokens, plain has {len(a.tokens)}"
        places = list(zip(a.prompt_logprobs, b.prompt_logprobs))
        assert len(a.prompt_logprobs) == len(b.prompt_logprobs)
        for place, (x, y) in enumerate(places):
            largest = max(largest, _apart(x, y, most, f"sequence {i}, token {place + 1} of the prompt"))
        assert len(a.logprobs) == len(b.logprobs) == len(a.tokens)
        for place, (x, y) in enumerate(zip(a.logprobs, b.logprobs)):
            where = f"sequence {i}, token {place}"
            largest = max(largest, _apart(x, y, most, where))
            s, t = a.tokens[place], b.tokens[place]
            if s != t:
                assert t in x and abs(x[s] - x[t]) <= most, f"{where} is {t}, plain vLLM has {s}: no tie: {x}"
                break
    return largest


def _apart(x: dict[int, float], y: dict[int, float], most: float, where: str) -> float:
    both = x.keys() & y.keys()
    # The likeliest few of each: one that is missing on a side must be at the edge of them, as near as `most`
    # to the last.
    for mine, other in ((x, y), (y, x)):
        for token in mine.keys() - both:
            assert mine[token] <= min(other.values()) + most, f"{where}: token {token} at {mine[token]} is not among {other}"
    found = max((abs(x[t] - y[t]) for t in both), default=float("inf"))
    assert found <= most, f"{where}: a log-probability is {found:.1e} apart"
    return found
