# SPDX-License-Identifier: Apache-2.0
"""A tiny model of every causal family that the installed Transformers has: found by looking, no family is
listed here.

What a family's configuration is made of is read from its class. A field is made small by its name alone, with
the same value for all families, and where a model cannot be made so, by one of a few other ways to choose
heads and widths.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, VOCABULARY = 4, 64, 8, 2, 16, 128
WINDOW, MOST_PARAMETERS = 24, 8_000_000
ROPE_END = 48  # the text for which scaled rotary embeddings were made

# What a field becomes, by a pattern of its whole name; the first that fits counts.
_SMALL: list[tuple[str, Any]] = [
    (r"(num_)?(hidden_)?layers|n_layers?|num_(encoder|decoder)_layers|(encoder|decoder)_layers|num_blocks|depth", LAYERS),
    (r"hidden_size|n_embd|d_model|embed_dim|emb_dim|embedding_size|(input|output)_embedding_size|word_embed_proj_dim|lru_width", WIDTH),
    (r"backbone_hidden_size|hidden_size_global|decoder_hidden_size|out_hidden_size|input_size|output_proj_dims|vision_output_dim", WIDTH),
    (r"(moe_|shared_expert_|shared_experts_|moe_shared_expert_|dense_|shared_)intermediate_size|expert_ffn_hidden_size", 32),
    (r"intermediate_size(_mlp)?|ffn_hidden_size|ffn_dim|(encoder|decoder)_ffn_dim|d_inner|dff|dim_ff|feed_forward_size", 96),
    (r"(num_|n_)?(attention_)?heads?|num_(encoder|decoder)_attention_heads|(encoder|decoder)_attention_heads", HEADS),
    (r"swa_num_attention_heads", HEADS),
    (r"(swa_)?num_key_value_heads|kv_n_heads|num_kv_heads|num_global_key_value_heads", KV_HEADS),
    (r"(swa_|global_)?head_dim|dim_head|kv_channels|attention_head_size", HEAD),
    (r"(.*_)?vocab_size(_per_layer_input)?|codebook_size|ngram_vocab_size_base|encoder_hash_byte_group_vocab", VOCABULARY),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|max_(target|source)_positions|context_length|num_position_embeddings", 512),
    (r"sliding_window(_size)?|attention_window_size|local_attention|window_size|keep_window_size", WINDOW),
    (r"attention_chunk_size", 16),
    (r"(mamba_)?chunk_size|block_size", 8),
    (r"num_experts|num_local_experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok|moe_top_?k|moe_k|top_k_experts", 2),
    (r"(n|num|moe_num)_shared_experts|n_group|topk_group|first_k_dense_replace|num_dense_layers|zero_expert_num|num_mtp_layers", 1),
    (r"q_lora_rank", 24),
    (r"kv_lora_rank|o_lora_rank", 32),
    (r"qk_nope_head_dim|v_head_dim", 16),
    (r"qk_rope_head_dim|rotary_dim", 8),
    (r"linear_num_key_heads|n_groups|mamba_n_groups|mamba_ngroups", 2),
    (r"linear_num_value_heads|linear_num_heads", 4),
    (r"linear_(key|value)_head_dim|linear_head_dim", 16),
    (r"mamba_d_ssm", 128),
    (r"mamba_n_heads|mamba_num_heads|n_mamba_heads", 8),
    (r"mamba_d_head|mamba_head_dim", 16),
    (r"mamba_d_state|ssm_state_size|state_size", 16),
    (r"index_n_heads|indexer_n_heads", 2),
    (r"index_head_dim|indexer_head_dim", 16),
    (r"index_topk|indexer_budget", 16),
    (r"indexer_compress_ratio", 4),
    (r"indexer_kv_heads", 1),
    (r"ple_embed_dim", 64),
    (r"index_block_size|index_topk_blocks", 4),
    (r"hidden_size_per_layer_input|laurel_rank|adapter_rank|d_rel|router_hidden_size|gated_norm_rank|hc_lowrank", 16),
    (r"altup_num_inputs|hc_count|hc_mult|o_groups", 2),
    (r"num_kv_shared_layers", 0),
    (r"query_pre_attn_scalar", 16),
    (r"attn_layer_period|sliding_window_pattern|global_attn_every_n_layers|layer_group_size|expert_layer_period", 2),
    (r"attn_layer_indices|full_attn_idxs", [1, 3]),
    (r"attn_layer_offset|expert_layer_offset", 1),
    (r"image_size", 28),
    (r"patch_size", 14),
    (r".*_window_len|rel_extent", 64),
    (r"use_mamba_kernels", False),
    (r"is_decoder|use_sliding_window", True),
    (r"mamba_dt_rank", 8),
    (r"max_window_layers", 0),
    (r"pad_token_id", 0),
    (r"bos_token_id", 1),
    (r"eos_token_id", 2),
]  # fmt: skip
# Where nothing means "made of others", it stays; these are given all the same.
_FILLED = re.compile(
    r"sliding_window(_size)?|linear_.*|num_experts|n_routed_experts|num_experts_per_tok|n_shared_experts|indexer_.*|ple_embed_dim|"
    r"mamba_dt_rank|attn_layer_indices|full_attn_idxs|hidden_size|pad_token_id|.os_token_id"
)
_PER_LAYER = re.compile(r".*layer_types|layers_block_type|indexer_types")

# Other choices, tried one after the other where a model cannot be made or run.
_WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"head_dim": WIDTH // HEADS},
    {"num_key_value_heads": HEADS},
    {"num_key_value_heads": HEADS, "head_dim": 8},
    {"num_key_value_heads": HEADS, "head_dim": 24},
    {"num_key_value_heads": HEADS, "head_dim": None},
    {"head_dim": None},
    {"sliding_window": None, "num_key_value_heads": HEADS},
    {"chunk_size": 64},
    {"layer_types": ["conv", "full_attention"] * 2},
    {"attention_types": [[["global", "local"], LAYERS // 2]]},
    {"hidden_size_per_layer_input": 0},
    {"num_experts_per_tok": 1},
    {"axial_pos_embds": False},
    {"default_language": "en_XX"},
)


def families() -> list[str]:
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def ropes() -> list[str]:
    """Ways to scale rotary embeddings, as "llama/NAME": for a text that is longer than the model was made
    for."""
    return [f"llama/{name}" for name in sorted(ROPE_INIT_FUNCTIONS) if name not in ("default", "proportional")]


class NotMade(Exception):
    """No tiny model of the family can be made, or it does not run by itself."""


def _values(kind: Any) -> dict[str, Any]:
    """What each field has, as configurations of the family are published."""
    plain, out = kind(), {}
    for field in dataclasses.fields(kind):
        try:
            out[field.name] = getattr(plain, field.name, None)
        except Exception:  # one value a layer, which Transformers does not give as one
            out[field.name] = field.default
    return out


def _per_layer(kinds: list[str], known: dict[str, Any]) -> list[str]:
    """Each kind of layer in turn; and attention, where the published default has none of it, or nothing
    else."""
    if kinds in (["mamba"], ["linear_attention"]):
        kinds = [*kinds, "full_attention"]
    elif kinds == ["full_attention"] and "conv_L_cache" in known:
        kinds = ["conv", *kinds]
    return [kinds[i % len(kinds)] for i in range(LAYERS)]


def _options(kind: Any, way: dict[str, Any]) -> dict[str, Any]:
    known = _values(kind)
    layers = known.get("num_hidden_layers")
    out: dict[str, Any] = {}
    for name, value in known.items():
        if name in (kind.sub_configs or {}):
            sub = value if value is not None else kind.sub_configs[name]
            out[name] = _made(sub if isinstance(sub, type) else type(sub), way)
            continue
        if _PER_LAYER.fullmatch(name) and isinstance(value, (list, tuple)) and value:
            out[name] = _per_layer(list(dict.fromkeys(value)), known)
            continue
        small = next((small for pattern, small in _SMALL if re.fullmatch(pattern, name)), None)
        if isinstance(small, list):
            out[name] = small
            continue
        if isinstance(value, (list, tuple)) and len(value) == layers:
            out[name] = list(value[:LAYERS]) if small is None else [small] * LAYERS
            continue
        if small is None or isinstance(value, (list, tuple, dict)):
            continue
        if value is None and not _FILLED.fullmatch(name):
            continue
        if isinstance(value, str) and not isinstance(small, str) and value != "auto":
            continue
        out[name] = small
    out |= {name: value for name, value in way.items() if name in known}
    return out


def _made(kind: Any, way: dict[str, Any]) -> Any:
    return kind(**_options(kind, way))


def _rope(name: str) -> dict[str, Any]:
    half = HEAD // 2
    more = {
        "longrope": {"short_factor": [1.0] * half, "long_factor": [1.0 + i / 2 for i in range(half)]},
        "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    }  # fmt: skip
    return {"rope_type": name, "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": ROPE_END, **more.get(name, {})}


def configurations(family: str) -> Iterator[Any]:
    """Tiny ones, the next where the one before would not do."""
    name, _, rope = family.partition("/")
    kind = CONFIG_MAPPING[name]
    for way in _WAYS:
        more = {"rope_parameters": _rope(rope), "max_position_embeddings": 4 * ROPE_END if rope == "longrope" else ROPE_END} if rope else {}
        yield lambda way=way, more=more: kind(**(_options(kind, way) | more))


def _model(config: Any, attention: str) -> Any:
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config, attn_implementation=attention).parameters())
    if size > MOST_PARAMETERS:
        raise NotMade(f"{size:,} parameters: nothing makes it small")
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval().to(torch.float32)
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():  # so that attention has something to say: fresh weights are nearly uniform
            if p.dim() > 1:
                p.normal_(0, 0.15)
            elif p.numel():
                p.add_(torch.randn_like(p) * 0.1)
    return model


def why(error: BaseException) -> str:
    text = str(error).strip()
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {text}" if not isinstance(error, NotMade) else text)[:160]


def whole(model: Any, ids: torch.Tensor, **more: Any) -> torch.Tensor:
    """Logits of one forward over all of it, without a cache."""
    with torch.no_grad():
        return model(ids, use_cache=False, **more).logits


def make(family: str, ids: torch.Tensor, attention: str = "eager") -> Any:
    """A tiny model whose logits for ids are numbers. NotMade: the reason that the first choice of sizes has
    given."""
    reason: str | None = None
    for make_config in configurations(family):
        try:
            model = _model(make_config(), attention)
            logits = whole(model, ids)
            if logits.shape[:2] != ids.shape:
                raise NotMade(f"logits of {list(logits.shape)} for tokens of {list(ids.shape)}")
            if not bool(torch.isfinite(logits).all()):
                raise NotMade("logits that are no numbers")
            if not float(logits.abs().max()) > 0:
                raise NotMade("logits that are all zero")
            return model
        except Exception as error:
            reason = reason or why(error)
    raise NotMade(reason)


def takes(model: Any, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters
