# SPDX-License-Identifier: Apache-2.0
"""What a batch was fed, on the host: a number for each token, by which texts are compared before anything is
fed.

The number of a token is its id. Where a model was fed embeddings, it is a hash of them, above every id.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

HASH_BITS = 38
_EMBEDDED = 1 << HASH_BITS  # the number is a hash of an embedding
_OTHER = 2 << HASH_BITS  # the number is a hash of the first layer's keys: neither ids nor embeddings were seen
LIMIT = 3 << HASH_BITS

_ODD = -0x61C8864680B583EB  # 2^64 / the golden ratio, as a signed number
_SEED = 0x2545F4914F6CDD1D


def weights(n: int, device: torch.device) -> torch.Tensor:
    """n odd numbers of 32 bits, the same everywhere."""
    x = torch.arange(1, n + 1, dtype=torch.int64, device=device) * _ODD
    x = (x ^ (x >> 31)) * _SEED
    return ((x ^ (x >> 29)) | 1).to(torch.int32)


def words_of(x: torch.Tensor) -> torch.Tensor:
    """The values as whole numbers of 32 bits, mixed: the same for a value whichever floating type holds it
    exactly. New memory."""
    if x.is_complex():
        x = torch.view_as_real(x)
    if x.is_floating_point():
        single = x.float().contiguous()
        exact = x.dtype is not torch.float64 or bool((single.double() == x).all())
        words = (single if exact else x.contiguous()).view(torch.int32)
    else:
        words = x.contiguous().view(torch.int32) if x.dtype is torch.int64 else x.to(torch.int32)
    return words ^ (words >> 15)  # so that no low bits are all zero


def _hashes(x: torch.Tensor) -> torch.Tensor:
    """Of each row of [batch, rows, …]: HASH_BITS bits."""
    words = words_of(x.detach().flatten(2)).to(torch.int64)
    h = ((words + _SEED) * ((weights(words.shape[2], words.device).to(torch.int64) << 20) ^ _ODD | 1)).sum(2)
    h = (h ^ (h >> 32)) * _ODD
    return (h >> (64 - HASH_BITS) & ((1 << HASH_BITS) - 1)).cpu()


def of_embeddings(x: torch.Tensor) -> torch.Tensor:
    """[batch, rows, hidden] -> [batch, rows]"""
    return _hashes(x) | _EMBEDDED


def of_keys(x: torch.Tensor) -> torch.Tensor:
    """[batch, heads, rows, dim] -> [batch, rows]"""
    return _hashes(x.transpose(1, 2)) | _OTHER


def is_id(codes: torch.Tensor) -> torch.Tensor:
    return codes < _EMBEDDED


def is_embedded(codes: torch.Tensor) -> torch.Tensor:
    return (codes >= _EMBEDDED) & (codes < _OTHER)


def shown(code: int) -> str:
    """For messages."""
    return str(code) if code < _EMBEDDED else "an embedding" if code < _OTHER else "neither a token nor an embedding"


class Text:
    """The numbers of a batch, [batch, columns], padding included; how many of the columns count is said by
    the cache."""

    @torch.inference_mode(False)  # what is made in that mode could not be written to outside of it
    def __init__(self, batch: int, columns: int = 64) -> None:
        self._codes = torch.zeros((batch, columns), dtype=torch.int64)

    @torch.inference_mode(False)
    def reserve(self, columns: int) -> None:
        """So that put() up to there may be called by several threads."""
        batch, room = self._codes.shape
        if columns > room:
            more = torch.zeros((batch, max(columns, 2 * room)), dtype=torch.int64)
            more[:, :room] = self._codes
            self._codes = more

    def put(self, at: int, codes: torch.Tensor) -> None:
        self.reserve(at + codes.shape[1])
        self._codes[:, at : at + codes.shape[1]] = codes

    def put_row(self, i: int, at: int, codes: torch.Tensor) -> None:
        self.reserve(at + len(codes))
        self._codes[i, at : at + len(codes)] = codes

    def row(self, i: int, begin: int, end: int) -> torch.Tensor:
        return self._codes[i, begin:end]

    def all(self, columns: int) -> torch.Tensor:
        return self._codes[:, :columns]

    @torch.inference_mode(False)
    def select(self, sources: list[int]) -> Text:
        other = object.__new__(Text)
        other._codes = self._codes[sources]
        return other


def common(held: torch.Tensor, given: torch.Tensor, embedded: Callable[[torch.Tensor], torch.Tensor] | None) -> int:
    """How many numbers of two texts [tokens] are the same from the beginning.

    embedded: ids [n] -> the numbers of their embeddings, where a model computes the same from the one as from
    the other.
    """
    n = min(len(held), len(given))
    held, given = held[:n], given[:n]
    if n == 0 or bool((held == given).all()):
        return n
    if embedded is not None:
        held, given = held.clone(), given.clone()
        for ids, others in ((held, given), (given, held)):
            at = (is_id(ids) & is_embedded(others)).nonzero()[:, 0]
            if len(at):
                ids[at] = embedded(ids[at])
    differ = (held != given).nonzero()
    return int(differ[0]) if len(differ) else n
