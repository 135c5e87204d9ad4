# SPDX-License-Identifier: Apache-2.0
"""Small language models of random weights as GGUF files: one of each shape that llama.cpp treats in its own
way."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

VOCAB = 512
LAYERS = 4
WIDTH = 256
HEADS, KV_HEADS, HEAD = 4, 2, 64  # HEADS x HEAD = WIDTH: some of the families know no other width
INNER = 384
CONTEXT = 4096
WINDOW = 48  # of those that have one: much shorter than the prompts
EXPERTS, EXPERT_INNER = 4, 64  # all are used: which ones would hang on the last bit

# name -> (architecture in GGUF, what is special). A window stands in every second layer.
FAMILIES = {
    "llama": ("llama", set()),
    "mistral": ("llama", {"one_kv_head"}),  # llama.cpp reads a Mistral as a Llama, and ignores its window
    "qwen2": ("qwen2", {"qkv_bias"}),
    "qwen3": ("qwen3", {"qk_norm"}),
    "gemma2": ("gemma2", {"post_norms", "window", "soft_cap"}),
    "gemma3": ("gemma3", {"post_norms", "qk_norm", "window"}),
    "gpt-oss": ("gpt-oss", {"window", "sinks", "experts"}),
    "phi3": ("phi3", {"fused"}),
    "mpt": ("mpt", {"alibi"}),
}
WINDOWED = tuple(name for name, (_, special) in FAMILIES.items() if "window" in special)


def _bytes_as_letters() -> list[str]:
    """How byte-level BPE writes the 256 bytes: those that print as themselves, the others as letters from 256
    on."""
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in prints else chr(next(others)) for byte in range(256)]


def _add_tokenizer(file: gguf.GGUFWriter) -> None:
    """A token a byte of ASCII; what is left of the vocabulary are words that no text has. Any tokens make a
    valid text: newer llama-servers answer others with an error."""
    letters = _bytes_as_letters()[:128]
    tokens = letters + [f"<{i}>" for i in range(len(letters), VOCAB)]
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(tokens)
    file.add_token_types([gguf.TokenType.NORMAL] * VOCAB)
    file.add_token_merges([f"{letters[0]} {letters[1]}"])
    file.add_eos_token_id(VOCAB - 1)
    file.add_add_bos_token(False)


def write(name: str, path: Path, seed: int = 7, window: int = WINDOW, tokenizer: bool = False) -> None:
    """Writes the model of a family, with a window of its own where it has any. Without a tokenizer it takes
    numbers only. Weights are float32 so that products round little; the logits spread over some units."""
    arch, special = FAMILIES[name]
    random = np.random.default_rng(seed)
    file = gguf.GGUFWriter(str(path), arch)
    kv_heads = 1 if "one_kv_head" in special else HEADS if "alibi" in special else KV_HEADS

    def weight(tensor: str, *shape: int, scale: float = 1.0) -> None:
        values = random.standard_normal(shape, np.float32) * (scale / np.sqrt(shape[-1]))
        file.add_tensor(tensor, values.astype(np.float32))

    def norm(tensor: str, size: int) -> None:
        file.add_tensor(tensor, (1 + 0.1 * random.standard_normal(size)).astype(np.float32))

    def bias(tensor: str, *shape: int) -> None:
        file.add_tensor(tensor, (0.3 * random.standard_normal(shape)).astype(np.float32))

    file.add_vocab_size(VOCAB)
    if tokenizer:
        _add_tokenizer(file)
    else:
        file.add_tokenizer_model("no_vocab")
    file.add_context_length(CONTEXT)
    file.add_embedding_length(WIDTH)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(INNER)
    file.add_head_count(HEADS)
    file.add_head_count_kv(kv_heads)
    file.add_key_length(HEAD)
    file.add_value_length(HEAD)
    file.add_rope_dimension_count(HEAD)
    file.add_rope_freq_base(10000.0)
    file.add_layer_norm_rms_eps(1e-5)
    if "window" in special:
        file.add_sliding_window(window)
        file.add_sliding_window_pattern([i % 2 == 0 for i in range(LAYERS)])
    if "soft_cap" in special:
        file.add_attn_logit_softcapping(5.0)
        file.add_final_logit_softcapping(30.0)
    if "experts" in special:
        file.add_expert_count(EXPERTS)
        file.add_expert_used_count(EXPERTS)
        file.add_expert_feed_forward_length(EXPERT_INNER)
    if "alibi" in special:
        file.add_layer_norm_eps(1e-5)
        file.add_max_alibi_bias(8.0)

    weight("token_embd.weight", VOCAB, WIDTH, scale=WIDTH**0.5 if "post_norms" not in special else 1.0)
    norm("output_norm.weight", WIDTH)
    weight("output.weight", VOCAB, WIDTH, scale=2.0)
    if name == "gemma2":  # its head is the embedding
        file.tensors[0].pop("output.weight")
    for i in range(LAYERS):
        block = f"blk.{i}."
        norm(block + "attn_norm.weight", WIDTH)
        if special & {"fused", "alibi"}:
            weight(block + "attn_qkv.weight", (HEADS + 2 * kv_heads) * HEAD, WIDTH, scale=1.5)
        else:
            for tensor, heads in (("q", HEADS), ("k", kv_heads), ("v", kv_heads)):
                weight(f"{block}attn_{tensor}.weight", heads * HEAD, WIDTH, scale=1.5)
                if special & {"qkv_bias", "sinks"}:
                    bias(f"{block}attn_{tensor}.bias", heads * HEAD)
        weight(block + "attn_output.weight", WIDTH, HEADS * HEAD)
        if "qk_norm" in special:
            norm(block + "attn_q_norm.weight", HEAD)
            norm(block + "attn_k_norm.weight", HEAD)
        if "post_norms" in special:
            norm(block + "post_attention_norm.weight", WIDTH)
            norm(block + "post_ffw_norm.weight", WIDTH)
        if "experts" in special:
            norm(block + "post_attention_norm.weight", WIDTH)
            bias(block + "attn_output.bias", WIDTH)
            bias(block + "attn_sinks.weight", HEADS)
            weight(block + "ffn_gate_inp.weight", EXPERTS, WIDTH)
            bias(block + "ffn_gate_inp.bias", EXPERTS)
            for tensor, out, into in (("gate", EXPERT_INNER, WIDTH), ("up", EXPERT_INNER, WIDTH), ("down", WIDTH, EXPERT_INNER)):
                weight(f"{block}ffn_{tensor}_exps.weight", EXPERTS, out, into)
                bias(f"{block}ffn_{tensor}_exps.bias", EXPERTS, out)
            continue
        norm(block + "ffn_norm.weight", WIDTH)
        weight(block + "ffn_up.weight", INNER * (2 if "fused" in special else 1), WIDTH)
        weight(block + "ffn_down.weight", WIDTH, INNER)
        if not {"fused", "alibi"} & special:
            weight(block + "ffn_gate.weight", INNER, WIDTH)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
