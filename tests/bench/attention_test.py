#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/attention gives figures that say what they should, and says what is wrong with its input. No
times."""

import json
import subprocess
import sys
import unittest
import xml.etree.ElementTree

BENCH, PLOT = sys.argv.pop(1), sys.argv.pop(1)
KEYS = {"bench", "kernel", "kv", "context", "group", "rows", "threads", "bytes_per_s", "read_bytes_per_s", "ratio"}


def bench(*args):
    return subprocess.run([BENCH, *args], capture_output=True, text=True, check=False)


def lines(*args):
    done = bench("--json", *args)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class Attention(unittest.TestCase):
    def test_figures_follow_from_samples(self):
        results = lines("--quick", "--kv", "f32,bf16,int8", "--group", "1,4", "--rows", "1,4", "--dim", "64")
        shapes = {(r["kv"], r["context"], r["group"], r["rows"]) for r in results}
        self.assertEqual(len(results), len(shapes))
        self.assertLessEqual({("f32", c, g, r) for c in (512, 1000) for g in (1, 4) for r in (1, 4)}, shapes)
        element = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1, "fp8": 1}
        for r in results:
            self.assertLessEqual(KEYS, r.keys())
            self.assertEqual((r["bench"], len(r["samples"]), len(r["read_samples"])), ("attention", 3, 3))
            scale = 4 if r["kv"] in ("int8", "fp8") else 0
            size = 2 * r["context"] * 2 * (64 * element[r["kv"]] + scale)
            for speed, samples in (("bytes_per_s", "samples"), ("read_bytes_per_s", "read_samples")):
                self.assertAlmostEqual(size * 1e9 / sorted(r[samples])[1] / r[speed], 1, places=4)
            self.assertAlmostEqual(r["bytes_per_s"] / r["read_bytes_per_s"] / r["ratio"], 1, delta=0.1)

    def test_masks_and_values_in_keys(self):
        common = ("--quick", "--kv", "bf16", "--rows", "2", "--dim", "96", "--v-dim", "64")
        for args, keys, size in ((("--v-in-k",), 1000, 96), (("--window", "100"), 101, 160),
                                 (("--mask-chunk", "300", "--v-in-k"), 100, 96), (("--not-causal",), 1000, 160),
                                 (("--window", "10", "--block", "20"), 20, 160)):
            found = lines(*common, "--context", "1000", "--group", "16", *args)
            self.assertEqual(len(found), 1)
            nbytes = found[0]["bytes_per_s"] * sorted(found[0]["samples"])[1] / 1e9
            self.assertAlmostEqual(nbytes / (keys * size * 2 * 2), 1, places=4, msg=args)

    def test_every_kernel_that_works_here_is_measured_and_right(self):
        kernels = {r["kernel"] for r in lines("--quick", "--kernel", "all", "--kv", "f16", "--group", "8", "--rows", "1")}
        self.assertIn("portable", kernels)
        self.assertNotIn("reference", kernels)
        reference = lines("--quick", "--kernel", "reference", "--context", "40", "--kv", "bf16", "--group", "1", "--rows", "1")
        self.assertEqual([r["kernel"] for r in reference], ["reference"])

    def test_cost_and_probe(self):
        cost = lines("--cost", "--kv", "bf16", "--group", "4", "--context", "16,100")
        self.assertEqual([(r["bench"], r["context"], r["rows"]) for r in cost],
                         [("attention_cost", 16, 1), ("attention_cost", 100, 1)])
        self.assertTrue(all(r["ns"] > 0 and r["ns_per_key"] > 0 for r in cost))
        probe = lines("--probe", "--quick", "--threads", "1")
        self.assertIn("portable x4", {r.get("reader") for r in probe})
        self.assertTrue(any(r.get("fma_peak", 0) > 0 for r in probe))

    def test_people_get_a_table(self):
        done = bench("--quick", "--kv", "f32", "--context", "20", "--rows", "1,64", "--group", "1")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(len(done.stdout.splitlines()), 2)
        self.assertIn("has no 64 rows", done.stderr)

    def test_wrong_input_is_told(self):
        for args, word in ((["--kv", "f31"], "f31"), (["--context", "0"], "'0'"), (["--group", "4,"], "''"),
                           (["--kernel", "none"], "reference"),
                           (["--v-in-k", "--v-dim", "200"], "longer"), (["--not-causal", "--window", "5"], "window"),
                           (["--peers", "python3", "--window", "5"], "one size"), (["--isa", "mmx"], "avx2"), (["--rows"], "rows"),
                           (["--threads", "9999"], "threads"), (["--context", ",".join(["16"] * 20)], "too many")):
            done = bench(*args)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn(word, done.stderr)
            self.assertIn("--help", done.stderr)
        done = bench("--context", "64M", "--kv-heads", "256")
        self.assertEqual(done.returncode, 1)
        self.assertIn("ask for less", done.stderr)

    def test_peers_that_cannot_start_are_told(self):
        done = bench("--quick", "--kv", "f32", "--context", "16", "--group", "1", "--rows", "1", "--peers", "/nonexistent")
        self.assertIn("cannot run /nonexistent", done.stderr)
        self.assertEqual(done.returncode, 0)

    def test_plot(self):
        table = bench("--json", "--quick", "--kv", "f32,bf16", "--rows", "1", "--group", "1,4").stdout
        done = subprocess.run([sys.executable, PLOT, "--rows", "1"], input=table, capture_output=True, text=True, check=True)
        svg = xml.etree.ElementTree.fromstring(done.stdout)
        self.assertTrue(svg.tag.endswith("svg"))
        text = " ".join(svg.itertext())
        for word in ("bf16", "f32", "512", "1000"):
            self.assertIn(word, text)
        done = subprocess.run([sys.executable, PLOT], input="no json", capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
