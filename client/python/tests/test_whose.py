# SPDX-License-Identifier: Apache-2.0
"""Whose keys a session holds: every weight counts, the adapters that are active, and their scaling."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from generating import NEW, models, prompt  # noqa: E402

from banyan.transformers import BanyanCache, Refused, prefill  # noqa: E402
from banyan.transformers.identity import Identity, fingerprint, identity_of  # noqa: E402

CHANGED = "the model has changed since the tokens of this cache were fed"


@pytest.fixture
def llama():
    return models()


def adapted(model, *names, alpha=8, seed=7):
    """With a LoRA adapter of each name, that changes something."""
    config = peft.LoraConfig(r=4, lora_alpha=alpha, target_modules=["q_proj", "v_proj", "mlp.up_proj"], task_type="CAUSAL_LM")
    out = peft.get_peft_model(model, config, adapter_name=names[0])
    for name in names[1:]:
        out.add_adapter(name, config)
    with torch.no_grad():
        for name in names:
            torch.manual_seed(seed + len(name))
            for path, p in out.named_parameters():
                if "lora_" in path and f".{name}." in path:
                    p.normal_(0, 0.3)
    return out.eval()


def generate(model, ids, cache=None, **more):
    more = {"max_new_tokens": NEW, "do_sample": False, "attention_mask": torch.ones_like(ids), **more}
    return model.generate(input_ids=ids, **({} if cache is None else {"past_key_values": cache}), **more)


def longer(out):
    return torch.cat((out, torch.tensor([[7, 8]])), dim=1)


def test_a_model_of_peft(client, llama):
    eager, ours = (adapted(model, "one") for model in llama)
    with BanyanCache(ours, client, "book") as cache:
        out = generate(ours, prompt(), cache)
        assert out.tolist() == generate(eager, prompt()).tolist()
    for given in (ours, ours.config):
        with BanyanCache(given, client, "book") as cache, cache.fork() as fork:
            assert generate(ours, longer(out), fork).tolist() == generate(eager, longer(out)).tolist()


CHANGES = {
    "adapter": lambda model: model.set_adapter("second"),
    "scaling": lambda model: [m.set_scale("one", 3.0) for m in model.modules() if isinstance(m, peft.tuners.lora.LoraLayer)],
    "disabled": lambda model: model.base_model.disable_adapter_layers(),
    "merged": lambda model: model.merge_adapter(),
    "added": lambda model: model.base_model.model.model.layers[1].mlp.register_module("extra", torch.nn.Linear(2, 2)),
    "replaced": lambda model: setattr(model.base_model.model.model.norm, "weight", torch.nn.Parameter(torch.full((64,), 0.9))),
    "in place": lambda model: model.base_model.model.model.layers[2].mlp.down_proj.weight.mul_(1.5),
    "one row": lambda model: model.base_model.model.model.embed_tokens.weight[77].add_(0.5),
    "one element": lambda model: model.base_model.model.model.layers[0].mlp.down_proj.weight[13, 5].add_(0.5),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_between_two_calls(client, llama, what):
    """Refused by each call, nothing is fed; a cache that begins again goes on with the model as it is."""
    eager, ours = (adapted(model, "one", "second") for model in llama)
    with torch.no_grad(), BanyanCache(ours, client, "book") as cache:
        out = generate(ours, prompt(), cache)
        for model in (eager, ours):
            CHANGES[what](model)
        calls = (
            lambda: generate(ours, longer(out), cache),
            lambda: ours(torch.tensor([[7]]), past_key_values=cache),
            lambda: prefill(ours.get_base_model(), longer(out), cache),
        )
        for call in calls:
            with pytest.raises(Refused, match=CHANGED):
                call()
        assert cache.get_seq_length() == out.shape[1] - 1
        with pytest.raises(Refused, match="was made with other weights"):
            BanyanCache(ours, client, "book")
        cache.reset()
        assert generate(ours, prompt(), cache).tolist() == generate(eager, prompt()).tolist()


def test_a_configuration_that_is_written_to(client, llama):
    """As programs do with pad_token_id, and Transformers with what is missing: it is the same model."""
    eager, ours = (adapted(model, "one", "second") for model in llama)
    with BanyanCache(ours, client, "book") as cache:
        out = generate(ours, prompt(), cache)
        ours.config.rope_parameters["partial_rotary_factor"] = 1.0
        ours.config.pad_token_id = 5
        ours.set_adapter("second")
        with pytest.raises(Refused, match=CHANGED):
            generate(ours, longer(out), cache)
        ours.set_adapter("one")
        assert generate(ours, longer(out), cache).tolist() == generate(eager, longer(out)).tolist()


def test_writes_that_pytorch_does_not_count(client, llama):
    """Through .data: seen by generate(), prefill() and by code that opens a session."""
    _, ours = llama
    with BanyanCache(ours, client, "book") as cache:
        out = generate(ours, prompt(), cache)
        ours.model.embed_tokens.weight.data[77] += 0.5
        with pytest.raises(Refused, match=CHANGED):
            generate(ours, longer(out), cache)
        with pytest.raises(Refused, match=CHANGED):
            prefill(ours, longer(out), cache)
    with pytest.raises(Refused, match="other weights"):
        BanyanCache(ours, client, "book")


@pytest.mark.parametrize("what", ["scaling", "adapter", "one row"])
def test_a_resume_with_another_adapter(client, what):
    alpha, seed, row = (8, 7, 77)
    ours = adapted(models()[1], "one")
    with BanyanCache(ours, client, "book") as cache:
        generate(ours, prompt(), cache)
    alpha, seed = (16, 7) if what == "scaling" else (8, 9) if what == "adapter" else (8, 7)
    other = adapted(models()[1], "one", alpha=alpha, seed=seed)
    if what == "one row":
        with torch.no_grad():
            other.get_base_model().model.embed_tokens.weight[row] += 0.1
    with pytest.raises(Refused, match="other weights"):
        BanyanCache(other, client, "book")
    with BanyanCache(adapted(models()[1], "one"), client, "book") as cache:
        assert cache.get_seq_length() == 40 + NEW - 1


def test_adapters_that_do_not_count(client):
    """One that is loaded and not active, and one that is switched off: the model is what it is without
    them."""
    plain = fingerprint(models()[1])
    ours = adapted(models()[1], "one", "second")
    both = fingerprint(ours.get_base_model())
    assert both == fingerprint(adapted(models()[1], "one").get_base_model()) != plain
    ours.base_model.disable_adapter_layers()
    assert fingerprint(ours.get_base_model()) == plain
    ours.base_model.enable_adapter_layers()
    assert fingerprint(ours.get_base_model()) == both


def test_an_adapter_for_each_sequence(client, llama):
    _, ours = llama
    ours = adapted(ours, "one", "second")
    with BanyanCache(ours, client) as cache:
        out = generate(ours, prompt(2), cache, adapter_names=["one", "second"])
        with pytest.raises(Refused, match=CHANGED):
            generate(ours, torch.cat((out, torch.full((2, 1), 7)), dim=1), cache, adapter_names=["second", "one"])


@pytest.mark.parametrize("given", ["model", "config"])
def test_an_adapter_that_looks_for_its_invocation(client, llama, given):
    """Activated LoRA: in each forward alone, so that blocks give something else than one forward."""
    _, ours = llama
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], alora_invocation_tokens=[77, 78], task_type="CAUSAL_LM")
    ours = peft.get_peft_model(ours, config, adapter_name="one").eval()
    with torch.no_grad(), pytest.raises(Refused, match=r"activated LoRA \(alora_invocation_tokens\)"):
        ours(prompt(), past_key_values=BanyanCache(ours if given == "model" else ours.config, client))
    ours.base_model.disable_adapter_layers()
    with BanyanCache(ours, client) as cache:
        generate(ours, prompt(), cache)
        ours.base_model.enable_adapter_layers()
        with pytest.raises(Refused, match="activated LoRA"):
            generate(ours, prompt(), cache)


def test_every_element_counts():
    _, ours = models()
    mine = fingerprint(ours)
    torch.manual_seed(0)
    for name, weight in ours.named_parameters():
        flat = weight.data.view(-1)
        for at in (0, len(flat) - 1, int(torch.randint(len(flat), (1,)))):
            kept = flat[at].clone()
            flat[at] = flat[at] + 2.0**-12
            assert Identity(ours).mark() != mine, (name, at)
            flat[at] = kept
    weight = ours.model.layers[0].mlp.up_proj.weight.data
    weight[[3, 4]] = weight[[4, 3]]
    assert Identity(ours).mark() != mine
    weight[[3, 4]] = weight[[4, 3]]
    assert Identity(ours).mark() == mine


class Scaled(torch.Tensor):
    """A weight in eight bits, as libraries for quantised models make them."""

    @staticmethod
    def __new__(cls, digits, scale):
        return torch.Tensor._make_wrapper_subclass(cls, digits.shape, dtype=scale.dtype)

    def __init__(self, digits, scale):
        self.digits, self.scale = digits, scale

    def __tensor_flatten__(self):
        return ["digits", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].digits, args[0].scale)
        return func(*(x.digits * x.scale if isinstance(x, Scaled) else x for x in args), **(kwargs or {}))


def scaled(model):
    layer = model.model.layers[1].mlp.up_proj
    scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
    layer.weight = torch.nn.Parameter(Scaled((layer.weight.detach() / scale).round().to(torch.int8), scale), requires_grad=False)
    return model


def packed(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that PyTorch will have it elsewhere
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


@pytest.mark.parametrize("quantised", [scaled, packed])
def test_weights_in_parts(client, quantised):
    """They are in no parameter as it is, and count all the same."""
    mine, same, other = (models()[1] for _ in range(3))
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight[3] *= 1.5
    mine, same, other = map(quantised, (mine, same, other))
    assert fingerprint(mine) == fingerprint(same) != fingerprint(other)
    with torch.no_grad(), BanyanCache(mine, client, "book") as cache:
        mine(prompt(), past_key_values=cache)
        with pytest.raises(Refused, match="other weights"):
            BanyanCache(other, client, "book")
        if quantised is scaled:
            mine.model.layers[1].mlp.up_proj.weight.scale[3] *= 1.5
            with pytest.raises(Refused, match=CHANGED):
                mine(prompt(1, 1), past_key_values=cache)


def test_a_look_costs_nothing(monkeypatch):
    """What has not changed is not read again; of what has changed, it alone."""
    from banyan.transformers import identity

    _, ours = models()
    read = []
    real = identity._hash
    monkeypatch.setattr(identity, "_hash", lambda x: read.append(x) or real(x))
    mine = identity_of(ours).mark()
    assert len(read) == len(list(ours.parameters()))
    read.clear()
    assert identity_of(ours).mark() == identity_of(ours).mark(glance=False) == mine and not read
    with torch.no_grad():
        ours.model.norm.weight.mul_(1.5)
    assert identity_of(ours).mark(glance=False) != mine and len(read) == 1


def test_what_takes_the_cache_away(client):
    """Prefix tuning gives the model a cache of its own; other prompts that are learnt stand before the
    text."""
    for config in (peft.PrefixTuningConfig, peft.PromptTuningConfig):
        model = peft.get_peft_model(models()[1], config(num_virtual_tokens=4, task_type="CAUSAL_LM"))
        with pytest.raises(Refused, match="learnt prompt"):
            BanyanCache(model, client)
