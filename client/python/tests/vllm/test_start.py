# SPDX-License-Identifier: Apache-2.0
"""How an engine starts: a cluster of its own, what is refused, adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import pytest
import texts
from engine import Engine, wait_for

import banyan

PROMPTS = texts.prompts(20, 130)
NEW = 16


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return models.make(folder, "llama")


def children(pid: int) -> dict[int, str]:
    """Processes that it started, with the names of their programs."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has ended
            continue
        if int(rest.split()[1]) == pid:
            found[int(path.parent.name)] = name
    return found


def test_a_cluster_of_its_own(model: Path) -> None:
    """BANYAN_LOCAL: equal tokens, and with the engine its daemons end, though it is killed."""
    with Engine(model) as engine:
        want = engine.generate(PROMPTS, NEW)
    with Engine(model, {"BANYAN_LOCAL": "2", "BANYAN_LOCAL_MEMORY": "64M"}) as engine:
        texts.compare(want, engine.generate(PROMPTS, NEW))
        daemons = {pid: name for pid, name in children(engine.pid).items() if name.startswith("banyan-")}
        assert sorted(daemons.values()) == ["banyan-coordina", "banyan-worker", "banyan-worker"]
        engine.kill()
    wait_for(lambda: not [pid for pid in daemons if Path(f"/proc/{pid}").exists()], 60)


@pytest.mark.parametrize(
    "options, reason",
    [
        (dict(enable_prefix_caching=True), "--no-enable-prefix-caching"),
        (dict(scheduler_cls="vllm.v1.core.sched.scheduler.Scheduler"), "leave --scheduler-cls out"),
        (dict(pipeline_parallel_size=2), "--pipeline-parallel-size 1"),
    ],
    ids=["prefix caching", "scheduler", "pipeline"],
)
def test_what_is_refused(options: dict[str, Any], reason: str, model: Path, cluster: banyan.LocalCluster) -> None:
    """The engine does not start, and says what to do. All reasons: test_engine_parts.py."""
    with pytest.raises(Exception, match=reason):
        Engine(model, {"BANYAN_ENDPOINT": cluster.endpoint}, **options)


def test_adapters(model: Path, folder: Path, cluster: banyan.LocalCluster) -> None:
    """LoRA: plain vLLM's tokens, and a session that was made with an adapter is not used without it."""
    adapters = [models.adapter(folder / f"adapter-{seed}", seed) for seed in (1, 2)]
    options = dict(enable_lora=True, max_lora_rank=8, max_loras=2)
    with Engine(model, **options) as engine:
        want = [engine.generate(PROMPTS, NEW, adapter=adapter) for adapter in (None, *adapters)]
    assert len({tuple(out.tokens) for outputs in want for out in outputs}) == 3 * len(PROMPTS), "adapters that change nothing"
    with Engine(model, {"BANYAN_ENDPOINT": cluster.endpoint}, **options) as engine:
        for adapter, outputs in zip((None, *adapters), want):
            texts.compare(outputs, engine.generate(PROMPTS, NEW, adapter=adapter))
        prompt, params = PROMPTS[1], {"banyan_session": "adapted"}
        found = [engine.generate([prompt], NEW, adapter=adapter, params=params)[0] for adapter in (adapters[0], None, adapters[0])]
        assert [out.cached for out in found] == [0, 0, len(prompt) - 1]
        for out, outputs in zip(found, (want[1], want[0], want[1])):
            texts.compare([outputs[1]], [out])
