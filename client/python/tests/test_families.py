# SPDX-License-Identifier: Apache-2.0
"""Logits of small random models over the service beside those of one forward of Transformers' eager
attention, without a cache.

Here sizes are chosen for each family, and so are those that must be refused. walk.py goes over all families
of the library. As a program it prints the lines of docs/MODELS.md on models that see images.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from families import FAMILIES, REFUSED, VISION, make  # noqa: E402
from test_vision import difference as vision  # noqa: E402

import banyan.transformers  # noqa: E402
from banyan.transformers import BanyanCache, Refused  # noqa: E402
from banyan.transformers.faces import stateful  # noqa: E402

MOST = 2e-5  # relative to the largest logit
PROMPT, BLOCKS, DECODE = 70, (33, 70), 12
AT_ONCE = {"jamba", "recurrent_gemma", "zamba"}  # in blocks their own layers compute something else: refused


def forward(model, cache, ids, blocks):
    """Logits of a prefill in blocks, then of single tokens."""
    out, at = [], 0
    for end in (*blocks, *range(PROMPT + 1, PROMPT + DECODE + 1)):
        out.append(model(ids[:, at:end], past_key_values=cache).logits)
        at = end
    return torch.cat(out, dim=1)


def difference(client, family):
    """The largest difference of a logit, over the largest logit; what the service holds; whether layers have
    states here."""
    model = make(family, FAMILIES[family], "eager")
    with torch.no_grad():
        torch.manual_seed(2)
        for p in model.parameters():  # so that attention has something to say: fresh weights are nearly uniform
            if p.dim() > 1:
                p.normal_(0, 0.15)
            elif p.numel() and "sinks" not in family:
                p.add_(torch.randn_like(p) * 0.1)
        ids = torch.randint(3, 128, (2, PROMPT + DECODE))
        want = model(ids, use_cache=False).logits
        model.set_attn_implementation("banyan")
        with BanyanCache(model, client, chunk_tokens=16, members=2) as cache:
            got = forward(model, cache, ids, (PROMPT,) if family in AT_ONCE else BLOCKS)
            spec, states = cache.sessions[0].spec, any(map(stateful, cache.layers))
    assert torch.isfinite(want).all()
    return float((got - want).abs().max() / want.abs().max()), spec, states


@pytest.mark.parametrize("family", FAMILIES)
def test_family(client, family):
    found, *_ = difference(client, family)
    assert found <= MOST
    assert found > 0 or family == "biogpt"  # it is not eager attention itself


@pytest.mark.parametrize("family", REFUSED)
def test_refused(client, family):
    options, reason = REFUSED[family]
    with torch.no_grad(), pytest.raises(Refused, match=reason):
        model = make(family, options, "eager")
        model.set_attn_implementation("banyan")
        model(torch.randint(3, 128, (1, 9)), past_key_values=BanyanCache(model, client))
    assert client.sessions() == []


def table() -> None:
    with banyan.local_cluster(3, memory="256M", threads=1) as cluster, cluster.connect() as client:
        for family in VISION:
            found, spec = vision(client, family)
            windows = any(k.window for k in spec.table[:-1] if k is not None)
            print(f"| `{family}` with images | {'windows, blocks' if windows else 'plain layers'} | {found:.1e} |", flush=True)


if __name__ == "__main__":
    table()
