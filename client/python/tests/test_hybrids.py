# SPDX-License-Identifier: Apache-2.0
"""Models of which a part has a state of its own (linear attention, convolutions): it is computed in the
client, and kept with the session at some places of the text. Whatever happens, the next token is that of one
forward over the whole text.

test_another_process is over the families in BANYAN_HYBRIDS, or over all there are: BANYAN_HYBRIDS=all. All
families of the library are in docs/MODELS.md, by walk.py.
"""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from generating import NEW, both_generate, models, prompt  # noqa: E402

import banyan  # noqa: E402
from banyan.transformers import BanyanCache, prefill  # noqa: E402

HYBRIDS = ["qwen3_next", "lfm2", "falcon_h1", "bamba", "jamba", "zamba", "zamba2", "granitemoehybrid", "recurrent_gemma"]
CHOSEN = os.environ.get("BANYAN_HYBRIDS", "falcon_h1,recurrent_gemma")
EVERY = 16  # tokens between two states


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


class Fed:
    """How many tokens the model is called with."""

    def __init__(self, model):
        self.tokens = 0
        self._hook = model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module, arguments, keywords):
        fed = arguments[0] if arguments else keywords["input_ids"]
        self.tokens += fed.shape[1]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._hook.remove()


def kept(client, name):
    return [s.position for s in client.open(name).states()]


def next_is_right(cache, pair, text, token=7):
    """A forward of one token behind this text, beside one over all of it."""
    eager, ours = pair
    new = torch.full((len(text), 1), token)
    with torch.no_grad():
        got = ours(new, past_key_values=cache).logits
        want = eager(torch.cat((text, new), dim=1), use_cache=False).logits[:, -1:]
    return bool((got - want).abs().max() <= 5e-5 * want.abs().max())


def feed(pair, cache, ids, begin=0):
    """As any program may: a block, and then token by token."""
    ours = pair[1]
    with torch.no_grad():
        for at in (begin, *range(max(begin + 1, 30), ids.shape[1])) if begin < 30 else range(begin, ids.shape[1]):
            ours(ids[:, at : 30 if at == begin < 30 else at + 1], past_key_values=cache)


def test_after_an_error(client, pair):
    """A forward that an error has ended may have moved the states on: they are gone back to."""
    ours = pair[1]
    text = prompt(1, 45)

    def interrupt(module, arguments):
        raise KeyboardInterrupt

    for name in (None, "after"):  # without a name the cache alone has them
        with torch.no_grad(), BanyanCache(ours, client, session=name, state_tokens=EVERY) as cache:
            for at in (0, 30, 40):
                feed(pair, cache, text[:, :at], cache.columns) if at else None
                hook = ours.model.layers[3].register_forward_pre_hook(interrupt)
                with pytest.raises(KeyboardInterrupt):
                    ours(text[:, at : at + 5], past_key_values=cache)
                hook.remove()
                assert cache.get_seq_length() == at
                with cache.fork() as fork:
                    if at:
                        assert next_is_right(fork, pair, text[:, :at])
            assert next_is_right(cache, pair, text[:, :40])


def test_crop(client, pair):
    ours = pair[1]
    text = prompt(2, 45)
    for name in (None, "cut"):
        with BanyanCache(ours, client, session=name, batch=2, state_tokens=EVERY) as cache:
            feed(pair, cache, text)
            for length in (44, 32, 31, 30, 3):
                cache.crop(length - cache.columns)
                assert next_is_right(cache, pair, text[:, :length])
                cache.crop(-1)
            cache.crop(-3)
            feed(pair, cache, text)
            assert cache.rewind_to(torch.cat((text[:, :37], text[:, :5]), dim=1)) == 37
            assert next_is_right(cache, pair, text[:, :37])


def test_beams_behind_what_was_opened(client, pair):
    eager, ours = pair
    text = prompt(1, 45)
    with BanyanCache(ours, client, session="beams", state_tokens=EVERY) as cache:
        feed(pair, cache, text)
    more = torch.cat((text, prompt(1, 6)), dim=1)
    with BanyanCache(ours, client, session="beams", state_tokens=EVERY) as cache:
        torch.manual_seed(3)
        got = ours.generate(more, past_key_values=cache, max_new_tokens=NEW, num_beams=3, do_sample=False)
        assert got.tolist() == eager.generate(more, use_cache=False, max_new_tokens=NEW, num_beams=3, do_sample=False).tolist()
    assert kept(client, "beams") == [30, 32, 45]
    assert len(client.sessions()) == 2  # it, and its states


def test_an_assistant(client):
    """Where layers are convolutions alone Transformers guesses tokens, and takes some back."""
    pair = models("lfm2")
    eager, ours = pair
    text, assistant = prompt(1, 40), models("llama")[0]
    with BanyanCache(ours, client, session="guessed", state_tokens=EVERY) as cache:
        got = ours.generate(text, past_key_values=cache, max_new_tokens=NEW, do_sample=False, assistant_model=assistant)
        assert got.tolist() == eager.generate(text, use_cache=False, max_new_tokens=NEW, do_sample=False).tolist()
        held = cache.columns
        assert next_is_right(cache, pair, got[:, :held])
    with BanyanCache(ours, client, session="guessed", state_tokens=EVERY) as cache:
        assert next_is_right(cache, pair, torch.cat((got[:, :held], torch.tensor([[7]])), dim=1))


OTHER = """
import sys, torch
from generating import models
import banyan
from banyan.transformers import BanyanCache
torch.set_num_threads(1)
endpoint, path = sys.argv[1:]
ids, families, ends = torch.load(path)
found = {}
with banyan.Client(endpoint) as client, torch.no_grad():
    for family in families:
        ours = models(family)[1]
        for at in ends:
            fed = []
            with BanyanCache(ours, client, session=f"{family}-{at}", batch=2, state_tokens=16) as cache:
                assert cache.columns == at
                count = lambda m, a, k: fed.append((a[0] if a else k["input_ids"]).shape[1])
                hook = ours.register_forward_pre_hook(count, with_kwargs=True)
                found[family, at] = ours(ids[:, at : at + 1], past_key_values=cache).logits, fed
                hook.remove()
torch.save(found, path)
"""


def test_another_process(client, cluster, tmp_path):
    """It opens sessions that end at a state, and beside one, also where the process that fed them was killed:
    the newest state stands far behind, or there is none."""
    families = HYBRIDS if CHOSEN == "all" else CHOSEN.split(",")
    ids, ends, path = prompt(2, 60), (30, 32, 33, 47), str(tmp_path / "text")
    want = {}
    for family in families:
        pair = models(family)
        for at in ends:
            name = f"{family}-{at}"
            feed(pair, BanyanCache(pair[1], client, session=name, batch=2, state_tokens=16), ids[:, :at])
            for i in range(2):  # as if it were killed: no states behind the last ones of 16 tokens
                assert kept(client, f"{name}/{i}") == [n for n in (30, 32) if n <= at]
            if at == 33:
                client.open(f"{name}/0").cut_states(0)
            with torch.no_grad():
                want[family, at] = pair[0](ids[:, : at + 1], use_cache=False).logits[:, -1:]
    torch.save((ids, families, ends), path)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((os.path.dirname(__file__), *sys.path))}
    subprocess.run([sys.executable, "-c", OTHER, cluster.endpoint, path], check=True, env=env, timeout=600)
    for (family, at), (got, fed) in torch.load(path).items():
        difference = float((got - want[family, at]).abs().max() / want[family, at].abs().max())
        assert difference <= 5e-5, f"{family} behind {at} tokens: {difference}"
        # Those behind the newest state that all sequences have, and the new one.
        assert sum(fed) == {30: 0, 32: 0, 33: 33, 47: 15}[at] + 1, f"{family} behind {at} tokens"


def test_states_of_other_texts_are_not_taken(client):
    """A session that was fed by hand, and states that are another session's: they have other digests."""
    pair = models("falcon_h1")
    ours = pair[1]
    text, other = prompt(1, 40), prompt(1, 40).flip(1)
    for name, ids in (("right", text), ("wrong", other)):
        with BanyanCache(ours, client, session=name, state_tokens=EVERY) as cache:
            feed(pair, cache, ids)
    with client.open("wrong") as wrong, client.open("right") as right:
        state = right.get_state(0, 40)
        wrong.cut_states(39)
        wrong.put_state(0, 40, state.data, state.digest)
    with BanyanCache(ours, client, session="wrong", state_tokens=EVERY) as cache, Fed(ours) as fed:
        assert next_is_right(cache, pair, other)
        assert fed.tokens == 40 - 32 + 1
    with client.open("right") as right:  # its own digest, and bytes that are no state of this model
        right.cut_states(39)
        right.put_state(0, 40, b"\x02\0\0\0\0\0\0\0{}", state.digest)
    with BanyanCache(ours, client, session="right", state_tokens=EVERY) as cache, Fed(ours) as fed:
        assert next_is_right(cache, pair, text)
        assert fed.tokens == 40 - 32 + 1


def test_how_many_are_kept(client):
    pair = models("lfm2")
    eager, ours = pair
    text = prompt(1, 20)
    for _ in range(6):  # a conversation, by one process after another
        with BanyanCache(ours, client, session="talk", state_tokens=64) as cache:
            got = ours.generate(text, past_key_values=cache, max_new_tokens=4, do_sample=False)
        assert got.tolist() == eager.generate(text, use_cache=False, max_new_tokens=4, do_sample=False).tolist()
        text = torch.cat((got, prompt(1, 5)), dim=1)
    assert kept(client, "talk") == [59, 65, 68]  # the first one past 64, and two ends; other ends are gone
    with BanyanCache(ours, client, session="none", state_tokens=0) as cache:
        ours.generate(text, past_key_values=cache, max_new_tokens=4, do_sample=False)
    assert kept(client, "none") == []
    with BanyanCache(ours, client, session="none", state_tokens=0) as cache, Fed(ours) as fed:
        assert next_is_right(cache, pair, cache.tokens()[0][None])
        assert fed.tokens == cache.columns
    with pytest.raises(ValueError, match="state_tokens"):
        BanyanCache(ours, client, state_tokens=-1)


def test_prefill_and_padding(client, pair):
    eager, ours = pair
    ids, mask = prompt(2, 50), torch.ones(2, 50, dtype=torch.long)
    mask[1, :13] = 0
    options = dict(attention_mask=mask, max_new_tokens=NEW, do_sample=False)
    with BanyanCache(ours, client, session="padded", batch=2, state_tokens=EVERY) as cache:
        prefill(ours, ids, cache, attention_mask=mask, block=10)
    assert kept(client, "padded/0") == [20, 40, 49] and kept(client, "padded/1") == [7, 27, 36]
    for i in range(2):
        client.open(f"padded/{i}").cut_states(48 - 13 * i)
    with BanyanCache(ours, client, session="padded", batch=2, state_tokens=EVERY) as cache, Fed(ours) as fed:
        got = ours.generate(ids, past_key_values=cache, **options)
        assert fed.tokens == 49 - 40 + NEW
    assert got.tolist() == eager.generate(ids, use_cache=False, **options).tolist()


def test_no_room_for_states(client):
    """The text goes on, and who opens it feeds it again."""
    pair = models("falcon_h1")
    text = prompt(1, 70)
    with banyan.local_cluster(workers=1, memory="64M", threads=1) as cluster, cluster.connect() as own:
        with BanyanCache(pair[1], own, session="full", state_tokens=64) as cache:
            feed(pair, cache, text[:, :40])
            own.set_quotas("default", bytes=own.quotas("default")[0].quotas["bytes"].used)
            with pytest.warns(UserWarning, match="no more states"):
                feed(pair, cache, text, 40)
            assert next_is_right(cache, pair, text)
            held = torch.cat((text, torch.tensor([[7]])), dim=1)
        with BanyanCache(pair[1], own, session="full") as cache:
            assert next_is_right(cache, pair, held)


def test_shared_keys_are_no_state(client):
    """Layers that read another one's keys hold nothing: such models are resumed and forked like others."""
    eager, ours = models("gemma3n_text")
    with torch.no_grad(), BanyanCache(ours, client, session="shared") as cache:
        ours(prompt(), past_key_values=cache)
    ids = torch.cat((prompt(), torch.tensor([[5, 6]])), dim=1)
    with torch.no_grad(), BanyanCache(ours, client, session="shared") as cache, cache.fork() as fork:
        got, want = ours(ids[:, 40:], past_key_values=fork).logits, eager(ids).logits[:, 40:]
    assert (got - want).abs().max() <= 2e-5 * want.abs().max()
