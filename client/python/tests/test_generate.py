# SPDX-License-Identifier: Apache-2.0
"""What generate() does with a cache, token by token beside Transformers' own; resuming; misuse."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from families import FAMILIES, make  # noqa: E402
from generating import NEW, both_generate, models, prompt  # noqa: E402
from transformers import DynamicCache, TextStreamer  # noqa: E402

import banyan  # noqa: E402
from banyan.transformers import BanyanCache, Refused, prefill  # noqa: E402
from banyan.transformers.identity import Identity, difference, fingerprint  # noqa: E402


@pytest.fixture(params=["llama", "gemma2", "gpt_oss"])
def pair(request):
    return models(request.param)


@pytest.fixture
def llama():
    return models()


def test_greedy(client, pair):
    both_generate(client, pair, prompt())


def test_left_padded_batch(client, pair):
    ids, mask = prompt(3), torch.ones(3, 40, dtype=torch.long)
    mask[1, :13] = 0
    mask[2, :39] = 0
    both_generate(client, pair, ids, attention_mask=mask)


def test_sampling_and_many_sequences(client, llama):
    both_generate(client, llama, prompt(), do_sample=True, num_return_sequences=3, temperature=0.7)


def test_beams(client, pair):
    both_generate(client, pair, prompt(2), num_beams=4, num_return_sequences=2)


def test_prompt_lookup(client, pair):
    ids = prompt(1, 12).repeat(1, 4)
    both_generate(client, pair, ids, prompt_lookup_num_tokens=3)


def test_assistant(client, llama):
    assistant = make("llama", {**FAMILIES["llama"], "num_hidden_layers": 1}, "eager")
    both_generate(client, llama, prompt(), assistant_model=assistant)


def test_prefill_in_blocks(client, pair):
    both_generate(client, pair, prompt(1, 50), prefill_chunk_size=16)


def test_streamer(client, llama, capsys):
    class Numbers:
        def decode(self, tokens, **more):
            return " ".join(str(int(t)) for t in tokens)

    both_generate(client, llama, prompt(), streamer=TextStreamer(Numbers()))
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


def test_long_prompts_are_attached(client, llama):
    """More than travels with a step: K and V of 700 tokens are above 1 MiB in this model."""
    eager = make("llama", {"num_key_value_heads": 8, "head_dim": 128}, "eager")
    ours = make("llama", {"num_key_value_heads": 8, "head_dim": 128}, "banyan")
    ids = prompt(2, 400)
    mask = torch.ones_like(ids)
    mask[0, :77] = 0
    both_generate(client, (eager, ours), ids, attention_mask=mask, max_new_tokens=4)


def test_bfloat16(client):
    eager, ours = (model.to(torch.bfloat16) for model in models())
    ids = prompt(1, 64)
    with torch.no_grad():
        want = eager(ids, past_key_values=DynamicCache(config=eager.config)).logits
        with BanyanCache(ours, client) as cache:
            got = ours(ids, past_key_values=cache).logits
            assert cache.sessions[0].spec.kv_type == "bf16"
    assert (got - want).abs().max() <= 0.05 * want.abs().max()


def test_forks_of_one_document(client, llama):
    eager, ours = llama
    document, questions = prompt(), [torch.full((1, 3), t) for t in (7, 9)]
    with torch.no_grad(), BanyanCache(ours, client, session="document") as cache:
        ours(document, past_key_values=cache)
        for question in questions:
            ids = torch.cat((document, question), dim=1)
            with cache.fork() as fork:
                got = ours.generate(ids, past_key_values=fork, max_new_tokens=NEW, do_sample=False)
            assert got.tolist() == eager.generate(ids, max_new_tokens=NEW, do_sample=False).tolist()
        orphan = cache.fork("orphan")
        cache.delete()
    ids = torch.cat((document, questions[0]), dim=1)
    got = ours.generate(ids, past_key_values=orphan, max_new_tokens=NEW, do_sample=False)
    assert got.tolist() == eager.generate(ids, max_new_tokens=NEW, do_sample=False).tolist()
    orphan.delete()


RESUME = """
import sys, torch
sys.path.insert(0, sys.argv[3])
from generating import models
import banyan, banyan.transformers
torch.set_num_threads(1)
_, ours = models("gemma2")
calls = []
ours.register_forward_pre_hook(lambda m, a, k: calls.append(k["input_ids"].shape[1]), with_kwargs=True)
with banyan.Client(sys.argv[1]) as client, banyan.transformers.BanyanCache(ours.config, client, session="book") as cache:
    assert cache.get_seq_length() == 40 + 16 - 1, cache.get_seq_length()
    ids = torch.tensor([[int(t) for t in sys.argv[2].split()]])
    out = ours.generate(ids, past_key_values=cache, max_new_tokens=16, do_sample=False)
    print(*out[0].tolist(), "|", *calls)
"""


def test_resumed_by_another_process(client, cluster):
    """No prefill again: the second process feeds one token, then the new ones."""
    from pathlib import Path

    eager, ours = models("gemma2")
    with BanyanCache(ours.config, client, session="book") as cache:
        half = ours.generate(prompt(), past_key_values=cache, max_new_tokens=NEW, do_sample=False)
    text = " ".join(str(t) for t in half[0].tolist())
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", RESUME, cluster.endpoint, text, here], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    tokens, calls = done.stdout.split("|")
    want = eager.generate(prompt(), max_new_tokens=2 * NEW, do_sample=False)
    assert [int(t) for t in tokens.split()] == want[0].tolist()
    assert [int(c) for c in calls.split()][-NEW:] == [1] * NEW and "56" not in calls.split()  # looks at the model, then token by token


def test_prefill_of_what_is_missing(client, llama, capsys):
    eager, ours = llama
    ids, mask = prompt(2, 90), torch.ones(2, 90, dtype=torch.long)
    mask[0, :37] = 0
    with BanyanCache(ours, client) as cache:
        assert prefill(ours, ids[:, :41], cache, attention_mask=mask[:, :41], block=16) == 40
        assert cache.get_seq_length() == 40
        assert prefill(ours, ids, cache, attention_mask=mask, block=16, progress=True) == 49
        assert prefill(ours, ids, cache, attention_mask=mask) == 0
        assert "prefill: 100%" in capsys.readouterr().err
        got = ours.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
        other = ids.clone()
        other[1, 3] += 1
        with pytest.raises(Refused, match="token 3 of sequence 1"):
            prefill(ours, other, cache, attention_mask=mask)
    assert got.tolist() == eager.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False).tolist()


def test_resumed_batches(client, llama):
    eager, ours = llama
    ids, mask = prompt(3), torch.ones(3, 40, dtype=torch.long)
    mask[0, :5] = 0
    with BanyanCache(ours, client, session="three") as cache:
        half = ours.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
    longer = torch.cat((mask, torch.ones(3, NEW, dtype=torch.long)), dim=1)
    with BanyanCache(ours, client, session="three") as cache:
        assert cache.pads == [5, 0, 0]
        got = ours.generate(half, attention_mask=longer, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
        cache.delete()
    want = eager.generate(ids, attention_mask=mask, max_new_tokens=2 * NEW, do_sample=False)
    assert got.tolist() == want.tolist()


def test_the_tokens_are_in_the_session(client, llama):
    _, ours = llama
    ids, mask = prompt(2), torch.ones(2, 40, dtype=torch.long)
    mask[0, :5] = 0
    for kv_type in ("f32", "f16", "bf16"):
        with BanyanCache(ours, client, session="read", kv_type=kv_type) as cache:
            out = ours.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
        with BanyanCache(ours, client, session="read", kv_type=kv_type) as cache:
            assert [t.tolist() for t in cache.tokens()] == [out[0, 5:-1].tolist(), out[1, :-1].tolist()]
            cache.check(out)
            cache.check(out[:, :20])
            other = out.clone()
            other[1, 17] += 1
            with pytest.raises(Refused, match=f"token 17 of sequence 1 is {int(out[1, 17])} in the session"):
                cache.check(other)
            cache.crop(-30)
            cache.check(out)
            assert len(cache.tokens()[1]) == 40 + NEW - 1 - 30
            cache.delete()


def test_ids_of_large_vocabularies(client):
    from banyan import tokens

    ids = torch.tensor([0, 1, 255, 256, 65535, 65536, 262143, 9999999])
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for pad, row in zip((0, 70000), tokens.values(ids.repeat(2, 1), tokens.Stamp(0xDEADBEEF, 1), [0, 70000], dtype).float()):
            said = tokens.parsed(row)
            assert said.tokens.tolist() == ids.tolist()
            assert set(said.marks.tolist()) == {0xDEADBEEF}
            assert set(said.pads.tolist()) == {pad}
            assert set(said.forms.tolist()) == {1}


def test_a_cache_that_is_forgotten(client, llama):
    _, ours = llama
    with torch.no_grad():
        cache = BanyanCache(ours, client)
        ours(prompt(), past_key_values=cache)
        assert len(client.sessions()) == 1
        assert cache.sessions[0].spec.idle_ttl == 6 * 3600
        del cache
        gc.collect()
    until = time.monotonic() + 60
    while client.sessions() and time.monotonic() < until:  # a thread deletes them
        time.sleep(0.01)
    assert client.sessions() == []


def test_embeddings_instead_of_tokens(client, llama):
    eager, ours = llama
    vectors = torch.randn(1, 12, 64)
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        got = ours(inputs_embeds=vectors, past_key_values=cache).logits
        assert set(cache.tokens()[0].tolist()) == {-1}
        want = eager(inputs_embeds=vectors).logits
    assert (got - want).abs().max() <= 2e-5 * want.abs().max()


def test_other_weights(client, llama):
    """Refused before anything is fed: by the cache that was given the model, by generate() and by a forward
    of the config's."""
    _, ours = llama
    with torch.no_grad(), BanyanCache(ours, client, session="x") as cache:
        ours(prompt(), past_key_values=cache)
    _, other = models()
    with torch.no_grad():
        other.model.layers[2].mlp.down_proj.weight.normal_(0, 0.15)
    with pytest.raises(Refused, match="other weights"):
        BanyanCache(other, client, session="x")
    for calls in ((other.generate, other), (other, other.generate)):
        with BanyanCache(other.config, client, session="x") as cache:
            with torch.no_grad():
                other(prompt(), use_cache=False)  # which is none of this cache's
            for call in (*calls, *calls):  # however often it is tried
                with torch.no_grad(), pytest.raises(Refused, match=r"other weights.*give another name"):
                    call(prompt(1, 60), past_key_values=cache)
    assert client.open("x").info().layer_lengths == (40,) * 5
    assert BanyanCache(models()[1], client, session="x").get_seq_length() == 40


def test_fingerprints(client, tmp_path):
    _, ours = models("gemma2")
    ours.to(torch.bfloat16)
    mine = fingerprint(ours)
    ours.save_pretrained(tmp_path)
    loaded = type(ours).from_pretrained(tmp_path, attn_implementation="eager", dtype=torch.float32)
    loaded.model.layers[0].mlp.up_proj.weight.data = loaded.model.layers[0].mlp.up_proj.weight.data.t().contiguous().t()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    assert fingerprint(loaded) == mine
    torch.set_num_threads(threads)
    assert difference(mine, mine) == ""
    for name, weight in loaded.named_parameters():
        kept = weight.data.clone()
        weight.data.add_(0.01)
        assert "weights" in difference(mine, fingerprint(loaded)), name
        weight.data.copy_(kept)
    with torch.no_grad():
        loaded.model.norm.weight.fill_(1.001)  # which bfloat16 rounds away
    exact = fingerprint(loaded)
    assert "weights" in difference(exact, fingerprint(loaded.to(torch.bfloat16)))
    ours.config.rope_parameters = {**ours.config.rope_parameters, "rope_theta": 5e5}
    assert "configuration" in difference(mine, Identity(ours).mark())


def test_another_models_session(client, llama):
    _, ours = llama
    with torch.no_grad(), BanyanCache(ours, client, session="x") as cache:
        ours(prompt(), past_key_values=cache)
    other = make("llama", {"head_dim": 32}, "banyan")
    with pytest.raises(Refused, match="k_dim 16, not 32"):
        BanyanCache(other, client, session="x")
    with pytest.raises(Refused, match="k_dim 16, not 32"):
        other(prompt(), past_key_values=BanyanCache(other.config, client, session="x"))


def test_a_cluster_that_goes_away(llama):
    """generate() may be called again with the same cache: it goes on with the right tokens."""
    eager, ours = llama
    want = eager.generate(prompt(), max_new_tokens=2 * NEW, do_sample=False)
    with banyan.local_cluster(2, memory="64M", threads=1) as cluster, cluster.connect(timeout=1) as client:
        cache = BanyanCache(ours, client, session="kept")
        got = ours.generate(prompt(), past_key_values=cache, max_new_tokens=NEW, do_sample=False)
        for layer in (0, 2):  # of four: killed before a forward, and within one
            calls = []

            def kill(module, arguments, calls=calls):
                calls.append(1)
                if len(calls) == 1:
                    cluster.kill("coordinator")

            hook = ours.model.layers[layer].register_forward_pre_hook(kill)
            with pytest.raises((banyan.Unavailable, banyan.DeadlineExceeded)):
                ours.generate(got, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
            hook.remove()
            cluster.start_coordinator()
        got = ours.generate(got, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
        assert got.tolist() == want.tolist()


def test_an_interrupted_forward(client, llama):
    eager, ours = llama

    def interrupt(module, arguments):
        raise KeyboardInterrupt

    with BanyanCache(ours, client) as cache:
        got = ours.generate(prompt(), past_key_values=cache, max_new_tokens=NEW, do_sample=False)
        hook = ours.model.layers[2].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            ours.generate(got, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
        hook.remove()
        got = ours.generate(got, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
    assert got.tolist() == eager.generate(prompt(), max_new_tokens=2 * NEW, do_sample=False).tolist()


@pytest.mark.parametrize("given", ["model", "config"])
def test_an_error_behind_the_last_layer(client, llama, given):
    """Its tokens are not held: the same call again gives what it would have given. After Ctrl-C it is refused
    until that is clear."""
    eager, ours = llama
    ids = prompt(1, 50)

    def failing(error, call):
        def fail(*_):
            raise error

        hook = ours.lm_head.register_forward_pre_hook(fail)
        with pytest.raises(type(error)):
            call()
        hook.remove()

    def same(got, want):
        assert (got - want).abs().max() <= 2e-5 * want.abs().max()

    with torch.no_grad(), BanyanCache(ours if given == "model" else ours.config, client) as cache:
        want = eager(ids).logits
        same(ours(ids[:, :10], past_key_values=cache).logits, want[:, :10])
        for _ in range(2):
            failing(RuntimeError("no memory"), lambda: ours(ids[:, 10:20], past_key_values=cache))
            assert cache.get_seq_length() == 10
        same(ours(ids[:, 10:20], past_key_values=cache).logits, want[:, 10:20])
        for go_on in (lambda: cache.crop(-10), lambda: cache.check(ids)):
            failing(KeyboardInterrupt(), lambda: ours(ids[:, 20:30], past_key_values=cache))
            with pytest.raises(Refused, match=r"behind its last layer of attention.*crop\(-10\)"):
                ours(ids[:, 20:30], past_key_values=cache)
            go_on()
        same(ours(ids[:, 30:], past_key_values=cache).logits, want[:, 30:])
    for error in (RuntimeError("no memory"), KeyboardInterrupt()):
        with BanyanCache(ours if given == "model" else ours.config, client) as cache:

            def call(cache=cache):
                return ours.generate(ids, past_key_values=cache, max_new_tokens=NEW, do_sample=False)

            failing(error, call)
            assert call().tolist() == eager.generate(ids, max_new_tokens=NEW, do_sample=False).tolist()


def test_a_forward_that_leaves_layers_out(client, llama):
    _, ours = llama
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        ours(prompt(), past_key_values=cache)
        ours.model.config.num_hidden_layers = 2
        with pytest.raises(Refused, match=r"layers \[2, 3\] were left out"):
            ours(prompt(1, 1), past_key_values=cache)


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_windows_that_forget_keep_the_tokens(client, family):
    eager, ours = models(family)
    ids = prompt(tokens=120)
    want = eager.generate(ids, max_new_tokens=2 * NEW, do_sample=False)
    with BanyanCache(ours, client, session="window", chunk_tokens=16, forget=8) as cache:
        half = ours.generate(ids, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
        with pytest.raises(banyan.FailedPrecondition, match="forgotten"):
            cache.crop(-100)
    with BanyanCache(ours.config, client, session="window") as cache:
        assert cache.tokens()[0].tolist() == half[0, :-1].tolist()
        mask = torch.ones_like(half)
        got = ours.generate(half, attention_mask=mask, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
    assert got.tolist() == want.tolist()


def test_a_look_that_was_interrupted(client, llama):
    eager, ours = llama

    def interrupt(module, arguments):
        raise KeyboardInterrupt

    with torch.no_grad(), BanyanCache(ours.config, client) as cache:
        hook = ours.model.layers[2].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            ours(prompt(), past_key_values=cache)
        hook.remove()
        got, want = ours(prompt(), past_key_values=cache).logits, eager(prompt()).logits
        assert (got - want).abs().max() <= 2e-5 * want.abs().max()
        assert cache.tokens()[0].tolist() == prompt()[0].tolist()


def test_misuse(client, llama):
    eager, ours = llama
    with pytest.raises(TypeError, match="not a str"):
        BanyanCache("llama", client)
    with torch.no_grad():
        with pytest.raises(Refused, match="attn_implementation='banyan'"):
            BanyanCache(eager, client)
        with BanyanCache(ours, client) as cache, pytest.raises(Refused, match="contradict each other"):
            ours(prompt(), past_key_values=cache, use_cache=False)
        with BanyanCache(ours, client) as cache, pytest.raises(Refused, match="computes with cached"):
            eager(prompt(), past_key_values=cache)
        with BanyanCache(ours, client) as cache:
            ours(prompt(2), past_key_values=cache)
            with pytest.raises(Refused, match="holds 2 sequences and is given 1"):
                ours(prompt(1), past_key_values=cache)
        with BanyanCache(ours, client) as cache:
            mask = torch.ones(1, 40, dtype=torch.long)
            mask[0, 20] = 0
            with pytest.raises(Refused, match="pad on the left"):
                ours(prompt(), attention_mask=mask, past_key_values=cache)
            with pytest.raises(Refused, match="mask of its own"):
                ours(prompt(), attention_mask=torch.zeros(1, 1, 40, 40), past_key_values=cache)
        with BanyanCache(ours, client) as cache:
            cache.close()
            ours.to(torch.float64)
            with pytest.raises(Refused, match="float64"):
                BanyanCache(ours, client)


def test_generate_with_what_the_session_holds(client, llama):
    """All of it: the last token is fed again, for its logits. Less: refused, since what is held is no
    beginning of it."""
    eager, ours = llama
    want = eager.generate(prompt(), max_new_tokens=NEW, do_sample=False)
    with torch.no_grad(), BanyanCache(ours, client, session="whole") as cache:
        ours(prompt(), past_key_values=cache)
    for model in (ours, ours.config):
        with BanyanCache(model, client, session="whole") as cache, cache.fork() as fork:
            assert ours.generate(prompt(), past_key_values=fork, max_new_tokens=NEW, do_sample=False).tolist() == want.tolist()
            with pytest.raises(Refused, match=r"given 30 tokens, and the cache holds 40.*fork.crop\(-11\)"):
                ours.generate(prompt()[:, :30], past_key_values=cache, max_new_tokens=NEW)
            with cache.fork() as fork:
                fork.crop(-11)
                got = ours.generate(prompt()[:, :30], past_key_values=fork, max_new_tokens=NEW, do_sample=False)
            assert got.tolist() == eager.generate(prompt()[:, :30], max_new_tokens=NEW, do_sample=False).tolist()


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_compiled(client, family):
    """Attention is the service's, whatever of the rest is compiled."""
    eager, ours = models(family)
    parts = [prompt(), torch.tensor([[5]]), torch.tensor([[6]])]
    torch.compiler.reset()
    compiled = torch.compile(ours, backend="eager")
    with torch.no_grad(), BanyanCache(compiled, client) as cache:
        got = torch.cat([compiled(input_ids=ids, past_key_values=cache).logits for ids in parts], dim=1)
        want = eager(torch.cat(parts, dim=1)).logits
        assert cache.get_seq_length() == 42
    torch.compiler.reset()
    assert (got - want).abs().max() <= 2e-5 * want.abs().max()


def test_inference_mode_and_then_without(client):
    eager, ours = models()
    with BanyanCache(ours, client) as cache:
        with torch.inference_mode():
            out = ours.generate(prompt(), past_key_values=cache, max_new_tokens=NEW, do_sample=False)
            fork = cache.fork()
        ids = torch.cat((out, out[:, :40]), dim=1)
        want = eager.generate(ids, max_new_tokens=NEW, do_sample=False).tolist()
        for held in (cache, fork):
            assert ours.generate(ids, past_key_values=held, max_new_tokens=NEW, do_sample=False).tolist() == want
        fork.close()


def test_autocast(client):
    """As near to float32 as eager attention under autocast is."""
    for family in ("llama", "gemma2", "gpt2"):
        eager, ours = models(family)

        def logits(model, cache):
            return torch.cat([model(ids, past_key_values=cache).logits.float() for ids in (prompt(), prompt(1, 1))], dim=1)

        with torch.no_grad():
            exact = logits(eager, DynamicCache(config=eager.config))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                theirs = logits(eager, DynamicCache(config=eager.config))
                for given in (ours, ours.config):
                    with BanyanCache(given, client) as cache:
                        mine = logits(ours, cache)
                    assert 0 < (mine - exact).abs().mean() <= 1.5 * (theirs - exact).abs().mean(), family


@pytest.mark.parametrize("first", [False, True])
def test_autocast_for_a_part_of_a_text(client, llama, first):
    """Keys may have the same type as without: values tell."""
    _, ours = llama
    with torch.no_grad(), BanyanCache(ours.config, client) as cache:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=first):
            ours(prompt(), past_key_values=cache)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not first), pytest.raises(Refused, match=r"under torch.autocast"):
            ours(prompt(1, 1), past_key_values=cache)


def test_training_is_refused(client, llama):
    _, ours = llama
    ours.config.attention_dropout = 0.1
    for layer in ours.model.layers:
        layer.self_attn.attention_dropout = 0.1
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        ours.train()
        with pytest.raises(Refused, match="dropout"):
            ours(prompt(), past_key_values=cache)


def test_gradient_checkpointing_is_refused(client, llama):
    _, ours = llama
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        ours.gradient_checkpointing_enable()
        ours.train()
        with pytest.raises(Refused, match=r"call model.eval\(\)"):
            ours(prompt(), past_key_values=cache)
        ours.eval()
        ours(prompt(), past_key_values=cache)


def test_gradients_are_refused(client, llama):
    _, ours = llama
    with BanyanCache(ours, client) as cache, pytest.raises(Refused, match="no_grad"):
        ours(prompt(), past_key_values=cache)


def test_beams_leave_a_named_session_alone(client, llama):
    eager, ours = llama
    document = prompt()
    with torch.no_grad(), BanyanCache(ours, client, session="kept") as cache:
        ours(document, past_key_values=cache)
        cache.batch_repeat_interleave(3)
        cache.reorder_cache(torch.tensor([2, 2, 0]))
        got = ours(torch.full((3, 1), 9), past_key_values=cache).logits
        want = eager(torch.cat((document, torch.tensor([[9]])), dim=1)).logits[:, -1:]
        assert (got - want).abs().max() <= 2e-5 * want.abs().max()
    assert [s.name for s in client.sessions()] == ["kept"]
    with BanyanCache(ours, client, session="kept") as cache:
        assert cache.tokens()[0].tolist() == document[0].tolist()


def test_a_resumed_session_and_another_text(client, llama):
    _, ours = llama
    with torch.no_grad(), BanyanCache(ours, client, session="text") as cache:
        ours(prompt(), past_key_values=cache)
    other = torch.cat((prompt().flip(1), torch.tensor([[5, 6]])), dim=1)
    with BanyanCache(ours.config, client, session="text") as cache, pytest.raises(Refused, match="token 0 of sequence 0"):
        ours.generate(other, past_key_values=cache, max_new_tokens=2)


def test_a_resumed_session_is_compared_before_anything_is_fed(client, llama):
    _, ours = llama
    with torch.no_grad(), BanyanCache(ours, client, session="text") as cache:
        ours(prompt(), past_key_values=cache)
    other = torch.cat((prompt(), torch.tensor([[5, 6]])), dim=1)
    other[0, 39] += 1
    for model in (ours, ours.config):
        with BanyanCache(model, client, session="text") as cache, pytest.raises(Refused, match="token 39 of sequence 0"):
            ours.generate(other, past_key_values=cache, max_new_tokens=2)
    assert client.open("text").info().layer_lengths == (40,) * 5
    assert "generate" not in ours.__dict__ and "prepare_inputs_for_generation" not in ours.__dict__


def test_the_whole_text_again_on_a_resumed_session(client, llama):
    eager, ours = llama
    with torch.no_grad(), BanyanCache(ours, client, session="text") as cache:
        ours(prompt(), past_key_values=cache)
    longer = torch.cat((prompt(), torch.tensor([[5, 6]])), dim=1)
    for model in (ours, ours.config):
        with torch.no_grad(), BanyanCache(model, client, session="text") as cache:
            for text in (prompt(), longer):
                with pytest.raises(Refused, match=r"has these 40 tokens already.*input_ids\[:, 40:\]"):
                    ours(text, past_key_values=cache)
            got = ours(longer[:, 40:], past_key_values=cache).logits
            assert (got - eager(longer).logits[:, 40:]).abs().max() <= 2e-5 * got.abs().max()
            cache.crop(-2)
    with torch.no_grad(), BanyanCache(ours, client, session="text") as cache:
        cache.check(prompt())  # and so it is meant
        got = ours(prompt(), past_key_values=cache).logits
        want = eager(torch.cat((prompt(), prompt()), dim=1)).logits[:, 40:]
        assert (got - want).abs().max() <= 2e-5 * want.abs().max()


def test_the_readme(tmp_path, capsys):
    """Its first program, with a small model in the place of the one from the network."""
    from pathlib import Path

    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"word{i}": i for i in range(128)}, unk_token="word5"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="word5").save_pretrained(tmp_path)
    make("llama", FAMILIES["llama"], "eager").save_pretrained(tmp_path)
    text = (Path(__file__).parent.parent / "README.md").read_text()
    program = text.partition("```python\n")[2].partition("```")[0]
    assert "SmolLM2" in program
    exec(program.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(tmp_path)), {})
    assert "tokens are there" in capsys.readouterr().out


def test_masks_that_do_not_fit(client, llama):
    _, ours = llama
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        with pytest.raises(Refused, match="1 sequences, and there are 3"):
            ours(prompt(3), attention_mask=torch.tensor([[0] * 5 + [1] * 35]), past_key_values=cache)
        ours(prompt(3), past_key_values=cache)
        with pytest.raises(Refused, match="for 1 tokens, and there are 41"):
            ours(prompt(3, 1), attention_mask=torch.ones(3, 1, dtype=torch.long), past_key_values=cache)


def test_weights_that_change(client):
    for family, module in (("gpt_oss", "sinks"), ("deepseek_v3", "kv_b_proj")):
        eager, ours = models(family)
        with torch.no_grad(), BanyanCache(ours, client) as cache:
            ours(prompt(), past_key_values=cache)
            for model in (eager, ours):
                torch.manual_seed(9)
                part = getattr(model.model.layers[1].self_attn, module)
                (part if module == "sinks" else part.weight).normal_(0, 0.3)
            cache.reset()
            if module == "sinks":
                with pytest.raises(Refused, match="other attention sinks"):
                    ours(prompt(), past_key_values=cache)
            else:
                got, want = ours(prompt(), past_key_values=cache).logits, eager(prompt()).logits
                assert (got - want).abs().max() <= 2e-5 * want.abs().max()


def test_caches_of_one_model_do_not_meddle(client, llama):
    _, ours = llama

    def interrupt(module, arguments):
        raise KeyboardInterrupt

    with torch.no_grad(), BanyanCache(ours, client) as one, BanyanCache(ours, client) as two:
        hook = ours.model.layers[2].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            ours(prompt(), past_key_values=one)
        hook.remove()
        ours(inputs_embeds=torch.randn(1, 40, 64), past_key_values=two)
        assert set(two.tokens()[0].tolist()) == {-1}
        copied = copy.deepcopy(two)
        assert copied.get_seq_length() == 40
        copied.delete()
        with pytest.raises(Refused, match="fork"):
            copy.copy(two)
        _, other = models()
        with pytest.raises(Refused, match="another model"):
            other(prompt(1, 1), past_key_values=two)


def test_windows_that_forget(client):
    """The same tokens, less held, a crop within the margin; one beyond it is refused, and says why."""
    eager, ours = models("gemma2")
    ids = prompt(tokens=120)
    want = eager.generate(ids, max_new_tokens=2 * NEW, do_sample=False)
    held = []
    for margin in (0, 8):
        with BanyanCache(ours, client, session="window", chunk_tokens=16, forget=margin) as cache:
            first = ours.generate(ids, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
            with client.open("window") as session:
                held.append(session.info().bytes)
            cache.crop(-4)
            got = ours.generate(want[:, : first.shape[1]], past_key_values=cache, max_new_tokens=NEW, do_sample=False)
            assert got.tolist() == want.tolist()
            if margin:
                with pytest.raises(banyan.FailedPrecondition, match="forgotten"):
                    cache.crop(-100)
            cache.delete()
    assert held[1] < held[0] * 0.8
