# SPDX-License-Identifier: Apache-2.0
"""Each forward counts positions as those before it did, or is refused; a session says how that was."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from generating import NEW, models, prompt  # noqa: E402

from banyan.transformers import BanyanCache, Refused  # noqa: E402

MOST = 2e-5  # relative to the largest logit


@pytest.fixture
def llama():
    return models()


def near(got, want):
    return bool((got - want).abs().max() <= MOST * want.abs().max())


def greedy(model, ids, cache=None, **more):
    more = {"max_new_tokens": NEW, "do_sample": False, "attention_mask": torch.ones_like(ids), **more}
    return model.generate(ids, **({} if cache is None else {"past_key_values": cache}), **more)


def counted(mask, by):
    """[batch, tokens]"""
    return (mask.cumsum(1) - 1).clamp(min=0) if by == "tokens" else torch.arange(mask.shape[1])[None].expand(len(mask), -1)


@pytest.fixture(scope="module")
def mask():
    mask = torch.ones(2, 40, dtype=torch.long)
    mask[0, :9] = 0
    return mask


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("first,then", [("columns", "tokens"), ("tokens", "columns"), (None, "tokens"), ("tokens", None)])
def test_positions_that_count_padding_and_then_do_not(client, llama, mask, resumed, first, then):
    """As a bare forward without position_ids does, and generate() does not. Eager attention mixes them."""
    eager, ours = llama

    def call(model, by, at, end, **more):
        given = {} if by is None else {"position_ids": counted(mask, by)[:, at:end]}
        return model(prompt(2)[:, at:end], attention_mask=mask[:, :end], **given, **more).logits

    with torch.no_grad():
        cache = BanyanCache(ours, client, "book")
        call(ours, first, 0, 30, past_key_values=cache)
        if resumed:
            cache.close()
            cache = BanyanCache(ours, client, "book")
        for _ in range(2):
            with pytest.raises(Refused, match=r"position_ids of sequence 0 go on at .*counts? tokens"):
                call(ours, then, 30, 40, past_key_values=cache)
        assert cache.get_seq_length() == 30
        got = call(ours, first, 30, 40, past_key_values=cache)
        want = eager(prompt(2), attention_mask=mask, position_ids=counted(mask, first or "columns"), use_cache=False).logits[:, 30:]
        assert near(got, want)
        if first == "tokens":
            ids, more = torch.cat((prompt(2), prompt(2)[:, :2]), dim=1), torch.ones(2, 2, dtype=torch.long)
            greedy(ours, ids, cache, attention_mask=torch.cat((mask, more), dim=1))
        cache.delete()


@pytest.mark.parametrize("family", ["opt", "gpt2", "gpt_bigcode"])
def test_models_that_count_tokens_by_themselves(client, mask, family):
    """Or do not: generate() goes on behind a bare forward where one forward over both is what that gives."""
    eager, ours = models(family)
    ids, longer = torch.cat((prompt(2), prompt(2)[:, :2]), dim=1), torch.cat((mask, torch.ones(2, 2, dtype=torch.long)), dim=1)
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        ours(prompt(2), attention_mask=mask, past_key_values=cache)
        try:
            got = greedy(ours, ids, cache, attention_mask=longer)
        except Refused as refused:
            assert family != "opt" and "position_ids of sequence 0" in str(refused)
        else:
            assert family == "opt" and got.tolist() == greedy(eager, ids, attention_mask=longer).tolist()


def test_texts_that_are_packed_into_one(client, llama):
    """Transformers sees that by position_ids if there is no attention_mask, and no cache."""
    eager, ours = llama
    packed, gaps = (torch.cat((torch.arange(20), torch.arange(a, a + 20)))[None] for a in (0, 30))
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        for positions in (packed, gaps):
            with pytest.raises(Refused, match=r"packed into one.*attention_mask=torch.ones_like"):
                ours(prompt(), position_ids=positions, past_key_values=cache)
            want = eager(prompt(), position_ids=positions, use_cache=False).logits
            assert near(ours(prompt(), position_ids=positions, use_cache=False).logits, want)
        more = {"position_ids": gaps, "attention_mask": torch.ones(1, 40)}
        assert near(ours(prompt(), past_key_values=cache, **more).logits, eager(prompt(), use_cache=False, **more).logits)


def test_positions_of_the_callers(client, llama):
    """Any are taken, and must go on; a session that was begun so is not continued with others."""
    eager, ours = llama
    positions = torch.arange(100, 140)[None]
    with torch.no_grad(), BanyanCache(ours, client, "book") as cache:
        got = [
            ours(prompt()[:, a:b], position_ids=positions[:, a:b], past_key_values=cache).logits for a, b in ((0, 30), (30, 39), (39, 40))
        ]
        assert near(torch.cat(got, dim=1), eager(prompt(), position_ids=positions).logits)
        with pytest.raises(Refused, match=r"position_ids of sequence 0 go on at 40.*so that the last one is 139"):
            ours(prompt(1, 1), past_key_values=cache)
        cache.crop(-1)
        got = ours(prompt()[:, 39:], position_ids=positions[:, 39:], past_key_values=cache).logits
        assert near(got, eager(prompt(), position_ids=positions).logits[:, 39:])
    with torch.no_grad(), BanyanCache(ours, client, "book") as cache:
        for more in ({}, {"position_ids": torch.tensor([[140]])}):
            with pytest.raises(Refused, match="in a way that its session does not say"):
                ours(prompt(1, 1), past_key_values=cache, **more)
        cache.reset()
        assert greedy(ours, prompt(), cache).tolist() == greedy(eager, prompt()).tolist()
