#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama-server and llama-perplexity with their KV cache in a cluster, beside plain ones.

Four slots, requests at once, requests that are given up, prompts that share a beginning, slots saved and
restored, the server's own prompt cache, a cluster that is killed and comes back. Each answer is compared with
a plain llama-server's, token by token; tokens may differ only where the plain server's own two best were
nearly alike.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import random_models
from servers import Cluster, Server

NEAR = 0.1  # natural logarithms: the plain server does not tell such tokens apart either
TOPICS = ("rivers", "a small red bicycle", "the moons of Jupiter", "bread", "old maps", "winter in the mountains", "a violin", "salt")

FAMILIES = ("llama", "gemma2")  # without windows, and with windows and caps

OPTIONS = argparse.Namespace()
FOLDER = tempfile.TemporaryDirectory()


def model(family: str) -> Path:
    path = Path(FOLDER.name) / f"{family}.gguf"
    if not path.exists():
        random_models.write(family, path, tokenizer=True)
    return path


def text_of(topic: str, length: int = 60) -> str:
    """A prompt that a wrong row would be seen in: it names its topic again and again."""
    words = " ".join(f"This is sentence {i} of a long text about {topic}." for i in range(length // 12))
    return f"{words}\nQuestion: what is this text about?\nAnswer: The text is about"


def same(got: Any, want: Any, what: str) -> None:
    """The tokens of two answers, and how likely each was."""
    ours, plain = got["completion_probabilities"], want["completion_probabilities"]
    assert len(ours) == len(plain) > 0, f"{what}: {len(ours)} tokens, plain has {len(plain)}"
    for i, (a, b) in enumerate(zip(ours, plain)):
        if a["id"] != b["id"]:
            best = [entry["logprob"] for entry in b["top_logprobs"][:2]]
            assert best[0] - best[1] < NEAR, f"{what}: token {i} is {a['token']!r}, plain llama.cpp says {b['token']!r}\nours: {got['content']!r}\nplain: {want['content']!r}"
            return  # from here on the two read different texts
        assert abs(a["logprob"] - b["logprob"]) < NEAR, f"{what}: token {i}, {a['token']!r}: {a['logprob']} and {b['logprob']} in plain llama.cpp"


class Plain:
    """Answers of plain llama.cpp, one by one, each in an empty slot."""

    def __init__(self, family: str) -> None:
        self._server = Server(OPTIONS.server, model(family), "-c", "2048", "-np", "1", "--cache-ram", "0")
        self._known: dict[tuple[str, int], Any] = {}

    def __call__(self, prompt: str, count: int = 12) -> Any:
        key = (prompt, count)
        if key not in self._known:
            status, self._known[key] = self._server.complete(prompt, count, cache_prompt=False)
            assert status == 200, self._known[key]
        return self._known[key]

    def close(self) -> None:
        self._server.close()


def right(server: Server, plain: Plain, prompt: str, what: str, count: int = 12, **more: Any) -> Any:
    status, got = server.complete(prompt, count, **more)
    assert status == 200, f"{what}: {status} {got}\n{server.log()[-2000:]}"
    same(got, plain(prompt, count), what)
    return got


def at_once(server: Server, plain: Plain, prompts: list[str], what: str) -> None:
    failures: list[str] = []

    def one(i: int, prompt: str) -> None:
        try:
            right(server, plain, prompt, f"{what}, request {i}")
        except (AssertionError, OSError) as error:
            failures.append(str(error))

    for prompt in prompts:
        plain(prompt)
    threads = [threading.Thread(target=one, args=item) for item in enumerate(prompts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, "\n".join(failures)


def slots(server: Server, plain: Plain) -> None:
    prompts = [text_of(topic, 40 + 20 * i) for i, topic in enumerate(TOPICS)]
    at_once(server, plain, prompts, "eight requests for four slots")
    at_once(server, plain, prompts[::-1], "the same again, in other slots")


def given_up(server: Server, plain: Plain) -> None:
    prompts = [text_of(topic) for topic in TOPICS[:4]]
    for pieces in (0, 1, 3):
        leaving = [threading.Thread(target=server.begin_and_leave, args=(text_of(topic, 100), pieces)) for topic in TOPICS[4:7]]
        for thread in leaving:
            thread.start()
        at_once(server, plain, prompts, f"beside requests that are given up after {pieces} pieces")
        for thread in leaving:
            thread.join()
    at_once(server, plain, prompts, "after requests that were given up")


def shared_beginning(server: Server, plain: Plain) -> None:
    begin = "".join(f"Line {i}: the {topic} are described here.\n" for i, topic in enumerate(TOPICS))
    first = right(server, plain, begin + "Which line is about bread? Line", "the first of a shared beginning", id_slot=1)
    second = right(server, plain, begin + "And which line is about salt? Line", "a shared beginning", id_slot=1)
    read = second["timings"]["prompt_n"]
    assert read < first["timings"]["prompt_n"] / 2, f"{read} tokens were read again"
    right(server, plain, begin, "a prompt shorter than what the slot has", id_slot=1)


def saved(server: Server, plain: Plain) -> None:
    prompt, other = text_of("a lighthouse", 80), text_of("two goats")
    right(server, plain, prompt, "before it is saved", id_slot=0)
    status, got = server.ask("POST", "/slots/0?action=save", {"filename": "kept.bin"})
    assert status == 200 and got["n_saved"] > 50, f"save: {status} {got}\n{server.log()[-2000:]}"
    right(server, plain, other, "another in its slot", id_slot=0)
    for slot in (0, 3):
        status, got = server.ask("POST", f"/slots/{slot}?action=erase", {})
        assert status == 200, f"erase: {status} {got}"
        status, got = server.ask("POST", f"/slots/{slot}?action=restore", {"filename": "kept.bin"})
        assert status == 200 and got["n_restored"] > 50, f"restore: {status} {got}\n{server.log()[-2000:]}"
        again = right(server, plain, prompt, f"restored in slot {slot}", id_slot=slot)
        assert again["timings"]["prompt_n"] < 20, f"slot {slot}: {again['timings']['prompt_n']} tokens were read again"


def prompt_cache(server: Server, plain: Plain) -> None:
    """More conversations than slots, in turn: the server moves them to its own memory and back."""
    prompts = [text_of(topic) for topic in TOPICS[:6]]
    for turn in range(2):
        for i, prompt in enumerate(prompts):
            right(server, plain, prompt, f"conversation {i}, turn {turn}", id_slot=i % 4)


def again_right(server: Server, plain: Plain, what: str) -> None:
    """The cluster is back and empty. A slot that had a prompt answers one request with an error, as its rows
    are gone; then all is right."""
    refused = 0
    for i, topic in enumerate(TOPICS * 2):
        status, got = server.complete(text_of(topic), id_slot=i % 4)
        if status == 200:
            same(got, plain(text_of(topic)), f"{what}, request {i}")
        else:
            assert i < 4, f"{what}: the second request in slot {i % 4} was answered with {status} {got}\n{server.log()[-3000:]}"
            refused += 1
    print(f"    {refused} of 4 slots refused once")
    at_once(server, plain, [text_of(topic) for topic in TOPICS], what)


def cluster_is_killed(server: Server, plain: Plain, cluster: Cluster) -> None:
    """Between two requests. A slot whose next prompt shares nothing with its last loses nothing."""
    prompt = text_of("thunder")
    right(server, plain, prompt, "before the cluster is killed", id_slot=0)
    cluster.kill()
    status, got = server.complete(prompt, id_slot=0)
    assert status >= 400, f"without a cluster a cached prompt was answered with {status} {got}"
    assert server.alive(), f"llama-server has ended:\n{server.log()[-3000:]}"
    status, got = server.complete(text_of("lightning"), id_slot=1)
    assert status >= 400, f"without a cluster the answer was {status} {got}"
    assert server.ask("GET", "/health")[0] == 200
    cluster.start()
    right(server, plain, "Z" + text_of("hail"), "another prompt after the cluster is back", id_slot=2)
    again_right(server, plain, "after the cluster is back")


def killed_in_the_middle(server: Server, plain: Plain, cluster: Cluster) -> None:
    answers: list[int] = []

    def one(i: int) -> None:
        answers.append(server.complete(text_of(TOPICS[i], 200), 1000, id_slot=i)[0])

    threads = [threading.Thread(target=one, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    threads[0].join(1.5)
    assert not answers, "the requests were over before the cluster was killed"
    cluster.kill()
    for thread in threads:
        thread.join()
    assert all(status >= 400 for status in answers), f"answers of requests whose cluster was killed: {answers}"
    assert server.alive() and server.ask("GET", "/health")[0] == 200, server.log()[-3000:]
    cluster.start()
    again_right(server, plain, "after a kill in the middle")


def all_of_one_server(family: str, *arguments: str, faults: bool, states: bool = True, unified: bool = False) -> None:
    with tempfile.TemporaryDirectory() as kept:
        plain, cluster = Plain(family), Cluster(OPTIONS.programs)
        server = None
        try:
            server = Server(
                OPTIONS.server, model(family), "-c", "8192", "-np", "4", "--kv-unified" if unified else "--no-kv-unified", "--slot-save-path", kept, *arguments,
                plugin=OPTIONS.plugin, endpoint=cluster.endpoint, BANYAN_TIMEOUT="10",
            )  # fmt: skip
            for part in (slots, given_up, shared_beginning, *((saved, prompt_cache) if states else ())):
                print(f"  {part.__name__}", flush=True)
                part(server, plain)
            for fault in (cluster_is_killed, killed_in_the_middle) if faults else ():
                print(f"  {fault.__name__}", flush=True)
                fault(server, plain, cluster)
            server.close()
            server = None
            assert cluster.sessions() == 0, "sessions were left in the cluster"
        finally:
            if server:
                server.close()
            cluster.close()
            plain.close()


def check_server() -> None:
    all_of_one_server("llama", "--cache-ram", "0", faults=True)
    # Not the states: restored in a model with windows they give a plain llama-server of these sources other
    # answers than an empty slot does, and Banyan's the same ones.
    all_of_one_server("gemma2", "--cache-ram", "0", faults=False, states=False)


def check_server_prompt_cache() -> None:
    all_of_one_server("llama", faults=True)


def check_server_unified() -> None:
    """llama-server's default: slots share the cells of one cache."""
    all_of_one_server("llama", "--cache-ram", "0", faults=True, unified=True)
    # With windows llama.cpp gives cells away that a reused beginning needs again: such requests may be
    # refused.
    plain, cluster = Plain("gemma2"), Cluster(OPTIONS.programs)
    server = Server(OPTIONS.server, model("gemma2"), "-c", "8192", "-np", "4", "--kv-unified", "--cache-ram", "0", plugin=OPTIONS.plugin, endpoint=cluster.endpoint)
    try:
        at_once(server, plain, [text_of(topic, 40 + 20 * i) for i, topic in enumerate(TOPICS[:4])], "a model with windows")
    finally:
        server.close()
        cluster.close()
        plain.close()


def check_server_defaults() -> None:
    """No flag but those that put the cache into the cluster: four slots, unified, the server's own prompt
    cache."""
    plain, cluster = Plain("llama"), Cluster(OPTIONS.programs)
    server = None
    try:
        server = Server(OPTIONS.server, model("llama"), "-c", "8192", plugin=OPTIONS.plugin, endpoint=cluster.endpoint)
        for part in (slots, given_up, prompt_cache):
            print(f"  {part.__name__}", flush=True)
            part(server, plain)
        said = re.findall(r"banyan: keys and values of .*", server.log())
        assert len(said) == 1 and cluster.endpoint in said[0] and "3 workers" in said[0] and "for all sequences" in said[0], said
        server.close()
        server = None
        assert cluster.sessions() == 0, "sessions were left in the cluster"
    finally:
        if server:
            server.close()
        cluster.close()
        plain.close()


def restart(family: str, *arguments: str) -> None:
    """Saved states are names (BANYAN_KEEP): killed with kill -9, a server goes on where it was; a state whose
    rows are gone says so, and the slot reads its prompt again."""
    plain, cluster = Plain(family), Cluster(OPTIONS.programs)
    server = None
    with tempfile.TemporaryDirectory() as kept:
        try:
            for run in range(3):
                server = Server(
                    OPTIONS.server, model(family), "-c", "8192", "-np", "4", "--cache-ram", "0", "--slot-save-path", kept, *arguments,
                    plugin=OPTIONS.plugin, endpoint=cluster.endpoint, BANYAN_KEEP="1h",
                )  # fmt: skip
                for slot, topic in enumerate(TOPICS[:4]) if run else ():
                    status, got = server.ask("POST", f"/slots/{slot}?action=restore", {"filename": f"{slot}.bin"})
                    assert status == 200, f"restore: {status} {got}"
                    again = right(server, plain, text_of(topic, 60 + 20 * slot), f"run {run}, slot {slot}", id_slot=slot)
                    assert again["timings"]["prompt_n"] < 20, f"slot {slot}: {again['timings']['prompt_n']} tokens were read again"
                at_once(server, plain, [text_of(topic, 60 + 20 * slot) for slot, topic in enumerate(TOPICS[:4])], f"run {run}")
                for slot, topic in enumerate(TOPICS[:4]):
                    right(server, plain, text_of(topic, 60 + 20 * slot), f"run {run}, before it is saved", id_slot=slot)
                    status, got = server.ask("POST", f"/slots/{slot}?action=save", {"filename": f"{slot}.bin"})
                    assert status == 200 and got["n_saved"] > 50, f"save: {status} {got}"
                server.kill()
            cluster.kill()
            cluster.start()  # empty
            server = Server(
                OPTIONS.server, model(family), "-c", "8192", "-np", "4", "--cache-ram", "0", "--slot-save-path", kept, *arguments,
                plugin=OPTIONS.plugin, endpoint=cluster.endpoint, BANYAN_KEEP="1h",
            )  # fmt: skip
            server.ask("POST", "/slots/0?action=restore", {"filename": "0.bin"})
            status, got = server.complete(text_of(TOPICS[0], 60), id_slot=0)
            assert status >= 400 and "is not to be had" in server.log(), f"a state without its rows was answered with {status} {got}"
            right(server, plain, "Z" + text_of(TOPICS[1]), "another prompt after that", id_slot=0)
        finally:
            if server:
                server.close()
            cluster.close()
            plain.close()


def check_server_restart() -> None:
    for arguments in ((), ("--no-kv-unified",)):
        restart("llama", *arguments)


def check_server_launcher() -> None:
    """examples/llama/goes_on.py: banyan-llama serve, killed and started again."""
    example = Path(__file__).resolve().parents[2] / "examples/llama/goes_on.py"
    environment = {"LLAMA_SERVER": str(OPTIONS.server), "BANYAN_PLUGIN": str(OPTIONS.plugin), "PATH": f"{OPTIONS.programs}:{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, example, "--model", model("llama")], env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    print("  " + done.stdout.replace("\n", "\n  ").strip())
    assert done.returncode == 0, done.stdout + done.stderr


def check_server_unreachable() -> None:
    """An endpoint where nothing is: named within seconds, and the server ends when BANYAN_TIMEOUT is over."""
    with tempfile.NamedTemporaryFile("w+") as log:
        command = [OPTIONS.server, "-m", model("llama"), "--port", "1", "-dev", "Banyan0", "-ngl", "99"]
        environment = {"GGML_BACKEND_PATH": str(OPTIONS.plugin), "BANYAN_ENDPOINT": "tcp://127.0.0.1:9", "BANYAN_TIMEOUT": "12"}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **environment})
        begin = time.monotonic()
        while "no coordinator answers at tcp://127.0.0.1:9" not in Path(log.name).read_text() and time.monotonic() < begin + 8:
            time.sleep(0.05)
        took = time.monotonic() - begin
        print(f"  named after {took:.1f} s")
        try:
            assert took < 7, Path(log.name).read_text()[-2000:]  # 3 s, on a busy machine
            assert process.wait(60) != 0
        finally:
            process.kill()
            process.wait()


def perplexity(family: str, *arguments: str, **environment: str) -> float:
    program = OPTIONS.server.parent / "llama-perplexity"
    text = Path(__file__).resolve().parents[2] / "examples" / "text" / "kjv.txt"
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as part:
        part.write(text.read_text()[:14000])
        part.flush()
        command = [program, "-m", model(family), "-f", part.name, "-c", "512", "-b", "512", "-ub", "128", "-t", "1", "--chunks", "4", "--swa-full", *arguments]
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    # Of its last lines llama-perplexity loses some now and then: what it says after three chunks is taken.
    found = re.search(r"\[3\]([0-9.]+)", done.stdout + done.stderr)
    assert done.returncode == 0 and found, f"llama-perplexity ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}"
    return float(found[1])


def check_perplexity() -> None:
    for family in FAMILIES:
        plain = perplexity(family, "-dev", "none", "-fa", "off")
        cluster = Cluster(OPTIONS.programs)
        try:
            ours = perplexity(
                family, "-dev", "Banyan0", "-ngl", "99", "-ot", ".*=CPU", "-fa", "on", GGML_BACKEND_PATH=str(OPTIONS.plugin), BANYAN_ENDPOINT=cluster.endpoint
            )
        finally:
            cluster.close()
        print(f"  {family}: perplexity {plain:.3f}, over Banyan {ours:.3f}")
        assert abs(ours / plain - 1) < 2e-3


CHECKS = {"perplexity": check_perplexity, "server": check_server, "prompt_cache": check_server_prompt_cache, "unified": check_server_unified, "defaults": check_server_defaults, "unreachable": check_server_unreachable, "restart": check_server_restart, "launcher": check_server_launcher}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, required=True, help="llama-server; llama-perplexity lies beside it")
    parser.add_argument("--plugin", type=Path, required=True, help="libggml-banyan.so")
    parser.add_argument("--programs", type=Path, required=True, help="folder of banyan-coordinator, banyan-worker and banyanctl")
    parser.add_argument("--only", metavar="WORD", default="", help="checks whose names have this in them")
    parser.parse_args(namespace=OPTIONS)
    failed = []
    checks = {name: check for name, check in CHECKS.items() if OPTIONS.only in name}
    for name, check in checks.items():
        print(name, flush=True)
        try:
            check()
        except AssertionError:
            traceback.print_exc()
            failed.append(name)
    print(f"{len(checks) - len(failed)} of {len(checks)} checks passed" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
