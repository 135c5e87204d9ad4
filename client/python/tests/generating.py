# SPDX-License-Identifier: Apache-2.0
"""generate() with eager attention and over the service, side by side."""

from __future__ import annotations

import torch
from families import FAMILIES, make

from banyan.transformers import BanyanCache

NEW = 16


def models(family="llama"):
    """The same model twice: with eager attention, and over the service."""
    both = []
    for attention in ("eager", "banyan"):
        model = make(family, FAMILIES[family], attention)
        torch.manual_seed(3)
        with torch.no_grad():
            for p in model.parameters():
                if p.dim() > 1:
                    p.normal_(0, 0.15)
        model.generation_config.eos_token_id = None
        both.append(model)
    return both


def prompt(batch=1, tokens=40):
    torch.manual_seed(5)
    return torch.randint(3, 128, (batch, tokens))


def both_generate(client, pair, ids, **options):
    eager, ours = pair
    options = {"max_new_tokens": NEW, "do_sample": False, **options}
    torch.manual_seed(11)
    want = eager.generate(ids, **options)
    torch.manual_seed(11)
    with BanyanCache(ours.config, client, chunk_tokens=16) as cache:
        got = ours.generate(ids, past_key_values=cache, **options)
    assert client.sessions() == []  # nothing is left behind
    assert got.tolist() == want.tolist()
    return got
