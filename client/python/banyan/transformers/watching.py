# SPDX-License-Identifier: Apache-2.0
"""A model and its forwards: what is fed, by which weights, and that no layer is left out."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from transformers import PreTrainedModel

from . import alone, identity, text
from .blocks import ways_of
from .faces import windows_of_caches
from .generate import running
from .kept import Kept, is_looking, looking, not_text
from .layers import run_probe
from .lengths import Lengths
from .limits import Limits
from .positions import given_to
from .refused import NotThisModels, Refused
from .stated import Stated
from .tags import uncompiled

KV_TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


# Arguments with a value for each token that is fed.
_OF_TOKENS = ("input_ids", "position_ids", "token_type_ids", "mm_token_type_ids")


class Watching(Stated):
    def _await_model(self) -> None:
        here = weakref.ref(self)

        @uncompiled
        def hook(module: torch.nn.Module, arguments: Any) -> None:
            cache = here()
            # The forward may be another cache's, also in another thread, where a look would be in the way.
            if cache is not None and cache._is_awaited(module) and not alone.is_within() and not is_looking():
                if not cache._meeting.acquire(blocking=False):
                    return
                try:
                    cache._meet_now(module)
                except NotThisModels as refused:  # of the session
                    cache._refused = refused
                    return
                finally:
                    cache._meeting.release()
                cache._within = True
                cache._await_tokens(module)

        self._hooks.append(torch.nn.modules.module.register_module_forward_pre_hook(hook))

    def _is_awaited(self, module: Any) -> bool:
        return not self._plan and isinstance(module, PreTrainedModel) and module.config is self._config

    def _meet(self, model: Any) -> None:
        with self._meeting:
            if self._is_awaited(model):  # and no other thread has met it
                self._meet_now(model)

    def _meet_now(self, model: Any) -> None:
        self._drop_hooks()
        kv_type = self._kv_type
        try:
            self._look_at(model)
            if self._steps is not None:
                self._check_model()
        except BaseException:
            self._drop_hooks()
            self._plan, self._modules, self._model, self._kv_type = {}, {}, None, kv_type
            self._await_model()  # the next call looks again
            raise
        self._refused = None

    def _await_tokens(self, model: Any) -> None:
        """Of a forward that has begun already, perhaps with this cache: what the model inside is called with,
        or what is embedded."""
        here = weakref.ref(self)
        inside, embedding = getattr(model, "base_model", model), model.get_input_embeddings()

        @uncompiled
        def called(module: torch.nn.Module, arguments: Any, keywords: Any = None) -> None:
            for hook in hooks:
                hook.remove()
            cache = here()
            if cache is None or keywords is None:  # see _watch()
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

    def _begin_part(self, model: Any, rows: int) -> None:
        """Of a forward that shows at its first attention: of a model in this one, or by forward()."""
        if self._local() or self._lengths or self._kept or (self.columns and (self._limits or self._ways.positions)):
            raise Refused(
                "a part of the model was called with this cache, or its forward(): what this model needs beside attention (states of its "
                "own, frequencies or positions that depend on the text) is seen to where the model itself is called. Call that, and give "
                "BanyanCache the model, not its config"
            )
        self._begin_forward(model, {}, self._fed if self._within else None, rows)
        self._part = not self._within  # else the model's hooks are there when it ends

    def _end_part(self) -> None:
        if self._part:
            self._open, self._part = False, False
            alone.end(self)
            self._leave()

    def _drop_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._drop_forms()
        alone.end(self)

    def _look_at(self, model: PreTrainedModel) -> None:
        with looking(model):
            self._look_within(model)

    def _look_within(self, model: PreTrainedModel) -> None:
        self._plan, types, self._modules = run_probe(model)
        if self._kv_type is None:
            self._types, dtype = types, types[0]
            if dtype not in KV_TYPES:
                raise Refused(f"keys and values of {dtype}: the service holds float32, float16 and bfloat16; use model.to(torch.bfloat16)")
            self._kv_type = KV_TYPES[dtype]
        self._note_dropouts(model)
        self._mark = identity.fingerprint(model)
        self._lengths, self._limits, self._ways, self._kept = Lengths(model), Limits(model), ways_of(model), Kept(model)
        windows = windows_of_caches(model.config.get_text_config(decoder=True))
        hidden = [windows[i] for i, layer in self._plan.items() if windows[i] and not (layer.rule.window or layer.rule.chunk)]
        self._most = min(hidden, default=0)
        self._watch(model)

    def _watch(self, model: PreTrainedModel) -> None:
        """Notes which tokens are fed, and that no layer is left out."""
        here = weakref.ref(self)

        # PyTorch still calls a hook that was removed while the forward's hooks run (by the collector, of a
        # cache that nothing refers to), but without keywords.

        @uncompiled
        def begins(module: torch.nn.Module, arguments: Any, keywords: Any = None) -> Any:
            cache = here()
            if cache is None or keywords is None:
                return None
            alone.end(cache)
            if keywords.get("past_key_values") is cache:
                cache._take()
                cache._part, cache._within, cache._fed = False, False, None
                cut = cache._without_held(keywords)
                keywords = cut or keywords
                fed = _fed(arguments, keywords)
                if fed is None:
                    return None  # its first layer of attention shows how many tokens there are
                cache._begin_forward(module, keywords, fed)
                return cache._with_positions(arguments, keywords, fed) or (cut and (arguments, cut))
            given = cache._taken_back(module, keywords)
            if given is not None:
                cache._begin_forward(module, given, given["input_ids"])
                return arguments, given
            return None

        @uncompiled
        def ended(module: torch.nn.Module, arguments: Any, keywords: Any, output: Any = None) -> None:
            cache = here()
            if cache is not None and output is not None and keywords.get("past_key_values") is cache:
                cache._end_forward()

        @uncompiled
        def over(module: torch.nn.Module, arguments: Any, keywords: Any, *output: Any) -> None:
            cache = here() if output else None  # a single value is the output
            begun = alone.end(cache)  # else it was refused
            if cache is not None and keywords.get("past_key_values") is cache:
                if begun:
                    cache._take_back()
                cache._leave()

        self._model = weakref.ref(model)
        self._hooks.append(model.register_forward_pre_hook(begins, with_kwargs=True))
        self._hooks.append(model.register_forward_hook(ended, with_kwargs=True))
        self._hooks.append(model.register_forward_hook(over, with_kwargs=True, always_call=True))

    def _check_ended(self) -> None:
        """That the last forward has ended well, or has been taken back."""
        if self._open and self._local():
            self._stale = True
        if self._open and self._began not in (None, self.columns):
            raise Refused(
                f"an interrupt has ended a forward behind its last layer of attention, so that its tokens are held: cache.crop("
                f"{(self._began or 0) - self.columns}) takes them away, and cache.check(input_ids) leaves them there"
            )

    def _begin_forward(self, model: Any, keywords: dict[str, Any], fed: torch.Tensor | None, rows: int = 0) -> None:
        """rows: where nothing that is fed was seen."""
        self._take()
        self._check_ended()
        if self._stale:
            self._catch_up(model)
            self._take()  # the forwards of that have ended
        if keywords.get("use_cache") is False:
            raise Refused("use_cache=False and past_key_values contradict each other: leave one of the two out")
        if not self._is_generating():
            self._retry = None
        rows = rows if fed is None else fed.shape[1]
        self._check_evaluating(model)
        self._check_weights(glance=False)
        self._check_way(rows)
        self._choose_form(model, keywords, rows)
        self._positions = given_to(model, keywords, self.pads)
        self._save_states(rows)
        self._put_kept()
        self._counted_now()
        self._open, self._began, self._fed = True, self.columns, fed
        alone.begin(self)

    def _take(self) -> None:
        """A forward begins."""
        self._turn.take("forward")
        if self._kept:
            self._kept.turn.take("forward")

    def _leave(self) -> None:
        if self._kept:
            self._kept.turn.leave("forward")
        self._turn.leave("forward")

    def _put_kept(self) -> None:
        """What the model keeps in its modules is what it was behind this cache's text."""
        if not self._kept:
            return
        self._kept.put_states(self._states)
        if not self._prepared:
            self._put_shifts(len(self.pads))

    def _await_count(self) -> None:
        """generate() counts positions before its first forward, by what the model keeps, and perhaps with new
        images: no other text may come in between."""
        self._prepared = True
        if self._kept:
            self._kept.turn.take("call")

    def _counted_now(self) -> None:
        if self._prepared and self._kept:
            self._kept.turn.leave("call")
        self._prepared = False

    def _without_held(self, keywords: dict[str, Any]) -> dict[str, Any] | None:
        """The arguments of a forward that generate() gives the whole text, though a part of it is held.

        Transformers does so where tokens are guessed (an assistant, prompt lookup), and with its own caches
        feeds them twice.
        """
        call, ids = running(), keywords.get("input_ids")
        if not (self._prepared and self.columns and call is not None and call[0] is self and isinstance(ids, torch.Tensor)):
            return None
        given = call[2].tokens
        if given is None or given.is_floating_point() or ids.shape[1] < given.shape[1]:
            return None
        if not torch.equal(ids[:, : self.columns].cpu(), self._all_codes()):
            return None
        cut: dict[str, Any] = {
            name: x[..., self.columns :]
            for name, x in keywords.items()
            if name in _OF_TOKENS and isinstance(x, torch.Tensor) and x.shape[-1] == ids.shape[1]
        }
        return {**keywords, **cut}

    def crop(self, tokens_to_remove: int) -> None:
        columns = self.columns + tokens_to_remove
        if self._shifts and tokens_to_remove < 0 < columns:
            gone = self._all_codes()[:, columns:]
            if not bool(text.is_id(gone).all()) or any(bool((gone == token).any()) for token in not_text(self._config).values()):
                raise Refused(
                    f"the last {-tokens_to_remove} tokens have some in them that stand for images, and positions are shifted by those: it "
                    "is not known where the text before them had come. Begin again with cache.reset(), or fork() before the image"
                )
        super().crop(tokens_to_remove)

    def _put_shifts(self, rows: int) -> None:
        if self._kept:
            self._kept.put_shifts(self._shifts[:: max(1, len(self._shifts) // max(1, rows))], self.device)

    def _check_evaluating(self, model: Any) -> None:
        if model.training or any((module := found()) is not None and module.training and module.p for found in self._dropouts):
            raise Refused(
                "the model is in training, where dropout and the like make keys and values random: call model.eval() first, also after "
                "an adapter was added"
            )

    def _check_way(self, rows: int) -> None:
        """That the model computes in this forward what it would compute in one over the whole text."""
        ways = self._ways
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
        """The arguments of a forward, with position_ids where the model would count from zero without
        them."""
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
        if glance:
            self._note_dropouts(model)
        mark = identity.identity_of(model).mark(glance)
        if mark != self._mark:
            self._sinks = {}
        if mark != self._mark and self.columns:
            raise Refused(
                "the model has changed since the tokens of this cache were fed (its weights, which of its adapters are active, or their "
                "scaling): its keys would be another model's. Make a new cache, or cache.reset(), for the model as it is now"
            )
        self._mark = mark

    def _note_dropouts(self, model: Any) -> None:
        self._dropouts = [weakref.ref(m) for m in model.modules() if isinstance(m, torch.nn.modules.dropout._DropoutNd)]

    def _take_back(self) -> None:
        """Of a forward that an error has ended behind its last layer of attention: its tokens are not
        held."""
        if self._open and self._began is not None and self.columns > self._began:
            self.columns, self._done, self._dirty = self._began, set(), True
            self._uncount()
        if self._open and self._local():
            self._stale = True
        self._open = False

    def _end_forward(self) -> None:
        self._open = self._within = False
        if self._kept:
            self._states, self._shifts = self._kept.states(), self._kept.shifts(len(self.pads))
        self._drop_forms()
        if self._done:
            missing = sorted(set(self._plan) - self._done)
            raise Refused(f"layers {missing[:8]} were left out of a forward: the service holds every layer's tokens, or none's")
        self._end_states(self._began or 0)


def _fed(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> torch.Tensor | None:
    """What a forward is fed: embeddings where there are some."""
    embeddings = keywords.get("inputs_embeds")
    found = embeddings if isinstance(embeddings, torch.Tensor) else arguments[0] if arguments else keywords.get("input_ids")
    return found if isinstance(found, torch.Tensor) else None
