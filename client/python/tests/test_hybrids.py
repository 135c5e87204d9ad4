# SPDX-License-Identifier: Apache-2.0
"""Models of which a part has a state of its own (linear attention, convolutions), which stays in the
client."""

from __future__ import annotations

import concurrent.futures

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from generating import NEW, both_generate, models, prompt  # noqa: E402

from banyan.transformers import BanyanCache, Refused  # noqa: E402


@pytest.fixture(params=["falcon_h1", "qwen3_next", "zamba2"])
def pair(request):
    return models(request.param)


def test_generate(client, pair):
    ids, mask = prompt(3), torch.ones(3, 40, dtype=torch.long)
    both_generate(client, pair, ids, use_cache=False)
    mask[1, :13] = 0
    both_generate(client, pair, ids, use_cache=False, attention_mask=mask)
    both_generate(client, pair, ids[:2], use_cache=False, num_beams=3, num_return_sequences=2)


def test_forks_have_states_of_their_own(client, pair):
    eager, ours = pair
    document = prompt()
    with torch.no_grad(), BanyanCache(ours, client, session="document") as cache:
        ours(document, past_key_values=cache)
        for token in (7, 9):
            ids = torch.cat((document, torch.full((1, 3), token)), dim=1)
            with cache.fork() as fork:
                got = ours.generate(ids, past_key_values=fork, max_new_tokens=NEW, do_sample=False)
            assert got.tolist() == eager.generate(ids, use_cache=False, max_new_tokens=NEW, do_sample=False).tolist()
    with pytest.raises(Refused, match=r"cannot be resumed. Use another name, or delete it"):
        BanyanCache(ours, client, session="document")


def test_states_in_modules(client):
    """RecurrentGemma's: one of each in the model, whichever cache it is called with."""
    eager, ours = models("recurrent_gemma")
    one, two, three = (torch.tensor([[n]]) for n in (9, 19, 29))

    def same(cache, held, new):
        got, want = ours(new, past_key_values=cache).logits, eager(torch.cat((held, new), dim=1), use_cache=False).logits[:, -1:]
        return bool((got - want).abs().max() <= 2e-5 * want.abs().max())

    with torch.no_grad(), BanyanCache(ours, client) as a, BanyanCache(ours, client) as b:
        ours(prompt(1, 30), past_key_values=a)
        ours(prompt(1, 33), past_key_values=b)
        with a.fork() as fork:
            assert same(fork, prompt(1, 30), two) and same(b, prompt(1, 33), one)
            ours(prompt(1, 20), use_cache=False)
            with BanyanCache(ours.config, client) as other:  # which looks at the model
                ours(prompt(1, 20), past_key_values=other)
            assert same(a, prompt(1, 30), one)
            assert same(fork, torch.cat((prompt(1, 30), two), dim=1), three)
        a.reset()
        assert same(b, torch.cat((prompt(1, 33), one), dim=1), two)
        ours(prompt(1, 30), past_key_values=a)
        assert same(a, prompt(1, 30), three)


def test_states_in_modules_and_threads(client):
    """Each forward has its own text's, also while another thread meets the model."""
    eager, ours = models("recurrent_gemma")

    def serve(n, given):
        with BanyanCache(given, client) as cache:
            return ours.generate(prompt(1, n), past_key_values=cache, max_new_tokens=6, do_sample=False).tolist()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        got = [pool.submit(serve, n, ours if n % 2 else ours.config) for n in range(20, 24)]
        for n, one in zip(range(20, 24), got):
            assert one.result() == eager.generate(prompt(1, n), use_cache=False, max_new_tokens=6, do_sample=False).tolist()


def test_after_an_error(client, pair):
    """The states may have moved on: going on would be silently wrong."""
    eager, ours = pair

    def interrupt(module, arguments):
        raise KeyboardInterrupt

    with torch.no_grad(), BanyanCache(ours, client) as cache:
        for _ in range(2):
            hook = ours.model.layers[3].register_forward_pre_hook(interrupt)
            with pytest.raises(KeyboardInterrupt):
                ours(prompt(), past_key_values=cache)
            hook.remove()
            for call in (lambda: ours(prompt(), past_key_values=cache), cache.fork):
                with pytest.raises(Refused, match=r"error has ended a forward.*cache.reset\(\)"):
                    call()
            cache.reset()
        got, want = ours(prompt(), past_key_values=cache).logits, eager(prompt()).logits
        assert (got - want).abs().max() <= 2e-5 * want.abs().max()
        with pytest.raises(Refused, match="cannot go back"):
            cache.crop(-3)
        assert cache.get_seq_length() == 40
        got, want = ours(prompt(1, 1), past_key_values=cache).logits, eager(torch.cat((prompt(), prompt(1, 1)), dim=1)).logits[:, -1:]
        assert (got - want).abs().max() <= 2e-5 * want.abs().max()


def test_shared_keys_are_no_state(client):
    """Layers that read another one's keys hold nothing: such models are resumed and forked like others."""
    eager, ours = models("gemma3n_text")
    with torch.no_grad(), BanyanCache(ours, client, session="shared") as cache:
        ours(prompt(), past_key_values=cache)
    ids = torch.cat((prompt(), torch.tensor([[5, 6]])), dim=1)
    with torch.no_grad(), BanyanCache(ours, client, session="shared") as cache, cache.fork() as fork:
        got, want = ours(ids[:, 40:], past_key_values=fork).logits, eager(ids).logits[:, 40:]
    assert (got - want).abs().max() <= 2e-5 * want.abs().max()
