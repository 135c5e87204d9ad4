# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights, one a family."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import AutoConfig

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


S, F, L, C, H = "sliding_attention", "full_attention", "linear_attention", "conv", "hybrid"
MIXED = {**WINDOW, **_types(S, F, S, F)}
LINEAR = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)
PER_LAYER = dict(hidden_size_per_layer_input=16, vocab_size_per_layer_input=128)

ENCODER_DECODER = dict(
    base=TOKENS, d_model=64, encoder_layers=2, decoder_layers=2, num_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=64, decoder_ffn_dim=64, d_ff=64, d_kv=16, num_heads=4, decoder_start_token_id=1,
)  # fmt: skip

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
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 8},
    "bamba": {"attn_layer_indices": [1, 3], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 8},
    "jamba": {**MOE, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 8, "use_mamba_kernels": False},
    "zamba": {"layers_block_type": [L, H, L, H], "num_key_value_heads": 8, "use_mamba_kernels": False},
    "zamba2": {"layers_block_type": [L, H, L, H], "num_key_value_heads": 8, "mamba_d_state": 16, "chunk_size": 8, "intermediate_size": 96},
    "granitemoehybrid": {**MOE, **_types("mamba", F, "mamba", F), "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16},
    "nemotron_h": {},
    "recurrent_gemma": {},
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

IMAGE, IMAGE_TOKENS, PIXELS = 120, 4, 28  # the token that stands for a part of an image, how many an image has, its edge
EYES = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=PIXELS, patch_size=14)

# Models that see images: their towers for these compute here, their text model over the service.
VISION: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": {**BASE, **MIXED, "query_pre_attn_scalar": 16}, "vision_config": EYES, "mm_tokens_per_image": IMAGE_TOKENS,
        "image_token_index": IMAGE, "boi_token_index": 121, "eoi_token_index": 122,
    },
    "llava": {
        "text_config": {**BASE, "model_type": "llama"}, "vision_config": {**EYES, "model_type": "clip_vision_model"},
        "image_token_index": IMAGE, "vision_feature_layer": -1,
    },
}  # fmt: skip

NO_INTERFACE = "does not use Transformers' attention interface"

# What must be refused, with a part of the reason.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bloom": ({"base": TOKENS, "hidden_size": 64, "n_layer": 2, "n_head": 4}, NO_INTERFACE),
    "mpt": ({"base": TOKENS, "d_model": 64, "n_layers": 2, "n_heads": 4}, NO_INTERFACE),
    "minimax": (MOE, "MiniMax uses cache of its own"),
    "falcon": (
        {"base": TOKENS, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        NO_INTERFACE,
    ),
    "gptj": ({"base": TOKENS, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 16}, NO_INTERFACE),
    "deepseek_v32": ({**MLA, "head_dim": 8}, "mask itself"),
    "mamba": ({"base": TOKENS, "hidden_size": 64, "num_hidden_layers": 2}, "no layer of this model is attention"),
    "bert": ({}, "on both sides, as encoders do"),
    "t5": (ENCODER_DECODER, "an encoder with a decoder"),
    "bart": (ENCODER_DECODER, "an encoder with a decoder"),
    "whisper": (ENCODER_DECODER, "an encoder with a decoder"),
    "diffllama": ({"head_dim": 8}, "changes cached keys or values"),
}


# Which class of Transformers' makes the model, where it is none for text alone.
HEADS = {
    "gemma3": "ImageTextToText", "llava": "ImageTextToText", "qwen3_vl": "ImageTextToText", "qwen2_5_vl": "ImageTextToText",
    "glm4v": "ImageTextToText", "bert": "MaskedLM", "whisper": "SpeechSeq2Seq", "t5": "Seq2SeqLM",
    "bart": "Seq2SeqLM",
}  # fmt: skip


def make(family: str, options: dict[str, Any], attention: str) -> Any:
    torch.manual_seed(1)
    options = dict(options)
    base = {name: BASE[name] for name in options.pop("base", () if "vision_config" in options else BASE)}
    config = AutoConfig.for_model(family, **{k: v for k, v in {**base, **options}.items() if v is not None})
    kind = getattr(transformers, f"AutoModelFor{HEADS.get(family, 'CausalLM')}")
    return kind.from_config(config, attn_implementation=attention).eval().to(torch.float32)
