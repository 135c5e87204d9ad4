# SPDX-License-Identifier: Apache-2.0
"""A cache's sessions: made, or found by their name."""

from __future__ import annotations

import contextlib
import warnings

from .. import tokens
from ..client import Session
from ..errors import BanyanError, NotFound
from ..spec import Spec, difference
from . import identity
from .held import Held
from .leftover import watch
from .lengths import SHORT
from .positions import SHIFTED, TOKENS, Counted
from .refused import NotThisModels, Refused
from .spec import spec_of
from .steps import Steps
from .text import Text


class Opened(Held):
    def _names(self, batch: int) -> list[str | None]:
        if self.name is None:
            return [None] * batch
        return [self.name] if batch == 1 else [f"{self.name}/{i}" for i in range(batch)]

    def _spec(self) -> Spec:
        return spec_of(self._plan, len(self.layers), self._kv_type or "f32", self._more)

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
            if self._named:
                self._steps.look()
        if len(self._steps.sessions) != batch:
            raise Refused(f"this cache holds {len(self._steps.sessions)} sequences and is given {batch}")
        return self._steps

    def _check_replicas(self, spec: Spec) -> None:
        if spec.replicas > 1:
            with contextlib.suppress(BanyanError):  # who may not see the workers is not warned
                there = sum(worker.state == "active" for worker in self.client.cluster().workers)
                if 0 < there < spec.replicas:
                    warnings.warn(
                        f"replicas={spec.replicas}, and the cluster has {there} workers: each part is at {there} until there are more",
                        stacklevel=2,
                    )

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
        self._adopt(sessions)

    def _adopt(self, sessions: list[Session]) -> None:
        self._steps = Steps(self.client, sessions, self._kv_type)
        infos = self._steps.look()
        # One that has a token says how much padding is before it; one that has none is nothing but padding so
        # far.
        begun = [i for i, s in enumerate(sessions) if infos[i].layer_lengths[tokens.layer_of(s.spec)]]
        said = {i: self._steps.said(sessions[i], 0, 1) for i in begun}
        pads = {i: int(one.pads) for i, one in said.items()}
        self._form = max((int(one.forms) for one in said.values()), default=SHORT)
        least = min(pads.values(), default=0)  # padding before all of them belongs to none
        # As far as all have come: a forward that a dead process has begun may have gone further in some, and
        # in some layers.
        self.columns = min((infos[i].length + pads[i] - least for i in begun), default=0)
        self.pads = [min(pads[i] - least, self.columns) if i in pads else self.columns for i in range(len(sessions))]
        self._dirty = any(n > self.columns - pad for info, pad in zip(infos, self.pads) for n in info.layer_lengths)
        last = [self._steps.said(sessions[i], self.columns - self.pads[i] - 1, 1) for i in begun if self.columns > self.pads[i]]
        kind = max((int(one.counts) for one in last), default=TOKENS)
        self._counted = Counted.of(kind, self.pads)
        if kind == SHIFTED and len(last) == len(sessions) and all(self.columns - pad > 1 for pad in self.pads):
            self._shifts = [one.shift() for one in last]
            self._counted = Counted(tuple(shift - pad for shift, pad in zip(self._shifts, self.pads)))
        self._unchecked = self.columns > 0
        self._stale = bool(self.columns and self._local())
        if self._plan:
            self._check_model()

    def _check_model(self) -> None:
        """That the sessions are of this very model: of its layers, its configuration and its weights."""
        assert self._steps is not None
        for session, info in zip(self._steps.sessions, self._steps.look()):
            self._more["forget"] = session.spec.forget
            if why := difference(session.spec, self._spec()):
                raise NotThisModels(f"session {self.name!r} is not this model's: {why}")
            if info.length and (why := identity.difference(int(self._steps.said(session, 0, 1).marks), self._mark)):
                raise NotThisModels(
                    f"session {self.name!r} was made with {why}: its keys and values are not what this model would compute. Load the model "
                    "that it was made with, or give another name for the session"
                )
