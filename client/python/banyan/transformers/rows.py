# SPDX-License-Identifier: Apache-2.0
"""A decode step's call, one row a sequence: its C structures are filled once, and a step alters a few numbers
in them."""

from __future__ import annotations

import torch

from .. import tokens
from .._abi import ffi, lib
from ..client import Client, Session
from ..errors import raise_c
from ..guard import Entered
from .layers import Layer

_WORD = 8
_ITEM = ffi.sizeof("banyan_item") // _WORD


def _word(field: str) -> int:
    return int(ffi.offsetof("banyan_item", field)) // _WORD


_FIRST, _Q, _K, _V, _O = (_word(field) for field in ("first", "q", "k", "v", "o"))


class RowCall:
    """banyan_attend for one row of each session of a batch, of one layer; and of the layer of tokens, where a
    call brings them.

    Rows are tensors dense in the order [batch, heads, dim], in the processor's memory; who calls keeps them
    until it returns.
    """

    def __init__(self, client: Client, sessions: list[Session], index: int, layer: Layer, dtype: torch.dtype) -> None:
        n, item_bytes = len(sessions), dtype.itemsize
        self._client, self._n = client, n
        self._guards = [session.guard for session in sessions]
        self._items = ffi.new("banyan_item[]", 2 * n)
        self._errors = ffi.new("banyan_error[]", 2 * n)
        for i in range(2 * n):
            item = self._items[i]
            item.session, item.rows, item.error = sessions[i % n].handle, 1, ffi.addressof(self._errors, i)
            item.layer = index if i < n else tokens.layer_of(sessions[0].spec)
        # The same memory, for numbers: an address is stored without an object being made for it.
        self._words = memoryview(ffi.buffer(self._items)).cast("B").cast("Q")
        self.q_bytes, self.o_bytes = layer.q_heads * layer.k_dim * 4, layer.q_heads * layer.v_dim * 4
        self.k_bytes, self.v_bytes = layer.kv_heads * layer.k_dim * item_bytes, layer.kv_heads * layer.v_dim * item_bytes
        self._digits = tokens.Digits(n, dtype)
        unwanted = torch.zeros((n, tokens.DIM))  # what the layer of tokens is asked, and answers
        self._keep = unwanted
        for i in range(n):
            word = (n + i) * _ITEM
            self._words[word + _K] = self._words[word + _V] = self._digits.address + tokens.DIM * item_bytes * i
            self._words[word + _Q] = self._words[word + _O] = unwanted.data_ptr() + 4 * tokens.DIM * i

    def tokens(self, ids: list[list[int]], stamp: tokens.Stamp, pads: list[int], firsts: list[int]) -> None:
        """The next call brings these: [batch, 1]."""
        self._digits.put(ids, stamp, pads, firsts)
        word = self._n * _ITEM
        for first in firsts:
            self._words[word + _FIRST] = first
            word += _ITEM

    def run(self, firsts: list[int], q: int, k: int, v: int, o: int, with_tokens: bool) -> None:
        """q, k, v, o: addresses of the batch's rows; k, v 0: none."""
        words, word = self._words, 0
        for first in firsts:
            words[word + _FIRST] = first
            words[word + _Q], words[word + _O] = q, o
            words[word + _K], words[word + _V] = k, v
            word += _ITEM
            q, o = q + self.q_bytes, o + self.o_bytes
            if k:
                k += self.k_bytes
            if v:
                v += self.v_bytes
        n = 2 * self._n if with_tokens else self._n
        items = self._items
        with Entered(self._guards):
            self._client.call(lib.banyan_attend, self._client.handle, items, n, 0, ffi.NULL)
        for i in range(n):
            if items[i].code:
                raise_c(items[i].code, self._errors[i])
