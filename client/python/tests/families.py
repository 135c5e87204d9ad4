# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights, one a family."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

BASE = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, head_dim=16, vocab_size=128,
    max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
TOKENS = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
MOE = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
MLA = dict(
    q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, num_key_value_heads=8, n_routed_experts=4,
    num_experts_per_tok=2, moe_intermediate_size=32, n_group=1, topk_group=1, first_k_dense_replace=1, n_shared_experts=1,
)  # fmt: skip
WINDOW = dict(sliding_window=24)


def _types(*names: str) -> dict[str, Any]:
    return dict(layer_types=list(names))


S, F, L, C = "sliding_attention", "full_attention", "linear_attention", "conv"
MIXED = {**WINDOW, **_types(S, F, S, F)}
LINEAR = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)
PER_LAYER = dict(hidden_size_per_layer_input=16, vocab_size_per_layer_input=128)

# What must work. Keys: model types of Transformers.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": WINDOW,
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": MOE,
    "phi3": {},
    "gemma": {},
    "gemma2": MIXED,
    "gemma3_text": MIXED,
    "gemma3n_text": {
        **MIXED, **PER_LAYER, "num_kv_shared_layers": 2, "laurel_rank": 8, "intermediate_size": [96] * 4,
        "activation_sparsity_pattern": [0.0] * 4, "altup_num_inputs": 2,
    },
    "gemma4_text": {**MIXED, **PER_LAYER, "global_head_dim": 32, "num_kv_shared_layers": 0},
    "gpt_oss": {**MIXED, **MOE},
    "olmo3": MIXED,
    "cohere2": MIXED,
    "smollm3": {},
    "starcoder2": WINDOW,
    "deepseek_v2": {**MLA, "head_dim": 8},
    "deepseek_v3": {**MLA, "head_dim": 8},
    "minicpm3": {**MLA, "head_dim": 24},
    "mimo_v2_flash": {**MIXED, **MOE},
    "llama4_text": {**MOE, "attention_chunk_size": 16, "intermediate_size_mlp": 96},
    "granite": {},
    "glm4": {},
    "stablelm": {"head_dim": None},
    "phi": {"num_key_value_heads": 8},
    "gpt_neox": {},
    "gpt2": {"base": TOKENS, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "qwen3_next": {**MOE, **LINEAR, **_types(L, F, L, F), "shared_expert_intermediate_size": 32},
    "lfm2": _types(C, F, C, F),
    "exaone4": MIXED,
    "nemotron": {},
    "vaultgemma": WINDOW,
    # Beyond the list
    "qwen2_moe": MOE,
    "mixtral": MOE,
    "olmo": {},
    "olmo2": {},
    "granitemoe": MOE,
    "phimoe": MOE,
    "ernie4_5": {},
    "hunyuan_v1_dense": {},
    "seed_oss": {},
    "apertus": {},
    "arcee": {},
    "gpt_bigcode": {},
    "cohere": {},
    "biogpt": {},
}  # fmt: skip

# What must be refused, with a part of the reason.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bloom": ({"base": TOKENS, "hidden_size": 64, "n_layer": 2, "n_head": 4}, "mask itself"),
    "mpt": ({"base": TOKENS, "d_model": 64, "n_layers": 2, "n_heads": 4}, "mask itself"),
    "diffllama": ({"head_dim": 8}, "changes cached keys or values"),
    "falcon_h1": ({}, "a state of its own in one layer"),
}


def make(family: str, options: dict[str, Any], attention: str) -> Any:
    torch.manual_seed(1)
    options = dict(options)
    base = {name: BASE[name] for name in options.pop("base", BASE)}
    config = AutoConfig.for_model(family, **{k: v for k, v in {**base, **options}.items() if v is not None})
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval().to(torch.float32)
