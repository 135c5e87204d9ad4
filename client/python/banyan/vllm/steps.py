# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's side sends to the worker's side with each step: plain values, which pickle well."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Row:
    """One request's part of a step.

    Attributes:
        request, name: whose, and its session (without a rank).
        start: position of its first token in this step: the session has exactly the tokens before it.
        tokens: their ids.
        blocks: KV blocks that the request has got since its last row; all of them where `fresh`.
        fresh: the request begins here, or goes on after a preemption: its earlier blocks are no longer its
            own.
        mark: of the model (mark.py).
        opens: how its session is come by, of a request's first row; "": it is open.
            "create": there is none of this name, or what it has does not count; "resume": it has at least
            `start` tokens; "fork": a copy of the first `start` tokens of the session `parent`.
        lasts: the session stays when the request has ended, and gets what the engine still has of it then.
        seen: of a session that is resumed, its incarnation at each rank when its tokens were read.
        ttl_s: of a session that is created; 0: it is never deleted.
        refused: the request fails here, for this reason; "": it is served.
    """

    request: str
    name: str
    start: int
    tokens: list[int]
    blocks: list[int]
    fresh: bool
    mark: int
    opens: str = ""
    parent: str = ""
    lasts: bool = False
    seen: tuple[int, ...] = ()
    ttl_s: float = 0.0
    refused: str = ""


@dataclass
class Step:
    """rows: of requests that compute; ended: requests that are over since the last step; preempted: that lose
    their blocks with it.
    """

    rows: list[Row] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
