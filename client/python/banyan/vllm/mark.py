# SPDX-License-Identifier: Apache-2.0
"""The mark of the model that vLLM serves: its configuration, every byte of its weights' files, and a
request's adapter.

The files are read, not the tensors: vLLM fuses, packs and on CPUs even drops them once they are loaded. A
model whose weights come from elsewhere (--load-format dummy, a stream) has a mark of this process alone: its
sessions are never resumed.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from .. import marks

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_NO_WEIGHTS = {"training_args.bin", "optimizer.pt", "scheduler.pt"}
_FROM_FILES = ("auto", "safetensors", "pt", "hf", "gguf", "bitsandbytes", "mistral", "fastsafetensors", "npcache")
# Rotary embeddings that vLLM makes for the longest text that the engine takes.
_BY_LENGTH = ("longrope", "su", "dynamic")


def weights_files(folder: Path) -> list[Path]:
    """The files of a checkpoint that hold weights, in the order of their names."""
    if folder.is_file():
        return [folder]
    return sorted(p for p in folder.rglob("*") if p.suffix in _WEIGHTS and p.name not in _NO_WEIGHTS and p.is_file())


def _folder(model: str, revision: str | None) -> Path | None:
    if os.path.exists(model):
        return Path(model)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except Exception:  # of any kind: then the weights are not files here
        return None


def of_files(files: list[Path]) -> int:
    """Of names and contents. Blocks while they are read."""
    return marks.digest((part for path in files for part in (path.name.encode(), marks.of_file(path))), marks.WEIGHTS_BITS)


def _mentions(config: Any, words: tuple[str, ...]) -> bool:
    if isinstance(config, dict):
        return any(_mentions(value, words) for value in config.values())
    return isinstance(config, str) and config in words


class Marks:
    """Of one engine. base: without an adapter; lasting: other processes that serve this model have the
    same."""

    def __init__(self, config: Any) -> None:
        """config: vLLM's VllmConfig."""
        model, load = config.model_config, config.load_config
        said = {"config": model.hf_config.to_dict(), "computed_in": str(model.dtype), "quantization": str(model.quantization)}
        if _mentions(said["config"], _BY_LENGTH):
            said["length"] = model.max_model_len
        folder = _folder(model.model, getattr(model, "revision", None)) if str(load.load_format) in _FROM_FILES else None
        files = [] if folder is None else weights_files(folder)
        self.lasting = bool(files)
        weights = of_files(files) if files else secrets.randbits(marks.WEIGHTS_BITS)
        self.base = marks.together(marks.of_config(said), weights)
        self._adapters: dict[tuple[Any, ...], int] = {}

    def of_request(self, adapter: Any) -> int:
        """adapter: vLLM's LoRARequest, or None. Its files are read when it is new or has changed. Raises
        OSError."""
        if adapter is None:
            return self.base
        folder = Path(getattr(adapter, "lora_path", "") or "")
        files = sorted(p for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else []
        if not any(p.suffix in _WEIGHTS for p in files):
            raise OSError(f"the adapter {getattr(adapter, 'lora_name', '')}: no weights in {folder}")
        key = tuple((str(p), s.st_size, s.st_mtime_ns, s.st_ino) for p, s in ((p, p.stat()) for p in files))
        found = self._adapters.get(key)
        if found is None:
            config = folder / "adapter_config.json"
            said = json.dumps(json.loads(config.read_text()), sort_keys=True) if config.is_file() else ""
            own = of_files([p for p in files if p.suffix in _WEIGHTS])
            weights = marks.digest([self.base.to_bytes(8, "little"), own.to_bytes(8, "little"), said.encode()], marks.WEIGHTS_BITS)
            found = self._adapters[key] = marks.together(self.base % (1 << marks.CONFIG_BITS), weights)
        return found
