# SPDX-License-Identifier: Apache-2.0
"""Blocks are one forward: models whose frequencies depend on the length, whose states are left out, whose
window only caches have."""

from __future__ import annotations

import threading
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from families import FAMILIES, make  # noqa: E402
from generating import NEW, prompt, telling  # noqa: E402
from transformers import DynamicCache  # noqa: E402

from banyan.transformers import BanyanCache, Refused, prefill  # noqa: E402

MOST = 2e-5  # relative to the largest logit
BORDER = 48
LONG = dict(
    rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=BORDER, short_factor=[1.0] * 8,
    long_factor=[1.0 + i for i in range(8)], factor=8.0,
)  # fmt: skip
PLAIN = dict(rope_type="default", rope_theta=1e4)
LONGROPE = {
    "phi3": {"rope_parameters": LONG, "num_attention_heads": 4, "original_max_position_embeddings": BORDER},
    "phimoe": {
        **FAMILIES["phimoe"], "rope_parameters": {**LONG, "short_mscale": 1.1, "long_mscale": 1.4},
        "original_max_position_embeddings": BORDER,
    },
    "llama": {"rope_parameters": LONG},
    "mistral": {"rope_scaling": {**{k: v for k, v in LONG.items() if k != "rope_type"}, "type": "longrope"}},  # as it was written once
    "gemma3_text": {**FAMILIES["gemma3_text"], "rope_parameters": {"full_attention": LONG, "sliding_attention": PLAIN}},
}  # fmt: skip
STATES = ["qwen3_next", "lfm2", "falcon_h1", "bamba", "jamba", "zamba", "zamba2", "granitemoehybrid", "nemotron_h", "recurrent_gemma"]
# A step and a forward of theirs differ by that, with any cache.
OF_THE_MODELS_OWN = {"qwen3_next": 1e-3}


def pair(family, options):
    return [telling(make(family, options, attention)) for attention in ("eager", "banyan")]


def whole(eager, ids, **more):
    with torch.no_grad():
        return eager(ids, use_cache=False, **more).logits


def near(got, want, most=MOST):
    return float((got - want).abs().max() / want.abs().max()) <= most


def one_forward_a_token(eager, ids, new, **more):
    """Greedy, each token from one forward over the whole text."""
    for _ in range(new):
        ids = torch.cat((ids, whole(eager, ids, **more)[:, -1].argmax(-1, keepdim=True)), dim=1)
    return ids


def generate(ours, ids, cache, new):
    return ours.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, max_new_tokens=new, do_sample=False)


def last(model, ids, cache):
    with torch.no_grad():
        return model(ids[:, cache.get_seq_length() :], past_key_values=cache).logits[:, -1:]


# ---- frequencies ----


@pytest.fixture(params=LONGROPE)
def long(request):
    return pair(request.param, LONGROPE[request.param])


@pytest.mark.parametrize("tokens", [BORDER - 1, BORDER, BORDER + 1, 3 * BORDER])
def test_longrope_in_blocks(client, long, tokens):
    eager, ours = long
    ids = prompt(2, tokens)
    want = whole(eager, ids)[:, -1:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is fed twice
        with BanyanCache(ours, client, "book") as cache:
            prefill(ours, ids, cache, block=10)
            assert near(last(ours, ids, cache), want)
        with BanyanCache(ours, client, "book") as cache:  # resumed
            assert cache.get_seq_length() == tokens
            more = torch.cat((ids, prompt(2, 5)), dim=1)
            if tokens > BORDER or tokens + 5 <= BORDER:
                assert near(last(ours, more, cache), whole(eager, more)[:, -1:])
            cache.delete()


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("tokens", [BORDER - 7, BORDER, BORDER + 1])
def test_longrope_generates_across_the_border(client, long, tokens, named):
    eager, ours = long
    want = one_forward_a_token(eager, prompt(1, tokens), 12)
    with BanyanCache(ours, client, "book" if named else None) as cache:
        if tokens <= BORDER:
            with pytest.warns(UserWarning, match=rf"{BORDER}\] tokens, where this model changes its frequencies.*fed again, once"):
                got = generate(ours, prompt(1, tokens), cache, 12)
        else:
            got = generate(ours, prompt(1, tokens), cache, 12)
        assert got.tolist() == want.tolist()
        assert cache.tokens()[0].tolist() == got[0, :-1].tolist()
        assert generate(ours, got, cache, 4).tolist() == one_forward_a_token(eager, want, 4).tolist()


def test_longrope_and_back(client, long):
    """A text that was long and is short again has the short factors again; in batches with padding, too."""
    eager, ours = long
    ids, mask = prompt(2, 60), torch.ones(2, 60, dtype=torch.long)
    mask[1, :5] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with BanyanCache(ours, client) as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prefill(ours, ids, cache, attention_mask=mask, block=10)
        cache.crop(40 - 59)
        more = dict(max_new_tokens=1, do_sample=False, return_dict_in_generate=True, output_logits=True)
        got = ours.generate(ids[:, :42], attention_mask=mask[:, :42], past_key_values=cache, **more)
        want = whole(eager, ids[:, :42], attention_mask=mask[:, :42], position_ids=positions[:, :42])[:, -1]
        assert near(got.logits[0], want)


def test_longrope_in_two_threads(client, long):
    """A short text is fed while a long one's forward is under way: each has its own form."""
    eager, ours = long
    ids, inside, done = prompt(1, 3 * BORDER), threading.Event(), threading.Event()

    def wait(*_):
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            done.wait(60)

    with BanyanCache(ours, client) as one, BanyanCache(ours, client) as other:
        prefill(ours, ids, one, block=50)
        hook = ours.model.layers[1].register_forward_pre_hook(wait)
        got = []
        thread = threading.Thread(target=lambda: got.append(last(ours, ids, one)))
        thread.start()
        inside.wait(60)
        try:
            mine = last(ours, ids[:, :20], other)
        finally:
            done.set()
            thread.join()
            hook.remove()
        assert near(mine, whole(eager, ids[:, :20])[:, -1:]) and near(got[0], whole(eager, ids)[:, -1:])


def test_longrope_in_forwards_of_the_callers(client, long):
    """Each is one forward over the text up to there, whichever form that has; with padding that has
    positions, or none."""
    eager, ours = long
    ids, mask = prompt(2, 64), torch.ones(2, 64, dtype=torch.long)
    mask[1, :5] = 0
    for all_of in ({}, {"attention_mask": mask}, {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}):
        with torch.no_grad(), warnings.catch_warnings(), BanyanCache(ours, client) as cache:
            warnings.simplefilter("ignore")
            for at, end in ((0, 33), (33, 60), (60, 61), (61, 64)):
                more = {name: x[:, at:end] if name == "position_ids" else x[:, :end] for name, x in all_of.items()}
                got = ours(ids[:, at:end], past_key_values=cache, **more).logits
                want = whole(eager, ids[:, :end], **{name: x[:, :end] for name, x in all_of.items()})[:, at:]
                seen = mask[:, at:end].bool() if all_of else torch.ones(2, end - at, dtype=torch.bool)
                assert near(got[seen], want[seen]), (all_of.keys(), at)


def test_longrope_where_positions_count_something_else(client, long):
    _, ours = long
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        ours(prompt(1, 30), past_key_values=cache, position_ids=torch.arange(5, 35)[None])
        with pytest.raises(Refused, match="position_ids count something else than its tokens"):
            ours(prompt(1, 20), past_key_values=cache, position_ids=torch.arange(36, 56)[None])


TWO = {"full_attention": LONG, "sliding_attention": {**LONG, "original_max_position_embeddings": 72, "long_factor": [2.0] * 8}}


@pytest.mark.parametrize("tokens", [40, 60, 80])
def test_longrope_with_a_border_for_each_type_of_layers(client, tokens):
    eager, ours = pair("gemma3_text", {**FAMILIES["gemma3_text"], "rope_parameters": TWO})
    ids = prompt(2, tokens)
    with BanyanCache(ours, client, "book") as cache:
        prefill(ours, ids, cache, block=10)
        assert near(last(ours, ids, cache), whole(eager, ids)[:, -1:])
    with BanyanCache(ours, client, "book") as cache:
        more = torch.cat((ids, prompt(2, 6)), dim=1)
        assert near(last(ours, more, cache), whole(eager, more)[:, -1:])
        cache.delete()
    with BanyanCache(ours, client) as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = generate(ours, ids[:1, : tokens - 20], cache, 40)
        assert got.tolist() == one_forward_a_token(eager, ids[:1, : tokens - 20], 40).tolist()


def test_frequencies_that_depend_on_the_length_in_a_way_of_their_own(client):
    """As code beside a checkpoint may have them: no rope_type says so."""
    eager, ours = pair("llama", {})

    class Own(type(ours.model.rotary_emb)):
        def forward(self, x, position_ids):
            self.inv_freq = self.original_inv_freq / (2.0 if int(position_ids.max()) >= BORDER else 1.0)
            return super().forward(x, position_ids)

    for model in (eager, ours):
        model.model.rotary_emb.__class__ = Own
    assert not near(whole(eager, prompt(1, BORDER + 1))[:, :5], whole(eager, prompt(1, 5)))
    with pytest.raises(Refused, match="Own, a rotary embedding of this model"):
        BanyanCache(ours, client)


def test_longrope_of_embeddings(client, long):
    _, ours = long
    vectors = torch.randn(1, BORDER - 2, 64)
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        ours(inputs_embeds=vectors, past_key_values=cache)
        with pytest.raises(Refused, match="fed as embeddings, which are not kept"):
            ours(torch.full((1, 5), 7), past_key_values=cache)
        assert cache.get_seq_length() == BORDER - 2


def test_dynamic_frequencies(client):
    options = {"max_position_embeddings": BORDER, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}
    eager, ours = pair("llama", options)
    with torch.no_grad():
        ours(prompt(1, 2 * BORDER), use_cache=False)  # which leaves other frequencies behind
    with BanyanCache(ours, client) as cache:
        prefill(ours, prompt(1, BORDER - 2), cache, block=10)
        assert near(last(ours, prompt(1, BORDER - 2), cache), whole(eager, prompt(1, BORDER - 2))[:, -1:])
        with pytest.raises(Refused, match=r"rope_type 'dynamic'.*with every token"):
            last(ours, prompt(1, BORDER + 1), cache)
        with pytest.raises(Refused, match="rope_type 'dynamic'"):
            generate(ours, prompt(1, BORDER - 2), cache, NEW)
    with BanyanCache(ours, client) as cache, pytest.raises(Refused, match="rope_type 'dynamic'"):
        prefill(ours, prompt(1, BORDER + 9), cache, block=10)


# ---- states ----


@pytest.mark.parametrize("family", STATES)
def test_states_in_blocks(client, family):
    """What one forward gives, however it is fed; and generate() goes on behind prefill()."""
    eager, ours = pair(family, FAMILIES[family])
    most = OF_THE_MODELS_OWN.get(family, MOST)
    ids = prompt(1, 70)
    with BanyanCache(ours, client) as cache:
        prefill(ours, ids[:, :30], cache, block=13)
        prefill(ours, ids, cache, block=13)
        assert cache.get_seq_length() == 69
        assert near(last(ours, ids, cache), whole(eager, ids)[:, -1:], most)
    with BanyanCache(ours, client) as cache:
        prefill(ours, ids, cache, block=13)
        got = generate(ours, ids, cache, 6)
        more = torch.cat((got, prompt(1, 9)), dim=1)
        got = generate(ours, more, cache, 6)
        if most == MOST:
            assert got.tolist() == one_forward_a_token(eager, more, 6).tolist()


@pytest.mark.parametrize("family", ["jamba", "zamba", "recurrent_gemma"])
def test_blocks_that_leave_a_state_out(client, family):
    eager, ours = pair(family, FAMILIES[family])
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        ours(prompt(1, 30), past_key_values=cache)
        with pytest.raises(Refused, match=r"9 tokens behind 30 in one forward.*token by token"):
            ours(prompt(1, 9), past_key_values=cache)
        got = torch.cat([ours(prompt(1, 9)[:, i : i + 1], past_key_values=cache).logits for i in range(9)], dim=1)
        assert near(got, whole(eager, torch.cat((prompt(1, 30), prompt(1, 9)), dim=1))[:, 30:])


def test_a_first_forward_of_one_token(client):
    _, ours = pair("recurrent_gemma", FAMILIES["recurrent_gemma"])
    with torch.no_grad(), BanyanCache(ours, client) as cache, pytest.raises(Refused, match="Begin with two"):
        ours(prompt(1, 1), past_key_values=cache)


def test_positions_that_a_model_counts_from_zero(client):
    eager, ours = pair("bamba", FAMILIES["bamba"])
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        got = [ours(prompt(2, 40)[:, a:b], past_key_values=cache).logits for a, b in ((0, 20), (20, 39), (39, 40))]
        assert near(torch.cat(got, dim=1), whole(eager, prompt(2, 40)))


LIMITS = {
    "nemotron_h": {"time_step_min": 0.3},
    "zamba2": {**FAMILIES["zamba2"], "time_step_min": 0.3},
    "bamba": {**FAMILIES["bamba"], "time_step_limit": (0.2, 0.5)},
    "granitemoehybrid": {**FAMILIES["granitemoehybrid"], "time_step_limit": (0.0, 0.3)},
}  # fmt: skip


@pytest.mark.parametrize("family", LIMITS)
def test_a_step_has_the_limits_of_a_forward(client, family):
    """Which Transformers' own step leaves out."""
    eager, ours = pair(family, LIMITS[family])
    ids = prompt(2, 40)
    want = whole(eager, ids)

    def by_steps(model, cache):
        parts = [(0, 20), (20, 21), (21, 22), (22, 30), *((n, n + 1) for n in range(30, 40))]
        with torch.no_grad():
            return torch.cat(
                [model(ids[:, a:b], past_key_values=cache, position_ids=torch.arange(a, b)[None]).logits for a, b in parts], dim=1
            )

    assert not near(by_steps(eager, DynamicCache(config=eager.config)), want, 1e-3)
    with BanyanCache(ours, client) as cache:
        assert near(by_steps(ours, cache), want)


def test_limits_of_steps_that_are_made_in_another_way(client):
    _, ours = pair("falcon_h1", {**FAMILIES["falcon_h1"], "time_step_limit": (0.2, 0.5)})
    with pytest.raises(Refused, match=r"FalconH1Mixer limits its time steps \(time_step_limit \(0.2, 0.5\)\)"):
        BanyanCache(ours, client)


# ---- windows ----


def test_a_window_that_only_caches_have(client, monkeypatch):
    """As Moshi's: its mask has none, its configuration has one."""
    eager, ours = pair("llama", {"layer_types": ["sliding_attention"] * 4, "sliding_window": 24})
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        got = torch.cat([ours(prompt(1, 24)[:, a:b], past_key_values=cache).logits for a, b in ((0, 20), (20, 24))], dim=1)
        assert near(got, whole(eager, prompt(1, 24)))
        with pytest.raises(Refused, match=r"window of 24 which its mask lacks.*up to 24 tokens"):
            ours(torch.tensor([[7]]), past_key_values=cache)
        assert cache.get_seq_length() == 24
