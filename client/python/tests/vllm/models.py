# SPDX-License-Identifier: Apache-2.0
"""Small models for the tests of banyan.vllm: random weights of eight families, and SmolLM2 with its real
ones.

models.py FOLDER FAMILY...     writes FOLDER/FAMILY
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

VOCABULARY = 1000
WINDOW = 64  # of the layers that have one
_COMMON: dict[str, Any] = dict(vocab_size=VOCABULARY, hidden_size=128, initializer_range=0.2, bos_token_id=1, eos_token_id=2)
_HEADS: dict[str, Any] = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=32, intermediate_size=256)


def _llama(**more: Any) -> Any:
    plain = dict(num_hidden_layers=3, max_position_embeddings=65536, rope_theta=1e6, tie_word_embeddings=False)
    return transformers.LlamaConfig(**(_COMMON | _HEADS | plain | more))


def _qwen3() -> Any:  # norms of q and k
    return transformers.Qwen3Config(**_COMMON, **_HEADS, num_hidden_layers=3, max_position_embeddings=8192, tie_word_embeddings=False)


def _gemma2() -> Any:  # soft caps, and a window in every second layer
    more = dict(attn_logit_softcapping=10.0, final_logit_softcapping=30.0, query_pre_attn_scalar=32)
    return transformers.Gemma2Config(**_COMMON, **_HEADS, **more, num_hidden_layers=4, sliding_window=WINDOW, max_position_embeddings=8192)


def _gemma3() -> Any:  # five layers with a window to one without
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    more = dict(query_pre_attn_scalar=32, sliding_window=WINDOW, layer_types=kinds)
    return transformers.Gemma3TextConfig(**_COMMON, **_HEADS, **more, num_hidden_layers=6, max_position_embeddings=8192)


def _gemma3n() -> Any:  # layers that read the keys of others
    kinds = ["sliding_attention", "full_attention"] * 3
    more = dict(sliding_window=WINDOW, layer_types=kinds, num_kv_shared_layers=2, laurel_rank=8, activation_sparsity_pattern=[0.0] * 6)
    inputs = dict(vocab_size_per_layer_input=VOCABULARY, hidden_size_per_layer_input=16)
    return transformers.Gemma3nTextConfig(**_COMMON, **_HEADS, **more, **inputs, num_hidden_layers=6, max_position_embeddings=8192)


def _gptoss() -> Any:  # sinks, windows, experts
    heads = _HEADS | dict(head_dim=64, intermediate_size=128)
    more = dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"] * 2)
    # With weights of 0.2 its experts make float32's rounding a thousand times as large: plain vLLM is then
    # 8e-4 from float64.
    common = _COMMON | dict(initializer_range=0.1)
    return transformers.GptOssConfig(**common, **heads, **more, num_hidden_layers=4, max_position_embeddings=8192)


def _bloom() -> Any:  # ALiBi
    return transformers.BloomConfig(**_COMMON, n_layer=3, n_head=4)


def _deepseek() -> Any:  # latent attention; vLLM's kernels exist for these dimensions alone
    latent = dict(kv_lora_rank=512, q_lora_rank=None, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128)
    experts = dict(n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, first_k_dense_replace=1, moe_intermediate_size=64)
    groups = dict(topk_method="greedy", n_group=1, topk_group=1)
    heads = dict(num_attention_heads=4, num_key_value_heads=4, intermediate_size=256)
    common = _COMMON | dict(initializer_range=0.1)
    return transformers.DeepseekV2Config(
        **common, **heads, **latent, **experts, **groups, num_hidden_layers=3, max_position_embeddings=8192
    )


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3n": _gemma3n,
    "gptoss": _gptoss,
    "bloom": _bloom,
    "deepseek": _deepseek,
}


def _long() -> Any:
    """Windows alone: cheap to prefill at any length, while the session keeps every row: 4 KiB a token in
    float32."""
    heads = dict(num_attention_heads=8, num_key_value_heads=8, head_dim=64, intermediate_size=64)
    more = dict(num_hidden_layers=1, sliding_window=256, max_position_embeddings=140000, tie_word_embeddings=False)
    return transformers.MistralConfig(**(_COMMON | heads | more))


def _wide(layers: int = 2) -> Any:
    """Attention of a model of 8 B parameters, and little else: for bench/vllm.py."""
    more = dict(hidden_size=1024, intermediate_size=1024, num_attention_heads=32, num_key_value_heads=8, head_dim=128)
    return _llama(**more, num_hidden_layers=layers, max_position_embeddings=140000, initializer_range=0.02)


OTHERS: dict[str, Callable[[], Any]] = {"long": _long, "wide": _wide}


def make(folder: Path, name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    """A model of random weights; the same ones at every call with a seed."""
    path = folder / name
    if not (path / "config.json").is_file():
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config((FAMILIES | OTHERS)[name](), dtype=dtype).save_pretrained(path)
    return path


def adapter(path: Path, seed: int, rank: int = 8) -> Path:
    """A LoRA of _llama's q and v, of random weights."""
    torch.manual_seed(seed)
    config = _llama()
    tensors = {}
    for layer in range(config.num_hidden_layers):
        for name, heads in (("q_proj", config.num_attention_heads), ("v_proj", config.num_key_value_heads)):
            where = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{where}.lora_A.weight"] = 0.2 * torch.randn(rank, config.hidden_size)
            tensors[f"{where}.lora_B.weight"] = 0.2 * torch.randn(heads * config.head_dim, rank)
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (path / "adapter_config.json").write_text(json.dumps(said))
    return path


def smollm2() -> Path:
    """SmolLM2-135M-Instruct with its tokenizer, as examples/vllm makes it; kept beside the virtual
    environment's packages."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "examples" / "vllm"))
    from smollm2 import convert

    return convert(Path(sys.prefix) / "smollm2")


if __name__ == "__main__":
    for family in sys.argv[2:]:
        print(make(Path(sys.argv[1]), family))
