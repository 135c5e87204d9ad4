# SPDX-License-Identifier: Apache-2.0
"""The same tokens and log-probabilities as plain vLLM: eight families, whole cluster or recent tokens in the
engine, preemption, forks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import pytest
import texts
from engine import Engine, Output, wait_for
from exact import Exact

import banyan

RECENT = 640  # tokens in the engine: two chunks of 256, and the 64 of a step
# Up to and across a block, a chunk of prefill, a chunk of the cluster; and past the tokens that stay in the
# engine.
PROMPTS = texts.prompts(5, 17, 130, 300, 1400)
NEW = 24
_plain: dict[Any, list[Output]] = {}


def plain(path: Path, **options: Any) -> list[Output]:
    """What plain vLLM says to PROMPTS; once for all tests of a model."""
    key = (path.name, *sorted(options.items()))
    if key not in _plain:
        with Engine(path, **options) as engine:
            _plain[key] = engine.generate(PROMPTS, NEW, prompt_logprobs=1)
    return _plain[key]


@pytest.fixture
def ours(cluster: banyan.LocalCluster) -> dict[str, str]:
    return {"BANYAN_ENDPOINT": cluster.endpoint}


@pytest.fixture
def control(cluster: banyan.LocalCluster) -> Iterator[banyan.Client]:
    with cluster.connect() as client:
        yield client


def there(control: banyan.Client) -> set[int]:
    """Sessions, but for what is kept as cache. Other tests leave some, by name."""
    return {info.id for info in control.sessions() if not info.name.startswith("kept")}


# On a CPU vLLM computes a prompt of a model with latent attention in one step, which no window of a test
# would leave behind.
CASES = [(family, recent) for family in models.FAMILIES for recent in (0, RECENT) if not (family == "deepseek" and recent)]


@pytest.mark.parametrize("family, recent", CASES, ids=[f"{family}-{'recent' if recent else 'cluster'}" for family, recent in CASES])
def test_families(family: str, recent: int, ours: dict[str, str], folder: Path, control: banyan.Client) -> None:
    path = models.make(folder, family)
    want, before = plain(path), there(control)
    with Engine(path, ours | ({"BANYAN_WINDOW": str(recent)} if recent else {})) as engine:
        got = engine.generate(PROMPTS, NEW, prompt_logprobs=1)
        assert not engine.metrics().get("vllm:num_preemptions")
        wait_for(lambda: there(control) <= before, 60)  # sessions without a name end with their requests
    apart = texts.compare(want, got)
    print(f"{family}{' with recent tokens in the engine' if recent else ''}: log-probabilities {apart:.1e} apart")
    likeliest = {max(place, key=place.__getitem__) for out in want for place in out.prompt_logprobs}
    assert len(likeliest) >= 100, "a model that says the same all the time compares nothing"


@pytest.mark.parametrize("recent", [0, RECENT])
def test_gpt_oss_beside_float64(recent: int, ours: dict[str, str], folder: Path) -> None:
    """Experts, sinks and windows: what is between plain vLLM and ours is float32's rounding in both. Ours is
    as near to float64.
    """
    path = models.make(folder, "gptoss")
    with Engine(path) as engine:
        rope = engine.call("rope")
    with Engine(path, ours | ({"BANYAN_WINDOW": str(recent)} if recent else {})) as engine:
        got = engine.generate(PROMPTS, NEW, prompt_logprobs=1)
    exact = Exact(path, rope)
    theirs, mine = (max(exact.apart(prompt, out) for prompt, out in zip(PROMPTS, outputs)) for outputs in (plain(path), got))
    print(f"gpt-oss from float64: plain vLLM {theirs:.1e}, ours {mine:.1e}")
    assert mine <= texts.MOST


@pytest.mark.parametrize("family, recent", [("llama", 0), ("llama", RECENT), ("gemma3", 0), ("gemma3", RECENT), ("deepseek", 0)])
def test_preemption(family: str, recent: int, ours: dict[str, str], folder: Path) -> None:
    """Too few blocks for all prompts at once: vLLM takes some away in the middle, and they go on where they
    were.
    """
    path = models.make(folder, family)
    want = plain(path)
    with Engine(path, ours | ({"BANYAN_WINDOW": str(recent)} if recent else {}), num_gpu_blocks_override=9, block_size=256) as engine:
        got = engine.generate(PROMPTS, NEW * 12, logprobs=4)
        metrics, rows = engine.metrics(), engine.rows()
    assert metrics["vllm:num_preemptions"] >= 1, metrics
    assert rows == sum(len(prompt) + 12 * NEW - 1 for prompt in PROMPTS), "nothing is computed again"
    for a, b in zip(want, got):
        b.tokens, b.logprobs, b.prompt_logprobs = b.tokens[:NEW], b.logprobs[:NEW], a.prompt_logprobs
    if family == "deepseek":  # plain vLLM's own answers on a CPU depend on what else is in the batch
        assert [out.finish for out in got] == ["length"] * len(PROMPTS)
    else:
        texts.compare(want, got)
