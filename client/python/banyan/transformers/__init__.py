# SPDX-License-Identifier: Apache-2.0
"""Transformers' models with their KV cache in a Banyan cluster.

model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="banyan")
cache = banyan.transformers.BanyanCache(model.config, client, session="war-and-peace")
model.generate(**inputs, past_key_values=cache)
"""

from .attention import register
from .cache import BanyanCache
from .prefill import prefill
from .refused import Refused

register()

__all__ = ["BanyanCache", "Refused", "prefill"]
