# SPDX-License-Identifier: Apache-2.0
"""What a cache holds, and how that is cut, begun again, and dealt out to other sequences."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

from ..client import Client, Session
from .blocks import Ways
from .faces import faces, stateful
from .generate import running
from .kept import Kept
from .layers import Layer
from .lengths import SHORT, Lengths
from .limits import Limits
from .positions import COLUMNS, Counted
from .refused import Refused
from .steps import Steps
from .tags import uncompiled
from .taken import Taken
from .text import Text
from .turns import Turn

BUSY = "this cache: one thread at a time uses it. Give each thread a cache.fork(), or a cache of its own"


class State(Cache):
    """The fields of a BanyanCache. Each of the classes between the two does one thing with them; lower ones
    do not call higher ones.

    BanyanCache (cache.py)    a forward's attention; its life
    Answering (answering.py)  what generate() and prefill() are called with
    Watching (watching.py)    a model and its forwards
    Stated (stated.py)        states of layers that are no attention
    Formed (formed.py)        frequencies that depend on the length of the text, limits that a step leaves out
    Reused (reused.py)        sessions that begin with what others have computed
    Opened (opened.py)        sessions, made or found
    Held (held.py)            the text, and how it is compared
    State
    """

    def __init__(self, config: Any, client: Client, session: str | None, kv_type: str | None, more: dict[str, Any]) -> None:
        self.client, self.name = client, session
        self.columns = 0  # of the batch: tokens of each sequence, padding on its left included
        self.pads: list[int] = []  # padding of each sequence
        self._config = config
        self._kv_type, self._more = kv_type, more
        self._reuse, self._salt = False, b""  # whether sessions are found by their tokens, and kept; what keeps texts apart
        self._named = session is not None  # whether the sessions at hand are those of the name
        self._plan: dict[int, Layer] = {}
        self._done: set[int] = set()  # layers that have answered, while a forward is under way
        self._dirty = False  # a forward has begun and not ended
        self._open = False  # the model is in a forward, or an error has ended one
        self._began: int | None = None  # columns when it began; None: what is held behind them is meant to be there
        self._fed: torch.Tensor | None = None  # the tokens of the forward under way, or the embeddings
        self._text: Text | None = None  # what the sessions hold; None: nothing, or not read yet
        self._mark = 0  # of the model
        self._form = SHORT  # of the keys that are held (lengths.py)
        self._lengths: Lengths | None = None
        self._limits: Limits | None = None
        self._ways = Ways()  # in which tokens may be fed behind others
        self._kept: Kept | None = None
        self._states: list[torch.Tensor | None] = []  # that the model keeps in its modules, as they were behind this text
        self._stale = False  # the layers' states are not those behind what is held
        self._saved: Taken | None = None  # the states at an earlier place of this text, or at this one
        self._replaying = False  # what is fed is held already
        self._state_tokens = 0  # how many tokens lie between two states that a session keeps; 0: it keeps none
        self._shifts: list[int] = []  # of positions, of each sequence; []: none
        self._meeting = threading.Lock()  # held while the model is looked at for this cache
        self._prepared = False  # generate() counts positions, and its first forward is yet to come
        self._turn = Turn(BUSY)
        self._most = 0  # tokens beyond which the model's window is known to Transformers' cache alone; 0: no such window
        self._goal = 0  # positions of the whole text of which a block is fed
        self._closed = False
        self._retry: int | None = None  # tokens that a generate() was given which an error has ended
        self._unchecked = False  # resumed, and not compared with a text
        self._types: tuple[torch.dtype, torch.dtype] | None = None  # of keys and values when the model was looked at, if they decide
        self._modules: dict[int, Any] = {}  # the attention modules of the model that was looked at
        self._counted: Counted | None = None  # how the positions of what is held were counted; None: nothing is held, or it is not known
        self._counting: Counted | None = None  # the same of a forward under way, with its own
        self._positions: Any = COLUMNS  # that the forward under way was given (positions.py)
        self._sinks: dict[int, Any] = {}  # of a layer: the sinks that were compared with its own, and their version
        self._refused: Refused | None = None  # why the session is not that of the model that was met
        self._part = False  # a forward is under way of a part of the model, without the model's own hooks
        self._within = False  # the model was met in a forward that is under way
        self._dropouts: list[Any] = []  # the model's modules of this kind
        self._model: Any = None
        self._steps: Steps | None = None
        self._hooks: list[Any] = []
        self._forms: list[Any] = []  # hooks of the forward under way
        self._alike: bool | None = None  # whether the model computes the same from embeddings as from ids; None: not tried
        keeper: Any = self  # that is, the BanyanCache
        super().__init__(layers=faces(config.get_text_config(decoder=True), keeper))

    @property
    def sessions(self) -> Sequence[Session]:
        return () if self._steps is None else tuple(self._steps.sessions)

    @property
    def device(self) -> torch.device:
        """The model's."""
        model = self._model and self._model()
        return torch.device("cpu") if model is None else next(model.parameters()).device

    @property
    def has_local_layers(self) -> bool:
        """Whether layers of the model keep their state here, not in the service."""
        return bool(self._local())

    @property
    def shares_modules(self) -> bool:
        """Whether the model keeps a part of a text in its modules, one for all caches."""
        return bool(self._kept)

    @property
    def shifts(self) -> list[int]:
        """Of each sequence, by how much images have shifted its positions; []: there is none."""
        return self._shifts

    @uncompiled
    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns

    def _local(self) -> dict[int, Any]:
        """Layers that have a state in this process."""
        return {i: layer for i, layer in enumerate(self.layers) if stateful(layer)}

    def _is_generating(self) -> bool:
        call = running()
        return call is not None and call[0] is self

    def _check_open(self) -> None:
        if self._closed:
            raise Refused("this cache was closed: make a new one; a session with a name is opened by it")

    def _lengths_at(self, columns: int) -> list[int]:
        """Of each session, where the batch has so many columns."""
        return [max(0, columns - pad) for pad in self.pads]

    def _look(self) -> None:
        """Refused where another cache or process has written to the sessions."""
        if self._steps is not None:
            self._steps.look(None if self._dirty else self._lengths_at(self.columns))

    def _cut(self, columns: int) -> None:
        if self._steps is not None:
            self._steps.truncate(self._lengths_at(columns), None if self._dirty else self._lengths_at(self.columns))

    def put_right(self) -> None:
        """Takes away what an interrupted forward has left behind the last whole one."""
        if self._dirty and self._steps is not None:
            self._cut(self.columns)
            self._done, self._dirty = set(), False

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last -tokens_to_remove tokens."""
        if tokens_to_remove > 0:
            raise ValueError("crop: give how many tokens to remove, as a negative number")
        self._turn.check()
        columns = max(0, self.columns + tokens_to_remove)
        if columns == 0:
            self._shifts = []
        if tokens_to_remove:
            self._cut(columns)
        self._crop_states(tokens_to_remove, columns)
        if tokens_to_remove == 0 or self._steps is None:
            return
        if not self._is_generating():
            self._retry = None
        self._began = None
        self.columns, self._done, self._dirty = columns, set(), False
        self._uncount()

    def _crop_states(self, tokens_to_remove: int, columns: int) -> None:
        """A convolution that has recorded its past can be cropped; the cache goes back to other states
        (stated.py)."""
        layers = [layer for layer in self._local().values() if any(layer.is_conv_states_initialized.values())]
        if not self._stale and all(layer.record_past and layer.is_croppable for layer in self._local().values()):
            for layer in layers:
                layer.crop(tokens_to_remove)
        else:
            self._stale = bool(self._stale or (tokens_to_remove and self._local()))
            for layer in layers:
                if layer.record_past:
                    layer.crop(0)
        if self._saved is not None and self._saved.columns > columns:
            self._saved = None

    def _uncount(self) -> None:
        """Tokens were taken away: how the last one was counted is known if all were counted alike."""
        if self._counted is not None and not self._counted.even:
            self._counted = None

    def reset(self) -> None:
        self._turn.check()
        self._cut(0)
        for layer in self._local().values():
            layer.reset()
        self.columns, self._done, self._dirty, self._open, self.pads = 0, set(), False, False, [0] * len(self.pads)
        self._form, self._unchecked, self._retry, self._began, self._counted = SHORT, False, None, None, None
        self._states, self._shifts = [], []
        self._stale, self._saved = False, None

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Sequence i goes on from what sequence beam_idx[i] is now: by forks, which share all full chunks."""
        self._select([int(i) for i in beam_idx])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        chosen = torch.arange(len(self.pads))[indices.cpu()] if self.pads else indices
        self._select([int(i) for i in chosen])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select([i for i in range(len(self.pads)) for _ in range(repeats)])

    def _select(self, sources: list[int]) -> None:
        """Sequences are forked, dropped, or change places. Sessions with a name stay what they are: forks
        take their place."""
        if self._steps is None or sources == list(range(len(self.pads))):
            return
        self._turn.check()
        if self._named:
            self._look()
            self._steps.replace([self._steps.sessions[i].fork(self.columns - self.pads[i], states=False) for i in sources])
            self._named = False
        else:
            self._steps.select(sources)
        for layer in self._local().values():
            layer.reorder_cache(torch.tensor(sources))
        self.pads = [self.pads[i] for i in sources]
        self._states = [x if x is None else x[sources] for x in self._states]
        self._saved = self._saved and self._saved.select(sources)
        self._shifts = self._shifts and [self._shifts[i] for i in sources]
        self._counted = self._counted and self._counted.select(sources)
        if self._text is not None:
            self._text = self._text.select(sources)
