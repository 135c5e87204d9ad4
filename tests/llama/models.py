#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole models of random weights: their logits with the KV cache in a cluster, and by llama.cpp alone.

The measure is llama.cpp's attention without -fa over a float32 cache, which rounds least (some 4e-5 from
float64). Beside it stand llama.cpp with -fa on and the same type of cache, and the plug-in; the plug-in has
to be as near as plain llama.cpp is. The plug-in makes its own cluster of two workers, or uses
BANYAN_ENDPOINT. Without --plugin llama.cpp is compared with itself: that says whether the measure is right.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2] / "examples" / "llama")]
import random_models
from llamacpp import Context, Failed, Model, lib, load_plugin

PROMPT, NEW, UBATCH = 200, 8, 64  # several batches, windows exceeded
CELLS = 512
ROOM = 1.5  # times plain llama.cpp's own distance: both round K and V to the same type, but not alike what follows
ALIKE = 0.05  # of float16 caches: more is no rounding any more
MOST = {"f16": ALIKE, "f32": 0.005}  # ggml's GELU looks up in a table of float16, so the last bits of attention show where a model has it

DEVICE: str | None = None
FOLDER = Path()


def prompt(seed: int = 1, count: int = PROMPT) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, random_models.VOCAB, count)]


def file_of(name: str, **options) -> Path:
    path = FOLDER / f"{name}{''.join(f'-{k}{v}' for k, v in options.items())}.gguf"
    if not path.exists():
        random_models.write(name, path, **options)
    return path


class Run:
    """A model and a context, closed in the right order."""

    def __init__(self, name: str, device: str | None, model_options: dict | None = None, **options):
        self.model = Model(file_of(name, **(model_options or {})), device)
        try:
            self.context = Context(self.model, CELLS, ubatch=UBATCH, threads=1, **options)
        except BaseException:
            self.model.close()
            raise

    def __enter__(self) -> Context:
        return self.context

    def __exit__(self, *_) -> None:
        self.context.close()
        self.model.close()


def whole(name: str, device: str | None, **options) -> np.ndarray:
    """Logits of a prompt in several batches and of tokens one by one."""
    tokens = prompt(count=PROMPT + NEW)
    with Run(name, device, **options) as context:
        parts = [context.read(tokens[:PROMPT], all_logits=True)]
        parts += [context.read(tokens[at : at + 1], at) for at in range(PROMPT, PROMPT + NEW)]
        return np.concatenate(parts)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    assert a.shape == b.shape and np.isfinite(a).all() and np.isfinite(b).all()
    return float(np.abs(a - b).max())


def exact(name: str, **options) -> np.ndarray:
    return whole(name, None, kind="f32", flash=False, **options)


def check_family(name: str) -> None:
    want = exact(name)
    for kind in ("f32", "f16", "bf16", "q8_0"):
        plain, ours = distance(whole(name, None, kind=kind), want), distance(whole(name, DEVICE, kind=kind), want)
        print(f"    {name} {kind}: plain {plain:.4f}, Banyan {ours:.4f}", flush=True)
        assert ours <= ROOM * plain, f"{name} {kind}: {ours} from float32, plain llama.cpp is {plain} from it"
        assert ours <= MOST.get(kind, ours), f"{name}: {ours} is more than rounding"


def check_measure() -> None:
    """The comparison sees a window that is ignored, and one that is off by one."""
    for name in random_models.WINDOWED:
        want = exact(name)
        for window in (PROMPT + NEW, random_models.WINDOW + 1):
            off = distance(exact(name, model_options={"window": window}), want)
            assert off > 4 * ALIKE, f"{name}: a window of {window} differs by {off} only"


def check_sequences() -> None:
    """Three sequences, of different lengths, stepped together; each is what it is alone."""
    for name in ("llama", "gemma2", "gpt-oss"):
        texts = [prompt(seed, 40 + 50 * seed) for seed in range(3)]
        with Run(name, DEVICE, sequences=3) as context:
            for sequence, text in enumerate(texts):
                context.read(text[:-4], 0, sequence)
            together = [context.decode([(text[at - 4 + len(text)], len(text) - 4 + at, s) for s, text in enumerate(texts)]) for at in range(4)]
        for sequence, text in enumerate(texts):
            with Run(name, None, kind="f32", flash=False) as context:
                alone = context.read(text, all_logits=True)[-4:]
            assert distance(np.stack([step[sequence] for step in together]), alone) <= ALIKE, f"{name}: sequence {sequence}"


def logits_after(name: str, text: list[int]) -> np.ndarray:
    with Run(name, None, kind="f32", flash=False) as context:
        return context.read(text)


def check_take_back() -> None:
    """The end of a sequence is removed and written again (what llama-server does with a prompt that shares a
    prefix)."""
    for name in ("llama", "gemma3"):
        one, other = prompt(1), prompt(2)
        with Run(name, DEVICE, sequences=2) as context:
            context.read(one)
            for keep in (150, 149, 64, 1):
                assert lib.llama_memory_seq_rm(context.memory, 0, keep, -1)
                got = context.read(other[keep:], keep)
                assert distance(got, logits_after(name, one[:keep] + other[keep:])) <= ALIKE, f"{name}: kept {keep}"
                assert lib.llama_memory_seq_rm(context.memory, 0, keep, -1)
                context.read(one[keep:], keep)
            assert lib.llama_memory_seq_rm(context.memory, 0, -1, -1)
            assert distance(context.read(other), logits_after(name, other)) <= ALIKE, f"{name}: all taken back"


def check_copy() -> None:
    """A sequence is copied, both go on, each its own way; then only one is kept."""
    for name in ("llama", "gemma2"):
        one, other = prompt(1), prompt(2)
        with Run(name, DEVICE, sequences=2) as context:
            context.read(one)
            lib.llama_memory_seq_cp(context.memory, 0, 1, -1, -1)
            for sequence, tail in ((1, other[:70]), (0, other[70:90])):
                got = context.read(tail, PROMPT, sequence)
                assert distance(got, logits_after(name, one + tail)) <= ALIKE, f"{name}: sequence {sequence} after the copy"
            lib.llama_memory_seq_keep(context.memory, 1)
            got = context.read(other[90:100], PROMPT + 70, 1)
            assert distance(got, logits_after(name, one + other[:70] + other[90:100])) <= ALIKE, f"{name}: the kept sequence"


def check_clear() -> None:
    with Run("llama", DEVICE) as context:
        for seed in (1, 2):
            assert distance(context.read(prompt(seed)), logits_after("llama", prompt(seed))) <= ALIKE
            lib.llama_memory_clear(context.memory, seed == 1)


def check_state() -> None:
    """A sequence's state, saved and restored, into another sequence and over another text."""
    import ctypes

    for name, kind in (("llama", "f16"), ("llama", "bf16"), ("gemma3", "f16")):
        one, other, tail = prompt(1), prompt(2), prompt(3, 9)
        with Run(name, DEVICE, sequences=2, kind=kind) as context:
            context.read(one)
            want = context.read(tail, PROMPT)
            assert lib.llama_memory_seq_rm(context.memory, 0, PROMPT, -1)
            size = lib.llama_state_seq_get_size(context.handle, 0)
            data = (ctypes.c_uint8 * size)()
            assert lib.llama_state_seq_get_data(context.handle, data, size, 0) == size
            for sequence in (1, 0):
                context.read(other, 0 if sequence else PROMPT, sequence)
                assert lib.llama_memory_seq_rm(context.memory, sequence, -1, -1)
                assert lib.llama_state_seq_set_data(context.handle, data, size, sequence), f"{name} {kind}: not restored"
                got = context.read(tail, PROMPT, sequence)
                assert distance(got, want) <= 1e-3, f"{name} {kind}: sequence {sequence} restored, {distance(got, want)} off"


def refused(name: str, needle: str, **options) -> None:
    """Reading a prompt that uses cells of the cache again fails, with a sentence that names what to do."""
    text = prompt(count=CELLS - 8)
    try:
        with Run(name, DEVICE, **options) as context:
            context.read(text)
    except Failed as failure:
        assert needle in str(failure), f"{name} {options}: {needle!r} is not in what was said:\n{failure}"
        return
    raise AssertionError(f"{name} {options}: nothing was refused")


def check_refused() -> None:
    refused("gemma2", "--swa-full", swa_full=False)
    refused("gemma3", "--swa-full", swa_full=False)
    check_unified()


def check_unified() -> None:
    """Two sequences in one cache are refused once their rows alternate; until then what is answered is right.
    A cleared cache serves again."""
    with Run("llama", DEVICE, sequences=2, unified=True) as context:
        texts = [prompt(1, 40), prompt(2, 40)]
        try:
            for sequence, text in enumerate(texts):
                got = context.read(text[:-8], 0, sequence)
                assert distance(got, logits_after("llama", text[:-8])) <= ALIKE, f"sequence {sequence} of a unified cache"
            for sequence, text in enumerate(texts):
                context.read(text[-8:], 32, sequence)
        except Failed as failure:
            assert "--no-kv-unified" in str(failure), str(failure)
        else:
            raise AssertionError("two sequences in one cache were not refused")
        lib.llama_memory_clear(context.memory, True)
        assert distance(context.read(prompt(3)), logits_after("llama", prompt(3))) <= ALIKE, "after the cache was cleared"


def check_shift() -> None:
    """A context shift is refused; after the cache is cleared it serves again."""
    with Run("llama", DEVICE) as context:
        context.read(prompt())
        if lib.llama_memory_can_shift(context.memory):
            lib.llama_memory_seq_rm(context.memory, 0, 10, 50)
            lib.llama_memory_seq_add(context.memory, 0, 50, -1, -40)
            try:
                context.read(prompt(2, 4), PROMPT - 40)
            except Failed as failure:
                assert "shift" in str(failure), str(failure)
            else:
                raise AssertionError("a shifted cache was not refused")
        lib.llama_memory_clear(context.memory, True)
        assert distance(context.read(prompt(2)), logits_after("llama", prompt(2))) <= ALIKE


CHECKS: dict[str, Callable[[], None]] = {"measure": check_measure}
CHECKS |= {f"family {name}": (lambda name=name: check_family(name)) for name in random_models.FAMILIES}
CHECKS |= {"sequences": check_sequences, "take_back": check_take_back, "copy": check_copy, "clear": check_clear, "state": check_state}
CHECKS_OF_THE_PLUGIN: dict[str, Callable[[], None]] = {"refused": check_refused, "shift": check_shift}


def main() -> int:
    global DEVICE, FOLDER
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", metavar="FILE", help="libggml-banyan.so")
    parser.add_argument("--only", metavar="WORD", default="", help="checks whose names have this in them")
    parser.add_argument("--quick", action="store_true", help="one family, and what refuses")
    options = parser.parse_args()
    checks = dict(CHECKS)
    if options.plugin:
        if "BANYAN_ENDPOINT" not in os.environ:
            os.environ.setdefault("BANYAN_LOCAL", "2")
        load_plugin(options.plugin)
        DEVICE = "Banyan0"
        checks |= CHECKS_OF_THE_PLUGIN
    if options.quick:
        checks = {name: checks[name] for name in ("family gemma2", "take_back", "refused") if name in checks}
    checks = {name: check for name, check in checks.items() if options.only in name}
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        FOLDER = Path(folder)
        for name, check in checks.items():
            print(f"{name}", flush=True)
            try:
                check()
            except (AssertionError, Failed):
                traceback.print_exc()
                failed.append(name)
    print(f"{len(checks) - len(failed)} of {len(checks)} checks passed" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
