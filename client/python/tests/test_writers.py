# SPDX-License-Identifier: Apache-2.0
"""Several caches over one session with a name: one writes. The others are refused, and remove nothing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from generating import NEW, models, prompt  # noqa: E402

from banyan.transformers import BanyanCache, Refused, prefill  # noqa: E402


@pytest.fixture
def llama():
    return models()


@pytest.fixture
def two(client, llama):
    """Caches over a session of 40 tokens."""
    with torch.no_grad():
        with BanyanCache(llama[1], client, "book") as cache:
            llama[1](prompt(), past_key_values=cache)
        caches = [BanyanCache(llama[1], client, "book") for _ in range(2)]
        yield caches
    for cache in caches:
        cache.close()


def feed(model, cache, *tokens):
    return model(torch.tensor([tokens]), past_key_values=cache).logits


def longer(*tokens):
    return torch.cat((prompt(), torch.tensor([tokens])), dim=1)


def generate(model, ids, cache):
    return model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, max_new_tokens=NEW, do_sample=False)


CALLS = {
    "forward": lambda model, cache: feed(model, cache, 7),
    "generate": lambda model, cache: generate(model, longer(5, 6), cache),
    "the same text": lambda model, cache: generate(model, prompt(), cache),
    "prefill": lambda model, cache: prefill(model, longer(5, 6, 7), cache),
    "fork": lambda model, cache: cache.fork().close(),
    "fork by name": lambda model, cache: cache.fork("other").close(),
    "crop": lambda model, cache: cache.crop(-3),
    "rewind_to": lambda model, cache: cache.rewind_to(prompt()[:, :20]),
    "reset": lambda model, cache: cache.reset(),
    "beams": lambda model, cache: cache.batch_repeat_interleave(2),
}


@pytest.mark.parametrize("call", CALLS)
def test_another_has_fed_tokens(client, llama, two, call):
    """Refused however often it is tried; what the writer has fed stays."""
    _, ours = llama
    one, other = two
    feed(ours, one, 9)
    for _ in range(2):
        with pytest.raises(Refused, match=r"session 'book' has got other tokens behind the 40.*another cache.*cache.fork\(\)"):
            CALLS[call](ours, other)
    assert one.tokens()[0].tolist() == longer(9)[0].tolist()
    feed(ours, one, 8)
    assert [s.name for s in client.sessions()] == ["book"]


@pytest.mark.parametrize("call", CALLS)
def test_another_has_put_other_tokens_in_place_of_some(client, llama, two, call):
    """The length is what it was."""
    _, ours = llama
    one, other = two
    other.check(prompt())
    one.crop(-2)
    feed(ours, one, 9, 8)
    for _ in range(2):
        with pytest.raises(Refused, match=r"session 'book' was cut, and may hold other tokens.*cache.fork\(\)"):
            CALLS[call](ours, other)
    assert one.tokens()[0].tolist() == [*prompt()[0, :38].tolist(), 9, 8]


def test_a_forward_after_a_look(client, llama, two):
    """Reading the state makes the library go on with a session as it is: the cache does not."""
    _, ours = llama
    one, other = two
    one.crop(-2)
    feed(ours, one, 9, 8)
    with pytest.raises(Refused, match="was cut"):
        other.crop(-1)
    with pytest.raises(Refused, match="was cut"):
        feed(ours, other, 7)


def test_a_cache_that_has_not_met_its_model(client, llama):
    """It has read the session's lengths, and the other one cuts before the first call."""
    _, ours = llama
    with torch.no_grad(), BanyanCache(ours, client, "book") as one:
        feed(ours, one, *prompt()[0].tolist())
        with BanyanCache(ours.config, client, "book") as other:
            one.crop(-2)
            feed(ours, one, 9, 8)
            for _ in range(2):
                with pytest.raises(Refused, match="was cut"):
                    feed(ours, other, 7)


def test_the_one_that_writes_is_not_disturbed(client, llama, two):
    """By those that read, fork, and are refused; its own cuts are no other's."""
    eager, ours = llama
    one, other = two
    with other.fork() as fork:
        assert generate(ours, longer(5, 6), fork).tolist() == generate(eager, longer(5, 6), None).tolist()
    out = generate(ours, longer(5, 6), one)
    one.crop(-3)
    one.crop(-1)
    assert generate(ours, out, one).tolist() == generate(eager, out, None).tolist()
    with BanyanCache(ours, client, "book") as third:
        assert third.get_seq_length() == one.get_seq_length()
    with pytest.raises(Refused, match=r"was cut|other tokens"):
        generate(ours, longer(5, 6), other)
    out = torch.cat((out, torch.tensor([[4]])), dim=1)
    one.rewind_to(out)
    assert generate(ours, out, one).tolist() == generate(eager, out, None).tolist()


def test_a_cache_that_goes_while_another_is_fed(client, llama):
    """As the collector ends one that nothing refers to: its hooks are called once more, without keywords."""
    eager, ours = llama
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        for moment in (ours.register_forward_pre_hook, ours.register_forward_hook):
            cache.reset()
            gone = BanyanCache(ours, client)
            hook = moment(lambda *_, gone=gone: gone.close(), prepend=True)
            try:
                answer = ours(prompt(), past_key_values=cache).logits
            finally:
                hook.remove()
            torch.testing.assert_close(answer, eager(prompt()).logits, rtol=1e-4, atol=1e-4)
