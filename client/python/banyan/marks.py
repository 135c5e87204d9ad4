# SPDX-License-Identifier: Apache-2.0
"""The mark of a model: 48 bits of its configuration and of its weights, which stand beside every token of its sessions.

Keys and values of one model are noise to another. So a session says whose they are (tokens.py), and who goes on with it
compares. How weights are read is the integration's: banyan.transformers reads tensors, banyan.vllm the checkpoint's files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from typing import Any

CONFIG_BITS, WEIGHTS_BITS = 16, 32
BYTES = (CONFIG_BITS + WEIGHTS_BITS) // 8

# What a configuration says of the process that loaded it, not of the model.
_PASSING = frozenset(
    {
        "_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "_name_or_path", "_commit_hash",
        "transformers_version", "torch_dtype", "dtype", "architectures", "use_cache", "return_dict", "output_hidden_states",
    }
)  # fmt: skip
_READ = 1 << 20  # bytes at a time


def lasting(said: Any) -> Any:
    """A configuration's dictionary without what does not belong to the model."""
    if isinstance(said, dict):
        return {name: lasting(value) for name, value in said.items() if name not in _PASSING}
    return said


def digest(parts: Iterable[bytes], bits: int) -> int:
    """Of byte strings and where each ends."""
    out = hashlib.sha256()
    for part in parts:
        out.update(len(part).to_bytes(8, "little") + part)
    return int.from_bytes(out.digest()[:8], "little") % (1 << bits)


def of_config(config: dict[str, Any]) -> int:
    """CONFIG_BITS of a configuration."""
    return digest([json.dumps(lasting(config), sort_keys=True, default=str).encode()], CONFIG_BITS)


def together(config: int, weights: int) -> int:
    """The mark: the configuration in the lower bits, the weights in the others."""
    return config | weights << CONFIG_BITS


def of_file(path: str | os.PathLike[str]) -> bytes:
    """Of every byte of a file. Blocks: about a second for each GB."""
    out = hashlib.sha256()
    buffer = bytearray(_READ)
    with open(path, "rb", buffering=0) as file:
        while n := file.readinto(buffer):
            out.update(memoryview(buffer)[:n])
    return out.digest()


def difference(found: int, mine: int) -> str:
    """What differs between two marks; "" if nothing."""
    if found % (1 << CONFIG_BITS) != mine % (1 << CONFIG_BITS):
        return "a model of another configuration"
    if found != mine:
        return "other weights of this model (another revision, fine-tune or adapter, or weights rounded to another dtype)"
    return ""
