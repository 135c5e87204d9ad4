# SPDX-License-Identifier: Apache-2.0
"""Which model a session was made with: a fingerprint of its configuration and of its weights.

Both are in every token's row of the session's last layer (tokens.py). They depend on no device, no thread and no path;
on a dtype only where it rounds: a bfloat16 checkpoint has the same fingerprint loaded as float32, a float32
checkpoint loaded as bfloat16 another one, since keys and values differ then too.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

_CONFIG_BITS, _WEIGHTS_BITS = 16, 24
BYTES = (_CONFIG_BITS + _WEIGHTS_BITS) // 8

# What a configuration says of the process that loaded it, not of the model.
_PASSING = frozenset(
    {
        "_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "_name_or_path", "_commit_hash",
        "transformers_version", "torch_dtype", "dtype", "architectures", "use_cache", "return_dict", "output_hidden_states",
    }
)  # fmt: skip
_PER_DIMENSION = 16  # of a tensor: how many places along each of its dimensions are looked at


def _lasting(said: Any) -> Any:
    if isinstance(said, dict):
        return {name: _lasting(value) for name, value in said.items() if name not in _PASSING}
    return said


def _digest(parts: list[bytes], bits: int) -> int:
    out = hashlib.sha256()
    for part in parts:
        out.update(len(part).to_bytes(8, "little") + part)
    return int.from_bytes(out.digest()[:8], "little") % (1 << bits)


def _sample(x: torch.Tensor) -> bytes:
    """Of the same places of every tensor of this shape: no memory but theirs is read."""
    places = tuple(slice(None, None, -(-n // _PER_DIMENSION) or 1) for n in x.shape)
    chosen = x[places]
    if chosen.is_complex():
        chosen = torch.view_as_real(chosen)
    return chosen.to("cpu", torch.float64).contiguous().numpy().tobytes()


def _weights(model: Any) -> list[bytes]:
    state = {name: x for name, x in model.state_dict().items() if isinstance(x, torch.Tensor)}
    if any(x.is_meta or type(x) is not torch.Tensor for x in state.values()):
        # Offloaded, or of a kind that cannot be read in part: then what the model is called has to do.
        return [repr((getattr(model.config, "_name_or_path", ""), getattr(model.config, "_commit_hash", None))).encode()]
    # Adapters (PEFT): all that are loaded are weights; which of them count now is said by the modules.
    adapters = {
        (str(m._active_adapter), bool(getattr(m, "_disable_adapters", False))) for m in model.modules() if hasattr(m, "_active_adapter")
    }
    active = [repr(sorted(adapters)).encode()] if adapters else []
    return active + [part for name in sorted(state) for part in (f"{name} {list(state[name].shape)}".encode(), _sample(state[name]))]


def fingerprint(model: Any) -> int:
    """Of the configuration in the lower bits, of the weights in the others."""
    said = json.dumps(_lasting(model.config.to_dict()), sort_keys=True, default=str)
    return _digest([said.encode()], _CONFIG_BITS) | _digest(_weights(model), _WEIGHTS_BITS) << _CONFIG_BITS


def difference(found: int, mine: int) -> str:
    """What differs between two fingerprints; "" if nothing."""
    if found % (1 << _CONFIG_BITS) != mine % (1 << _CONFIG_BITS):
        return "a model of another configuration"
    if found != mine:
        return "other weights of this model (another revision or fine-tune, or weights rounded to another dtype)"
    return ""
