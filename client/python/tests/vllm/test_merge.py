# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of two partial answers: old tokens from the cluster, recent ones from the engine. Needs
PyTorch, and no vLLM."""

from __future__ import annotations

import math

import pytest
import torch

import banyan

pytest.importorskip("banyan.vllm.merge")
from banyan.vllm.merge import merge

HEADS, KV, DIM = 8, 2, 32


def whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int, window: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in float64 of rows at `first`, over all keys that each may see: o and lse."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.double().repeat_interleave(group, 1).permute(1, 0, 2) for x in (k, v))
    logits = q.double().permute(1, 0, 2) @ keys.transpose(1, 2) / math.sqrt(q.shape[2])
    at, key = first + torch.arange(len(q))[:, None], torch.arange(len(k))[None]
    hidden = (key > at) | ((key <= at - window) if window else torch.zeros_like(key > at))
    logits = logits.masked_fill(hidden, -math.inf)
    return (logits.softmax(-1).nan_to_num() @ values).permute(1, 0, 2), logits.logsumexp(-1).T


def part(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the engine has over its own tokens, the first of which is at `first`: in float32."""
    o, lse = whole(q, k, v, first)
    return o.float(), lse.float()


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_against_float64(rows: int, client: banyan.Client) -> None:
    """The cluster's part with its own kernels, the engine's part by PyTorch, merged: as one softmax over
    everything."""
    torch.manual_seed(rows)
    old, recent = 1000, 200
    k, v = torch.randn(old + recent, KV, DIM), torch.randn(old + recent, KV, DIM)
    q = torch.randn(rows, HEADS, DIM) * 3  # sharp, so that one side can outweigh the other
    with client.create(banyan.Spec(layers=1, q_heads=HEADS, kv_heads=KV, k_dim=DIM)) as session:
        session.attach(0, 0, k[:old].contiguous(), v[:old].contiguous())
        session.commit(0, 0, old)
        first = old + recent - rows
        far = session.attend(0, first, q, visible=old, lse=True)
        near = part(q, k[old:], v[old:], recent - rows)
        o, lse = merge(far.o, far.lse, *near)
        session.delete()
    want, want_lse = whole(q, k, v, first)
    assert (o - want).abs().max() <= 1e-6 * want.abs().max()
    assert (lse - want_lse).abs().max() <= 2e-6
    swapped, _ = merge(*near, far.o, far.lse)
    assert (swapped - want).abs().max() <= 1e-6 * want.abs().max()


def test_a_side_that_saw_nothing() -> None:
    """It counts for nothing, whatever is in its o; where both saw nothing the answer is zeros, and never
    NaN."""
    o, lse = torch.randn(3, HEADS, DIM), torch.randn(3, HEADS)
    empty = torch.full_like(lse, -math.inf)
    for got, got_lse in (merge(o, lse, torch.zeros_like(o), empty), merge(torch.zeros_like(o), empty, o, lse)):
        assert torch.equal(got, o) and torch.equal(got_lse, lse)
    got, got_lse = merge(torch.zeros_like(o), empty, torch.zeros_like(o), empty)
    assert torch.equal(got, torch.zeros_like(o)) and torch.equal(got_lse, empty)


def test_far_apart() -> None:
    """Weights of 1e±200 neither overflow nor vanish wrongly."""
    a, b = torch.ones(1, 1, 4), 2 * torch.ones(1, 1, 4)
    for x, y, want in ((500.0, -500.0, 1.0), (-500.0, 500.0, 2.0), (500.0, 500.0, 1.5), (-500.0, -500.0, 1.5)):
        o, lse = merge(a, torch.tensor([[x]]), b, torch.tensor([[y]]))
        assert torch.allclose(o, torch.full_like(o, want), rtol=1e-6)
        assert lse.item() == pytest.approx(max(x, y) + (math.log(2) if x == y else 0), rel=1e-6)


def test_nan_goes_out() -> None:
    """Nothing hides a NaN that came in."""
    o, lse = torch.randn(1, 1, 4), torch.zeros(1, 1)
    bad = o.clone()
    bad[..., 1] = math.nan
    for got, _ in (merge(bad, lse, o, lse), merge(o, lse, bad, lse), merge(o, torch.full_like(lse, math.nan), o, lse)):
        assert got.isnan().any()
