# SPDX-License-Identifier: Apache-2.0
"""generate() with eager attention and over the service, side by side."""

from __future__ import annotations

import torch
from families import FAMILIES, make

from banyan.transformers import BanyanCache

NEW = 16


def telling(model, seed=3, spread=0.15):
    """With weights that make every token's logits differ, and no token that ends a text."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0, spread)
    model.generation_config.eos_token_id = None
    return model


def models(family="llama"):
    """The same model twice: with eager attention, and over the service."""
    return [telling(make(family, FAMILIES[family], attention)) for attention in ("eager", "banyan")]


def prompt(batch=1, tokens=40):
    torch.manual_seed(5)
    return torch.randint(3, 128, (batch, tokens))


def both_generate(client, pair, ids, use_cache=True, **options):
    """use_cache: of eager attention's; False: each token comes from one forward over the whole text."""
    eager, ours = pair
    options = {"max_new_tokens": NEW, "do_sample": False, **options}
    torch.manual_seed(11)
    want = eager.generate(ids, use_cache=use_cache, **options)
    torch.manual_seed(11)
    with BanyanCache(ours.config, client, chunk_tokens=16) as cache:
        got = ours.generate(ids, past_key_values=cache, **options)
    assert client.sessions() == []  # nothing is left behind
    assert got.tolist() == want.tolist()
    return got
