#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A conversation with llama-server that is killed (kill -9) and goes on.

Starts `banyan-llama serve`, lets the model read a document and answer, kills llama-server and the
launcher, starts them again, and asks on: the new llama-server reads the question alone, since the
document's keys and values are in the cluster. The answer is compared with a fresh computation of the
whole conversation, token by token.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NEAR = 0.1  # natural logarithms: tokens that are so near one another may change places


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="FILE", required=True, help="a GGUF")
    parser.add_argument("--launcher", metavar="FILE", default=str(ROOT / "client/llama/banyan-llama"), help="banyan-llama (default: this source tree's)")
    parser.add_argument("--document", metavar="FILE", help="a text (default: the beginning of the King James text that comes with the examples)")
    parser.add_argument("--words", type=int, default=200, help="of the document, at most (default: 200)")
    parser.add_argument("--ask", metavar="TEXT", default="Question: what was made first? Answer:", help="what is asked after the restart")
    return parser.parse_args()


class Conversation:
    """What banyan-llama serves, on a port and with a folder of its own."""

    def __init__(self, options: argparse.Namespace, folder: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._folder, self._options = folder, options
        self._process: subprocess.Popen[bytes] | None = None
        self._runs = 0

    def start(self) -> None:
        self._runs += 1
        environment = {**os.environ, "BANYAN_LLAMA_STATE": str(self._folder), "BANYAN_LLAMA_SAVE": "1", "BANYAN_LOCAL_MEMORY": os.environ.get("BANYAN_LOCAL_MEMORY", "1G")}
        command = [sys.executable, self._options.launcher, "serve", "-m", self._options.model, "--port", str(self._port), "-c", "8192", "--no-warmup"]
        with open(self.log(), "wb") as log:
            self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 180
        while b"banyan-llama: ready" not in self.log().read_bytes():
            if self._process.poll() is not None or time.monotonic() > end:
                sys.exit(f"banyan-llama has not started:\n{self.log().read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)

    def log(self) -> Path:
        return self._folder / f"run-{self._runs}.log"

    def complete(self, prompt: str, count: int, **more: Any) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "n_probs": 2, "ignore_eos": True, **more}
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        got = json.loads(answer.read())
        connection.close()
        if answer.status != 200:
            sys.exit(f"llama-server answers {answer.status}: {got}\n{self.log().read_text(errors='replace')[-3000:]}")
        return got

    def wait_until_saved(self) -> None:
        end = time.monotonic() + 60
        while not list(self._folder.glob("*/slot-0.bin")):
            if time.monotonic() > end:
                sys.exit(f"slot 0 was not saved:\n{self.log().read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """kill -9 of the launcher and of llama-server, its child."""
        assert self._process
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        self._process.kill()
        for child in children:
            if b"llama-server" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0]:
                os.kill(int(child), signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()
        subprocess.run([sys.executable, self._options.launcher, "stop"], env={**os.environ, "BANYAN_LLAMA_STATE": str(self._folder)}, check=False)


def compare(got: Any, fresh: Any) -> int:
    """How many tokens are the same; ends the program where they differ and were no near tie."""
    for i, (a, b) in enumerate(zip(got["completion_probabilities"], fresh["completion_probabilities"])):
        if a["id"] == b["id"]:
            continue
        best = [entry["logprob"] for entry in b["top_logprobs"][:2]]
        if best[0] - best[1] >= NEAR:
            sys.exit(f"token {i} is {a['token']!r}, a fresh computation says {b['token']!r}")
        return i
    return len(got["completion_probabilities"])


def main() -> None:
    options = arguments()
    text = Path(options.document) if options.document else ROOT / "examples/text/kjv.txt"
    document = " ".join(text.read_text().split()[: options.words])
    folder = Path(tempfile.mkdtemp(prefix="goes-on-"))
    talk = Conversation(options, folder)
    try:
        talk.start()
        first = talk.complete(document, 24, id_slot=0)
        print(f"read {first['timings']['prompt_n']} tokens in {first['timings']['prompt_ms'] / 1000:.2f} s, wrote 24")
        talk.wait_until_saved()
        talk.kill()
        print("llama-server and banyan-llama were killed (kill -9)")
        begin = time.monotonic()
        talk.start()
        print(f"started again in {time.monotonic() - begin:.2f} s")
        question = f"{document}{first['content']}\n{options.ask}"
        got = talk.complete(question, 24, id_slot=0)
        print(f"read {got['timings']['prompt_n']} tokens in {got['timings']['prompt_ms'] / 1000:.2f} s: {got['content']!r}")
        fresh = talk.complete(question, 24, id_slot=1, cache_prompt=False)
        same = compare(got, fresh)
        print(f"a fresh computation reads {fresh['timings']['prompt_n']} tokens; {same} of 24 tokens are the same" + ("" if same == 24 else ", then a near tie"))
        if got["timings"]["prompt_n"] * 2 > fresh["timings"]["prompt_n"]:
            sys.exit("the conversation was read again")
    finally:
        talk.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
