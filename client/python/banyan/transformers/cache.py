# SPDX-License-Identifier: Apache-2.0
"""BanyanCache: a Transformers cache whose keys and values live in a Banyan cluster. Nothing of them is kept
here."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from .. import tokens
from ..client import Client
from ..errors import Aborted, FailedPrecondition
from ..spec import check_placement
from . import text
from .answering import Answering
from .generate import watch_generate
from .layers import Layer, check_keywords, scale_of, sinks_of
from .leftover import leave
from .masks import Mask
from .positions import SHIFTED, go_on
from .refused import Refused
from .state import BUSY
from .steps import Gate, Steps
from .tags import Tag
from .turns import Turn
from .watching import KV_TYPES

# Seconds without use after which a session without a name goes, for processes that end without a word.
_FORGOTTEN = 6 * 3600.0

# Reasons of a refused append whose rows are there with other bytes. "": of workers of an older build.
_OTHER_BYTES = ("OTHER_BYTES", "")


class BanyanCache(Answering):
    """A cache for `model(..., past_key_values=cache)` and `model.generate(..., past_key_values=cache)`.

    The model is to be made with `attn_implementation="banyan"`.

    Args:
        model: the model; or its config, then the model is looked at when it is first called.
        client: of the cluster.
        session: the session's name: opened where it is there, and generation goes on without a prefill; else
        made.
            None: a session without a name, deleted by close(), with the cache, or after six hours without
            use. A batch has one session a sequence, NAME/0, NAME/1, …
        batch: how many sequences a named session has; None: opened, or made by the first call.
        kv_type: how the cluster holds keys and values; None: as the model computes them.
        reuse: the first generate() or prefill() begins with the longest beginning of its text that the
            cluster keeps, and close() keeps this one's text for others. For one sequence without padding.
        state_tokens: of models with layers that are no attention (hybrids) a session with a name keeps
            states: one every so many tokens, one at the end of each generate(), and one by close(). Who
            opens it goes on from the newest one, and feeds the tokens behind it again. With reuse=True one
            every so many tokens. 0: none are kept.
        salt: keeps texts apart: caches with different salts never find each other's.
        spec: more fields of banyan.Spec: chunk_tokens, members, idle_ttl, forget (what windows have left
        behind is given
            back; crop goes as far back as the margin).
    """

    def __init__(
        self, model: Any, client: Client, session: str | None = None, *, batch: int | None = None,
        kv_type: str | None = None, reuse: bool = False, salt: str | bytes = b"", state_tokens: int = 4096, **spec: Any,
    ) -> None:  # fmt: skip
        check_placement(spec)
        watch_generate()
        model = _unwrapped(model)
        is_model = isinstance(model, PreTrainedModel)
        if not is_model and not isinstance(model, PreTrainedConfig):
            raise TypeError(f"BanyanCache wants one of Transformers' models or its config, not a {type(model).__name__}")
        config: Any = model.config if is_model else model
        if kv_type is not None and kv_type not in KV_TYPES.values():
            raise Refused(f"kv_type {kv_type!r}: a cache holds keys and values as {', '.join(map(repr, KV_TYPES.values()))}")
        if getattr(config, "is_encoder_decoder", False):
            raise Refused(
                f"{config.model_type} is an encoder with a decoder, which reads the encoder's keys beside its own: this cache is for "
                "models that are a decoder alone"
            )
        super().__init__(config, client, session, kv_type, {"idle_ttl": 0.0 if session is not None else _FORGOTTEN, **spec})
        if state_tokens < 0:
            raise ValueError(f"state_tokens={state_tokens}: give how many tokens lie between two states, or 0")
        self._state_tokens = state_tokens
        self._reuse, self._salt = reuse, salt.encode() if isinstance(salt, str) else salt
        if reuse:
            self._check_reusable()
        if is_model:
            self._look_at(model)
        else:
            self._await_model()
        if session is not None:
            self._resume(session, batch)

    # ---- a forward ----

    def arrives(self, index: int, keys: torch.Tensor, values: torch.Tensor) -> Tag:
        """An update: the first of a forward puts right what an interrupted one has left."""
        if self._refused is not None:
            raise self._refused
        self._turn.check()
        self._begin(keys.shape[0])
        begun = self._open and not (self._part and (index in self._done or not self._done))
        if not begun and (model := self._model and self._model()) is not None and self._steps and self._steps.gate is None:
            self._begin_part(model, keys.shape[2])
        if index not in self._plan:
            raise Refused(f"layer {index} has keys and values, and had none when the model was first looked at")
        if self._dirty and (index in self._done or not self._done):
            self.put_right()
        return Tag(self, index, keys, values, self._plan[index].latent)

    def attend(
        self, module: torch.nn.Module, tag: Tag, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        mask: Any, scaling: float | None, keywords: dict[str, Any],
    ) -> torch.Tensor:  # fmt: skip
        index = tag.index_for(module)
        layer = self._plan.get(index)
        if layer is None or layer.source != tag.layer or (tag.opened and layer.source == index):
            raise Refused(f"layer {index} asks for attention in another way than when the model was first looked at")
        if self._modules[index]() is not module:
            raise Refused(f"layer {index} is of another model than the one that this cache has looked at")
        if self._types is not None and (tag.keys.dtype, tag.values.dtype) != self._types:
            raise Refused(
                f"keys of {tag.keys.dtype} and values of {tag.values.dtype}, which were of {self._types[0]} and {self._types[1]} when the "
                "model was first looked at: make a new cache, and under torch.autocast where the model is called under it"
            )
        if torch.is_grad_enabled() and any(
            x is not None and x.requires_grad for x in (query, key, value, tag.keys, tag.values, keywords.get("s_aux"))
        ):
            raise Refused("gradients do not pass through the service: use torch.no_grad()")
        if layer.sinks or "s_aux" in keywords:
            self._check_sinks(index, layer, keywords)
        check_keywords(index, keywords)
        if not isinstance(mask, Mask):
            raise Refused(f"layer {index} brings a mask of its own: the service cannot know what it means")
        soft_cap = float(keywords.get("softcap") or 0.0)
        if mask.recognised().rule != layer.rule or scale_of(scaling, query) != layer.scale or soft_cap != layer.soft_cap:
            raise Refused(f"layer {index} has another mask, scale or soft cap than when the model was first looked at")
        tag.opened += 1
        assert self._steps is not None
        if not self._done:
            self._take_pads(mask)
            self._counting = go_on(
                self._counted if self.columns else None, self._positions, self.columns, query.shape[2], self.pads,
                self._shifts_now(query.shape[0]),
            )  # fmt: skip
            self._dirty = True
            self._note_tokens(query.shape[0], query.shape[2], tag.keys)
        try:
            o = self._steps.attend(index, layer, module, tag, query, self.columns, self.pads, mask.blocks)
        except FailedPrecondition as error:
            if not self._done and error.reason in _OTHER_BYTES:  # rows are there that this forward has not put
                self._steps.look(self._lengths_at(self.columns))
            raise
        except Aborted as error:
            if error.reason == "OLD_INCARNATION":
                self._steps.look()
            raise
        self._done.add(index)
        if len(self._done) == len(self._plan):
            self.columns += query.shape[2]
            self._done, self._dirty, self._counted = set(), False, self._counting
            self._end_part()
        return o

    def _check_sinks(self, index: int, layer: Layer, keywords: dict[str, Any]) -> None:
        sinks = keywords.get("s_aux")
        if sinks is None and not layer.sinks:
            return
        version = -1 if sinks is None or sinks.is_inference() else sinks._version
        seen, at = self._sinks.get(index, (None, -1))
        if version < 0 or seen is None or seen() is not sinks or at != version:
            if sinks_of(keywords) != layer.sinks:
                raise Refused(f"layer {index} has other attention sinks than when the model was first looked at: make a new cache")
            if sinks is not None:
                self._sinks[index] = weakref.ref(sinks), version

    def _note_tokens(self, batch: int, rows: int, keys: torch.Tensor) -> None:
        fed, self._fed = self._fed, None
        known = isinstance(fed, torch.Tensor) and fed.shape[:2] == (batch, rows) and fed.dim() == (3 if fed.is_floating_point() else 2)
        codes = self._codes(fed) if known and fed is not None else text.of_keys(keys)
        if self._unchecked:
            self._check_not_again(codes)
        assert self._steps is not None and self._counting is not None
        self._held().put(self.columns, codes)
        shifts = self._shifts_now(batch)
        kind = SHIFTED if shifts else self._counting.kind(self.pads)
        self._steps.put_tokens(codes, tokens.Stamp(self._mark, self._form, kind, tuple(shifts)))

    def _shifts_now(self, batch: int) -> list[int]:
        """Of the forward under way."""
        return self._kept.shifts(batch) if self._kept else []

    def _take_pads(self, mask: Mask) -> None:
        if mask.q_offset != self.columns:
            raise Refused(f"the mask begins at {mask.q_offset}, the cache ends at {self.columns}")
        if self.columns == 0:
            self.pads = mask.pads or [0] * len(self.pads)
        elif mask.pads is not None:
            # A sequence that was nothing but padding so far may have more of it.
            if any(new != old and (old < self.columns or new < old) for new, old in zip(mask.pads, self.pads)):
                raise Refused(f"padding of {mask.pads} tokens, where the cache has {self.pads}")
            self.pads = mask.pads
        elif any(self.pads):
            raise Refused(f"no attention_mask, where the cache has padding of {self.pads} tokens: give the mask of all tokens")

    # ---- life ----

    def fork(self, name: str | None = None) -> BanyanCache:
        """Another cache that begins with what this one holds: n answers to one document, which is held
        once."""
        self._turn.check()
        self._check_open()
        self._check_ended()
        self._look()
        other = object.__new__(BanyanCache)
        other.__dict__.update(
            self.__dict__, name=name, _named=name is not None, pads=list(self.pads), _done=set(), _dirty=False, _open=False, _began=None,
            _hooks=[], _forms=[], _sinks={}, _steps=None, _turn=Turn(BUSY), _prepared=False,
            _text=self._text and self._text.select(list(range(len(self.pads)))),
        )  # fmt: skip
        other.layers = copy.deepcopy(self.layers, {id(self): other})
        if (model := self._model and self._model()) is not None:
            other._watch(model)
        if self._steps is not None:
            names = other._names(len(self.pads))
            other._steps = Steps(
                self.client, [s.fork(self.columns - pad, n) for s, pad, n in zip(self._steps.sessions, self.pads, names)],
                self._kv_type,
            )  # fmt: skip
        return other

    def beside(self, columns: int) -> BanyanCache:
        """Another cache over the same sessions, for a forward beside others (wave.py): stand() says where,
        let_go() ends it.

        columns: how far both come.
        """
        assert self._steps is not None
        self.put_right()
        self._held().reserve(columns)
        other = object.__new__(BanyanCache)
        other.__dict__.update(
            self.__dict__, _named=True, pads=list(self.pads), _done=set(), _dirty=False, _fed=None, _hooks=[], _forms=[],
            _turn=Turn(BUSY), _prepared=False,
        )  # fmt: skip
        other.layers = copy.deepcopy(self.layers, {id(self): other})
        other._steps = Steps(self.client, list(self._steps.sessions), self._kv_type)
        if (model := self._model and self._model()) is not None:
            other._watch(model)
        return other

    def stand(self, columns: int, gate: Gate | None = None, *, interrupted: bool = False) -> None:
        """The next forward begins here. interrupted: rows behind it are to be taken away first."""
        if self._steps is None:
            raise Refused("the cache was closed")
        self.columns, self._done, self._dirty, self._steps.gate = columns, set(), interrupted, gate
        self._began = None

    def let_go(self) -> None:
        self._drop_hooks()
        self._steps = None

    def close(self) -> None:
        """Releases the sessions. Those with a name live on; those without are deleted, or kept
        for others (reuse=True). The cache is not used again."""
        if self._closed:
            return
        self._drop_hooks()
        self._put_end()
        if self._steps is not None and self._reuse:
            self._keep()
            self._steps = None
        self._closed = True
        if self._steps is not None:
            for session in self._steps.sessions:
                session.close() if self._named else session.delete()
            self._steps = None

    def __del__(self) -> None:
        if hasattr(self, "_hooks"):
            self._drop_hooks()
        steps = getattr(self, "_steps", None)
        if steps is not None and not getattr(self, "_named", True):
            self._steps = None
            leave(self.client, [session.id for session in steps.sessions])

    def delete(self) -> None:
        """Deletes the sessions and everything held for them."""
        self._named = self._reuse = False
        self.close()

    def __deepcopy__(self, memo: Any) -> BanyanCache:
        return self.fork()

    def __reduce__(self) -> Any:
        raise Refused(
            "a cache cannot be pickled, since its keys are in the cluster: give it a session's name, and make a "
            "BanyanCache(model, client, session=NAME) in the other process"
        )

    def __copy__(self) -> BanyanCache:
        raise Refused("two caches cannot share their sessions: use fork()")

    def __enter__(self) -> BanyanCache:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def _unwrapped(model: Any) -> Any:
    """What torch.compile and PEFT have wrapped."""
    model = getattr(model, "_orig_mod", model)
    if not hasattr(model, "get_base_model"):
        return model
    if getattr(model.active_peft_config, "is_prompt_learning", False):
        raise Refused(
            f"{model.active_peft_config.peft_type.value} is a learnt prompt, which PEFT puts before the text, or into a cache of its own, "
            "at each call: a session could not say what it holds. Adapters that change weights (LoRA) are served"
        )
    return model.get_base_model()
