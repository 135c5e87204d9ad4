# SPDX-License-Identifier: Apache-2.0
"""A Llama in float64, straight from a GGUF file: what the logits would be if nothing were rounded but the weights.

It shares no code with llama.cpp nor with Banyan. Attention is Σ exp(x) v / Σ exp(x) over whole rows, nothing split or merged.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def _field(reader: gguf.GGUFReader, name: str, default=None):
    field = reader.fields.get(name)
    return default if field is None else field.contents()


class Llama64:
    """Architecture `llama` without experts, scaled rotary embeddings or biases: what SmolLM2 is."""

    def __init__(self, path: str | Path):
        reader = gguf.GGUFReader(str(path))
        if _field(reader, "general.architecture") != "llama":
            raise ValueError(f"{path} is not a Llama: its architecture is {_field(reader, 'general.architecture')}")
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.layers = _field(reader, "llama.block_count")
        self.heads = _field(reader, "llama.attention.head_count")
        self.kv_heads = _field(reader, "llama.attention.head_count_kv", self.heads)
        self.eps = _field(reader, "llama.attention.layer_norm_rms_epsilon")
        self.base = _field(reader, "llama.rope.freq_base", 10000.0)
        self.head = _field(reader, "llama.attention.key_length", _field(reader, "llama.embedding_length") // self.heads)
        unknown = [name for name in self._tensors if name.endswith(".bias") or "exps" in name or "rope_freqs" in name]
        if unknown or _field(reader, "llama.rope.scaling.type", "none") != "none":
            raise ValueError(f"{path}: this Llama has parts that are not computed here: {', '.join(unknown) or 'scaled rotary embeddings'}")

    def _weight(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * self._weight(name)

    def _rotate(self, x: np.ndarray) -> np.ndarray:
        """x [rows, heads, head]: neighbouring pairs turn by position x base^(-2i/head)."""
        angle = np.arange(x.shape[0])[:, None] * self.base ** (-np.arange(0, self.head, 2) / self.head)[None, :]
        cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = even * cos - odd * sin
        out[..., 1::2] = even * sin + odd * cos
        return out

    def _attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        rows, group = q.shape[0], self.heads // self.kv_heads
        future = np.triu(np.full((rows, rows), -np.inf), 1)
        out = np.empty_like(q)
        for h in range(self.heads):
            x = q[:, h] @ k[:, h // group].T / np.sqrt(self.head) + future
            x = np.exp(x - x.max(axis=-1, keepdims=True))
            out[:, h] = x @ v[:, h // group] / x.sum(axis=-1, keepdims=True)
        return out.reshape(rows, -1)

    def logits(self, tokens: list[int], last: int | None = None) -> np.ndarray:
        """Of the last rows of `tokens`, or of all: [last, vocabulary] in float64."""
        embedding = self._weight("token_embd.weight")
        x = embedding[tokens]
        for i in range(self.layers):
            block = f"blk.{i}."
            y = self._norm(x, block + "attn_norm.weight")
            q, k, v = ((y @ self._weight(f"{block}attn_{name}.weight").T).reshape(len(tokens), -1, self.head) for name in "qkv")
            x = x + self._attend(self._rotate(q), self._rotate(k), v) @ self._weight(block + "attn_output.weight").T
            y = self._norm(x, block + "ffn_norm.weight")
            gate = y @ self._weight(block + "ffn_gate.weight").T
            up = y @ self._weight(block + "ffn_up.weight").T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self._weight(block + "ffn_down.weight").T
        x = self._norm(x[-last:] if last else x, "output_norm.weight")
        head = self._weight("output.weight") if "output.weight" in self._tensors else embedding
        return x @ head.T


def float32_copy(source: str | Path, target: str | Path) -> None:
    """Writes the model again with its weights as float32: the same numbers, but products no longer round activations to 8 bits."""
    reader = gguf.GGUFReader(str(source))
    file = gguf.GGUFWriter(str(target), _field(reader, "general.architecture"))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        file.add_key_value(name, field.contents(), kind, sub_type=field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        file.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
