# SPDX-License-Identifier: Apache-2.0
"""BanyanCache: a Transformers cache whose keys and values live in a Banyan cluster. Nothing of them is kept here."""

from __future__ import annotations

import contextlib
import copy
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache

from .. import tokens
from ..client import Client, Session
from ..errors import BanyanError, FailedPrecondition, NotFound
from ..spec import Spec, check_placement
from . import alone, identity, text
from .blocks import Ways, ways_of
from .faces import faces, stateful, windows_of_caches
from .feeding import feed, mask_of
from .generate import Asked, running, watch_generate
from .layers import Layer, check_keywords, run_probe, scale_of, sinks_of
from .leftover import leave, watch
from .lengths import SHORT, Lengths
from .masks import Mask
from .refused import Refused
from .spec import difference, spec_of
from .steps import Gate, Steps
from .tags import Tag, uncompiled
from .text import Text

# Seconds without use after which a session without a name goes, for processes that end without a word.
_FORGOTTEN = 6 * 3600.0

_AGAIN = 1024  # tokens of a block that is fed again

_KV_TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


class BanyanCache(Cache):
    """A cache for `model(..., past_key_values=cache)` and `model.generate(..., past_key_values=cache)`.

    The model is to be made with `attn_implementation="banyan"`.

    Args:
        model: the model; or its config, then the model is looked at when it is first called.
        client: of the cluster.
        session: the session's name: opened where it is there, and generation goes on without a prefill; else made.
            None: a session without a name, deleted by close(), with the cache, or when nobody has used it for six hours.
            A batch has one session a sequence, NAME/0, NAME/1, …
        batch: how many sequences a named session has; None: opened, or made by the first call.
        kv_type: how the cluster holds keys and values; None: as the model computes them.
        spec: more fields of banyan.Spec: chunk_tokens, members, idle_ttl, forget (what windows have left behind is given
            back; crop goes as far back as the margin).
    """

    def __init__(
        self, model: Any, client: Client, session: str | None = None, *, batch: int | None = None,
        kv_type: str | None = None, **spec: Any,
    ) -> None:  # fmt: skip
        self.client, self.name = client, session
        self.columns = 0  # of the batch: tokens of each sequence, padding on its left included
        self.pads: list[int] = []  # padding of each sequence
        self._kv_type, self._more = kv_type, {"idle_ttl": 0.0 if session is not None else _FORGOTTEN, **spec}
        self._named = session is not None  # whether the sessions at hand are those of the name
        self._plan: dict[int, Layer] = {}
        self._done: set[int] = set()  # layers that have answered, while a forward is under way
        self._dirty = False  # a forward has begun and not ended
        self._open = False  # the model is in a forward, or an error has ended one
        self._fed: torch.Tensor | None = None  # the tokens of the forward under way, or the embeddings
        self._text: Text | None = None  # what the sessions hold; None: nothing, or not read yet
        self._mark = 0  # of the model
        self._form = SHORT  # of the keys that are held (lengths.py)
        self._lengths: Lengths | None = None
        self._ways = Ways()  # in which tokens may be fed behind others
        self._most = 0  # tokens beyond which the model's window is known to Transformers' cache alone; 0: no such window
        self._goal = 0  # positions of the whole text of which a block is fed
        self._closed = False
        self._retry: int | None = None  # tokens that a generate() was given which an error has ended
        self._unchecked = False  # resumed, and not compared with a text
        self._dtype: torch.dtype | None = None  # of keys when the model was looked at, where that decides what is held
        self._modules: dict[int, Any] = {}  # the attention modules of the model that was looked at
        self._sinks: dict[int, Any] = {}
        self._model: Any = None
        self._steps: Steps | None = None
        self._hooks: list[Any] = []
        self._forms: list[Any] = []  # hooks of the forward under way
        self._alike: bool | None = None  # whether the model computes the same from embeddings as from ids; None: not tried
        check_placement(spec)
        watch_generate()
        model = _unwrapped(model)
        is_model = isinstance(model, PreTrainedModel)
        if not is_model and not isinstance(model, PreTrainedConfig):
            raise TypeError(f"BanyanCache wants one of Transformers' models or its config, not a {type(model).__name__}")
        whole: Any = model.config if is_model else model
        self._config = whole
        if kv_type is not None and kv_type not in _KV_TYPES.values():
            raise Refused(f"kv_type {kv_type!r}: a cache holds keys and values as {', '.join(map(repr, _KV_TYPES.values()))}")
        if getattr(whole, "is_encoder_decoder", False):
            raise Refused(
                f"{whole.model_type} is an encoder with a decoder, which reads the encoder's keys beside its own: this cache is for "
                "models that are a decoder alone"
            )
        super().__init__(layers=faces(whole.get_text_config(decoder=True), self))
        if is_model:
            self._look_at(model)
        else:
            self._await_model()
        if session is not None:
            self._resume(session, batch)

    # ---- what the model is ----

    def _await_model(self) -> None:
        here = weakref.ref(self)

        @uncompiled
        def hook(module: torch.nn.Module, arguments: Any) -> None:
            cache = here()
            if cache is not None and cache._is_awaited(module):
                cache._meet(module)
                cache._await_tokens(module)

        self._hooks.append(torch.nn.modules.module.register_module_forward_pre_hook(hook))

    def _is_awaited(self, module: Any) -> bool:
        return not self._plan and isinstance(module, PreTrainedModel) and module.config is self._config

    def _meet(self, model: Any) -> None:
        self._drop_hooks()
        try:
            self._look_at(model)
        except BaseException:
            self._drop_hooks()
            self._await_model()  # the next call looks again
            raise

    def _await_tokens(self, model: Any) -> None:
        """Of a forward that has begun already, perhaps with this cache: what the model inside is called with, or what is embedded."""
        here = weakref.ref(self)
        inside, embedding = getattr(model, "base_model", model), model.get_input_embeddings()

        @uncompiled
        def called(module: torch.nn.Module, arguments: Any, keywords: Any) -> None:
            for hook in hooks:
                hook.remove()
            cache = here()
            if cache is None:
                return
            if module is not inside:
                cache._fed = arguments[0] if arguments else None
            elif keywords.get("past_key_values") is cache:
                cache._begin_late(model, keywords, _fed(arguments, keywords))

        hooks = [part.register_forward_pre_hook(called, with_kwargs=True) for part in (inside, embedding) if part is not model]
        self._hooks += hooks

    def _begin_late(self, model: Any, keywords: dict[str, Any], fed: torch.Tensor | None) -> None:
        """Of a forward whose arguments can no longer be altered."""
        if self._ways.positions and self.columns and keywords.get("position_ids") is None:
            raise Refused("this model counts positions from zero in each forward: give BanyanCache the model, not its config")
        self._begin_forward(model, keywords, fed)

    def _drop_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._drop_forms()
        alone.end(self)

    def _drop_forms(self) -> None:
        for hook in self._forms:
            hook.remove()
        self._forms = []

    def _look_at(self, model: PreTrainedModel) -> None:
        self._plan, dtype, self._modules = run_probe(model)
        if self._kv_type is None:
            self._dtype = dtype
            if dtype not in _KV_TYPES:
                raise Refused(f"keys and values of {dtype}: the service holds float32, float16 and bfloat16; use model.to(torch.bfloat16)")
            self._kv_type = _KV_TYPES[dtype]
        self._mark = identity.fingerprint(model)
        self._lengths, self._ways = Lengths(model), ways_of(model)
        windows = windows_of_caches(model.config.get_text_config(decoder=True))
        hidden = [windows[i] for i, layer in self._plan.items() if windows[i] and not (layer.rule.window or layer.rule.chunk)]
        self._most = min(hidden, default=0)
        self._watch(model)
        if self._steps is not None:
            self._check_model()

    def _watch(self, model: PreTrainedModel) -> None:
        """Notes which tokens are fed, and that no layer is left out."""
        here = weakref.ref(self)

        @uncompiled
        def begins(module: torch.nn.Module, arguments: Any, keywords: Any) -> Any:
            cache = here()
            if cache is None:
                return None
            alone.end(cache)
            if keywords.get("past_key_values") is cache:
                fed = _fed(arguments, keywords)
                cache._begin_forward(module, keywords, fed)
                return cache._with_positions(arguments, keywords, fed)
            given = cache._taken_back(module, keywords)
            if given is not None:
                cache._begin_forward(module, given, given["input_ids"])
                return arguments, given
            return None

        @uncompiled
        def ended(module: torch.nn.Module, arguments: Any, keywords: Any, output: Any) -> None:
            cache = here()
            if cache is not None and keywords.get("past_key_values") is cache:
                cache._end_forward()

        @uncompiled
        def over(module: torch.nn.Module, arguments: Any, keywords: Any, output: Any) -> None:
            alone.end(here())

        self._model = weakref.ref(model)
        self._hooks.append(model.register_forward_pre_hook(begins, with_kwargs=True))
        self._hooks.append(model.register_forward_hook(ended, with_kwargs=True))
        self._hooks.append(model.register_forward_hook(over, with_kwargs=True, always_call=True))

    def _begin_forward(self, model: Any, keywords: dict[str, Any], fed: torch.Tensor | None = None) -> None:
        if self._open and (local := self._local()):
            raise Refused(
                f"an error has ended a forward, in which layers {list(local)[:4]} may have moved on the state that they have of their own: "
                "begin again, with cache.reset() or a new cache"
            )
        if keywords.get("use_cache") is False:
            raise Refused("use_cache=False and past_key_values contradict each other: leave one of the two out")
        if not self._is_generating():
            self._retry = None
        self._check_weights(glance=False)
        self._check_way(fed)
        self._choose_form(model, keywords, fed)
        self._open, self._fed = True, fed
        alone.begin(self)

    def _check_way(self, fed: torch.Tensor | None) -> None:
        """That the model computes in this forward what it would compute in one over the whole text."""
        rows, ways = (fed.shape[1] if isinstance(fed, torch.Tensor) else 0), self._ways
        if self.columns and rows != 1 and not ways.blocks:
            raise Refused(
                f"{rows} tokens behind {self.columns} in one forward: this model's layers leave out the state that they have then, so that "
                "it computes something else than in one forward over the whole text. Feed it token by token, as generate() and prefill() "
                "do, or all of it at once (no prefill_chunk_size, no assistant, no prompt lookup)"
            )
        if self.columns and not ways.steps:
            raise Refused(
                f"a forward behind {self.columns} tokens: this model computes something else then than in one forward over the whole text, "
                "with any cache. Give it the whole text each time, with use_cache=False"
            )
        if not self.columns and rows == 1 and not ways.from_one:
            raise Refused("a first forward of one token: behind it this model goes on in another way than in one forward. Begin with two")
        if self._most and self.columns + rows > self._most:
            raise Refused(
                f"{self.columns + rows} tokens, where layers of this model have a window of {self._most} which its mask lacks and only "
                "Transformers' caches apply: one forward over the whole text and forwards with a cache differ beyond it, and neither is "
                f"the other. Texts of up to {self._most} tokens are served"
            )

    def _with_positions(self, arguments: Any, keywords: dict[str, Any], fed: torch.Tensor | None) -> Any:
        """The arguments of a forward, with position_ids where the model would count from zero without them."""
        if not self._ways.positions or not self.columns or keywords.get("position_ids") is not None or fed is None:
            return None
        if any(self.pads):
            raise Refused("this model counts positions from zero in each forward: give position_ids, which do not count padding")
        positions = torch.arange(self.columns, self.columns + fed.shape[1], device=fed.device)
        return arguments, {**keywords, "position_ids": positions[None].expand(fed.shape[0], -1)}

    def _check_weights(self, glance: bool) -> None:
        """That the model is what it was when the tokens that are held were fed."""
        model = self._model and self._model()
        if model is None:
            return
        mark = identity.identity_of(model).mark(glance)
        if mark != self._mark and self.columns:
            raise Refused(
                "the model has changed since the tokens of this cache were fed (its weights, which of its adapters are active, or their "
                "scaling): its keys would be another model's. Make a new cache, or cache.reset(), for the model as it is now"
            )
        self._mark = mark

    # ---- forms: see lengths.py ----

    def _choose_form(self, model: Any, keywords: dict[str, Any], fed: torch.Tensor | None) -> None:
        if not self._lengths:
            return
        positions = keywords.get("position_ids")
        end = self.columns + (fed.shape[1] if isinstance(fed, torch.Tensor) else 0)
        if isinstance(positions, torch.Tensor):
            end = int(positions.max()) + 1
        form = self._lengths.form_of(max(end, self._goal))
        if form != self._form and self.columns:
            self._feed_again(model, form)
        self._form = form
        self._drop_forms()  # of a forward that an error has ended
        self._forms = self._lengths.in_form(form)

    def _feed_again(self, model: Any, form: int) -> None:
        """The text crosses the border of the frequencies: all keys are other ones."""
        codes, columns, pads = self._all_codes(), self.columns, list(self.pads)
        if not bool(text.is_id(codes).all()):
            raise Refused(
                "the text passes the length from which on this model has other frequencies, so all of it must be fed again, and it was fed "
                "as embeddings, which are not kept: begin again with a new cache, and give the whole text"
            )
        warnings.warn(
            f"the text passes {self._lengths.borders if self._lengths else []} tokens, where this model changes its frequencies "
            f"(longrope): {columns} tokens are fed again, once. A text that is longer from the beginning needs no second time",
            stacklevel=2,
        )
        kept = self._retry, self._unchecked
        self.reset()
        self._form = form
        ids = codes.to(self.device)
        mask = mask_of(pads, columns, ids.device)
        with self.toward(max(self._lengths.borders, default=0) + 1 if form != SHORT and self._lengths else 0):
            for at in range(0, columns, _AGAIN):
                feed(model, self, ids, mask, at, min(at + _AGAIN, columns))
        self._retry, self._unchecked = kept

    @contextlib.contextmanager
    def toward(self, positions: int) -> Iterator[None]:
        """What is fed in here are blocks of a text that has so many positions in the end."""
        before, self._goal = self._goal, positions
        try:
            yield
        finally:
            self._goal = before

    def _taken_back(self, model: Any, keywords: dict[str, Any]) -> dict[str, Any] | None:
        """What a forward should have been given, of whose arguments the model has dropped the cache.

        Models with longrope (Phi-3) do so where a text passes the border, so that generate() begins again without what is held.
        """
        call, ids = running(), keywords.get("input_ids")
        if call is None or call[0] is not self or call[1] is not model or keywords.get("past_key_values") is not None or not self._lengths:
            return None
        if not isinstance(ids, torch.Tensor) or not self._lengths.borders or ids.shape[1] <= min(self._lengths.borders):
            return None
        wanted = call[2].tokens if self.columns == 0 else self._all_codes()
        if wanted is None or wanted.is_floating_point():
            return None
        wanted = wanted.to(ids.device)
        if self.columns == 0 and len(wanted) != len(ids):
            wanted = wanted.repeat_interleave(len(ids) // max(1, len(wanted)), dim=0)
        if wanted.shape[1] > ids.shape[1] or len(wanted) != len(ids) or not bool((ids[:, : wanted.shape[1]] == wanted).all()):
            return None  # another text: that of guidance_scale
        given = {**keywords, "past_key_values": self, "input_ids": ids[:, self.columns :]}
        if isinstance(positions := keywords.get("position_ids"), torch.Tensor):
            given["position_ids"] = positions[..., self.columns :]
        return given

    def _end_forward(self) -> None:
        self._open = False
        self._drop_forms()
        if self._done:
            missing = sorted(set(self._plan) - self._done)
            raise Refused(f"layers {missing[:8]} were left out of a forward: the service holds every layer's tokens, or none's")

    def _spec(self) -> Spec:
        return spec_of(self._plan, len(self.layers), self._kv_type or "f32", self._more)

    def _check_model(self) -> None:
        """That the sessions are of this very model: of its layers, its configuration and its weights."""
        assert self._steps is not None
        for session in self._steps.sessions:
            self._more["forget"] = session.spec.forget
            if why := difference(session.spec, self._spec()):
                raise Refused(f"session {self.name!r} is not this model's: {why}")
            if session.info().length and (why := identity.difference(int(self._steps.said(session, 0, 1).marks), self._mark)):
                raise Refused(
                    f"session {self.name!r} was made with {why}: its keys and values are not what this model would compute. Load the model "
                    "that it was made with, or give another name for the session"
                )

    # ---- tokens ----

    def tokens(self) -> list[torch.Tensor]:
        """The tokens that each sequence holds, without padding, read from the service. -1: an embedding was fed there."""
        return [codes.masked_fill(~text.is_id(codes), -1) for codes in self._read()]

    def _read(self) -> list[torch.Tensor]:
        if self._steps is None:
            return []
        return [self._steps.said(s, 0, self.columns - pad).tokens for s, pad in zip(self._steps.sessions, self.pads)]

    def _held(self) -> Text:
        """What the sessions hold; read from the service where another process has fed it."""
        if self._text is None:
            self._text = Text(len(self.pads), max(64, self.columns))
            if self.columns:
                for i, (codes, pad) in enumerate(zip(self._read(), self.pads)):
                    self._text.put_row(i, pad, codes)
        return self._text

    def _all_codes(self) -> torch.Tensor:
        return self._held().all(self.columns)

    def _codes(self, fed: torch.Tensor) -> torch.Tensor:
        return text.of_embeddings(fed) if fed.is_floating_point() else fed.detach().to("cpu", torch.int64)

    def _common(self, fed: torch.Tensor) -> list[int]:
        """How many columns of each sequence are the same in what is held and in a text, ids or embeddings; padding counts."""
        codes, embedded = self._codes(fed), self._embedded_alike()
        held = self._held()
        return [
            pad + text.common(held.row(i, pad, self.columns), codes[i, pad:], embedded) if pad < codes.shape[1] else codes.shape[1]
            for i, pad in enumerate(self.pads)
        ]

    def _embedded_alike(self) -> Any:
        """The numbers of ids' embeddings, if the model computes the same from these as from ids."""
        model = self._model and self._model()
        if model is None:
            return None

        def numbers(ids: torch.Tensor) -> torch.Tensor:
            table = model.get_input_embeddings()
            within = (ids >= 0) & (ids < table.weight.shape[0])
            if not self._is_alike(model) or not bool(within.any()):
                return ids
            out = ids.clone()
            with torch.no_grad():
                out[within] = text.of_embeddings(table(ids[within].to(table.weight.device))[None])[0]
            return out

        return numbers

    def _is_alike(self, model: Any) -> bool:
        """Whether a forward depends on nothing of an id but its embedding. Models may have a second table of them (Gemma 3n)."""
        if self._alike is None:
            table = model.get_input_embeddings()
            ids = torch.tensor([[1, 0]], device=table.weight.device)
            with torch.no_grad(), alone.locally():
                try:
                    a, b = model(input_ids=ids, use_cache=False).logits, model(inputs_embeds=table(ids), use_cache=False).logits
                    self._alike = bool(torch.equal(a, b))
                except Exception:
                    self._alike = False
        return self._alike

    def check(self, input_ids: torch.Tensor) -> None:
        """Refuses unless the sessions hold a beginning of these tokens, [batch, tokens], or as many of them as there are.

        Padding is what the cache has noted. generate() and prefill() do it by themselves; call it before a bare forward of a
        session that was resumed. Embeddings, [batch, tokens, hidden], are compared by a hash of each.
        """
        if self._steps is None:
            return
        if len(input_ids) != len(self.pads):
            raise Refused(f"this cache holds {len(self.pads)} sequences and is given {len(input_ids)}")
        for i, same in enumerate(self._common(input_ids)):
            if same < min(self.columns, input_ids.shape[1]):
                at, mine = same - self.pads[i], int(self._held().row(i, same, same + 1))
                other = int(self._codes(input_ids[i : i + 1, same : same + 1]))
                raise Refused(
                    f"token {at} of sequence {i} is {text.shown(mine)} in the session and {text.shown(other)} in what is given: "
                    "cache.rewind_to(input_ids) goes back to before it, or use another session"
                )
        self._unchecked = False

    def rewind_to(self, input_ids: torch.Tensor) -> int:
        """Goes back to the beginning that what is held has in common with these tokens, [batch, tokens]; what is behind is removed.

        For a text of which the last part has changed: a chat template that writes the last answer in another way, an answer that
        is to be given again. Returns how many columns are left; generate() feeds the others. A batch goes back as far as the
        sequence that differs first. Refused where a layer's state cannot go back, as crop() is.
        """
        if self._steps is None or not self.columns:
            return 0
        if len(input_ids) != len(self.pads):
            raise Refused(f"this cache holds {len(self.pads)} sequences and is given {len(input_ids)}")
        left = min(min(self._common(input_ids)), self.columns)
        if left <= max(self.pads):
            self.reset()  # a sequence has nothing left: padding may be another one
        elif left < self.columns:
            self.crop(left - self.columns)
        self._unchecked = False
        return self.columns

    def begin_generating(self, model: PreTrainedModel, asked: Asked) -> None:
        """What generate() is called with is compared with what is held, before anything is fed: the model and the whole text.

        generate() feeds what the cache does not have, and wants at least the last token.
        """
        self._check_open()
        if self._is_awaited(model):
            self._meet(model)
        self._check_weights(glance=True)
        given = asked.tokens
        if given is None or self._steps is None:
            self._retry = None if given is None else given.shape[1]
            return
        given = self._in_copies(given, asked)
        columns = given.shape[1]
        if asked.mask is not None and self.columns:
            self._check_mask(asked.mask, len(given), columns)
        if columns:
            self.check(given)
        if 0 < columns < self.columns and columns != self._retry:
            raise Refused(
                f"generate() is given {columns} tokens, and the cache holds {self.columns}: give it the whole text, those included. To "
                f"go on from an earlier place, cache.fork() and fork.crop({columns - 1 - self.columns}) come first, or "
                "cache.rewind_to(input_ids)"
            )
        if 0 < columns <= self.columns:
            self.crop(columns - 1 - self.columns)  # the last one is fed again, for its logits
        self._retry = columns
        if self.columns and columns - self.columns > 1 and not self._ways.blocks and not given.is_floating_point():
            self.feed_one_by_one(model, given, asked.mask, columns - 1)

    def feed_one_by_one(self, model: PreTrainedModel, input_ids: torch.Tensor, mask: torch.Tensor | None, until: int) -> None:
        """Up to a column, for models that compute something else in blocks."""
        ids = input_ids.to(self.device)
        if mask is not None:
            mask = mask.repeat_interleave(len(ids) // len(mask), dim=0).to(ids.device)
        with torch.no_grad():
            for at in range(self.columns, until):
                feed(model, self, ids, mask, at, at + 1)

    @property
    def blocks_are_exact(self) -> bool:
        """Whether the model computes the same in several forwards of several tokens as in one."""
        return self._ways.blocks

    def begin_filling(self, model: PreTrainedModel, input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> None:
        """The same for prefill()."""
        self._check_open()
        if self._is_awaited(model):
            self._meet(model)
        self._check_weights(glance=True)
        if self._steps is not None:
            if attention_mask is not None and self.columns:
                self._check_mask(attention_mask, len(input_ids), input_ids.shape[1])
            self.check(input_ids)

    def _is_generating(self) -> bool:
        call = running()
        return call is not None and call[0] is self

    def end_generating(self, failed: bool) -> None:
        """Of a call that an error has ended it is noted with how many tokens it began: the same call goes on there."""
        if not failed:
            self._retry = None

    def _in_copies(self, given: torch.Tensor, asked: Asked) -> torch.Tensor:
        """The text as generate() will feed it, a row a sequence; what is held is forked for beams and num_return_sequences."""
        rows, copies = len(given), asked.copies
        if copies > 1 and rows * copies != len(self.pads) and rows == len(self.pads):
            self.check(given)
            self.batch_repeat_interleave(copies)
        if rows * copies != len(self.pads):
            raise Refused(
                f"this cache holds {len(self.pads)} sequences and generate() is given {rows}"
                + (f", of which it makes {copies} each" if copies > 1 else "")
                + ". For several answers to one text give the text once, with num_return_sequences"
            )
        return given.repeat_interleave(copies, dim=0) if copies > 1 else given

    def _check_mask(self, mask: Any, rows: int, columns: int) -> None:
        if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
            return
        if mask.shape[1] != columns:
            raise Refused(
                f"attention_mask is for {mask.shape[1]} tokens, and there are {columns}: give the whole text, what the cache holds "
                "included, and the mask of it"
            )
        mask = mask.repeat_interleave(rows // len(mask), dim=0) if len(mask) and rows % len(mask) == 0 else mask
        pads = (mask.cumsum(1) == 0).sum(1).tolist()
        moved = [i for i, (new, old) in enumerate(zip(pads, self.pads)) if new != old and old < self.columns]
        if moved:
            i = moved[0]
            raise Refused(
                f"sequence {i} has {pads[i]} tokens of padding in attention_mask, and {self.pads[i]} in the session: padding cannot move. "
                "Pad the batch as it was padded when its sessions were made, or feed the sequences one by one"
            )

    def _check_not_again(self, fed: torch.Tensor) -> None:
        """Of a bare forward after a session was resumed: it is given new tokens, not the text from its beginning."""
        if fed.shape[1] >= self.columns and all(
            bool((fed[i, pad : self.columns] == self._held().row(i, pad, self.columns)).all()) for i, pad in enumerate(self.pads)
        ):
            raise Refused(
                f"the session that was resumed has these {self.columns} tokens already: give the model those behind them, "
                f"input_ids[:, {self.columns}:]. If they are to stand there twice, call cache.check(input_ids) first"
            )
        self._unchecked = False

    # ---- sessions ----

    @property
    def sessions(self) -> Sequence[Session]:
        return () if self._steps is None else tuple(self._steps.sessions)

    def _names(self, batch: int) -> list[str | None]:
        if self.name is None:
            return [None] * batch
        return [self.name] if batch == 1 else [f"{self.name}/{i}" for i in range(batch)]

    def _resume(self, name: str, batch: int | None) -> None:
        sessions: list[Session] = []
        try:
            if batch in (None, 1):
                sessions.append(self.client.open(name))
        except NotFound:
            pass
        numbered = not sessions
        try:
            while not sessions or (numbered and len(sessions) != batch):
                sessions.append(self.client.open(f"{name}/{len(sessions)}"))
        except NotFound:
            pass
        if not sessions:
            return
        if local := self._local():
            raise Refused(
                f"session {name!r} is there, but layers {list(local)[:4]} of this model have a state of their own (linear attention, "
                "convolutions), which is in the process that fed them: it cannot be resumed. Use another name, or delete it: "
                f"client.open({sessions[0].id}).delete()"
            )
        self._adopt(sessions)

    def _adopt(self, sessions: list[Session]) -> None:
        self._steps = Steps(self.client, sessions, self._kv_type)
        infos = [s.info() for s in sessions]
        # Whoever has a token says how much padding is before it; who has none is nothing but padding so far.
        begun = [i for i, s in enumerate(sessions) if infos[i].layer_lengths[tokens.layer_of(s.spec)]]
        said = {i: self._steps.said(sessions[i], 0, 1) for i in begun}
        pads = {i: int(one.pads) for i, one in said.items()}
        self._form = max((int(one.forms) for one in said.values()), default=SHORT)
        least = min(pads.values(), default=0)  # padding before all of them is nobody's
        # As far as all have come: a forward that a dead process has begun may have gone further in some, and in some layers.
        self.columns = min((infos[i].length + pads[i] - least for i in begun), default=0)
        self.pads = [min(pads[i] - least, self.columns) if i in pads else self.columns for i in range(len(sessions))]
        self._dirty = any(n > self.columns - pad for info, pad in zip(infos, self.pads) for n in info.layer_lengths)
        self._unchecked = self.columns > 0
        if self._plan:
            self._check_model()

    def _check_replicas(self, spec: Spec) -> None:
        if spec.replicas > 1:
            with contextlib.suppress(BanyanError):  # who may not see the workers is not warned
                there = sum(worker.state == "active" for worker in self.client.cluster().workers)
                if 0 < there < spec.replicas:
                    warnings.warn(
                        f"replicas={spec.replicas}, and the cluster has {there} workers: each part is at {there} until there are more",
                        stacklevel=2,
                    )

    def _check_open(self) -> None:
        if self._closed:
            raise Refused("this cache was closed: make a new one; a session with a name is opened by it")

    def _begin(self, batch: int) -> Steps:
        self._check_open()
        if self._steps is None:
            if not self._plan:
                raise Refused("this cache has not seen its model: give BanyanCache the model, or the config of the model that is called")
            spec, sessions = self._spec(), []
            self._check_replicas(spec)
            watch()
            try:
                for name in self._names(batch):
                    sessions.append(self.client.create(spec, name))
            except BanyanError:
                for session in sessions:
                    session.delete()
                raise
            self.pads, self._text = [0] * batch, Text(batch)
            self._steps = Steps(self.client, sessions, self._kv_type)
        if len(self._steps.sessions) != batch:
            raise Refused(f"this cache holds {len(self._steps.sessions)} sequences and is given {batch}")
        return self._steps

    # ---- a forward ----

    def arrives(self, index: int, keys: torch.Tensor, values: torch.Tensor) -> Tag:
        """An update: the first of a forward puts right what an interrupted one has left."""
        self._begin(keys.shape[0])
        if not self._open and (model := self._model and self._model()) is not None and self._steps and self._steps.gate is None:
            self._begin_late(model, {}, self._fed)
        if index not in self._plan:
            raise Refused(f"layer {index} has keys and values, and had none when the model was first looked at")
        if self._dirty and (index in self._done or not self._done):
            self.put_right()
        return Tag(self, index, keys, values, self._plan[index].latent)

    def put_right(self) -> None:
        """Takes away what an interrupted forward has left behind the last whole one."""
        if self._dirty and self._steps is not None:
            self._steps.truncate([max(0, self.columns - pad) for pad in self.pads])
            self._done, self._dirty = set(), False

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
        if self._dtype is not None and tag.keys.dtype != self._dtype:
            raise Refused(
                f"keys of {tag.keys.dtype}, which were {self._dtype} when the model was first looked at: make a new cache, and under "
                "torch.autocast where the model is called under it"
            )
        if torch.is_grad_enabled() and (query.requires_grad or tag.keys.requires_grad or tag.values.requires_grad):
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
            self._dirty = True
            self._note_tokens(query.shape[0], query.shape[2], tag.keys)
        try:
            o = self._steps.attend(index, layer, module, tag, query, self.columns, self.pads, mask.blocks)
        except FailedPrecondition as error:
            if "other bytes" not in str(error):
                raise
            raise Refused(
                f"session {self.name!r} has got other tokens behind the {self.columns} that this cache has fed or read: another "
                "cache or process writes to it. One writes, others use cache.fork(); a new cache sees what is there now"
            ) from error
        self._done.add(index)
        if len(self._done) == len(self._plan):
            self.columns += query.shape[2]
            self._done, self._dirty = set(), False
        return o

    def _check_sinks(self, index: int, layer: Layer, keywords: dict[str, Any]) -> None:
        sinks = keywords.get("s_aux")
        if sinks is None and not layer.sinks:
            return
        state = None if sinks is None else (sinks.data_ptr(), sinks._version if not sinks.is_inference() else 0)
        if state is None or self._sinks.get(index) != state:
            if sinks_of(keywords) != layer.sinks:
                raise Refused(f"layer {index} has other attention sinks than when the model was first looked at: make a new cache")
            self._sinks[index] = state

    def _note_tokens(self, batch: int, rows: int, keys: torch.Tensor) -> None:
        fed, self._fed = self._fed, None
        known = isinstance(fed, torch.Tensor) and fed.shape[:2] == (batch, rows) and fed.dim() == (3 if fed.is_floating_point() else 2)
        codes = self._codes(fed) if known and fed is not None else text.of_keys(keys)
        if self._unchecked:
            self._check_not_again(codes)
        assert self._steps is not None
        self._held().put(self.columns, codes)
        self._steps.put_tokens(codes, tokens.Stamp(self._mark, self._form))

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

    # ---- what generate() does with a cache ----

    @uncompiled
    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns

    def _local(self) -> dict[int, Any]:
        """Layers that have a state in this process."""
        return {i: layer for i, layer in enumerate(self.layers) if stateful(layer)}

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last -tokens_to_remove tokens."""
        if tokens_to_remove > 0:
            raise ValueError("crop: give how many tokens to remove, as a negative number")
        for i, layer in self._local().items():
            if not (tokens_to_remove == 0 or layer.record_past):
                raise Refused(
                    f"layer {i} has a state of its own, which cannot go back: begin again with cache.reset(), or fork() beforehand"
                )
        for layer in self._local().values():
            if layer.record_past:
                layer.crop(tokens_to_remove)
        if tokens_to_remove == 0 or self._steps is None:
            return
        if not self._is_generating():
            self._retry = None
        columns = max(0, self.columns + tokens_to_remove)
        self._steps.truncate([max(0, columns - pad) for pad in self.pads])
        self.columns, self._done, self._dirty = columns, set(), False

    def reset(self) -> None:
        for layer in self._local().values():
            layer.reset()
        if self._steps is not None:
            self._steps.truncate([0] * len(self.pads))
        self.columns, self._done, self._dirty, self._open, self.pads = 0, set(), False, False, [0] * len(self.pads)
        self._form, self._unchecked, self._retry = SHORT, False, None

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Sequence i goes on from what sequence beam_idx[i] is now: by forks, which share all full chunks."""
        self._select([int(i) for i in beam_idx])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        chosen = torch.arange(len(self.pads))[indices.cpu()] if self.pads else indices
        self._select([int(i) for i in chosen])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select([i for i in range(len(self.pads)) for _ in range(repeats)])

    def _select(self, sources: list[int]) -> None:
        """Sequences are forked, dropped, or change places. Sessions with a name stay what they are: forks take their place."""
        if self._steps is None or sources == list(range(len(self.pads))):
            return
        for layer in self._local().values():
            layer.reorder_cache(torch.tensor(sources))
        if self._named:
            self._steps.replace([self._steps.sessions[i].fork(self.columns - self.pads[i]) for i in sources])
            self._named = False
        else:
            self._steps.select(sources)
        self.pads = [self.pads[i] for i in sources]
        if self._text is not None:
            self._text = self._text.select(sources)

    # ---- life ----

    def fork(self, name: str | None = None) -> BanyanCache:
        """Another cache that begins with what this one holds: n answers to one document, which is held once."""
        self._check_open()
        other = object.__new__(BanyanCache)
        other.__dict__.update(
            self.__dict__, name=name, _named=name is not None, pads=list(self.pads), _done=set(), _dirty=False, _open=False, _hooks=[],
            _forms=[], _steps=None, _text=self._text and self._text.select(list(range(len(self.pads)))),
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

    @property
    def device(self) -> torch.device:
        """The model's."""
        model = self._model and self._model()
        return torch.device("cpu") if model is None else next(model.parameters()).device

    @property
    def has_local_layers(self) -> bool:
        """Whether layers of the model keep their state here, not in the service."""
        return bool(self._local())

    def beside(self, columns: int) -> BanyanCache:
        """Another cache over the same sessions, for a forward beside others (wave.py): stand() says where, let_go() ends it.

        columns: how far both come.
        """
        assert self._steps is not None
        self.put_right()
        self._held().reserve(columns)
        other = object.__new__(BanyanCache)
        other.__dict__.update(self.__dict__, _named=True, pads=list(self.pads), _done=set(), _dirty=False, _fed=None, _hooks=[], _forms=[])
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

    def let_go(self) -> None:
        self._drop_hooks()
        self._steps = None

    def close(self) -> None:
        """Lets go of the sessions. Those with a name live on; those without are deleted. The cache is not used again."""
        self._closed = True
        self._drop_hooks()
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
        self._named = False
        self.close()

    def __deepcopy__(self, memo: Any) -> BanyanCache:
        return self.fork()

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


def _fed(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> torch.Tensor | None:
    """What a forward is fed: embeddings where there are some."""
    embeddings = keywords.get("inputs_embeds")
    found = embeddings if isinstance(embeddings, torch.Tensor) else arguments[0] if arguments else keywords.get("input_ids")
    return found if isinstance(found, torch.Tensor) else None
