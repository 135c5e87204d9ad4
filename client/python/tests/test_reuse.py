# SPDX-License-Identifier: Apache-2.0
"""BanyanCache(reuse=True): a text begins where another cache's has ended, beside a fresh computation."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from families import FAMILIES, make  # noqa: E402
from formula import wait_for  # noqa: E402
from generating import NEW, models, prompt  # noqa: E402
from transformers import DynamicCache  # noqa: E402

import banyan  # noqa: E402
from banyan.transformers import BanyanCache, Refused, prefill, reused  # noqa: E402

CHUNK = 16


@pytest.fixture(autouse=True)
def _empty(client):
    yield
    client.drop_prefixes()


@pytest.fixture(params=["llama", "gemma2", "gpt_oss"])
def pair(request):
    return models(request.param)


@pytest.fixture
def llama():
    return models()


def cache_of(model, client, **more):
    return BanyanCache(model, client, reuse=True, chunk_tokens=CHUNK, **more)


def answer(model, ids, cache=None):
    mask = torch.ones_like(ids)  # answers may have the number of padding in them
    return model.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=NEW, do_sample=False)


class Fed:
    """How many tokens a model is called with."""

    def __init__(self, model):
        self.tokens = 0
        self._hook = model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module, arguments, keywords):
        self.tokens += keywords["input_ids"].shape[1]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._hook.remove()


def test_a_second_question_to_one_document(client, pair):
    eager, ours = pair
    document, question = prompt(1, 60), prompt(1, 75)[:, 60:]
    with cache_of(ours, client) as cache:
        first = answer(ours, document, cache)
    assert first.tolist() == answer(eager, document).tolist()
    assert [p.length for p in client.prefixes()] == [(60 + NEW - 1) // CHUNK * CHUNK]
    ids = torch.cat((document, question), dim=1)
    with cache_of(ours, client) as cache, Fed(ours) as fed:
        second = answer(ours, ids, cache)
        assert cache.columns == 75 + NEW - 1
    assert second.tolist() == answer(eager, ids).tolist()
    assert fed.tokens == 75 - 48 + NEW - 1  # from the last whole chunk of the document on
    assert [p.hits for p in client.prefixes() if p.hits] == [1]


def test_the_same_text_again(client, llama):
    eager, ours = llama
    ids = prompt(1, 4 * CHUNK)  # a whole chunk at its end: the last token is fed all the same
    with cache_of(ours, client) as cache:
        first = answer(ours, ids, cache)
    with cache_of(ours, client) as cache, Fed(ours) as fed:
        assert answer(ours, ids, cache).tolist() == first.tolist() == answer(eager, ids).tolist()
    assert fed.tokens == CHUNK + NEW - 1
    assert len(client.prefixes()) == 1


def test_the_conversation_goes_on(client, llama):
    eager, ours = llama
    text = prompt(1, 50)
    for _ in range(3):
        with cache_of(ours, client) as cache:
            text = answer(ours, text, cache)
        text = torch.cat((text, prompt(1, 7)), dim=1)
    wait_for(lambda: len(client.prefixes()) == 1)  # each longer text takes the place of the one before
    assert text[:, :-7].tolist()[0][: 50 + NEW] == answer(eager, prompt(1, 50)).tolist()[0]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("family", ["falcon_h1", "lfm2", "qwen3_next"])
def test_hybrids_begin_at_a_state(client, family, named):
    """Their other layers go on from the last state before the end of what is found."""
    eager, ours = models(family)
    document, question = prompt(1, 60), prompt(1, 75)[:, 60:]
    more = {"state_tokens": 2 * CHUNK}
    with cache_of(ours, client, session="document" if named else None, **more) as cache:
        prefill(ours, document, cache, block=8)
        first = answer(ours, document, cache)
    assert first.tolist() == answer(eager, document).tolist()
    ids = torch.cat((document, question), dim=1)
    with cache_of(ours, client, **more) as cache, Fed(ours) as fed:
        assert cache.find(ids) == 48
        second = answer(ours, ids, cache)
    assert second.tolist() == answer(eager, ids).tolist()
    assert fed.tokens == 75 - 2 * CHUNK + NEW - 1
    with pytest.raises(Refused, match="state_tokens=0"):
        cache_of(ours, client, state_tokens=0)
    if named:
        client.open("document").delete()


def test_prefill_and_bare_forwards(client, llama):
    eager, ours = llama
    ids = prompt(1, 60)
    with cache_of(ours, client) as cache:
        assert prefill(ours, ids, cache, block=20) == 59
    with cache_of(ours, client) as cache:
        assert prefill(ours, ids, cache, block=20) == 59 - 48
    with cache_of(ours, client) as cache, torch.no_grad():
        assert cache.find(ids) == 48
        with pytest.raises(Refused, match="has these 48 tokens already"):
            ours(input_ids=ids, past_key_values=cache)
    with cache_of(ours, client) as cache, torch.no_grad():
        at = cache.find(ids)
        got = ours(input_ids=ids[:, at:], past_key_values=cache).logits
        want = eager(input_ids=ids, past_key_values=DynamicCache()).logits[:, at:]
        assert float((got - want).abs().max() / want.abs().max()) < 2e-5


def test_a_salt_separates(client, llama):
    ours = llama[1]
    ids = prompt(1, 60)
    with cache_of(ours, client, salt="mine") as cache:
        answer(ours, ids, cache)
    for salt, found in (("yours", 0), (b"", 0), ("mine", 48)):
        with cache_of(ours, client, salt=salt) as cache:
            assert cache.find(ids) == found


def test_another_model_separates(client):
    ids = prompt(1, 60)
    first, other = (make("llama", FAMILIES["llama"], "banyan") for _ in range(2))
    with torch.no_grad():
        other.model.layers[0].self_attn.k_proj.weight.mul_(1.5)
    with cache_of(first, client) as cache:
        answer(first, ids, cache)
    with cache_of(other, client) as cache:
        assert cache.find(ids) == 0
    with cache_of(first, client) as cache:
        assert cache.find(ids) == 48


def test_a_collision_is_refused_by_the_tokens(client, llama, monkeypatch):
    """Hashes that say that every text is the same one: no session gets another text's keys."""
    eager, ours = llama
    monkeypatch.setattr(reused, "prefix_hashes", lambda ids, salt, chunk: bytes(16) * (len(ids) // chunk))
    with cache_of(ours, client) as cache:
        answer(ours, prompt(1, 60), cache)
    assert len(client.prefixes()) == 1
    other = prompt(1, 60).flip(1)
    with cache_of(ours, client) as cache, Fed(ours) as fed:
        assert answer(ours, other, cache).tolist() == answer(eager, other).tolist()
    assert fed.tokens == 60 + NEW - 1
    assert client.prefixes()[0].hits == 1  # it was found, and not used


def test_forks_and_several_answers(client, llama):
    eager, ours = llama
    ids = prompt(1, 60)
    with cache_of(ours, client) as cache:
        answer(ours, ids, cache)
    torch.manual_seed(3)
    want = eager.generate(ids, max_new_tokens=NEW, num_beams=3)
    with cache_of(ours, client) as cache:
        assert ours.generate(ids, past_key_values=cache, max_new_tokens=NEW, num_beams=3).tolist() == want.tolist()
    assert [s for s in client.sessions() if not s.kept] == []


def test_a_named_session_is_found_too(client, llama):
    eager, ours = llama
    ids = prompt(1, 60)
    with cache_of(ours, client, session="mine") as cache:
        answer(ours, ids, cache)
    assert {s.name: s.kept for s in client.sessions()} == {"mine": False, "": True}
    with cache_of(ours, client, session="another") as cache, Fed(ours) as fed:
        assert answer(ours, ids, cache).tolist() == answer(eager, ids).tolist()
    assert fed.tokens == 60 - 48 + NEW - 1


def test_an_error_in_the_middle(client, llama):
    """What an interrupted forward has left is taken away, and the rest is kept."""
    eager, ours = llama
    ids = prompt(1, 60)

    def fail(module, arguments):
        raise KeyboardInterrupt

    with cache_of(ours, client) as cache, torch.no_grad():
        ours(input_ids=ids[:, :40], past_key_values=cache)
        hook = ours.model.layers[1].register_forward_pre_hook(fail)
        with pytest.raises(KeyboardInterrupt):
            ours(input_ids=ids[:, 40:], past_key_values=cache)
        hook.remove()
    with cache_of(ours, client) as cache:
        assert answer(ours, ids, cache).tolist() == answer(eager, ids).tolist()
    assert [p.hits for p in client.prefixes() if p.hits] in ([1], [])


def test_what_is_not_kept(client, llama):
    ours = llama[1]
    with cache_of(ours, client) as cache:
        answer(ours, prompt(1, 60), cache)
        cache.delete()
    with cache_of(ours, client):
        pass
    with cache_of(ours, client) as cache:
        answer(ours, prompt(1, 3)[:, :2], cache) if CHUNK > NEW + 2 else cache.find(prompt(1, 3))
    with cache_of(ours, client) as cache:  # embeddings: no tokens
        ours.generate(inputs_embeds=ours.get_input_embeddings()(prompt(1, 60)), past_key_values=cache, max_new_tokens=2)
    mask = torch.ones(1, 60, dtype=torch.long)
    mask[0, :5] = 0
    with cache_of(ours, client) as cache:
        ours.generate(prompt(1, 60), attention_mask=mask, past_key_values=cache, max_new_tokens=2, pad_token_id=0)
    assert client.sessions() == []


def test_what_is_refused(client, llama):
    ours = llama[1]
    with cache_of(ours, client) as cache, pytest.raises(Refused, match="one sequence"):
        answer(ours, prompt(2, 60), cache)
    with pytest.raises(Refused, match="forget"):
        cache_of(ours, client, forget=64)
    with BanyanCache(ours, client) as cache, pytest.raises(Refused, match="reuse"):
        cache.find(prompt(1, 60))


def test_the_cache_is_off(llama):
    eager, ours = llama
    ids = prompt(1, 60)
    off = banyan.local_cluster(workers=1, memory="64M", threads=1, coordinator_args=["--prefix-cache=off"])
    with off as cluster, cluster.connect() as client:
        for _ in range(2):
            with cache_of(ours, client) as cache:
                assert answer(ours, ids, cache).tolist() == answer(eager, ids).tolist()
        assert client.sessions() == []
