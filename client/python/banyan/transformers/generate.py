# SPDX-License-Identifier: Apache-2.0
"""generate() shows its cache the model and the whole text, before it feeds anything; and what it is about
while it runs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from transformers.generation.utils import GenerationMixin

from .refused import Refused


class Asked:
    """What generate() was called with, as far as a cache needs it.

    Attributes:
        tokens: the text, ids [batch, tokens] or embeddings [batch, tokens, hidden]; None: neither.
        mask: of its tokens; None: Transformers infers one.
        copies: how many sequences it makes of each.
    """

    def __init__(self, model: Any, inputs: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        given = keywords.get("generation_config", arguments[0] if arguments else None)
        self._sources = (keywords, vars(given) if given is not None else {}, vars(model.generation_config))
        self.tokens = next((x for x in (keywords.get("inputs_embeds"), keywords.get("input_ids"), inputs) if _is_text(x)), None)
        self.mask = keywords.get("attention_mask")
        self.copies = max(int(self.of("num_beams") or 1), int(self.of("num_return_sequences") or 1))

    @property
    def is_text(self) -> bool:
        """Whether it is given tokens alone: no images, no sound, no embeddings."""
        given = {name for name, value in self._sources[0].items() if isinstance(value, torch.Tensor)}
        return self.tokens is not None and not self.tokens.is_floating_point() and given <= {"input_ids", "inputs", "attention_mask"}

    def of(self, name: str) -> Any:
        return next((value for source in self._sources if (value := source.get(name)) is not None), None)

    def is_explicit(self, name: str) -> bool:
        """Whether the caller has said so, not the checkpoint."""
        return any(source.get(name) is not None for source in self._sources[:2])


def _is_text(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dim() == (3 if x.is_floating_point() else 2)


class Generating(Protocol):
    """A cache that must be asked."""

    def in_turn(self) -> AbstractContextManager[None]: ...

    def begin_generating(self, model: Any, asked: Asked) -> None: ...

    def end_generating(self, failed: bool) -> None: ...


class _Running(threading.local):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Asked]] = []


_running = _Running()


def running() -> tuple[Any, Any, Asked] | None:
    """The cache, the model and the arguments of the innermost generate() of this thread that was given a
    cache."""
    return _running.calls[-1] if _running.calls else None


@contextmanager
def _noted(cache: Generating, model: Any, asked: Asked) -> Iterator[None]:
    _running.calls.append((cache, model, asked))
    failed = True
    try:
        yield
        failed = False
    finally:
        _running.calls.pop()
        cache.end_generating(failed)


def watch_generate() -> None:
    """Later the cache sees the tokens that are fed alone: what it holds of the text could not be compared any
    more."""
    generate = GenerationMixin.generate
    if hasattr(generate, "_banyan"):
        return

    @functools.wraps(generate)
    def watched(self: Any, inputs: Any = None, *arguments: Any, **keywords: Any) -> Any:
        cache: Any = keywords.get("past_key_values")
        if not hasattr(cache, "begin_generating"):
            if not _running.calls and getattr(self.config, "_attn_implementation", None) == "banyan":
                raise Refused(
                    "generate() of a model with attn_implementation='banyan' is given no BanyanCache: give "
                    "past_key_values=BanyanCache(...), or call model.set_attn_implementation('sdpa') to generate without the cluster"
                )
            return generate(self, inputs, *arguments, **keywords)
        asked = Asked(self, inputs, arguments, keywords)
        if asked.of("use_cache") is False:
            if asked.is_explicit("use_cache"):
                raise Refused(
                    "use_cache=False and past_key_values contradict each other: without a cache generate() feeds the whole text at each "
                    "step, which would be appended to the session each time. Leave one of the two out"
                )
            keywords["use_cache"] = True  # the checkpoint's default: a caller that gives a cache expects it to be used
        if asked.of("token_healing"):
            raise Refused("token_healing changes the text after it was compared with the session: heal it before, and give the result")
        with cache.in_turn(), _noted(cache, self, asked):
            cache.begin_generating(self, asked)
            return generate(self, inputs, *arguments, **keywords)

    watched._banyan = True  # type: ignore[attr-defined]
    GenerationMixin.generate = watched  # type: ignore[method-assign]
