#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM over a Banyan cluster beside plain vLLM, in turns on the same cores, in one model of random weights: wide where attention is.

    bench/vllm.py [--contexts 1024,8192,32768,131072] [--new 32] [--prefill 1024,8192] [--turns 3] [--geometry 32,8,128]
                  [--layers 2] [--dtype bfloat16] [--workers 4] [--window W] [--json FILE] [--quick]

decode   behind so many tokens: tokens a second, and processor time a token (of Banyan: of the engine and all daemons)
resume   time to the first token of a prompt whose tokens but the last are there: in the session; in plain vLLM's own cache
prefill  time to the first token of a prompt of which nothing is there
memory   resident bytes of the engine, and of the daemons

Contexts are not computed. Plain vLLM is made to take its cache for filled (vllm_pretend.py), and a session is filled by attach with
random rows. Medians of so many turns; a ratio above 1 is in Banyan's favour. --quick: 1,024 and 8,192 tokens, one turn.
Run it with the Python of `client/python/tests/run.sh vllm` (its folder is in ~/.cache/banyan), or of examples/vllm, with PYTHONPATH,
BANYAN_LIBRARY and BANYAN_BIN as client/python/README.md says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# This file has the name of the package that it measures: its folder comes last.
sys.path = [*(p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent), str(Path(__file__).resolve().parent)]

TICKS = os.sysconf("SC_CLK_TCK")
TOKEN = 7  # of which every prompt is made, so that a session's row of tokens is the same at each position
SESSION = "bench"


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident(pid: int) -> int:
    return next(int(line.split()[1]) << 10 for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))


# ---- an engine, in a process of its own ----


def serve(options: dict[str, Any]) -> None:
    """Reads requests as lines of JSON, and writes an answer for each to the file descriptor that was given."""
    import vllm_pretend
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    plain = options["plain"]
    if plain:
        KVConnectorFactory.register_connector("Pretend", "vllm_pretend", "Pretend")
    more: dict[str, Any] = {"kv_cache_memory_bytes": options["bytes"] if plain else 1 << 30}  # else nearly all memory is asked for
    if plain:  # with Banyan the plug-in completes the arguments
        transfer = KVTransferConfig(kv_connector="Pretend", kv_role="kv_both")
        more |= {"kv_transfer_config": transfer, "enable_prefix_caching": False}
    most = options["tokens"]
    llm = LLM(
        model=options["model"], dtype=options["dtype"], max_model_len=most, max_num_seqs=1, max_num_batched_tokens=2048, enforce_eager=True,
        skip_tokenizer_init=True, seed=0, **more,
    )  # fmt: skip
    with os.fdopen(options["answers"], "w") as answers:
        print("{}", file=answers, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            vllm_pretend.compute = asked.get("compute", False)
            extra = {"kv_transfer_params": {"banyan_session": asked["session"]}} if asked.get("session") and not plain else None
            sampling = SamplingParams(temperature=0, max_tokens=asked["new"], ignore_eos=True, detokenize=False, extra_args=extra)
            begin = time.perf_counter()
            (out,) = llm.generate([{"prompt_token_ids": [TOKEN] * asked["tokens"]}], [sampling], use_tqdm=False)
            took = time.perf_counter() - begin
            said = {"seconds": took, "made": len(out.outputs[0].token_ids), "cached": out.num_cached_tokens or 0}
            print(json.dumps(said), file=answers, flush=True)


class Engine:
    def __init__(self, options: dict[str, Any], environment: dict[str, str], daemons: list[int], log: Path) -> None:
        here, theirs = os.pipe()
        clean = {n: v for n, v in os.environ.items() if not n.startswith("BANYAN_") or n in ("BANYAN_LIBRARY", "BANYAN_BIN")}
        fixed = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING", "TORCH_COMPILE_DISABLE": "1",
                 "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}  # fmt: skip
        words = [sys.executable, __file__, "--serve", json.dumps(options | {"answers": theirs})]
        self._log = log
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=errors, stderr=errors, pass_fds=[theirs], env=clean | fixed | environment, text=True
            )
        os.close(theirs)
        self._answers = os.fdopen(here)
        self.pids = [self._process.pid, *daemons]
        self._read()

    def _read(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            self._process.wait()
            sys.exit(f"the engine ended with {self._process.returncode}:\n{self._log.read_text(errors='replace')[-3000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, **asked: Any) -> tuple[float, float]:
        """Seconds by the clock, and of processor time."""
        assert self._process.stdin is not None
        before = sum(map(processor_seconds, self.pids))
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        answer = self._read()
        if answer["made"] != asked["new"]:
            sys.exit(f"{asked} made {answer['made']} tokens; the engine's log: {self._log}")
        if not asked.get("compute") and asked["tokens"] > 1 and answer["cached"] != asked["tokens"] - 1:
            sys.exit(f"{asked}: {answer['cached']} tokens were there, and the others were computed: nothing is timed like this")
        return answer["seconds"], sum(map(processor_seconds, self.pids)) - before

    def resident(self) -> int:
        return resident(self._process.pid)

    def end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(60)


# ---- what is measured ----


def make_model(path: Path, geometry: tuple[int, int, int], layers: int, context: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    heads, kv_heads, dim = geometry
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024, hidden_size=1024, intermediate_size=1024, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=dim, max_position_embeddings=context, rope_theta=1e6, tie_word_embeddings=False,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(path)


def fill(client: Any, has: int, keep: int, tokens: int) -> None:
    """The named session, which will have `has` tokens, keeps its first ones, and gets random rows up to `tokens`; its row of tokens
    is repeated.
    """
    import torch

    types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    found = [info for info in client.sessions() if SESSION in info.name]
    if len(found) != 1:
        sys.exit(f"{len(found)} sessions are named {SESSION!r} in {[info.name for info in client.sessions()]}")
    with client.open(found[0].id) as session:
        end = time.monotonic() + 60
        while session.info().length != has and time.monotonic() < end:
            time.sleep(0.01)  # with --window the last rows are on their way
        session.truncate(keep)  # what was decoded behind them is of other tokens
        spec, dtype = session.spec, types[session.spec.kv_type]
        for layer, kind in enumerate(spec.table):
            if kind is None or (spec.shares and spec.shares[layer] is not None):
                continue
            if layer == spec.layers - 1:
                row = session.attend(layer, 0, torch.zeros((1, kind.q_heads, kind.k_dim))).o.to(dtype)
                k = v = row.expand(tokens - keep, *row.shape[1:]).contiguous()
            else:
                k, v = (torch.randn(tokens - keep, kind.kv_heads, d).to(dtype) for d in (kind.k_dim, kind.v_dim))
            session.attach(layer, keep, k, v)
            session.commit(layer, keep, tokens - keep)


def rates(engine: Engine, tokens: int, new: int) -> dict[str, float]:
    """Of one turn: what a first token and each further one cost behind so many tokens."""
    first, first_cpu = engine.ask(tokens=tokens, new=1, session=SESSION)
    all_, all_cpu = engine.ask(tokens=tokens, new=1 + new, session=SESSION)
    return {"resume_s": first, "step_s": (all_ - first) / new, "step_cpu_s": (all_cpu - first_cpu) / new}


def median(turns: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}


def report(found: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    lines.append(found)
    plain, ours = found["plain"], found["banyan"]
    unit = {"step_s": ("decode, tokens/s", lambda x: 1 / x), "step_cpu_s": ("decode, processor ms", lambda x: 1e3 * x),
            "resume_s": ("resume, ms", lambda x: 1e3 * x), "prefill_s": ("prefill, ms", lambda x: 1e3 * x),
            "engine_bytes": ("engine, MiB", lambda x: x / (1 << 20))}  # fmt: skip
    for name, (title, shown) in unit.items():
        if name in plain:
            ratio = plain[name] / ours[name] if ours[name] else float("nan")
            print(f"{found['tokens']:>8} {title:<22} {shown(plain[name]):>10.1f} {shown(ours[name]):>10.1f} {ratio:>7.2f}", flush=True)
    if "daemons_bytes" in ours:
        print(f"{found['tokens']:>8} {'daemons, MiB':<22} {'':>10} {ours['daemons_bytes'] / (1 << 20):>10.1f}", flush=True)


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    import banyan

    heads, kv_heads, dim = geometry = tuple(int(n) for n in options.geometry.split(","))
    contexts, prefills = ([int(n) for n in text.split(",") if n] for text in (options.contexts, options.prefill))
    most = max(contexts + prefills) + options.new + 64
    make_model(folder / "model", geometry, options.layers, most)
    bytes_ = 2 * kv_heads * dim * options.layers * (4 if options.dtype == "float32" else 2) * (most + 1024)
    common = {"model": str(folder / "model"), "dtype": options.dtype, "tokens": most, "bytes": bytes_}
    lines: list[dict[str, Any]] = []
    memory = f"{max(256, 2 * bytes_ // options.workers >> 20)}M"
    own = banyan.local_cluster(options.workers, memory=memory, threads=1, worker_args=["--bind=none"])
    with own as cluster, cluster.connect(timeout=600) as client:
        daemons = [cluster.pid("coordinator"), *(cluster.pid(f"worker-{i}") for i in range(options.workers))]
        environment = {"BANYAN_ENDPOINT": cluster.endpoint, **({"BANYAN_WINDOW": str(options.window)} if options.window else {})}
        engines = {"plain": Engine(common | {"plain": True}, {}, [], folder / "plain.log"),
                   "banyan": Engine(common | {"plain": False}, environment, daemons, folder / "banyan.log")}  # fmt: skip
        shape = f"{options.layers} layers of {heads}/{kv_heads} x {dim}, {options.dtype}"
        print(f"{shape}; {options.workers} workers; medians of {options.turns}")
        print(f"{'context':>8} {'':<22} {'vLLM':>10} {'Banyan':>10} {'ratio':>7}", flush=True)
        for engine in engines.values():  # what is done once is not timed
            engine.ask(tokens=64, new=4, compute=True)
        for tokens in prefills:
            turns: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
            for _ in range(options.turns):
                for name, engine in engines.items():
                    seconds, cpu = engine.ask(tokens=tokens, new=1, compute=True)
                    turns[name].append({"prefill_s": seconds, "prefill_cpu_s": cpu})
            report({"tokens": tokens} | {name: median(found) for name, found in turns.items()}, lines)
        engines["banyan"].ask(tokens=1, new=1, session=SESSION)
        has = keep = 1
        for tokens in sorted(contexts):
            fill(client, has, keep, tokens - 1)
            has, keep = tokens + options.new, tokens - 1
            turns = {name: [] for name in engines}
            for _ in range(options.turns):
                for name, engine in engines.items():
                    turns[name].append(rates(engine, tokens, options.new))
            found = {name: median(one) | {"engine_bytes": engines[name].resident()} for name, one in turns.items()}
            found["banyan"]["daemons_bytes"] = sum(map(resident, daemons))
            report({"tokens": tokens} | found, lines)
        for engine in engines.values():
            engine.end()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", default="1024,8192,32768,131072", help="tokens behind which is decoded")
    parser.add_argument("--new", type=int, default=32, help="tokens that are decoded and timed")
    parser.add_argument("--prefill", default="1024", help="tokens of prompts that are computed; '': none")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--geometry", default="32,8,128", help="query heads, KV heads, dimensions")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--window", type=int, default=0, help="BANYAN_WINDOW: so many recent tokens stay in the engine")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures, a line for each context")
    parser.add_argument("--quick", action="store_true", help="1,024 and 8,192 tokens, one turn of 8")
    parser.add_argument("--serve", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        return serve(options.serve)
    if options.quick:
        options.contexts, options.turns, options.new = "1024,8192", 1, 8
    with tempfile.TemporaryDirectory(prefix="banyan-bench-") as folder:
        lines = measure(options, Path(folder))
    if options.json:
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
