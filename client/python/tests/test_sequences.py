# SPDX-License-Identifier: Apache-2.0
"""Sequences of operations, drawn from a seed: each answer is that of a fresh eager model, or there is none
and nothing has changed.

BANYAN_SEQUENCES=N: how many (30); FIRST-LAST: those seeds. `python tests/test_sequences.py SEED` runs one and
shows what it does.
"""

from __future__ import annotations

import copy
import os
import random
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from families import FAMILIES, make  # noqa: E402
from formula import wait_for  # noqa: E402
from generating import telling  # noqa: E402

import banyan  # noqa: E402
from banyan.transformers import BanyanCache, Refused, prefill  # noqa: E402

FIRST, _, LAST = os.environ.get("BANYAN_SEQUENCES", "30").partition("-")
SEEDS = range(int(FIRST), int(LAST) + 1) if LAST else range(int(FIRST))
OPERATIONS = 12
MOST = 2e-5  # relative to the largest logit
LONG = dict(
    rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=40, short_factor=[1.0] * 8,
    long_factor=[1.0 + i for i in range(8)], factor=8.0,
)  # fmt: skip
LONGER = {**LONG, "original_max_position_embeddings": 60, "long_factor": [2.0] * 8}
KINDS = {
    "llama": ("llama", {}),
    "windows": ("gemma2", FAMILIES["gemma2"]),
    "longrope": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 40, "num_attention_heads": 4}),
    "borders": ("gemma3_text", {**FAMILIES["gemma3_text"], "rope_parameters": {"full_attention": LONG, "sliding_attention": LONGER}}),
    "states": ("qwen3_next", FAMILIES["qwen3_next"]),
    "blocks": ("jamba", FAMILIES["jamba"]),
    "limits": ("nemotron_h", {"time_step_min": 0.3}),
}
HAS_STATES = ("states", "blocks", "limits")
HAS_BORDERS = ("longrope", "borders")
_models = {}


class Failed(Exception):
    """Of a streamer, in the middle of a generate()."""


class Stops:
    def __init__(self, after):
        self.left = after

    def put(self, tokens):
        self.left -= 1
        if self.left < 0:
            raise Failed

    def end(self):
        pass


class Scaled(torch.nn.Module):
    """A layer as PEFT's are: a base and two adapters, of which one is active."""

    adapter_layer_names = ("lora_B",)

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self._active_adapter, self._disable_adapters, self.merged_adapters = ["one"], False, []
        self.scaling = {"one": 1.0, "two": 1.0}
        size = base.in_features, base.out_features
        self.lora_B = torch.nn.ModuleDict({name: torch.nn.Linear(*size, bias=False) for name in ("one", "two")})

    def forward(self, x):
        (name,) = self._active_adapter
        return self.base_layer(x) + self.scaling[name] * self.lora_B[name](x)


def models(kind):
    """With an adapter in the MLP of the first layer, where the family has one of the usual name."""
    if kind not in _models:
        pair = []
        for attention in ("eager", "banyan"):
            model = make(*copy.deepcopy(KINDS[kind]), attention)  # into which Transformers writes
            part = getattr(model.model.layers[0], "mlp", None)
            if hasattr(part, "down_proj"):
                part.down_proj = Scaled(part.down_proj)
            pair.append(telling(model))
        _models[kind] = pair
    return _models[kind]


def adapters(model):
    return [m for m in model.modules() if isinstance(m, Scaled)]


def ones(ids):
    return torch.ones_like(ids)


class Run:
    """One cache and what it should hold, `text`; None: whatever is drawn next begins it."""

    def __init__(self, client, seed, show=lambda *what: None):
        self.rng, self.client, self.show = random.Random(seed), client, show
        self.kind = self.rng.choice(list(KINDS))
        self.eager, self.ours = models(self.kind)
        self.states = self.kind in HAS_STATES
        self.name = f"run-{seed}" if self.rng.random() < 0.5 else None
        self.rows = self.rng.choice((1, 1, 2))
        self.adapter = "one"
        self.set_adapter("one", 1.0)
        self.cache = self.new()
        self.text = self.draw(self.rng.randint(2, 30))[:, :0]

    def new(self):
        return BanyanCache(
            self.ours if self.rng.random() < 0.5 else self.ours.config,
            self.client,
            self.name,
            chunk_tokens=16,
            state_tokens=self.rng.choice((4, 16, 4096)),
        )

    def draw(self, n):
        return torch.tensor([[self.rng.randint(3, 127) for _ in range(n)] for _ in range(self.rows)])

    def longer(self):
        return torch.cat((self.text, self.draw(self.rng.randint(2, 12))), dim=1)

    def set_adapter(self, name, scale):
        for model in (self.eager, self.ours):
            for part in adapters(model):
                part._active_adapter, part.scaling = [name], {"one": scale, "two": scale}

    def logits(self, ids):
        with torch.no_grad():
            return self.eager(ids, use_cache=False).logits

    def check_held(self, text):
        self.text = text
        held = self.cache.tokens()
        assert [t.tolist() for t in held] == (text.tolist() if held else []), "the session holds another text"

    def expect_refused(self, call, match):
        held = self.cache.get_seq_length()
        with pytest.raises(Refused, match=match):
            call()
        assert self.cache.get_seq_length() == held
        self.check_held(self.text)

    def generate(self, cache, ids, **more):
        more = {"max_new_tokens": self.rng.randint(1, 6), "do_sample": False, "attention_mask": ones(ids), **more}
        want = self.reference(ids, **{k: v for k, v in more.items() if k != "streamer"})
        return cache and self.ours.generate(ids, past_key_values=cache, **more), want

    def reference(self, ids, num_beams=1, max_new_tokens=1, **more):
        if num_beams > 1:
            return self.eager.generate(ids, num_beams=num_beams, max_new_tokens=max_new_tokens, use_cache=False, **more)
        for _ in range(max_new_tokens):  # each token from one forward over all of it
            ids = torch.cat((ids, self.logits(ids)[:, -1].argmax(-1, keepdim=True)), dim=1)
        return ids

    # ---- operations ----

    def op_generate(self):
        got, want = self.generate(self.cache, self.longer())
        assert got.tolist() == want.tolist()
        self.check_held(got[:, :-1])

    def op_generate_same(self):
        """The text that is held, and no more: its last token is fed again."""
        if self.text.shape[1] < 2:
            return
        got, want = self.generate(self.cache, self.text)
        assert got.tolist() == want.tolist()
        self.check_held(got[:, :-1])

    def op_prefill(self):
        ids = self.longer()
        prefill(self.ours, ids, self.cache, block=self.rng.choice((3, 7, 100)), overlap=self.rng.random() < 0.5)
        self.check_held(ids[:, :-1])
        self.forward(ids)

    def op_forward(self):
        self.forward(self.longer())

    def forward(self, ids):
        new = ids[:, self.text.shape[1] :]
        if self.kind == "blocks" and self.text.shape[1]:
            if new.shape[1] > 1:
                self.expect_refused(lambda: self.ours(new, past_key_values=self.cache), "in one forward")
            new = new[:, :1]
            ids = torch.cat((self.text, new), dim=1)
        with torch.no_grad():
            got = self.ours(new, past_key_values=self.cache).logits
        want = self.logits(ids)[:, -new.shape[1] :]
        # Of a block alone the last row is of the whole text where frequencies change with the length.
        most = 1e-3 if self.states else MOST
        assert float((got[:, -1] - want[:, -1]).abs().max() / want.abs().max()) <= most
        self.check_held(ids)

    def op_crop(self):
        if self.text.shape[1] < 3:
            return
        n = self.rng.randint(1, self.text.shape[1] - 2)
        self.cache.crop(-n)
        self.check_held(self.text[:, :-n])

    def op_rewind(self):
        if self.text.shape[1] < 3:
            return
        at = self.rng.randint(1, self.text.shape[1] - 1)
        ids = self.changed(at)
        self.cache.rewind_to(ids)
        self.check_held(self.text[:, :at])
        got, want = self.generate(self.cache, ids)
        assert got.tolist() == want.tolist()
        self.check_held(got[:, :-1])

    def changed(self, at):
        ids = self.longer()
        ids[:, at] = (ids[:, at] + 1) % 120 + 3
        return ids

    def op_other_text(self):
        if not self.text.shape[1]:
            return
        ids = self.changed(self.rng.randrange(self.text.shape[1]))
        call = self.rng.choice((lambda: self.generate(self.cache, ids), lambda: prefill(self.ours, ids, self.cache)))
        self.expect_refused(call, "is .* in the session and")

    def op_other_adapter(self):
        if not self.text.shape[1] or not adapters(self.ours):
            return
        change = self.rng.choice((("two", 1.0), ("one", 2.0)))
        self.set_adapter(*change)
        ids = self.longer()
        calls = (lambda: self.generate(self.cache, ids), lambda: self.ours(ids[:, -1:], past_key_values=self.cache))
        # The second, of a cache that was made of a config and has not met its model since it was resumed.
        self.expect_refused(self.rng.choice(calls), "the model has changed|was made with other weights of this model")
        self.set_adapter("one", 1.0)

    def op_use_cache_false(self):
        self.expect_refused(lambda: self.generate(self.cache, self.longer(), use_cache=False), "contradict")

    def op_error(self):
        """In the middle of a call; the same call again gives what it would have given."""
        ids, new = self.longer(), self.rng.randint(2, 6)
        after = self.rng.randint(1, new)
        with pytest.raises(Failed):
            self.generate(self.cache, ids, max_new_tokens=new, streamer=Stops(after)) if self.rows == 1 else self.fail(ids, new, after)
        got, want = self.generate(self.cache, ids, max_new_tokens=new)
        assert got.tolist() == want.tolist()
        self.check_held(got[:, :-1])

    def fail(self, ids, new, after):
        left = [after]

        def stop(ids, scores, **more):
            left[0] -= 1
            if left[0] < 0:
                raise Failed
            return torch.zeros(len(ids), dtype=torch.bool)

        self.ours.generate(
            ids, past_key_values=self.cache, max_new_tokens=new + 1, do_sample=False, attention_mask=ones(ids), stopping_criteria=[stop]
        )

    def op_fork(self):
        if not self.text.shape[1]:
            return
        with self.cache.fork() as fork:
            got, want = self.generate(fork, self.longer())
            assert got.tolist() == want.tolist()
        self.check_held(self.text)

    def op_beams(self):
        if self.kind in HAS_BORDERS:  # its beams begin in one form and end in another: compared without
            return
        with self.cache.fork() as fork:
            got, want = self.generate(fork, self.longer(), num_beams=self.rng.randint(2, 3))
            assert got.tolist() == want.tolist()
        self.check_held(self.text)

    def op_resume(self):
        if self.name is None or not self.text.shape[1]:
            return
        self.cache.close()
        self.cache = self.new()
        self.check_held(self.text)

    def op_reset(self):
        if self.rng.random() < 0.3:
            self.cache.reset()
            self.check_held(self.text[:, :0])

    def op_local(self):
        ids = self.longer()
        with torch.no_grad():
            got = self.ours(ids, use_cache=False).logits
        want = self.logits(ids)
        assert (got - want).abs().max() <= MOST * want.abs().max()
        self.check_held(self.text)

    def run(self):
        operations = sorted(name for name in dir(self) if name.startswith("op_"))
        self.show(self.kind, self.rows, self.name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a text is fed again
            for _ in range(OPERATIONS):
                name = self.rng.choice(operations)
                self.show(name, self.text.shape[1])
                getattr(self, name)()
        self.cache.delete()


@pytest.mark.parametrize("seed", SEEDS)
def test_sequence(client, seed):
    Run(client, seed).run()
    wait_for(lambda: client.sessions() == [])  # a session's states go a moment after it


if __name__ == "__main__":
    torch.set_num_threads(1)
    with banyan.local_cluster(3, memory="256M", threads=1) as cluster, cluster.connect() as client:
        Run(client, int(sys.argv[1]), lambda *what: print(*what, flush=True)).run()
