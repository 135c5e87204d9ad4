# SPDX-License-Identifier: Apache-2.0
"""Long prompts as a wavefront: the same bits as one block after the other, really two at once, and what an
error leaves."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from generating import models, prompt  # noqa: E402

from banyan.transformers import BanyanCache, Refused, prefill, wave  # noqa: E402
from banyan.transformers.steps import Steps  # noqa: E402


def model_of(family):
    return models(family)[1]


def logits_after(model, cache, ids):
    with torch.inference_mode():
        return model(ids[:, -1:], past_key_values=cache).logits


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3n_text", "gpt_oss", "deepseek_v3"])
def test_the_same_bits(client, family):
    model, ids = model_of(family), prompt(2, 150)
    answers = []
    for overlap in (False, True):
        # At one worker: over several the order of sums is the plan's, and two sessions may have two plans.
        with BanyanCache(model, client, chunk_tokens=16, members=1) as cache:
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
        assert wave.possible(model, cache, 16)
        with torch.autocast("cpu", torch.bfloat16):  # it is a thread's own
            assert not wave.possible(model, cache, 16)
        model.model.rotary_emb.rope_type = "dynamic"
        assert not wave.possible(model, cache, 16)
    model = model_of("qwen3_next")
    with BanyanCache(model, client) as cache:
        assert not wave.possible(model, cache, 16)


def broken(patch, at, layer, last_sequence=False):
    """The call of a layer at a column fails; or goes as far as all sequences but the last."""
    call = Steps._call

    def failing(self, index, parts, rows, columns, *more):
        if columns == at and index == layer:
            if last_sequence:
                call(self, index, parts[:-1], rows, columns, *more)
            raise RuntimeError("the cluster went away")
        return call(self, index, parts, rows, columns, *more)

    patch.setattr(Steps, "_call", failing)


def other_from(ids, at):
    ids = ids.clone()
    ids[:, at:] = (ids[:, at:] + 7) % 120 + 3
    return ids


@pytest.mark.parametrize("by_name", [False, True])
def test_another_text_after_an_error(client, monkeypatch, by_name):
    """What an interrupted forward has left is taken away: by a wave, too, and by another process."""
    model, ids = model_of("llama"), prompt(1, 100)
    cache = BanyanCache(model, client, "interrupted" if by_name else None, chunk_tokens=16)
    with monkeypatch.context() as patch:
        broken(patch, 48, 1)
        with pytest.raises(RuntimeError, match="went away"):
            prefill(model, ids, cache, block=16)
    if by_name:
        cache.close()
        cache = BanyanCache(model, client, "interrupted", chunk_tokens=16)
    ids = other_from(ids, cache.get_seq_length())
    prefill(model, ids, cache, block=16)
    got = logits_after(model, cache, ids)
    cache.delete()
    with BanyanCache(model, client, chunk_tokens=16) as fresh:
        prefill(model, ids, fresh, block=16, overlap=False)
        assert torch.equal(got, logits_after(model, fresh, ids))


@pytest.mark.parametrize("at", [0, 32])
@pytest.mark.parametrize("padded", [False, True])
def test_a_batch_whose_sequences_are_not_equally_far(client, monkeypatch, padded, at):
    """A process that died has left them so: that is no padding."""
    model, ids, mask = model_of("llama"), prompt(2, 100), torch.ones(2, 100, dtype=torch.long)
    mask[0, : 5 * padded] = 0
    last = model.config.num_hidden_layers - 1
    with monkeypatch.context() as patch:
        broken(patch, at, last, last_sequence=True)
        # small blocks go with the call, sequence by sequence
        cache = BanyanCache(model, client, "batch", chunk_tokens=16)
        with pytest.raises(RuntimeError, match="went away"):
            prefill(model, ids, cache, attention_mask=mask, block=16, overlap=False)
        cache.close()
    assert len({session.length + 5 * padded * session.name.endswith("0") for session in client.sessions()}) == 2
    with BanyanCache(model, client, "batch") as cache:
        assert (cache.get_seq_length(), cache.pads) == (at, [5 * padded if at else 0, 0])
        prefill(model, ids, cache, attention_mask=mask, block=16)
        assert [t.tolist() for t in cache.tokens()] == [ids[0, 5 * padded : 99].tolist(), ids[1, :99].tolist()]
        cache.delete()


def test_windows_that_forget_are_not_run_past(client):
    """A block's rows still see what the next block's would let be forgotten."""
    model = model_of("mistral")
    for margin, can in ((8, False), (31, False), (32, True)):
        with BanyanCache(model, client, forget=margin) as cache:
            prefill(model, prompt(1, 20), cache)
            assert wave.possible(model, cache, 16) == can


@pytest.mark.parametrize("what", ["thread", "face"])
def test_a_wave_that_cannot_begin(client, monkeypatch, what):
    model, ids = model_of("llama"), prompt(1, 100)
    with BanyanCache(model, client) as cache:
        with monkeypatch.context() as patch:
            owner, name = (threading.Thread, "start") if what == "thread" else (BanyanCache, "beside")
            real, calls = getattr(owner, name), []

            def second(self, *more):
                calls.append(self)
                if len(calls) == 2:
                    raise RuntimeError("can't start new thread")
                return real(self, *more)

            patch.setattr(owner, name, second)
            with pytest.raises(RuntimeError, match="new thread"):
                prefill(model, ids, cache, block=16)
        assert not [t for t in threading.enumerate() if t.name.startswith("banyan-prefill")]
        assert prefill(model, ids, cache, block=16) > 0


def test_closed_in_the_middle(client, monkeypatch):
    model = model_of("llama")
    cache, call = BanyanCache(model, client), Steps._call

    def closing(self, index, parts, rows, columns, *more):
        if columns == 32 and index == 1:
            cache.close()
        return call(self, index, parts, rows, columns, *more)

    monkeypatch.setattr(Steps, "_call", closing)
    with pytest.raises(Refused, match="closed in the middle"):
        prefill(model, prompt(1, 100), cache, block=16)


def test_what_prefill_cannot_feed(client):
    model, ids = model_of("llama"), prompt(1, 30)
    with BanyanCache(model, client) as cache:
        with pytest.raises(ValueError, match="blocks of 0 tokens"):
            prefill(model, ids, cache, block=0)
        model.config.image_token_id = int(ids[0, 7])
        with pytest.raises(Refused, match="image_token_id"):
            prefill(model, ids, cache)
    with pytest.raises(Refused, match="kv_type 'int8'"):
        BanyanCache(model, client, kv_type="int8")
