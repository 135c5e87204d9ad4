# SPDX-License-Identifier: Apache-2.0
"""llama.cpp through llama-cpp-python's low-level API, with the device chosen by name.

The high-level class `llama_cpp.Llama` has no parameter for the device, for tensor overrides nor for several sequences
that are not unified; the C API has, and llama-cpp-python passes its structs through. What stands here is what the
command line says as `-dev NAME -ngl 99 -ot ".*=CPU" -fa on --swa-full --no-kv-unified -np N`.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import llama_cpp.llama_cpp as lib
import numpy as np

KINDS = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}  # enum ggml_type
_BASE = Path(os.environ.get("LLAMA_CPP_LIB_PATH") or Path(lib.__file__).parent / "lib")
_ggml = ctypes.CDLL(str(_BASE / "libggml.so"))
for _name, _arguments in (
    ("ggml_backend_load", [ctypes.c_char_p]),
    ("ggml_backend_dev_by_name", [ctypes.c_char_p]),
    ("ggml_backend_dev_by_type", [ctypes.c_int]),
    ("ggml_backend_dev_buffer_type", [ctypes.c_void_p]),
):
    getattr(_ggml, _name).argtypes = _arguments
    getattr(_ggml, _name).restype = ctypes.c_void_p

_words: list[str] = []  # what llama.cpp said, line by line


@lib.llama_log_callback
def _log(level, text, data):
    del level, data
    said = text.decode(errors="replace")
    if _words and not _words[-1].endswith("\n"):
        _words[-1] += said
    else:
        _words.append(said)
    del _words[:-400]


lib.llama_log_set(_log, None)
lib.llama_backend_init()


class Failed(RuntimeError):
    """llama.cpp has refused; the message is what it said last."""


def said(count: int = 6) -> str:
    return "".join(_words[-count:]).strip()


def load_plugin(path: str | Path) -> None:
    """Loads a dynamic ggml backend. Its devices may be named from then on."""
    if not _ggml.ggml_backend_load(str(path).encode()):
        raise Failed(f"ggml cannot load {path}:\n{said()}")


class _Override(ctypes.Structure):
    _fields_ = [("pattern", ctypes.c_char_p), ("type", ctypes.c_void_p)]


class Model:
    """A GGUF file. Its weights stay in the CPU's memory; with a device, the KV cache is the device's."""

    def __init__(self, path: str | Path, device: str | None = None):
        params = lib.llama_model_default_params()
        devices = (ctypes.c_void_p * 2)(None, None)
        if device:
            devices[0] = _ggml.ggml_backend_dev_by_name(device.encode())
            if not devices[0]:
                raise Failed(f"ggml has no device {device}")
            cpu = _ggml.ggml_backend_dev_buffer_type(_ggml.ggml_backend_dev_by_type(0))
            self._overrides = (_Override * 2)(_Override(b".*", cpu), _Override(None, None))
            params.tensor_buft_overrides = ctypes.cast(self._overrides, ctypes.c_void_p)
        params.devices = ctypes.cast(devices, ctypes.c_void_p)
        params.n_gpu_layers = 99 if device else 0
        params.use_extra_bufts = False  # both sides multiply with the same code
        self._devices = devices
        self.handle = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise Failed(f"llama.cpp cannot load {path}:\n{said()}")
        self.vocab = lib.llama_model_get_vocab(self.handle)
        self.vocab_size = lib.llama_vocab_n_tokens(self.vocab)

    def tokens(self, text: str, special: bool = True) -> list[int]:
        raw = text.encode()
        room = (lib.llama_token * (len(raw) + 16))()
        count = lib.llama_tokenize(self.vocab, raw, len(raw), room, len(room), False, special)
        if count < 0:
            raise Failed("the text cannot be split into tokens")
        return list(room[:count])

    def text(self, tokens: list[int]) -> str:
        raw = b""
        for token in tokens:
            room = ctypes.create_string_buffer(256)
            size = lib.llama_token_to_piece(self.vocab, token, room, len(room), 0, False)
            raw += room.raw[: max(0, size)]
        return raw.decode(errors="replace")

    def ends(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_eog(self.vocab, token))

    def close(self) -> None:
        if self.handle:
            lib.llama_model_free(self.handle)
            self.handle = None


class Context:
    """A KV cache and what computes on it. Call close() before its model's."""

    def __init__(self, model: Model, tokens: int, *, ubatch: int = 512, sequences: int = 1, kind: str = "f16", unified: bool = False,
                 swa_full: bool = True, flash: bool = True, threads: int = 0):
        params = lib.llama_context_default_params()
        params.n_ctx = tokens * (1 if unified else sequences)
        params.n_batch = max(ubatch, 2048)
        params.n_ubatch = ubatch
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = threads or min(8, os.cpu_count() or 1)
        params.type_k = params.type_v = KINDS[kind]
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.swa_full = swa_full
        params.kv_unified = unified
        params.offload_kqv = True
        params.op_offload = False
        self.model = model
        self.batch_size = params.n_batch
        self.handle = lib.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise Failed(f"llama.cpp cannot make a context:\n{said()}")
        self.memory = lib.llama_get_memory(self.handle)
        self.batch = lib.llama_batch_init(self.batch_size, 0, 1)

    def decode(self, rows: list[tuple[int, int, int]], wanted: list[int] | None = None) -> np.ndarray:
        """Computes rows of (token, position, sequence), at most 2,048, and returns the logits of those with the indices
        `wanted` (None: of all). Raises Failed where llama_decode fails."""
        wanted = list(range(len(rows))) if wanted is None else wanted
        self.batch.n_tokens = len(rows)
        chosen = set(wanted)
        for i, (token, position, sequence) in enumerate(rows):
            self.batch.token[i] = token
            self.batch.pos[i] = position
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = sequence
            self.batch.logits[i] = i in chosen
        status = lib.llama_decode(self.handle, self.batch)
        if status:
            raise Failed(f"llama_decode has failed with {status}:\n{said()}")
        size = self.model.vocab_size
        out = np.empty((len(wanted), size), np.float32)
        for at, i in enumerate(wanted):
            row = ctypes.cast(lib.llama_get_logits_ith(self.handle, i), ctypes.POINTER(ctypes.c_float))
            out[at] = np.ctypeslib.as_array(row, (size,))
        return out

    def read(self, tokens: list[int], first: int = 0, sequence: int = 0, all_logits: bool = False) -> np.ndarray:
        """Decodes tokens at positions from `first` on, in batches. The logits of all, or of the last."""
        parts = []
        for at in range(0, len(tokens), self.batch_size):
            part = tokens[at : at + self.batch_size]
            last = at + len(part) == len(tokens)
            wanted = None if all_logits else [len(part) - 1] if last else []
            parts.append(self.decode([(token, first + at + i, sequence) for i, token in enumerate(part)], wanted))
        return np.concatenate(parts)

    def close(self) -> None:
        if self.handle:
            lib.llama_batch_free(self.batch)
            lib.llama_free(self.handle)
            self.handle = None
