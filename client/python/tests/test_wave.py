# SPDX-License-Identifier: Apache-2.0
"""Long prompts as a wavefront: the same bits as one block after the other, really two at once, and what an error leaves."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from families import FAMILIES, make  # noqa: E402

from banyan.transformers import BanyanCache, prefill, wave  # noqa: E402
from banyan.transformers.steps import Steps  # noqa: E402


def model_of(family):
    model = make(family, FAMILIES[family], "banyan")
    torch.manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0, 0.15)
    return model


def prompt(batch, tokens):
    torch.manual_seed(5)
    return torch.randint(3, 128, (batch, tokens))


def logits_after(model, cache, ids):
    with torch.inference_mode():
        return model(ids[:, -1:], past_key_values=cache).logits


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3n_text", "gpt_oss", "deepseek_v3"])
def test_the_same_bits(client, family):
    model, ids = model_of(family), prompt(2, 150)
    answers = []
    for overlap in (False, True):
        with BanyanCache(model, client, chunk_tokens=16) as cache:
            assert prefill(model, ids, cache, block=16, overlap=overlap) == 149
            assert [t.tolist() for t in cache.tokens()] == ids[:, :149].tolist()
            answers.append(logits_after(model, cache, ids))
    assert torch.equal(*answers)


def test_two_at_once(client, monkeypatch):
    """The second block's first layer is asked for while the first block's last layer has not been."""
    model, seen, both = model_of("llama"), [], threading.Event()
    call = Steps._call

    def waiting(self, index, parts, rows, columns, *more):
        seen.append((columns, index))
        if columns == 16 and index == 0:
            assert both.wait(60), "the next block does not begin while this one's attention is under way"
        if columns == 32:
            both.set()
        return call(self, index, parts, rows, columns, *more)

    monkeypatch.setattr(Steps, "_call", waiting)
    with BanyanCache(model, client) as cache:
        prefill(model, prompt(1, 60), cache, block=16)
    last = max(index for _, index in seen)
    assert seen.index((32, 0)) < seen.index((16, last))


@pytest.mark.parametrize("at", [32, 48])
def test_an_error_in_the_middle(client, monkeypatch, at):
    """The cache stands behind the last whole block, and goes on with the right tokens."""
    model, ids = model_of("llama"), prompt(1, 100)
    with BanyanCache(model, client, chunk_tokens=16) as cache:
        prefill(model, ids, cache, block=16, overlap=False)
        want = logits_after(model, cache, ids)
    call = Steps._call

    def failing(self, index, parts, rows, columns, *more):
        if columns == at and index == 1:
            raise RuntimeError("the cluster went away")
        return call(self, index, parts, rows, columns, *more)

    with BanyanCache(model, client, chunk_tokens=16) as cache:
        with monkeypatch.context() as patch:
            patch.setattr(Steps, "_call", failing)
            with pytest.raises(RuntimeError, match="went away"):
                prefill(model, ids, cache, block=16)
        held = cache.get_seq_length()
        assert held in (at - 16, at)  # the block before may have been under way, and stops where it waits
        assert prefill(model, ids, cache, block=16) == 99 - held
        assert [t.tolist() for t in cache.tokens()] == ids[:, :99].tolist()
        assert torch.equal(logits_after(model, cache, ids), want)
    assert not [t for t in threading.enumerate() if t.name.startswith("banyan-prefill")]


def test_models_that_alter_themselves_go_one_by_one(client):
    model = model_of("llama")
    with BanyanCache(model, client) as cache:
        assert wave.possible(model, cache)
        model.model.rotary_emb.rope_type = "dynamic"
        assert not wave.possible(model, cache)
    model = model_of("qwen3_next")
    with BanyanCache(model, client) as cache:
        assert not wave.possible(model, cache)
