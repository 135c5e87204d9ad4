# SPDX-License-Identifier: Apache-2.0
"""banyan.vllm without vLLM, part by part: what is refused at the start, a model's mark, memory of a
device.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from banyan.vllm import config  # noqa: E402
from banyan.vllm.mark import Marks  # noqa: E402
from banyan.vllm.staging import Staging, address  # noqa: E402

# ---- what is refused ----


def served(**changed):
    """The fields of vLLM's configuration that are looked at, of an engine that is served; a dot for what is
    in a part of it.
    """
    parts = {
        "model_config": dict(
            runner_type="generate", is_encoder_decoder=False, is_hybrid=False, has_inner_state=False, is_mm_prefix_lm=False,
            hf_text_config=SimpleNamespace(),
        ),
        "cache_config": dict(enable_prefix_caching=False, cache_dtype="auto"),
        "parallel_config": dict(
            pipeline_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1, use_ubatching=False
        ),
        "scheduler_config": dict(async_scheduling=False),
    }  # fmt: skip
    whole = {"speculative_config": None, "kv_transfer_config": SimpleNamespace(kv_connector="BanyanConnector")}
    for name, value in changed.items():
        part, _, field = name.partition("__")
        if field:
            parts[part][field] = value
        else:
            whole[part] = value
    return SimpleNamespace(**{name: SimpleNamespace(**fields) for name, fields in parts.items()}, **whole)


REASONS = [
    ("cache_config__enable_prefix_caching", True, "--no-enable-prefix-caching"),
    ("cache_config__cache_dtype", "fp8", "--kv-cache-dtype auto"),
    ("parallel_config__pipeline_parallel_size", 2, "pipeline parallelism"),
    ("parallel_config__decode_context_parallel_size", 2, "decode context parallel size 2"),
    ("parallel_config__prefill_context_parallel_size", 4, "prefill context parallel size 4"),
    ("parallel_config__use_ubatching", True, "micro-batches"),
    ("speculative_config", object(), "speculative"),
    ("model_config__runner_type", "pooling", "'pooling'"),
    ("model_config__is_encoder_decoder", True, "encoder"),
    ("model_config__is_hybrid", True, "Mamba"),
    ("model_config__has_inner_state", True, "Mamba"),
    ("model_config__is_mm_prefix_lm", True, "images"),
    ("model_config__hf_text_config", SimpleNamespace(attention_chunk_size=8192), "Llama 4"),
    ("scheduler_config__async_scheduling", True, "--no-async-scheduling"),
    ("kv_transfer_config", SimpleNamespace(kv_connector="Other"), "the KV connector Other"),
]


def test_what_is_served():
    assert config.refusals(served()) == []
    assert config.refusals(served(kv_transfer_config=None, cache_config__cache_dtype="bfloat16")) == []
    config.check(served())


@pytest.mark.parametrize("name, value, word", REASONS, ids=[name for name, *_ in REASONS])
def test_what_is_refused(name, value, word):
    """One reason for one thing; the flag or the word that helps is in it."""
    (said,) = config.refusals(served(**{name: value}))
    assert word in said
    with pytest.raises(config.Refused, match="is not served"):
        config.check(served(**{name: value}))


def test_all_reasons_at_once():
    with pytest.raises(config.Refused) as caught:
        config.check(served(**{name: value for name, value, _ in REASONS}))
    assert all(word in str(caught.value) or word[0].upper() + word[1:] in str(caught.value) for _, _, word in REASONS)


@pytest.mark.parametrize("name", [name for name, *_ in REASONS if "hf_text_config" not in name])
def test_a_field_that_is_gone(name):
    """Whatever cannot be looked at is refused: it might be on."""
    found = served()
    part, _, field = name.partition("__")
    delattr(getattr(found, part) if field else found, field or part)
    with pytest.raises(config.Refused, match="another one than the plug-in was written for"):
        config.check(found)


# ---- the mark ----


def model_in(folder, weights=b"w", settings=None, **changed):
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(weights)
    said = {"hidden_size": 8} if settings is None else settings
    model = dict(
        model=str(folder), revision=None, hf_config=SimpleNamespace(to_dict=lambda: said), dtype=torch.float32, quantization=None,
        max_model_len=100,
    )  # fmt: skip
    return SimpleNamespace(model_config=SimpleNamespace(**(model | changed)), load_config=SimpleNamespace(load_format="auto"))


def test_marks_of_models(tmp_path):
    """The same files elsewhere are the same model; another byte, configuration or type is another one."""
    base = Marks(model_in(tmp_path / "a"))
    assert base.lasting and Marks(model_in(tmp_path / "b")).base == base.base
    others = [
        model_in(tmp_path / "c", weights=b"v"),
        model_in(tmp_path / "d", settings={"hidden_size": 9}),
        model_in(tmp_path / "e", dtype=torch.bfloat16),
        model_in(tmp_path / "f", quantization="awq"),
    ]
    marks = [base.base, *(Marks(other).base for other in others)]
    assert len(set(marks)) == len(marks)
    assert Marks(model_in(tmp_path / "g", max_model_len=200)).base == base.base
    longer = {"rope_parameters": {"rope_type": "longrope"}}  # whose frequencies depend on the longest text that the engine takes
    assert len({Marks(model_in(tmp_path / "h", settings=longer, max_model_len=n)).base for n in (100, 200)}) == 2


def test_a_model_that_comes_from_no_files(tmp_path):
    """Its mark is this process's alone, at each start another one."""
    made = model_in(tmp_path / "a")
    made.load_config.load_format = "dummy"
    first, second = Marks(made), Marks(made)
    assert not first.lasting and first.base != second.base


def adapter_in(folder, weights=b"x", r=4):
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text(json.dumps({"r": r}))
    return SimpleNamespace(lora_path=str(folder), lora_name=folder.name)


def test_marks_of_adapters(tmp_path):
    """An adapter is in the mark of its requests: by its bytes and settings, not by its name."""
    marks = Marks(model_in(tmp_path / "a"))
    assert marks.of_request(None) == marks.base
    one = marks.of_request(adapter_in(tmp_path / "one"))
    assert marks.of_request(adapter_in(tmp_path / "same")) == one
    others = [marks.base, one, marks.of_request(adapter_in(tmp_path / "two", b"y")), marks.of_request(adapter_in(tmp_path / "three", r=8))]
    others.append(Marks(model_in(tmp_path / "b", weights=b"v")).of_request(adapter_in(tmp_path / "one")))
    assert len(set(others)) == len(others)
    assert marks.of_request(adapter_in(tmp_path / "one", b"changed meanwhile")) != one
    (tmp_path / "none").mkdir()
    with pytest.raises(OSError, match="no weights"):
        marks.of_request(SimpleNamespace(lora_path=str(tmp_path / "none"), lora_name="none"))


# ---- memory of a device ----


class Device(torch.Tensor):
    """A tensor that says it is on a device. What it cannot show here: that copies are asynchronous, and
    pinned memory itself.
    """

    is_cpu = False


@pytest.fixture
def device(monkeypatch):
    """Notes what would be pinned, and waits."""
    noted = SimpleNamespace(pinned=[], waits=0)
    real = torch.empty

    def empty(*shape, pin_memory=False, **more):
        out = real(*shape, **more)
        if pin_memory:
            noted.pinned.append(out.data_ptr())
        return out

    def synchronize():
        noted.waits += 1

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=synchronize))
    return noted


def test_rows_of_a_processor_are_not_copied():
    staging = Staging()
    x = torch.randn(3, 2, 4)
    assert address(staging.out("q", x, torch.float32)) == x.data_ptr()
    assert torch.equal(staging.out("k", x[:, ::2], torch.bfloat16), x[:, ::2].bfloat16())
    assert staging.out("v", None, torch.float32) is None
    out = torch.empty(3, 2, 4)
    assert staging.answer(out) is out
    half = torch.zeros(3, 2, 4, dtype=torch.bfloat16)
    o = staging.answer(half)
    assert o.dtype is torch.float32
    staging.deliver(o.fill_(2), half)
    assert bool((half == 2).all())


def test_rows_of_a_device_go_through_pinned_memory(device):
    """Reused from layer to layer, larger when there are more rows; in the type of the session, and back in
    the output's.
    """
    staging = Staging()
    for rows in (3, 5, 2):
        q, k = (torch.randn(rows, 2, 4).to(torch.bfloat16).as_subclass(Device) for _ in range(2))
        out = torch.zeros(rows, 2, 4, dtype=torch.bfloat16).as_subclass(Device)
        there_q, there_k, o = staging.out("q", q, torch.float32), staging.out("k", k, torch.bfloat16), staging.answer(out)
        staging.wait(q)
        assert {address(there_q), address(there_k), address(o)} <= set(device.pinned)
        assert there_q.dtype is torch.float32 and bool((there_q == q.float()).all()) and bool((there_k == k).all())
        staging.deliver(o.copy_(there_q + 1), out)
        assert torch.equal(out.as_subclass(torch.Tensor), (q.float() + 1).to(torch.bfloat16).as_subclass(torch.Tensor))
    assert len(device.pinned) == 3 + 3 and device.waits == 3
