# SPDX-License-Identifier: Apache-2.0
"""A vLLM engine in a process of its own, with or without Banyan, as the tests drive it.

vLLM is imported once, by the process that the engines are forked from; each engine then starts as a user's
would: its environment is set, and vLLM loads the plug-in by its entry point.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PATIENCE = 600  # seconds for anything that an engine is asked: a loaded machine is slow, not wrong

SMALL: dict[str, Any] = dict(
    dtype="float32", max_model_len=2048, max_num_batched_tokens=64, max_num_seqs=8, enforce_eager=True, skip_tokenizer_init=True,
    disable_log_stats=False, seed=0,
)  # fmt: skip


@dataclass
class Output:
    """What one sequence of a request got.

    Attributes:
        tokens: chosen ones.
        logprobs: for each, of the likeliest and of the chosen one.
        prompt_logprobs: the same of the prompt's tokens, where they were asked for.
        finish: vLLM's reason.
        cached: tokens of the prompt that were not computed.
        said: the connector's words to the client.
    """

    tokens: list[int]
    logprobs: list[dict[int, float]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, float]] = field(default_factory=list)
    finish: str | None = None
    cached: int = 0
    said: Any = None


class Engine:
    """The parent's end. Use as a context manager: the process ends with it."""

    def __init__(self, model: Path, environment: dict[str, str] | None = None, **options: Any) -> None:
        """environment: BANYAN_ENDPOINT among it turns the plug-in on; without it vLLM is plain."""
        environment = environment or {}
        served = any(name in environment for name in ("BANYAN_ENDPOINT", "BANYAN_LOCAL"))
        plain = {} if served else {"enable_prefix_caching": False}
        arguments = SMALL | plain | options | {"model": str(model)}
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["preload"])
        self._pipe, theirs = context.Pipe()
        self._rows = context.Value("q", 0, lock=False)
        self.process = context.Process(target=_serve, args=(theirs, self._rows, environment, arguments))
        self.process.start()
        theirs.close()
        self.answer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: Any) -> None:
        self.end()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def ask(self, what: str, *arguments: Any, **more: Any) -> None:
        """Begins it; answer() waits for the result."""
        self._pipe.send((what, arguments, more))

    def answer(self, patience: float = PATIENCE) -> Any:
        if not self._pipe.poll(patience):
            raise TimeoutError(f"the engine has not answered within {patience} s")
        ok, result = self._pipe.recv()
        if not ok:
            raise EngineError(result)
        return result

    def answered(self) -> bool:
        return self._pipe.poll(0)

    def call(self, what: str, *arguments: Any, **more: Any) -> Any:
        self.ask(what, *arguments, **more)
        return self.answer()

    def generate(self, prompts: list[list[int]], n: int, **more: Any) -> list[Output]:
        """_Work.generate."""
        outputs: list[Output] = self.call("generate", prompts, n, **more)
        return outputs

    def rows(self) -> int:
        """Tokens that Banyan's engine was to compute since its start, of prompts and of answers, each as
        often as it was; also while it is at work.
        """
        return int(self._rows.value)

    def metrics(self) -> dict[str, float]:
        """_Work.metrics."""
        found: dict[str, float] = self.call("metrics")
        return found

    def kill(self) -> None:
        """As kill -9 does: nothing is said to anyone."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.join()

    def end(self) -> None:
        if self.process.is_alive():
            try:
                self._pipe.send(None)
            except OSError:
                pass
            self.process.join(60)
        if self.process.is_alive():
            self.kill()


class EngineError(Exception):
    """What went wrong in the engine's process, as a text."""


class _Work:
    """The child's end: each method is one thing that it can be asked."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm import LLM

        self.llm = LLM(**arguments)
        self._adapters: dict[Path, int] = {}

    def generate(
        self, prompts: list[list[int]], n: int, *, params: list[dict[str, Any]] | dict[str, Any] | None = None, logprobs: int | None = 4,
        prompt_logprobs: int | None = None, sequences: int = 1, salt: str | None = None, temperature: float = 0.0,
        adapter: Path | None = None,
    ) -> list[Output]:  # fmt: skip
        """n tokens a prompt, all prompts at once. params: kv_transfer_params of each, or of all; adapter: a
        folder with a LoRA."""
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        number = 0 if adapter is None else self._adapters.setdefault(adapter, len(self._adapters) + 1)
        lora = None if adapter is None else LoRARequest(adapter.name, number, str(adapter))

        each = params if isinstance(params, list) else [params] * len(prompts)
        sampling = [
            SamplingParams(
                temperature=temperature, max_tokens=n, ignore_eos=True, detokenize=False, logprobs=logprobs, n=sequences, seed=1,
                prompt_logprobs=prompt_logprobs, extra_args={"kv_transfer_params": said} if said else None,
            )
            for said in each
        ]  # fmt: skip
        asked = [{"prompt_token_ids": prompt} | ({"cache_salt": salt} if salt else {}) for prompt in prompts]
        return [out for request in self.llm.generate(asked, sampling, use_tqdm=False, lora_request=lora) for out in _outputs(request)]

    def metrics(self) -> dict[str, float]:
        """vLLM's counters and gauges, by name and by the label that divides them."""
        out: dict[str, float] = {}
        for metric in self.llm.get_metrics():
            value = getattr(metric, "value", None)
            if value is not None:
                labels = ",".join(str(v) for k, v in sorted(metric.labels.items()) if k not in ("model_name", "engine"))
                out[f"{metric.name}{{{labels}}}" if labels else metric.name] = float(value)
        return out

    def blocks(self) -> int:
        return int(self.llm.llm_engine.vllm_config.cache_config.num_gpu_blocks or 0)

    def rope(self) -> Any:
        """[positions, dims]: cosines and sines of its rotary embedding, as a NumPy array."""

        def of(model: Any) -> Any:
            return next(part.cos_sin_cache for part in model.modules() if hasattr(part, "cos_sin_cache")).double().numpy()

        return self.llm.apply_model(of)[0]

    def resident(self) -> int:
        """Bytes of this process that lie in memory."""
        import ctypes
        import gc

        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:"))

    def loaded(self) -> list[str]:
        """Modules of this package's that were imported."""
        import sys

        return sorted(name for name in sys.modules if name.split(".")[:2] == ["banyan", "vllm"])


def _outputs(request: Any) -> list[Output]:
    def plain(given: Any) -> list[dict[int, float]]:
        return [{token: entry.logprob for token, entry in place.items()} for place in given or [] if place is not None]

    return [
        Output(
            tokens=list(one.token_ids), logprobs=plain(one.logprobs), prompt_logprobs=plain(request.prompt_logprobs),
            finish=one.finish_reason, cached=request.num_cached_tokens or 0, said=request.kv_transfer_params,
        )
        for one in request.outputs
    ]  # fmt: skip


def _count(rows: Any) -> None:
    """Adds to it what each step is to compute."""
    from banyan.vllm.sessions import Book

    real = Book.row

    def row(book: Any, request: Any, start: int, ids: list[int], *more: Any) -> Any:
        rows.value += len(ids)
        return real(book, request, start, ids, *more)

    Book.row = row  # type: ignore[method-assign]


def _serve(pipe: Connection, rows: Any, environment: dict[str, str], arguments: dict[str, Any]) -> None:
    for name in [name for name in os.environ if name.startswith("BANYAN_") and name not in ("BANYAN_LIBRARY", "BANYAN_BIN")]:
        del os.environ[name]
    os.environ.update(environment)
    if any(name in environment for name in ("BANYAN_ENDPOINT", "BANYAN_LOCAL")):
        _count(rows)
    work: _Work | None = None
    asked: Any = ("start", (), {})
    while asked is not None:
        what, given, more = asked
        try:
            if work is None:
                work = _Work(arguments)
                pipe.send((True, None))
            else:
                pipe.send((True, getattr(work, what)(*given, **more)))
        except Exception as error:
            import traceback

            pipe.send((False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
            if work is None:
                return
        try:
            asked = pipe.recv()
        except EOFError:
            return
    assert work is not None
    work.llm.llm_engine.engine_core.shutdown()
    os._exit(0)  # what is left is vLLM's own, and some of it takes seconds


def wait_for(what: Any, patience: float = PATIENCE, pause: float = 0.01) -> Any:
    """Calls it until it is true, and returns what it says."""
    end = time.monotonic() + patience
    while not (found := what()):
        if time.monotonic() > end:
            raise TimeoutError("what was waited for has not come")
        time.sleep(pause)
    return found
