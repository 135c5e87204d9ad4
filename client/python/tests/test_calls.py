# SPDX-License-Identifier: Apache-2.0
"""Models that are called in other ways than by generate() and by themselves, or that are not ready for it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
tokenizers = pytest.importorskip("tokenizers")

from families import FAMILIES, make  # noqa: E402
from generating import NEW, models, prompt, telling  # noqa: E402
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedTokenizerFast, pipeline  # noqa: E402

from banyan.transformers import BanyanCache, Refused, prefill  # noqa: E402

MOST = 2e-5  # relative to the largest logit


@pytest.fixture
def llama():
    return models()


def near(got, want):
    return bool((got - want).abs().max() <= MOST * want.abs().max())


def greedy(model, ids, cache=None, **more):
    more = {"max_new_tokens": NEW, "do_sample": False, "attention_mask": torch.ones_like(ids), **more}
    return model.generate(ids, **({} if cache is None else {"past_key_values": cache}), **more)


# ---- a part of a model ----


PARTS = {
    "base model": lambda model, ids, cache: model.model(input_ids=ids, past_key_values=cache).last_hidden_state,
    "forward()": lambda model, ids, cache: model.forward(input_ids=ids, past_key_values=cache).logits,
    "by position": lambda model, ids, cache: model(ids, None, None, cache).logits,
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_model(client, llama, part):
    """Its tokens are known by their keys alone, so no text is taken for the one that is held."""
    eager, ours = llama
    call = PARTS[part]
    with torch.no_grad(), BanyanCache(ours, client, "book") as cache:
        got = torch.cat([call(ours, prompt()[:, a:b], cache) for a, b in ((0, 20), (20, 39), (39, 40))], dim=1)
        assert near(got, call(eager, prompt(), None))
        with pytest.raises(Refused, match="token 0 of sequence 0 is neither a token nor an embedding"):
            greedy(ours, torch.cat((prompt(), prompt()[:, :3]), dim=1), cache)
        got = ours(prompt()[:, :3], past_key_values=cache).logits  # and so may a forward of the model itself
        assert near(got, eager(torch.cat((prompt(), prompt()[:, :3]), dim=1)).logits[:, 40:])
        assert near(ours(prompt(), use_cache=False).logits, eager(prompt()).logits)
        ours.model.norm.weight.mul_(1.5)
        with pytest.raises(Refused, match="the model has changed"):
            call(ours, prompt()[:, :3], cache)


def test_a_part_after_an_error(client, llama):
    eager, ours = llama
    call = PARTS["base model"]

    def fail(*_):
        raise RuntimeError

    with torch.no_grad(), BanyanCache(ours, client) as cache:
        call(ours, prompt()[:, :20], cache)
        hook = ours.model.layers[2].register_forward_pre_hook(fail)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                call(ours, prompt()[:, 20:], cache)
        hook.remove()
        assert cache.get_seq_length() == 20
        assert near(call(ours, prompt()[:, 20:], cache), call(eager, prompt(), None)[:, 20:])


@pytest.mark.parametrize("family", ["qwen3_next", "nemotron_h"])
def test_a_part_of_a_model_that_needs_more(client, family):
    _, ours = models(family)
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        with pytest.raises(Refused, match="a part of the model was called"):
            ours.forward(input_ids=prompt(), past_key_values=cache)
        assert cache.get_seq_length() == 0


@pytest.mark.parametrize("given", ["model", "config"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_model_without_a_head(client, family, given):
    eager, ours = (AutoModel.from_config(m.config, attn_implementation=a).eval() for m, a in zip(models(family), ("eager", "banyan")))
    ours.load_state_dict(eager.state_dict())
    with torch.no_grad(), BanyanCache(ours if given == "model" else ours.config, client) as cache:
        got = [ours(prompt()[:, a:b], past_key_values=cache).last_hidden_state for a, b in ((0, 20), (20, 39), (39, 40))]
        assert near(torch.cat(got, dim=1), eager(prompt()).last_hidden_state)
        assert cache.tokens()[0].tolist() == prompt()[0].tolist()


@pytest.mark.parametrize("family", ["jamba", "zamba"])
def test_blocks_of_a_model_without_a_head(client, family):
    """That its layers leave their state out is seen without logits, too."""
    whole = telling(make(family, FAMILIES[family], "eager"))
    ours = AutoModel.from_config(whole.config, attn_implementation="banyan").eval().float()
    ours.load_state_dict(whole.model.state_dict())
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        ours(prompt(1, 30), past_key_values=cache)
        with pytest.raises(Refused, match="9 tokens behind 30 in one forward"):
            ours(prompt(1, 9), past_key_values=cache)


# ---- training ----


@pytest.mark.parametrize("family", ["llama", "opt", "gpt2"])
def test_training(client, family):
    """Dropout before and behind attention makes keys random, though attention has none."""
    _, ours = models(family)
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        ours.train()
        for call in (lambda: ours(prompt(), past_key_values=cache), lambda: greedy(ours, prompt(), cache)):
            with pytest.raises(Refused, match=r"model.eval\(\)"):
                call()
        assert cache.get_seq_length() == 0
        ours.eval()
        greedy(ours, prompt(), cache)


def test_an_adapter_whose_dropout_is_on(client, llama):
    """PEFT adds it to a model that is not in training; the look at the model leaves each module as it was."""
    _, ours = llama
    config = peft.LoraConfig(r=4, lora_dropout=0.5, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    torch.manual_seed(3)
    ours = peft.get_peft_model(ours, config)
    dropouts = [module.train() for module in ours.eval().modules() if isinstance(module, torch.nn.Dropout) and module.p]
    assert len(dropouts) == 4
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        for call in (lambda: ours(prompt(), past_key_values=cache), lambda: greedy(ours.get_base_model(), prompt(), cache)):
            with pytest.raises(Refused, match=r"in training.*after an adapter was added"):
                call()
        assert all(module.training for module in dropouts)
        ours.eval()
        greedy(ours.get_base_model(), prompt(), cache)


def trained(model, what):
    for name, p in model.named_parameters():
        p.requires_grad_(what in name)
    return model


@pytest.mark.parametrize(
    "family,what", [("llama", "embed_tokens"), ("llama", "layers.3.self_attn.v_proj"), ("gpt_oss", "sinks"), ("deepseek_v3", "kv_b_proj")]
)
def test_gradients(client, family, what):
    """Refused, whichever of attention's inputs a trained weight is in."""
    _, ours = models(family)
    trained(ours, what)
    with BanyanCache(ours, client) as cache:
        with pytest.raises(Refused, match="gradients do not pass through the service"):
            ours(prompt(), past_key_values=cache)
        with torch.no_grad():
            ours(prompt(), past_key_values=cache)


@pytest.mark.parametrize("what", ["lm_head", "embed_tokens"])
def test_gradients_that_attention_has_no_part_in(client, what):
    """A head that is trained gets its gradients; without a cache every weight does."""
    pair = models()
    with BanyanCache(pair[1], client) as cache:
        grads = []
        for model, given in zip(pair, ({"use_cache": False}, {"past_key_values": cache} if what == "lm_head" else {"use_cache": False})):
            trained(model, what)(prompt(), **given).logits.square().mean().backward()
            grads.append(next(p.grad for name, p in model.named_parameters() if what in name))
    assert float(grads[0].abs().max()) > 0 and near(*reversed(grads))


# ---- generate() ----


def test_no_text(client, llama):
    """Transformers begins with a token of its own: not behind another text."""
    eager, ours = llama
    with BanyanCache(ours, client, "book") as cache:
        got = ours.generate(past_key_values=cache, max_new_tokens=NEW, do_sample=False)
        assert got.tolist() == eager.generate(max_new_tokens=NEW, do_sample=False).tolist()
        for given in ({}, {"input_ids": torch.zeros((1, 0), dtype=torch.long)}):
            with pytest.raises(Refused, match=rf"is given no text, and the cache holds {NEW} tokens"):
                ours.generate(**given, past_key_values=cache, max_new_tokens=NEW)
        assert cache.get_seq_length() == NEW


def test_a_length_that_is_reached(client, llama):
    """What Transformers says of it, and nothing is fed that was not asked for."""
    eager, ours = llama
    with BanyanCache(ours, client) as cache:
        ids = prompt(1, 20)
        more = {"max_new_tokens": None, "max_length": 30}
        got = greedy(ours, ids, cache, **more)
        assert got.tolist() == greedy(eager, ids, **more).tolist() and got.shape[1] == 30
        for model, given in ((eager, None), (ours, cache)):
            with pytest.raises(ValueError, match="max_length"):
                greedy(model, got, given, **more)
        longer = {**more, "max_length": 34}
        assert greedy(ours, got, cache, **longer).tolist() == greedy(eager, got, **longer).tolist()


@pytest.mark.parametrize(
    "more",
    [
        {"repetition_penalty": 1.7}, {"no_repeat_ngram_size": 2}, {"encoder_repetition_penalty": 1.3}, {"bad_words_ids": [[5], [9, 3]]},
        {"penalty_alpha": 0.6, "top_k": 4}, {"dola_layers": "low"}, {"min_new_tokens": 5}, {"num_beams": 4, "num_beam_groups": 2},
        {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True}, {"assistant_early_exit": 2}, {"prompt_lookup_num_tokens": 2},
        {"typical_p": 0.9, "do_sample": True}, {"cache_implementation": "static"}, {"cache_implementation": "offloaded"},
    ],
    ids=lambda more: next(iter(more)),
)  # fmt: skip
def test_ways_to_generate(client, llama, more):
    """The same tokens as with eager attention; or an error says why not, and nothing is left half done."""
    eager, ours = llama
    ids = prompt(1, 12).repeat(1, 3)

    def outcome(model, cache):
        torch.manual_seed(7)
        try:
            return greedy(model, ids, cache, **more).tolist()
        except (ValueError, Refused, OSError, ImportError) as error:
            return type(error)

    with BanyanCache(ours, client) as cache:
        got = outcome(ours, cache)
        if got is Refused or "cache_implementation" in more:
            assert isinstance(got, type), got
        else:
            assert got == outcome(eager, None)
        if isinstance(got, type):
            assert cache.get_seq_length() == 0
    assert client.sessions() == []


def test_a_bfloat16_batch_with_padding(client):
    """As near to float32 as eager attention is."""
    eager, ours = (model.to(torch.bfloat16) for model in models())
    exact = models()[0]
    with torch.no_grad():
        for a, b in zip(exact.parameters(), eager.parameters()):
            a.copy_(b)
    ids, mask = prompt(3), torch.ones(3, 40, dtype=torch.long)
    mask[1, :13] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad(), BanyanCache(ours, client) as cache:
        prefill(ours, ids, cache, attention_mask=mask, block=10)
        got = ours(ids[:, -1:], past_key_values=cache, attention_mask=mask, position_ids=positions[:, -1:]).logits
        want, theirs = (m(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits[:, -1:] for m in (exact, eager))
    assert (got - want).abs().mean() <= 1.5 * (theirs - want).abs().mean()


# ---- pipelines and chat templates ----

CHAT = (
    "{% for message in messages %}{{ 'word20 ' if message.role == 'user' else 'word21 ' }}{{ message.content }} word22 {% endfor %}"
    "{% if add_generation_prompt %}word21 {% endif %}"
)


@pytest.fixture
def pipes(tmp_path):
    """Of models that were saved and loaded, as a user has them."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"word{i}": i for i in range(128)}, unk_token="word5"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="word5", pad_token="word0", chat_template=CHAT)
    models()[0].save_pretrained(tmp_path)
    return [
        pipeline(
            "text-generation", tokenizer=tokenizer,
            model=AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=attention, device_map="cpu"),
        )
        for attention in ("eager", "banyan")
    ]  # fmt: skip


def said(pipe, what, **more):
    return pipe(what, max_new_tokens=6, do_sample=False, eos_token_id=None, **more)[0]["generated_text"]


def test_a_pipeline(client, pipes):
    eager, ours = pipes
    texts = [" ".join(f"word{n}" for n in range(a, b)) for a, b in ((30, 50), (60, 90))]
    with BanyanCache(ours.model, client) as cache:
        assert said(ours, texts[0], past_key_values=cache) == said(eager, texts[0])
        with pytest.raises(Refused, match="token 0 of sequence 0 is 30 in the session and 60"):
            ours(texts[1:], max_new_tokens=6, past_key_values=cache)
    with BanyanCache(ours.model, client) as cache:
        together = ours(texts, batch_size=2, max_new_tokens=6, do_sample=False, eos_token_id=None, past_key_values=cache)
        assert [one[0]["generated_text"] for one in together] == [said(eager, text) for text in texts]
        assert cache.pads == [10, 0]


def test_a_chat(client, pipes):
    eager, ours = pipes
    ask = {"role": "user", "content": "word30 word31 word32"}
    with BanyanCache(ours.model, client, "chat") as cache:
        talk = said(ours, [ask], past_key_values=cache)
        assert talk == said(eager, [ask]) and talk[-1]["role"] == "assistant"
        held = cache.get_seq_length()
        talk = said(ours, [*talk, ask], past_key_values=cache)
        assert talk == said(eager, talk[:-1]) and cache.get_seq_length() > held
        talk[-1]["content"] = " ".join(talk[-1]["content"].split()[:4])  # an answer that was trimmed
        talk.append(ask)
        with pytest.raises(Refused, match=r"in the session and 22 in what is given: cache.rewind_to\(input_ids\)"):
            said(ours, talk, past_key_values=cache)
        ids = ours.tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_tensors="pt", return_dict=True).input_ids
        assert cache.rewind_to(ids) > held
        assert said(ours, talk, past_key_values=cache) == said(eager, talk)
