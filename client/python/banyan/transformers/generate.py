# SPDX-License-Identifier: Apache-2.0
"""generate() shows its cache the model and the whole text, before it feeds anything."""

from __future__ import annotations

import functools
from typing import Any

from transformers.generation.utils import GenerationMixin

from .cache import BanyanCache


def watch_generate() -> None:
    """Later the cache sees the tokens that are fed alone: what it holds of the text could not be compared any more."""
    generate = GenerationMixin.generate
    if hasattr(generate, "_banyan"):
        return

    @functools.wraps(generate)
    def watched(self: Any, inputs: Any = None, *arguments: Any, **keywords: Any) -> Any:
        cache = keywords.get("past_key_values")
        if isinstance(cache, BanyanCache):
            cache.begin_generating(self, keywords.get("input_ids") if inputs is None else inputs)
        return generate(self, inputs, *arguments, **keywords)

    watched._banyan = True  # type: ignore[attr-defined]
    GenerationMixin.generate = watched  # type: ignore[method-assign]
