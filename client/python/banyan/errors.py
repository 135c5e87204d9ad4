# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class for each code, with all details from the service."""

from __future__ import annotations

from typing import Any, NoReturn

from ._abi import ffi, lib


class BanyanError(Exception):
    """A failed call. Repeating it sets right anything that it changed.

    Attributes:
        code: the canonical code, such as "NOT_FOUND".
        message: one sentence that says what to do.
        reason: why, for programs, such as "HOLE" or "MISSING_RANGE": docs/reference/errors.md has all of
            them. "" if the code is enough.
        ranges: token ranges concerned, as (first, count).
        worker: the worker concerned, or "".
        retry_after: reason QUOTA, for a rate: after how many seconds the call may succeed; 0.0 if unknown.
    """

    code = "UNKNOWN"

    def __init__(
        self, message: str, *, code: str = "", reason: str = "", ranges: tuple[tuple[int, int], ...] = (), worker: str = "",
        retry_after: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.code = code or type(self).code
        self.message = message
        self.reason = reason
        self.ranges = ranges
        self.worker = worker
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class Cancelled(BanyanError):
    code = "CANCELLED"


class InvalidArgument(BanyanError, ValueError):
    code = "INVALID_ARGUMENT"


class DeadlineExceeded(BanyanError, TimeoutError):
    code = "DEADLINE_EXCEEDED"


class NotFound(BanyanError, LookupError):
    code = "NOT_FOUND"


class AlreadyExists(BanyanError):
    code = "ALREADY_EXISTS"


class PermissionDenied(BanyanError, PermissionError):
    code = "PERMISSION_DENIED"


class ResourceExhausted(BanyanError):
    code = "RESOURCE_EXHAUSTED"


class FailedPrecondition(BanyanError):
    """Different bytes at an acknowledged position; a hole in the context."""

    code = "FAILED_PRECONDITION"


class Aborted(BanyanError):
    """Overtaken by a truncate or a new layout: read the session's state with Session.info and try again."""

    code = "ABORTED"


class OutOfRange(BanyanError, IndexError):
    code = "OUT_OF_RANGE"


class Unimplemented(BanyanError, NotImplementedError):
    code = "UNIMPLEMENTED"


class Internal(BanyanError):
    code = "INTERNAL"


class Unavailable(BanyanError, ConnectionError):
    """A worker or the coordinator cannot be reached now: try again."""

    code = "UNAVAILABLE"


class DataLoss(BanyanError):
    code = "DATA_LOSS"


class Unauthenticated(BanyanError, PermissionError):
    code = "UNAUTHENTICATED"


class Closed(BanyanError, ValueError):
    """The client or the session was closed, or belongs to the process that this one was forked from."""

    code = "FAILED_PRECONDITION"


_CLASSES: dict[str, type[BanyanError]] = {
    c.code: c
    for c in (
        Cancelled, InvalidArgument, DeadlineExceeded, NotFound, AlreadyExists, PermissionDenied, ResourceExhausted,
        FailedPrecondition, Aborted, OutOfRange, Unimplemented, Internal, Unavailable, DataLoss, Unauthenticated,
    )
}  # fmt: skip


def by_code(name: str) -> type[BanyanError]:
    """The class for a canonical code."""
    return _CLASSES.get(name, BanyanError)


def code_name(code: int) -> str:
    return str(ffi.string(lib.banyan_code_name(code)).decode())


def from_c(code: int, error: Any) -> BanyanError:
    """The exception for a code and a struct banyan_error."""
    name = code_name(code)
    return by_code(name)(
        ffi.string(error.message).decode(errors="replace") or name,
        code=name,
        reason=str(ffi.string(lib.banyan_reason_name(error.reason)).decode()),
        ranges=tuple((error.ranges[i].first, error.ranges[i].count) for i in range(min(error.n_ranges, 16))),
        worker=ffi.string(error.worker).decode(errors="replace"),
        retry_after=error.retry_ns / 1e9,
    )


def raise_c(code: int, error: Any) -> NoReturn:
    raise from_c(code, error)
