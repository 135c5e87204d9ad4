# SPDX-License-Identifier: Apache-2.0
"""Which model a session was made with: a fingerprint of its configuration and of its weights.

Both are in every token's row of the session's last layer (tokens.py). They depend on no device, no thread and
no path; on a dtype only where it rounds: a bfloat16 checkpoint has the same fingerprint loaded as float32, a
float32 checkpoint loaded as bfloat16 another one, since keys and values differ then too.

Every element of every weight counts, also of weights in parts (quantised ones: a class of tensors that says
of which tensors it is made, or a module that saves more than its parameters and buffers), and of adapters
(PEFT) those that are active, with their scaling. A
tensor is read once and again when it has changed: when it is another one, lies elsewhere, or PyTorch has
counted a write to it. Writes through
`.data` are not counted: before each generate() a row and a column of each weight are looked at as well, which
finds all that alter more than single elements.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .. import marks
from ..marks import difference
from .refused import Refused
from .text import weights, words_of

__all__ = ["Identity", "difference", "fingerprint", "identity_of"]

_BLOCK = 1 << 16  # elements that are read at a time
_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15


@functools.lru_cache(maxsize=16)
def _weights(n: int, device: torch.device) -> torch.Tensor:
    return weights(n, device)


def _sum(flat: torch.Tensor) -> torch.Tensor:
    """A number, where the tensor is, of the words of a few elements and their order."""
    words = words_of(flat)
    room = _BLOCK if len(words) <= _BLOCK else 1 << (len(words) - 1).bit_length()
    return words.mul_(_weights(room, flat.device)[: len(words)]).sum(dtype=torch.int64)


def _hash(x: torch.Tensor) -> int:
    """Of every element and its place. No memory but a block's is taken, unless x is not dense."""
    flat = torch.view_as_real(x.detach()).flatten() if x.is_complex() else x.detach().flatten()
    step = _BLOCK // 2 if flat.element_size() == 8 else _BLOCK  # of which an element may be two words
    out = len(flat)
    sums = [_sum(flat[at : at + step]) for at in range(0, len(flat), step)]
    for number in _numbers(sums):
        out = ((out ^ (number & _MASK)) * _ODD + 1) & _MASK
        out ^= out >> 29
    return out


def _glance(x: torch.Tensor) -> torch.Tensor:
    """Of a row and a column in the middle, where the tensor is."""
    x = x.detach()
    if x.dim() > 1:
        x = x.flatten(1)
        x = torch.cat((x[x.shape[0] // 2], x[:, x.shape[1] // 2]))
    return _sum((torch.view_as_real(x) if x.is_complex() else x).flatten())


class _Seen(NamedTuple):
    """A tensor as it was when it was read."""

    owner: dict[str, Any]  # where it is found, under `name`
    name: str
    tensor: Any
    address: int
    version: int


def _state(x: Any) -> tuple[int, int]:
    """Changes with a write that PyTorch counts."""
    try:
        return x.data_ptr(), 0 if x.is_inference() else x._version
    except (AttributeError, RuntimeError):  # a kind of tensor that has no memory of its own
        return 0, 0


class _Adapters(NamedTuple):
    """What a module of PEFT's says of its adapters."""

    active: tuple[str, ...]
    disabled: bool
    merged: tuple[str, ...]
    scaling: tuple[tuple[str, float], ...]
    for_sequences: tuple[str, ...]  # names of adapters, one for each sequence of a batch

    @staticmethod
    def of(module: Any) -> _Adapters:
        active = module._active_adapter
        names = tuple(active) if isinstance(active, (list, tuple)) else (str(active),)
        scaling = getattr(module, "scaling", None)
        chosen = tuple((n, float(scaling[n])) for n in names if n in scaling) if isinstance(scaling, dict) else ()
        hooks = (getattr(hook, "keywords", {}).get("adapter_names") for hook in module._forward_pre_hooks.values())
        return _Adapters(
            names, bool(getattr(module, "_disable_adapters", False)), tuple(getattr(module, "merged_adapters", ())), chosen,
            tuple(str(name) for names in hooks if names for name in names),
        )  # fmt: skip

    def counts(self, name: str) -> bool:
        """Whether the weights of this adapter decide what is computed."""
        return bool(self.for_sequences) or (not self.disabled and name in self.active)


def _check_served(modules: list[Any], adapters: list[_Adapters]) -> None:
    """That no adapter is active that decides by each forward alone what it does."""
    for module, mine in zip(modules, adapters):
        for name, variant in getattr(module, "lora_variant", {}).items():
            if mine.counts(name) and type(variant).__name__.startswith("ALora"):
                raise Refused(
                    f"adapter {name!r} is an activated LoRA (alora_invocation_tokens): it looks for its invocation tokens in what each "
                    "forward is given, so that a forward behind others gives something else than one over the whole text. Use another "
                    "adapter, or disable_adapter_layers()"
                )


def _real(module: Any, name: str, x: torch.Tensor) -> Any:
    """The tensor itself, where accelerate has put it elsewhere."""
    if not x.is_meta:
        return x
    hook = getattr(module, "_hf_hook", None)
    for one in getattr(hook, "hooks", (hook,)):
        where = getattr(one, "weights_map", None)
        if where is not None:
            try:
                return where[name]
            except KeyError:
                pass
    return x


class Identity:
    """One model's fingerprint, kept up to date."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._read: dict[str, tuple[_Seen, int, int]] = {}  # of a tensor: a glance at it, and its hash
        self._config = marks.of_config(model.config.to_dict())  # as it is now: what programs write to it later alters no module
        self._mark: int | None = None
        self._modules: list[tuple[dict[str, Any], list[Any]]] = []
        self._seen: list[_Seen] = []
        self._adapted: list[Any] = []
        self._adapters: list[_Adapters] = []

    def mark(self, glance: bool = True) -> int:
        """Of the configuration in the lower bits, of the weights in the others. glance: finds uncounted
        writes, too."""
        if self._mark is not None and self._is_the_same():
            if not glance:
                return self._mark
        else:
            self._mark = None
        if self._mark is None or self._glances() != [read[1] for read in self._read.values()]:
            self._mark = self._compute()
        return self._mark

    def _is_the_same(self) -> bool:
        if any(list(owned.values()) != children for owned, children in self._modules):
            return False
        owner: dict[str, Any]
        for owner, name, tensor, address, version in self._seen:
            if owner.get(name) is not tensor or (address, version) != _state(tensor):
                return False
        return self._adapters == [_Adapters.of(m) for m in self._adapted]

    def _glances(self) -> list[int]:
        return _numbers([_glance(read[0].tensor) for read in self._read.values()])

    def _compute(self) -> int:
        model = self._model()
        assert model is not None
        self._modules = [(m._modules, list(m._modules.values())) for m in model.modules() if m._modules]
        self._adapted = [m for m in model.modules() if hasattr(m, "_active_adapter")]
        adapters = [_Adapters.of(m) for m in self._adapted]
        _check_served(self._adapted, adapters)
        if [a.merged for a in adapters] != [a.merged for a in self._adapters]:
            self._read = {}  # merging writes through .data
        self._adapters, self._seen = adapters, []
        tensors: dict[str, _Seen] = {}
        unread = False
        for name, seen, readable in _tensors(model, dict(zip(map(id, self._adapted), adapters))):
            self._seen.append(seen)
            unread = unread or not readable
            tensors[name] = seen
        parts = [repr([(a.scaling, a.for_sequences, a.merged) for a in adapters if a.scaling and not a.disabled]).encode()]
        if unread:
            # Of a kind that cannot be read: then what the model is called has to do.
            parts.append(repr((getattr(model.config, "_name_or_path", ""), getattr(model.config, "_commit_hash", None))).encode())
        parts += _saved_beside(model)
        parts += self._hashes({name: seen for name, seen in sorted(tensors.items()) if _is_plain(seen.tensor)})
        return marks.together(self._config, marks.digest(parts, marks.WEIGHTS_BITS))

    def _hashes(self, tensors: dict[str, _Seen]) -> list[bytes]:
        glances = _numbers([_glance(seen.tensor) for seen in tensors.values()])
        known, self._read, parts = self._read, {}, []
        same: dict[tuple[int, int, Any, Any], int] = {}  # tensors that are tied
        for (name, seen), glance in zip(tensors.items(), glances):
            before = known.get(name)
            if before is not None and before[0].tensor is seen.tensor and before[0][3:] == seen[3:] and before[1] == glance:
                found = before[2]
            else:
                x = seen.tensor
                key = (seen.address, seen.version, x.shape, x.stride())
                found = same.get(key) if seen.address else None  # type: ignore[assignment]
                if found is None:
                    found = same[key] = _hash(x)
            self._read[name] = seen, glance, found
            parts.append(f"{name} {list(seen.tensor.shape)} {found:x}".encode())
        return parts


def _numbers(sums: list[torch.Tensor]) -> list[int]:
    """Fetched from each device at once."""
    if not sums:
        return []
    device = sums[0].device
    if all(x.device == device for x in sums):
        return [int(n) for n in torch.stack(sums).tolist()]
    return [int(x) for x in sums]


def _is_plain(x: Any) -> bool:
    return type(x) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and not x.is_meta and x.numel() > 0


def _tensors(model: Any, adapters: dict[int, _Adapters]) -> Iterator[tuple[str, _Seen, bool]]:
    """What decides keys and values: weights and lasting buffers, those of adapters where they are active;
    whether one can be read."""
    left_out: set[int] = set()
    for module in model.modules():
        mine = adapters.get(id(module))
        for layer in getattr(module, "adapter_layer_names", ()) if mine is not None else ():
            held: Any = getattr(module, layer, None)
            if mine is not None and hasattr(held, "items"):
                for name, part in held.items():
                    if not mine.counts(name):
                        left_out |= {id(m) for m in part.modules()} if isinstance(part, torch.nn.Module) else {id(part)}
    for path, module in model.named_modules():
        if id(module) in left_out:
            continue
        kept = module._non_persistent_buffers_set
        for owner in (module._parameters, module._buffers):
            for name, x in owner.items():
                if x is None or (owner is module._buffers and name in kept) or id(x) in left_out:
                    continue
                real = _real(module, name, x)
                readable = isinstance(real, torch.Tensor) and (_is_plain(real) or real.numel() == 0)
                if real is not x:  # accelerate's: what is found in the module changes with each forward
                    owner_now: dict[str, Any] = {name: real}
                else:
                    owner_now = owner
                full = f"{path}.{name}" if path else name
                inner = _inner(owner_now, name, real) if isinstance(real, torch.Tensor) else None
                full = full.replace(".base_layer.", ".")
                yield full, _Seen(owner_now, name, real, *_state(real)), readable or inner is not None
                for part, seen in inner or ():
                    yield f"{full}.{part}", seen, True


def _inner(owner: dict[str, Any], name: str, x: torch.Tensor) -> list[tuple[str, _Seen]] | None:
    """The plain tensors that a tensor of another class is made of; None: it is plain, or does not say."""
    if _is_plain(x) or not hasattr(x, "__tensor_flatten__"):
        return None
    found: list[tuple[str, _Seen]] = []
    for attribute in x.__tensor_flatten__()[0]:
        part, holder = getattr(x, attribute), vars(x)
        seen = _Seen(holder if attribute in holder else {attribute: part}, attribute, part, *_state(part))
        more = _inner(seen.owner, attribute, part)
        if more is None and not (_is_plain(part) or part.numel() == 0):
            return None
        found += [(attribute, seen)] if more is None else [(f"{attribute}.{inside}", one) for inside, one in more]
    return found


def _saved_beside(model: Any) -> list[bytes]:
    """What modules save beside their parameters and buffers: weights that are packed for a library."""
    parts: list[bytes] = []
    for path, module in model.named_modules():
        kind = type(module)
        if kind._save_to_state_dict is torch.nn.Module._save_to_state_dict and kind.get_extra_state is torch.nn.Module.get_extra_state:
            continue
        saved: dict[str, Any] = {}
        try:
            module._save_to_state_dict(saved, "", True)
        except Exception:  # a module that cannot be saved
            continue
        for name, value in sorted(saved.items()):
            if name not in module._parameters and name not in module._buffers:
                parts.append(f"{path}.{name} {_said(value)}".encode())
    return parts


def _said(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        x = value.detach()
        x = x.dequantize() if x.is_quantized else x
        return f"{list(x.shape)} {_hash(x):x}" if type(x) in (torch.Tensor, torch.nn.Parameter) and not x.is_meta else repr(type(x))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_said(x)}" for key, x in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_said, value)) + "]"
    return repr(value) if isinstance(value, (str, int, float, bool, bytes, torch.dtype, type(None))) else repr(type(value))


_identities: weakref.WeakKeyDictionary[Any, Identity] = weakref.WeakKeyDictionary()


def identity_of(model: Any) -> Identity:
    """The one that is kept for this model."""
    found = _identities.get(model)
    if found is None:
        found = _identities[model] = Identity(model)
    return found


def fingerprint(model: Any) -> int:
    return identity_of(model).mark()
