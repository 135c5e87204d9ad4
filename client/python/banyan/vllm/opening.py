# SPDX-License-Identifier: Apache-2.0
"""How a worker comes by the session of a request: created, resumed or forked, as the scheduler's side says;
repeated until a deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..client import Client, Session
from ..errors import AlreadyExists, FailedPrecondition
from ..spec import difference
from .layers import Model
from .names import of_rank
from .retry import Deadline, persist
from .steps import Row


class Opening:
    """Of one rank. Thread-safe where `client` and `model` are.

    Args:
        client, model: of the worker, when they are there.
        rank, ranks: of tensor parallelism: each has a session of its own.
    """

    def __init__(self, client: Callable[[], Client], model: Callable[[], Model], rank: int, ranks: int) -> None:
        self._client, self._model, self._rank, self._ranks = client, model, rank, ranks

    def open(self, row: Row, parent: Session | None, deadline: Deadline) -> tuple[Session, int]:
        """The session, with exactly the tokens before row.start, and its incarnation. parent: that of a fork.
        Raises BanyanError.
        """
        session = persist(lambda: self._opened(row, parent, deadline), deadline)
        return session, self.incarnation(session, deadline)

    def incarnation(self, session: Session, deadline: Deadline) -> int:
        return persist(session.info, deadline).incarnation

    def _opened(self, row: Row, parent: Session | None, deadline: Deadline) -> Session:
        if row.opens == "create":
            return self._created(row)
        if row.opens == "resume":
            return self._resumed(row, deadline)
        if row.opens == "fork" and parent is not None:
            return self._forked(row, parent, deadline)
        raise FailedPrecondition(f"the session of {row.request} was closed")

    def _own(self, name: str) -> str:
        return of_rank(name, self._rank, self._ranks)

    def _checked(self, name: str) -> Session:
        session = self._client().open(self._own(name))
        why = difference(session.spec, self._model().spec)
        if why:
            session.close()
            raise FailedPrecondition(f"session {name} is another model's: {why}")
        return session

    def _created(self, row: Row) -> Session:
        spec = replace(self._model().spec, idle_ttl=row.ttl_s)
        try:
            return self._client().create(spec, self._own(row.name))
        except AlreadyExists:  # an earlier attempt has made it, or what it has does not count
            session = self._checked(row.name)
            if any(session.info().layer_lengths):
                session.truncate(0)
            return session

    def _resumed(self, row: Row, deadline: Deadline) -> Session:
        session = self._checked(row.name)
        info = session.info()
        if info.length < row.start or (row.seen and row.seen[self._rank] != info.incarnation):
            session.close()
            raise FailedPrecondition(f"session {row.name} was changed by another client since its tokens were read: ask again")
        # Even where it has no more: a truncate of a process that has ended cannot come after it.
        persist(lambda: session.truncate(row.start), deadline)
        return session

    def _forked(self, row: Row, parent: Session, deadline: Deadline) -> Session:
        try:
            return parent.fork(row.start, self._own(row.name))
        except AlreadyExists:  # an earlier attempt has made it
            return self._resumed(row, deadline)
