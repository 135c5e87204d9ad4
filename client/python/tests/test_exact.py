# SPDX-License-Identifier: Apache-2.0
"""Exact or refused, at every call: each answer is what one forward over the whole text gives, without a
cache; or there is none."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from generating import NEW, models, prompt  # noqa: E402

from banyan.transformers import BanyanCache, Refused, prefill  # noqa: E402

MOST = 2e-5  # relative to the largest logit


@pytest.fixture
def llama():
    return models()


def whole(eager, ids, **more):
    """One forward over all of it, without a cache."""
    with torch.no_grad():
        return eager(ids, use_cache=False, **more).logits


def near(got, want):
    return bool((got - want).abs().max() <= MOST * want.abs().max())


def greedy(model, ids, cache=None, **more):
    more = {"max_new_tokens": NEW, "do_sample": False, "attention_mask": torch.ones_like(ids), **more}
    return model.generate(ids, **({} if cache is None else {"past_key_values": cache}), **more)


def other_text(ids, at):
    ids = ids.clone()
    ids[:, at] = (ids[:, at] + 1) % 120 + 3
    return ids


def joined(*parts):
    return torch.cat([p if isinstance(p, torch.Tensor) else torch.tensor(p) for p in parts], dim=1)


# ---- use_cache ----


@pytest.mark.parametrize("config", [False, True])
def test_use_cache_false_contradicts_a_cache(client, llama, config):
    _, ours = llama
    with BanyanCache(ours, client, "book") as cache:
        more = {"use_cache": False}
        if config:
            given = copy.deepcopy(ours.generation_config)
            given.use_cache = False
            more = {"generation_config": given}
        with pytest.raises(Refused, match="contradict each other"):
            greedy(ours, prompt(), cache, **more)
        assert cache.get_seq_length() == 0


def test_a_checkpoint_that_says_use_cache_false(client, llama):
    eager, ours = llama
    want = greedy(eager, prompt())
    ours.generation_config.use_cache = ours.config.use_cache = False
    for given in (ours, ours.config):
        with BanyanCache(given, client) as cache:
            assert greedy(ours, prompt(), cache).tolist() == want.tolist()
            assert cache.get_seq_length() == 40 + NEW - 1


def test_token_healing(client, llama):
    with BanyanCache(llama[1], client) as cache, pytest.raises(Refused, match="token_healing"):
        greedy(llama[1], prompt(), cache, token_healing=True)


# ---- the text, at every call ----


@pytest.mark.parametrize("resumed", [False, True])
def test_every_generate_compares(client, llama, resumed):
    eager, ours = llama
    with BanyanCache(ours, client, "book") as cache:
        first = greedy(ours, prompt(), cache)
        if resumed:
            cache.close()
            cache = BanyanCache(ours.config, client, "book")
            first = greedy(ours, joined(first, [[5, 6]]), cache)
        held = first.shape[1] - 1
        for at in (0, 20, held - 1):
            with pytest.raises(Refused, match=f"token {at} of sequence 0"):
                greedy(ours, joined(other_text(first, at), [[7]]), cache)
            assert cache.get_seq_length() == held
        longer = joined(first, [[7]])
        assert greedy(ours, longer, cache).tolist() == greedy(eager, longer).tolist()
        cache.delete()


def test_every_prefill_compares(client, llama):
    _, ours = llama
    with BanyanCache(ours, client) as cache:
        prefill(ours, prompt(1, 60), cache, block=16)
        with pytest.raises(Refused, match="token 30 of sequence 0"):
            prefill(ours, joined(other_text(prompt(1, 60), 30), [[7]]), cache)
        prefill(ours, joined(prompt(1, 60), [[7, 8]]), cache)
        with pytest.raises(Refused, match="holds 1 sequences and is given 2"):
            prefill(ours, prompt(2, 90), cache)


def test_texts_of_a_pipeline_one_after_the_other(client, llama):
    """As pipeline([...], past_key_values=cache) calls generate()."""
    _, ours = llama
    with BanyanCache(ours, client) as cache:
        greedy(ours, prompt(1, 20), cache)
        with pytest.raises(Refused, match="token 0 of sequence 0"):
            greedy(ours, prompt(1, 60).flip(1), cache)


def test_a_batch_repeated_by_hand(client, llama):
    eager, ours = llama
    with BanyanCache(ours, client, "book") as cache:
        greedy(ours, prompt(), cache)
    with BanyanCache(ours, client, "book") as cache, cache.fork() as fork:
        ids = joined(other_text(prompt(), 5), [[7] * NEW])
        fork.batch_repeat_interleave(3)
        with pytest.raises(Refused, match="token 5 of sequence 0"):
            greedy(ours, ids, fork, num_beams=3)
        ids = joined(prompt(), [[7] * NEW])
        with pytest.raises(Refused, match="token 40 of sequence 0"):
            greedy(ours, ids.repeat(3, 1), fork)
        fork.crop(40 - fork.get_seq_length())
        assert greedy(ours, ids.repeat(3, 1), fork).tolist() == greedy(eager, ids.repeat(3, 1)).tolist()


def test_the_numbers_of_rows_are_compared(client, llama):
    _, ours = llama
    with BanyanCache(ours, client) as cache:
        greedy(ours, prompt(), cache)
        with pytest.raises(Refused, match=r"holds 1 sequences and generate\(\) is given 2.*num_return_sequences"):
            greedy(ours, prompt(2, 60), cache)


def test_what_beams_leave_behind_is_compared(client, llama):
    _, ours = llama
    with BanyanCache(ours, client) as cache:
        out = greedy(ours, prompt(2), cache, num_beams=3)
        assert len(cache.pads) == 6
        with pytest.raises(Refused, match="of sequence 0"):
            greedy(ours, joined(other_text(out, 3), torch.full((2, 1), 7)), cache, num_beams=3)


def test_padding_that_moves(client, llama):
    _, ours = llama
    mask = torch.ones(2, 40, dtype=torch.long)
    mask[0, :5] = 0
    with BanyanCache(ours, client) as cache:
        out = greedy(ours, prompt(2), cache, attention_mask=mask)
        mask = torch.ones(2, out.shape[1], dtype=torch.long)
        mask[0, :7] = 0
        with pytest.raises(Refused, match=r"sequence 0 has 7 tokens of padding.*5 in the session: padding cannot move"):
            greedy(ours, out, cache, attention_mask=mask)
        with pytest.raises(Refused, match="attention_mask is for 40 tokens"):
            greedy(ours, out, cache, attention_mask=mask[:, :40])


def test_rewind_to(client, llama):
    eager, ours = llama
    with BanyanCache(ours, client, "chat") as cache:
        assert cache.rewind_to(prompt()) == 0
        out = greedy(ours, prompt(), cache)
    changed = joined(other_text(out, 45), [[9, 9, 9]])
    for given in (ours, ours.config):
        with BanyanCache(given, client, "chat") as cache, cache.fork() as fork:
            with pytest.raises(Refused, match=r"token 45 of sequence 0.*rewind_to"):
                greedy(ours, changed, fork)
            assert fork.rewind_to(changed) == 45
            assert greedy(ours, changed, fork).tolist() == greedy(eager, changed).tolist()
            assert fork.rewind_to(prompt()) == 40
            assert greedy(ours, prompt(), fork).tolist() == out.tolist()
            assert fork.rewind_to(prompt().flip(1)) == 0
            assert greedy(ours, prompt().flip(1), fork).tolist() == greedy(eager, prompt().flip(1)).tolist()


def test_rewind_of_a_batch(client, llama):
    eager, ours = llama
    mask = torch.ones(2, 40, dtype=torch.long)
    mask[0, :5] = 0
    with BanyanCache(ours, client) as cache:
        out = greedy(ours, prompt(2), cache, attention_mask=mask)
        changed = out.clone()
        changed[1, 43] = (changed[1, 43] + 1) % 120 + 3
        assert cache.rewind_to(changed) == 43
        mask = torch.cat((mask, torch.ones(2, NEW, dtype=torch.long)), dim=1)
        got = greedy(ours, changed, cache, attention_mask=mask)
        assert got.tolist() == greedy(eager, changed, attention_mask=mask).tolist()


# ---- going on after an error ----


class Stops:
    """A streamer that fails after some tokens."""

    def __init__(self, after):
        self.left = after

    def put(self, tokens):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def end(self):
        pass


@pytest.mark.parametrize("after", [1, 2, 7])
@pytest.mark.parametrize("more", [{}, {"num_return_sequences": 3, "do_sample": True}])
def test_the_same_call_after_an_error(client, llama, after, more):
    eager, ours = llama
    if more:
        left = [after]

        def criteria(ids, scores, **_):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return torch.zeros(len(ids), dtype=torch.bool)

        failing = {"stopping_criteria": [criteria]}
    else:
        failing = {"streamer": Stops(after)}
    with BanyanCache(ours, client, "book") as cache:
        with pytest.raises(KeyboardInterrupt):
            greedy(ours, prompt(), cache, **more, **failing)
        torch.manual_seed(3)
        got = greedy(ours, prompt(), cache, **more)
        torch.manual_seed(3)
        assert got.tolist() == greedy(eager, prompt(), **more).tolist()
        with pytest.raises(Refused, match="is given 40 tokens, and the cache holds"):
            greedy(ours, prompt(), cache, **more)  # that one has ended well


def test_an_error_and_then_something_else(client, llama):
    """What was fed since is not taken away."""
    _, ours = llama
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        with pytest.raises(KeyboardInterrupt):
            greedy(ours, prompt(), cache, streamer=Stops(3))
        ours(torch.tensor([[7, 8]]), past_key_values=cache)
        held = cache.get_seq_length()
        with pytest.raises(Refused, match="is given 40 tokens"):
            greedy(ours, prompt(), cache)
        assert cache.get_seq_length() == held


# ---- beams over what is held ----


BEAMS = [{"num_beams": 3}, {"num_beams": 4, "num_return_sequences": 2}, {"num_return_sequences": 3, "do_sample": True}]


@pytest.mark.parametrize("more", BEAMS)
@pytest.mark.parametrize("by_name", [False, True])
def test_beams_over_a_held_session(client, llama, more, by_name):
    eager, ours = llama
    ids = joined(prompt(), [[7, 8, 9]])
    with torch.no_grad(), BanyanCache(ours, client, "book" if by_name else None) as cache:
        ours(prompt(), past_key_values=cache)
        for given in (ids, prompt()):
            with cache.fork() as fork:
                torch.manual_seed(3)
                got = greedy(ours, given, fork, **more)
            torch.manual_seed(3)
            assert got.tolist() == greedy(eager, given, **more).tolist()
        torch.manual_seed(3)
        got = greedy(ours, ids, cache, **more)
        torch.manual_seed(3)
        assert got.tolist() == greedy(eager, ids, **more).tolist()
    if by_name:
        with BanyanCache(ours, client, "book") as cache:
            assert cache.tokens()[0].tolist() == prompt()[0].tolist()


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("guess", [{}, {"prompt_lookup_num_tokens": 3}, {"assistant_early_exit": 2}])
def test_guessed_tokens_over_a_held_session(client, llama, guess, resumed):
    """Transformers gives the first forward of such a generate() the whole text."""
    eager, ours = llama
    guess = guess or {"assistant_model": models()[0]}
    ids = prompt(1, 12).repeat(1, 3)
    cache = BanyanCache(ours, client, "book")
    for n in range(3):
        out = greedy(ours, ids, cache, **guess)
        assert out.tolist() == greedy(eager, ids).tolist()
        assert cache.tokens()[0].tolist() == out[0, : cache.get_seq_length()].tolist()
        ids = joined(out, out[:, : (3, 60)[n % 2]])
        if resumed:
            cache.close()
            cache = BanyanCache(ours.config, client, "book")
    assert greedy(ours, ids, cache).tolist() == greedy(eager, ids).tolist()
    cache.delete()


def test_beams_with_wrong_text(client, llama):
    _, ours = llama
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        ours(prompt(), past_key_values=cache)
        with pytest.raises(Refused, match="token 7 of sequence 0"):
            greedy(ours, other_text(prompt(), 7), cache, num_beams=3)
        assert len(cache.pads) == 1


# ---- embeddings ----


def embedded(model, ids):
    with torch.no_grad():
        return model.get_input_embeddings()(ids)


@pytest.mark.parametrize("given", ["model", "config"])
@pytest.mark.parametrize("resumed", [False, True])
def test_embeddings_are_compared(client, llama, given, resumed):
    eager, ours = llama
    one, two = torch.randn(1, 30, 64), torch.randn(1, 36, 64)
    made = ours if given == "model" else ours.config
    cache = BanyanCache(made, client, "book")
    with torch.no_grad():
        ours(inputs_embeds=one, past_key_values=cache)
    if resumed:
        cache.close()
        cache = BanyanCache(made, client, "book")
    with pytest.raises(Refused, match="token 0 of sequence 0 is an embedding in the session and an embedding in what is given"):
        ours.generate(inputs_embeds=two, past_key_values=cache, max_new_tokens=4)
    two[:, :30] = one
    two[0, 17, 3] += 1e-6
    with pytest.raises(Refused, match="token 17 of sequence 0"):
        ours.generate(inputs_embeds=two, past_key_values=cache, max_new_tokens=4)
    with pytest.raises(Refused, match="is an embedding in the session"):
        greedy(ours, prompt(), cache)
    two[:, :30] = one
    got = ours.generate(inputs_embeds=two, past_key_values=cache, max_new_tokens=8, do_sample=False)
    assert got.tolist() == eager.generate(inputs_embeds=two, max_new_tokens=8, do_sample=False).tolist()
    cache.delete()


def test_ids_and_their_embeddings(client, llama):
    """They are the same text, where the model makes nothing else of ids."""
    eager, ours = llama
    with BanyanCache(ours, client) as cache:
        out = greedy(ours, prompt(), cache)
        longer = joined(out, [[7, 8]])
        got = ours.generate(inputs_embeds=embedded(ours, longer), past_key_values=cache, max_new_tokens=8, do_sample=False)
        assert got.tolist() == greedy(eager, longer, max_new_tokens=8)[:, longer.shape[1] :].tolist()
    _, ours = models("gemma3n_text")  # has a second table
    with torch.no_grad():
        for p in ours.parameters():
            if p.dim() == 1:
                p.add_(0.1)
    with BanyanCache(ours, client) as cache:
        out = greedy(ours, prompt(), cache)
        with pytest.raises(Refused, match=r"token 0 of sequence 0 is .* and an embedding in what is given"):
            ours.generate(inputs_embeds=embedded(ours, joined(out, [[7, 8]])), past_key_values=cache, max_new_tokens=8)
