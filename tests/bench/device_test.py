#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/device over a module whose device is emulated: right answers, figures that follow from the samples,
and one sentence for what is wrong. No times.

    device_test.py BENCH PEERS MODULE WRONG    WRONG: a module whose answers are wrong
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

BENCH, PEERS, MODULE, WRONG = (sys.argv.pop(1) for _ in range(4))
KEYS = {"bench", "kernel", "device", "kv", "context", "group", "rows", "batch", "bytes_per_s", "read_bytes_per_s",
        "copy_bytes_per_s", "ratio", "ratio_read", "us_submit_to_done", "us_per_step", "emulated", "copies"}
SMALL = ("--dim", "64", "--kv-heads", "2", "--samples", "2", "--rotate", "256K")
ENV = dict(os.environ, BANYAN_EMULATED_MEMORY=str(32 << 20))


def run(*args, bench=BENCH, **env):
    return subprocess.run([bench, *args], capture_output=True, text=True, check=False, env=dict(ENV, **env))


def device(*args, **env):
    return run("--module", MODULE, *args, **env)


def median(samples):
    samples = sorted(samples)
    return (samples[(len(samples) - 1) // 2] + samples[len(samples) // 2]) / 2


class Device(unittest.TestCase):
    def lines(self, *args):
        done = device("--json", *SMALL, *args)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return [json.loads(line) for line in done.stdout.splitlines()]

    def fails(self, done, *words, code=1):
        """One sentence, and nothing that could be taken for a figure."""
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("device: "), done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_every_type_is_right_and_its_figures_follow_from_the_samples(self):
        results = self.lines("--check", "--kv", "f32,f16,bf16,int8,fp8", "--context", "16,300", "--group", "1", "--rows", "1")
        self.assertEqual([(r["context"], r["kv"]) for r in results],
                         [(c, kv) for c in (16, 300) for kv in ("f32", "f16", "bf16", "int8", "fp8")])
        element = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1, "fp8": 1}
        for r in results:
            self.assertLessEqual(KEYS, r.keys())
            self.assertEqual((r["bench"], r["emulated"], r["device"]), ("device", True, "cuda:0 (emulated)"))
            self.assertTrue(r["kernel"].startswith("cuda-"))
            self.assertTrue(0 < r["of_bound"] < 1, r)
            scale = 4 if r["kv"] in ("int8", "fp8") else 0
            self.assertEqual(r["bytes"], 2 * r["context"] * 2 * (64 * element[r["kv"]] + scale))
            stored = -(-r["context"] // 256) * 256 * 2 * 2 * (64 * element[r["kv"]] + scale)
            self.assertEqual(r["copies"], -(-(256 << 10) // stored))
            for name, samples in (("us_submit_to_done", "done_samples"), ("us_per_step", "step_samples"),
                                  ("read_bytes_per_s", "read_samples"), ("copy_bytes_per_s", "copy_samples")):
                self.assertEqual(len(r[samples]), 2)
                self.assertAlmostEqual(median(r[samples]) / r[name], 1, places=4)
            self.assertAlmostEqual(r["bytes"] / r["us_per_step"] * 1e6 / r["bytes_per_s"], 1, places=4)
            self.assertAlmostEqual(r["bytes_per_s"] / r["copy_bytes_per_s"] / r["ratio"], 1, places=3)
            self.assertAlmostEqual(r["bytes_per_s"] / r["read_bytes_per_s"] / r["ratio_read"], 1, places=3)

    def test_groups_rows_and_batches(self):
        results = self.lines("--kv", "bf16", "--context", "40", "--group", "1,4", "--rows", "1,5", "--batch", "1,3")
        self.assertEqual([(r["batch"], r["group"], r["rows"]) for r in results],
                         [(b, g, n) for b in (1, 3) for g in (1, 4) for n in (1, 5)])
        for r in results:
            self.assertTrue(0 < r["of_bound"] < 1, r)  # checked without being asked to: the context is short
            self.assertEqual(r["bytes"], r["batch"] * 2 * 40 * 2 * 64 * 2)

    def test_values_inside_keys(self):
        results = self.lines("--kv", "bf16,int8", "--context", "40", "--group", "16", "--rows", "1", "--dim", "576", "--v-in-k", "512",
                             "--kv-heads", "1")
        for r, row in zip(results, (576 * 2, 576 + 4), strict=True):
            self.assertTrue(0 < r["of_bound"] < 1, r)
            self.assertEqual((r["v_in_k"], r["bytes"]), (512, 40 * row))

    def test_long_contexts_are_checked_when_asked_to(self):
        args = ("--kv", "int8", "--context", "4112", "--group", "1", "--rows", "3", "--kv-heads", "1", "--samples", "1")
        self.assertNotIn("of_bound", self.lines(*args)[0])
        self.assertTrue(0 < self.lines(*args, "--check")[0]["of_bound"] < 1)

    def test_wrong_answers_are_not_timed(self):
        args = ("--module", WRONG, "--json", "--kv", "bf16", "--rows", "1", "--group", "1", "--rotate", "1M")
        self.fails(run(*args, "--context", "4096"), "cuda:0 (zeros): bf16, context 4096", "a wrong answer")
        self.fails(run(*args, "--context", "4112", "--check"), "a wrong answer")
        self.fails(run(*args, "--dim", "1024"), "more than 512 dims")

    def test_people_get_a_table_that_says_emulated(self):
        done = device(*SMALL, "--kv", "fp8", "--context", "20", "--rows", "1,64", "--group", "1")
        self.assertEqual(done.returncode, 0)
        said, warning, head, line = done.stdout.splitlines()
        self.assertIn("cuda:0 (emulated)", said)
        self.assertIn("no figure below is a speed", warning)
        self.assertIn("us a step", head)
        self.assertTrue(line.endswith(" emulated"))
        self.assertEqual(done.stderr, "device: context 20 has no 64 rows, skipped\n")

    def test_wrong_input_is_told(self):
        for args, word in ((["--kv", "f31"], "f31"), (["--context", "0"], "'0'"), (["--group", "4,"], "''"),
                           (["--device", "cuda"], "cuda:0"), (["--device", "cuda:x"], "cuda:0"), (["--rows"], "rows"),
                           (["--samples", "0"], "samples"), (["--context", ",".join(["16"] * 20)], "too many"),
                           (["--dim", "64", "--v-in-k", "65"], "longer than keys"), (["more"], "'more'")):
            self.fails(device(*args), word, "device --help", code=2)
        done = device("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for option in ("--device", "--module", "--context", "--kv", "--group", "--rows", "--kv-heads", "--dim", "--batch",
                       "--v-in-k", "--rotate", "--samples", "--json", "--check"):
            self.assertIn(option, done.stdout)

    def test_no_module_and_no_device(self):
        with tempfile.TemporaryDirectory() as alone:  # there is no module beside it
            copy = shutil.copy(BENCH, alone)
            self.fails(run("--json", bench=copy), "cuda:0: there is no banyan-cuda.so", "give --module")
        self.fails(run("--module", "/nowhere/module.so"), "cannot load the module: /nowhere/module.so")
        self.fails(run("--module", "/proc/self/exe"), "cuda:0: ")
        self.fails(device("--device", "tpu:0"), "the module serves devices named cuda, not tpu")
        self.fails(device(BANYAN_EMULATED_DEVICES="0"), "no CUDA device")
        self.fails(device("--device", "cuda:3"), "there is no CUDA device 3")

    def test_more_than_its_memory_and_a_device_that_is_lost(self):
        self.fails(device("--json", "--context", "64K"), "f32, context 65536", "ask for less")
        for fault in ("1", "9"):
            self.fails(device("--json", *SMALL, "--kv", "bf16", "--context", "16", "--rows", "1", "--group", "1",
                              BANYAN_EMULATED_FAULT=fault), "bf16, context 16", "is lost")


def peers(*args):
    return subprocess.run([sys.executable, PEERS, *args], capture_output=True, text=True, check=False)


class Peers(unittest.TestCase):
    """What they do depends on what this machine has: lines with the same keys, or one sentence."""

    def check(self, done, sentence):
        self.assertEqual(done.returncode, 0, done.stderr)
        if not done.stdout:
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertRegex(done.stderr, f"^device_peers.py: PyTorch {sentence}")
        for line in done.stdout.splitlines():
            r = json.loads(line)
            self.assertLessEqual(KEYS - {"kernel"} | {"peer"}, r.keys())
            self.assertLess(r["difference"], 0.05)

    def test_lines_or_one_sentence(self):
        args = ("--json", "--context", "40", "--kv", "bf16", "--group", "4", "--rows", "1", "--rotate", "16M", "--samples", "1")
        self.check(peers(*args), "(is not installed|.* sees no CUDA device)")
        self.check(peers(*args, "--device", "cpu"), "is not installed")

    def test_wrong_input_is_told(self):
        for args, word in (("--kv", "f31"), "f31"), (("--context", "0"), "'0'"), (("--device", "tpu:0"), "tpu:0"):
            done = peers(*args)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(word, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
