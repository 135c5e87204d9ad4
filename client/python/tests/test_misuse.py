# SPDX-License-Identifier: Apache-2.0
"""What is refused says the true reason and what to do; what the garbage collector finds makes no calls."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import zoo  # noqa: E402
from families import FAMILIES, make  # noqa: E402
from generating import NEW, models, prompt  # noqa: E402
from transformers import DynamicCache, StaticCache  # noqa: E402

import banyan  # noqa: E402
from banyan.guard import Guard  # noqa: E402
from banyan.transformers import BanyanCache, Refused, prefill  # noqa: E402


@pytest.fixture
def llama():
    return models()


def greedy(model, ids, cache=None, **more):
    more = {"max_new_tokens": NEW, "do_sample": False, "attention_mask": torch.ones_like(ids), **more}
    return model.generate(ids, **({} if cache is None else {"past_key_values": cache}), **more)


# ---- forwards that are given no BanyanCache, or another one ----


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "deepseek_v3", "qwen3_next"])
def test_a_forward_without_a_cache(client, family):
    eager, ours = models(family)
    mask = torch.ones(2, 40, dtype=torch.long)
    mask[0, :7] = 0
    with torch.no_grad():
        for more in ({}, {"attention_mask": mask}):
            got, want = (m(prompt(2), use_cache=False, **more).logits[:, 7:] for m in (ours, eager))
            assert (got - want).abs().max() <= 2e-5 * want.abs().max()
    assert client.sessions() == []


def test_caches_of_transformers(client, llama):
    _, ours = llama
    with torch.no_grad(), BanyanCache(ours, client):
        with pytest.raises(Refused, match=r"is given no BanyanCache: give past_key_values=BanyanCache\(...\)"):
            greedy(ours, prompt())
        cache = DynamicCache(config=ours.config)
        ours(prompt(), past_key_values=cache)
        with pytest.raises(Refused, match="keys that another cache holds"):
            ours(prompt(1, 1), past_key_values=cache)
        with pytest.raises(Refused, match=r"another cache holds.*StaticCache"):
            ours(prompt(), past_key_values=StaticCache(config=ours.config, max_cache_len=64))


def test_an_assistant_with_the_same_attention(client, llama):
    eager, ours = llama
    assistant = make("llama", {**FAMILIES["llama"], "num_hidden_layers": 1}, "banyan")
    with BanyanCache(ours, client) as cache:
        got = greedy(ours, prompt(), cache, assistant_model=assistant)
    assert got.tolist() == greedy(eager, prompt()).tolist()


@pytest.mark.parametrize("more", [{}, {"negative_prompt_ids": prompt(1, 20)}])
def test_guidance(client, llama, more):
    eager, ours = llama
    with BanyanCache(ours, client) as cache:
        got = greedy(ours, prompt(), cache, guidance_scale=1.5, **more)
    assert got.tolist() == greedy(eager, prompt(), guidance_scale=1.5, **more).tolist()


def test_a_mask_that_was_inferred(client, llama):
    """Where the token of padding stands in the text."""
    _, ours = llama
    ids = prompt()
    ids[0, 10] = ours.generation_config.pad_token_id
    with BanyanCache(ours, client) as cache:
        with pytest.raises(Refused, match=r"given no attention_mask, and Transformers has made one of pad_token_id.*ones_like"):
            ours.generate(ids, past_key_values=cache, max_new_tokens=2)
        greedy(ours, ids, cache)


# ---- arguments ----


def test_fields_that_are_none(client, llama):
    with pytest.raises(TypeError, match="'chunk_token' is unknown: did you mean 'chunk_tokens'"):
        BanyanCache(llama[1], client, chunk_token=3)
    assert client.sessions() == []


def test_more_replicas_than_workers(llama):
    _, ours = llama
    with banyan.local_cluster(1, memory="64M", threads=1) as cluster, cluster.connect() as client, torch.no_grad():
        cache = BanyanCache(ours, client, replicas=2)
        with pytest.warns(UserWarning, match="replicas=2, and the cluster has 1 workers"):
            ours(prompt(), past_key_values=cache)
        cache.close()


def test_a_closed_cache(client, llama):
    _, ours = llama
    cache = BanyanCache(ours, client, "book")
    greedy(ours, prompt(), cache)
    cache.close()
    calls = (
        lambda: greedy(ours, prompt(), cache),
        lambda: prefill(ours, prompt(), cache),
        lambda: ours(prompt(), past_key_values=cache),
        cache.fork,
    )
    for call in calls:
        with torch.no_grad(), pytest.raises(Refused, match="this cache was closed"):
            call()
    cache.close()
    assert [s.name for s in client.sessions()] == ["book"]


def test_two_that_write(client, llama):
    _, ours = llama
    with torch.no_grad():
        with BanyanCache(ours, client, "book") as cache:
            ours(prompt(), past_key_values=cache)
        one, two = (BanyanCache(ours, client, "book") for _ in range(2))
        ours(torch.tensor([[7]]), past_key_values=one)
        with pytest.raises(Refused, match=r"session 'book' has got other tokens behind the 40.*cache.fork\(\)"):
            ours(torch.tensor([[9]]), past_key_values=two)
        one.close()
        two.close()


def test_a_bar_that_counts_tokens(client, llama, capsys):
    with BanyanCache(llama[1], client) as cache:
        prefill(llama[1], prompt(1, 60), cache, block=16, progress=True)
    assert "59/59" in capsys.readouterr().err


def test_a_model_that_accelerate_has_put_elsewhere(client, llama):
    accelerate = pytest.importorskip("accelerate")
    eager, ours = llama
    want = greedy(eager, prompt())
    with BanyanCache(ours, client, "book") as cache:
        out = greedy(ours, prompt(), cache)
    ours = accelerate.cpu_offload(ours)
    for given in (ours, ours.config):
        with BanyanCache(given, client) as cache:
            assert greedy(ours, prompt(), cache).tolist() == want.tolist()
    with BanyanCache(ours, client, "book") as cache:  # the same weights, wherever they are
        greedy(ours, torch.cat((out, torch.tensor([[7]])), dim=1), cache)


# ---- models that are made in another way ----


REASONS = {
    "blt": r"BltConfig has no num_hidden_layers: the model is not one stack of layers",
    "deepseek_v4": r"keep more in their cache than keys and values \(store_compression_weights\)",
    "minimax": r"MiniMax uses cache of its own",
    "qwen4_exp": r"keep more in their cache than keys and values \(indexer_position_ids\)",
    "xlstm": r"xLSTMForCausalLM takes no past_key_values",
}


@pytest.mark.parametrize("family", REASONS)
def test_reasons(client, family):
    ours = zoo.make(family, prompt())
    with pytest.raises(Refused, match=REASONS[family]) as refused:
        ours.set_attn_implementation("banyan")
        BanyanCache(ours, client)
    assert "Error" not in str(refused.value) or family == "minimax"  # whose own sentence it is


def test_a_model_that_asks_whether_there_are_keys(client):
    """Mllama does, of layers that read images. Text alone is served; images' keys are not what the service
    was made for."""
    ours = zoo.make("mllama", prompt(2))
    want = zoo.whole(ours, prompt(2))
    ours.set_attn_implementation("banyan")
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        got = [ours(prompt(2)[:, a:b], past_key_values=cache).logits for a, b in ((0, 30), (30, 39), (39, 40))]
        assert (torch.cat(got, dim=1) - want).abs().max() <= 2e-5 * want.abs().max()
        for _ in range(2):
            with pytest.raises(Refused, match="has keys and values, and had none when the model was first looked at"):
                ours(
                    prompt(2)[:, :3],
                    past_key_values=cache,
                    cross_attention_states=torch.randn(2, 9, ours.config.get_text_config().hidden_size),
                )
            got = ours(prompt(2)[:, :1], past_key_values=cache).logits
            want = zoo.whole(zoo.make("mllama", prompt(2)), torch.cat((prompt(2), prompt(2)[:, :1]), dim=1))[:, -1:]
            assert (got - want).abs().max() <= 2e-5 * want.abs().max()
            cache.crop(-1)
        with pytest.raises(Refused, match="computes with cached keys or values itself"):
            cache.layers[0].keys + 1
        with pytest.raises(Refused, match="puts keys or values into its cache itself"):
            cache.layers[0].values = torch.ones(1)


class Asks:
    """A streamer that does something at the third token."""

    def __init__(self, what):
        self.what, self.left = what, 3

    def put(self, tokens):
        self.left -= 1
        if self.left == 0:
            self.what()

    def end(self):
        pass


def in_thread(call):
    """What comes of it in another thread."""
    found = []

    def run():
        try:
            found.append(call())
        except Refused as refused:
            found.append(refused)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_threads_that_share_a_cache(client, llama, monkeypatch):
    """One at a time: nothing is fed, cut or forked while another one generates."""
    _, ours = llama
    with BanyanCache(ours, client) as cache:
        calls = (
            lambda: greedy(ours, prompt(1, 50), cache), lambda: prefill(ours, prompt(1, 50), cache), lambda: cache.crop(-1), cache.fork,
            lambda: ours(prompt(), past_key_values=cache), lambda: ours.model(prompt(), past_key_values=cache), cache.reset,
        )  # fmt: skip
        outcomes = []

        def others():
            monkeypatch.setattr("banyan.transformers.turns.PATIENCE", 0.0)
            for call in calls:
                thread, found = in_thread(call)
                thread.join()
                outcomes.extend(found)
            monkeypatch.undo()

        got = greedy(ours, prompt(), cache, streamer=Asks(others))
        assert [str(out)[:45] for out in outcomes] == ["another thread is at work with this cache: on"] * len(calls)
        assert cache.get_seq_length() == 40 + NEW - 1
    assert got.tolist() == greedy(llama[0], prompt()).tolist()


def test_threads_take_turns(client, llama):
    """The second waits for the first, and goes on with its text or is refused."""
    eager, ours = llama
    ids = greedy(eager, prompt())
    with BanyanCache(ours, client) as cache:
        begun = []
        greedy(ours, prompt(), cache, streamer=Asks(lambda: begun.extend(in_thread(lambda: greedy(ours, ids, cache)))))
        thread, found = begun
        thread.join()
        assert found[0].tolist() == greedy(eager, ids).tolist()
    with BanyanCache(ours, client) as cache:
        both = [in_thread(lambda n=n: greedy(ours, prompt(1, n), cache)) for n in (20, 33)]
        for thread, _ in both:
            thread.join()
        for n, (_, found) in zip((20, 33), both):
            assert isinstance(found[0], Refused) or found[0].tolist() == greedy(eager, prompt(1, n)).tolist()
        assert sum(isinstance(found[0], Refused) for _, found in both) == 1


def test_a_thread_that_ended_in_the_middle(client, llama):
    """Does not hold up those that come after it."""
    eager, ours = llama

    def end(*_):
        raise SystemExit

    with torch.no_grad(), BanyanCache(ours, client) as cache:
        hook = ours.model.layers[2].register_forward_pre_hook(end)
        thread, _ = in_thread(lambda: ours(prompt(), past_key_values=cache))
        thread.join()
        hook.remove()
        assert greedy(ours, prompt(), cache).tolist() == greedy(eager, prompt()).tolist()


def test_a_cache_is_not_pickled(client, llama):
    with BanyanCache(llama[1], client) as cache, pytest.raises(Refused, match=r"cannot be pickled.*session=NAME"):
        pickle.dumps(cache)


# ---- what happens by itself ----


def test_import_alters_nothing():
    program = (
        "from transformers.generation.utils import GenerationMixin as G; before = G.generate; import torch; "
        "import banyan.transformers; assert G.generate is before; "
        "assert not torch.nn.modules.module._global_forward_pre_hooks and not torch.nn.modules.module._global_forward_hooks"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_the_collector_makes_no_calls(client, llama, monkeypatch):
    _, ours = llama
    with torch.no_grad():
        cache = BanyanCache(ours, client)
        ours(prompt(), past_key_values=cache)
        (session,) = cache.sessions
        callers = []
        delete = banyan.Session.delete
        monkeypatch.setattr(banyan.Session, "delete", lambda self: callers.append(threading.current_thread()) or delete(self))
        del session, cache
        gc.collect()
        end = time.monotonic() + 60
        while client.sessions() and time.monotonic() < end:
            time.sleep(0.01)
    assert client.sessions() == []
    assert [t.name for t in callers] == ["banyan-leftover"]


def test_the_collector_within_cffi():
    """It closes sessions, and may run while cffi holds its lock for another thing."""
    program = (
        "import banyan, threading; from banyan._abi import ffi, lib; ffi._lock.acquire(); "
        "thread = threading.Thread(target=lambda: lib.banyan_session_close(ffi.NULL), daemon=True); thread.start(); thread.join(60); "
        "assert not thread.is_alive()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_a_guard_within_itself():
    """A finaliser that runs during enter(), at every line of it."""
    for after in range(60):
        guard, seen, ran = Guard("client"), [], []
        call = guard.entered()

        def trace(frame, event, argument, guard=guard, seen=seen, after=after, ran=ran):
            if frame.f_code.co_filename.endswith("guard.py") and event == "line":
                seen.append(1)
                if len(seen) == after:
                    sys.settrace(None)
                    guard.close(lambda: ran.append(len(guard._calls)))
                    return None
            return trace

        sys.settrace(trace)
        try:
            call.enter()
            inside = True
        except banyan.errors.Closed:
            inside = False
        finally:
            sys.settrace(None)
        if inside:
            assert not ran or not guard.closed
            if not guard.closed:
                guard.close(lambda ran=ran: ran.append(0))
            call.leave()
        assert ran == [0], after
