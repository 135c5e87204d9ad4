# SPDX-License-Identifier: Apache-2.0
"""Sessions that begin with what others have computed: found by their tokens, and kept when they end
(docs/concepts/prefixes.md)."""

from __future__ import annotations

import contextlib

import torch

from .. import marks
from ..client import Session
from ..errors import BanyanError, Unimplemented
from ..prefixes import HASH, prefix_hashes
from . import text
from .lengths import SHORT
from .opened import Opened
from .positions import TOKENS
from .refused import NotThisModels, Refused
from .steps import Steps
from .text import Text

_CHUNK = 256  # tokens, where a specification has no number


class Reused(Opened):
    def _check_reusable(self) -> None:
        """Refuses what cannot be reused, before anything is computed."""
        if (local := self._local()) and not self._state_tokens:
            raise Refused(
                f"reuse=True with state_tokens=0: layers {list(local)[:4]} of this model have a state of their own (linear attention, "
                "convolutions). Where none is kept, all tokens are computed again: leave one of the two out"
            )
        if self._more.get("forget"):
            raise Refused("reuse=True: with forget= a session does not hold its whole text, which could not be found. Leave one out")

    def find(self, input_ids: torch.Tensor) -> int:
        """Begins with the longest beginning of these tokens, [1, tokens], that the cluster keeps for this
        model, at most all but the last one.

        generate() and prefill() do it by themselves, on a cache with reuse=True that holds nothing. Before
        bare forwards call it first, and feed what is behind. Returns how many tokens the cache holds then.
        """
        if not self._reuse:
            raise Refused("this cache does not reuse: make it with BanyanCache(..., reuse=True)")
        self._check_open()
        if self._steps is not None:
            return self.columns
        if not self._plan:
            raise Refused("this cache has not seen its model: give BanyanCache the model itself")
        if len(input_ids) != 1:
            raise Refused(f"reuse=True is for one sequence, and is given {len(input_ids)}: make a cache for each, or leave reuse out")
        if input_ids.is_floating_point():
            return 0  # embeddings: no tokens to be found by
        ids = input_ids[0].detach().to("cpu", torch.int64)
        prefix = self._hashes(ids[:-1])
        if not prefix:
            return 0
        session = self.client.create(self._spec(), self.name, prefix=prefix)
        try:
            if session.found and not self._takes(session, ids):
                session.delete()  # the hashes are the same and the text is not
                session = self.client.create(self._spec(), self.name)
        except BaseException:
            self._steps = None
            with contextlib.suppress(BanyanError):
                session.delete()
            raise
        if self._steps is None:
            self.pads, self._text = [0], Text(1)
            self._steps = Steps(self.client, [session], self._kv_type)
            if self._named:
                self._steps.look()
        return self.columns

    def _takes(self, session: Session, ids: torch.Tensor) -> bool:
        """Whether the session holds a beginning of these very tokens, fed to this very model; it is this
        cache's then."""
        try:
            self._adopt([session])
            assert self._steps is not None
            said = self._steps.said(session, 0, self.columns)
            same = (
                self.columns == session.found
                and torch.equal(said.tokens, ids[: self.columns])
                and bool((said.marks == self._mark).all() and (said.pads == 0).all() and (said.counts == TOKENS).all())
            )
        except NotThisModels:
            same = False
        if same:
            self._text = Text(1, max(64, self.columns))
            self._text.put_row(0, 0, ids[: self.columns])
        else:
            self._steps, self._text, self._counted = None, None, None
            self.columns, self.pads, self._form, self._dirty, self._unchecked = 0, [], SHORT, False, False
        return same

    def _hashes(self, ids: torch.Tensor) -> bytes:
        salt = b"banyan.transformers\0" + self._mark.to_bytes(marks.BYTES, "little") + self._salt
        return prefix_hashes(ids.numpy(), salt, self._spec().chunk_tokens or _CHUNK)

    def _keep(self) -> None:
        """Ends the sessions: the first one stays as cache, as far as it holds whole chunks of tokens."""
        assert self._steps is not None
        sessions, kept = list(self._steps.sessions), False
        with contextlib.suppress(BanyanError, Refused):
            kept = self._kept_first(sessions[0])
        for session in sessions[1 if kept and not self._named else 0 :]:
            session.close() if self._named else session.delete()

    def _kept_first(self, session: Session) -> bool:
        self.put_right()
        if any(self.pads) or not self.columns or self._counted is None or self._counted.kind(self.pads) != TOKENS:
            return False
        codes = self._all_codes()[0]
        others = (~text.is_id(codes)).nonzero()
        prefix = self._hashes(codes[: int(others[0])] if len(others) else codes)
        if not prefix:
            return False
        if self._named:  # it lives on; what is kept shares its chunks
            length = len(prefix) // HASH * (session.spec.chunk_tokens or _CHUNK)
            session = session.fork(length)
        try:
            session.keep(prefix)
        except Unimplemented:  # an older coordinator
            if self._named:
                session.delete()
            return False
        return True
