#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""research/simulate: the same figures each time, errors that are what they say, GPUs up to 65,536. No times."""

import json
import subprocess
import sys
import tempfile
import unittest

BENCH = sys.argv.pop(1)


def simulate(*args):
    return subprocess.run([BENCH, *args], capture_output=True, text=True, check=False)


def measured(law, sizes=(1, 2, 4, 8, 16), algo="service-stream"):
    file = tempfile.NamedTemporaryFile("w", suffix=".jsonl")
    for workers in sizes:
        for tokens in (16, 256, 4096):
            file.write(json.dumps({"bench": "paper", "algo": algo, "workers": workers, "tokens_per_worker": tokens, "q_heads": 16,
                                   "kv_heads": 16, "dim": 128, "median_us": law(workers, tokens)}) + "\n")
    file.flush()
    return file


class Simulate(unittest.TestCase):
    def test_gpus(self):
        first = simulate("--json")
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual(first.stdout, simulate("--json").stdout)
        lines = [json.loads(line) for line in first.stdout.splitlines()]
        self.assertEqual({r["gpus"] for r in lines if r["what"] == "gpus"}, {8, 64, 128})
        self.assertEqual(max(r["gpus"] for r in lines if r["what"] == "scale"), 65536)
        for r in lines:
            self.assertGreater(r["tree_us"], r["compute_us"])
            self.assertAlmostEqual(r["speedup_card"] / (r["ring_card_us"] / r["tree_us"]), 1, places=6)
            self.assertLessEqual(r["ring_cards_us"], r["ring_card_us"])
        published = [r for r in lines if r["paper_speedup"]]
        self.assertEqual([(r["gpus"], r["tokens"], r["paper_speedup"]) for r in published], [(128, 5.12e6, 8)])
        x = published[0]["overhead_us"]
        self.assertAlmostEqual((published[0]["ring_cards_us"] + x) / (published[0]["tree_us"] + x), 8, places=3)

    def test_fits_a_machine_of_two_cores(self):
        # 100 us, 8 us for each further worker, 5 GB/s a core
        law = lambda p, t: 100 + 8 * (p - 1) + max(1, p / 2) * t * 8192 / 5e9 * 1e6
        with measured(law) as file:
            lines = [json.loads(line) for line in simulate("--json", "--measured", file.name).stdout.splitlines()]
        terms = lines[0]
        self.assertEqual((terms["what"], terms["points"]), ("terms", 9))
        self.assertAlmostEqual(terms["bandwidth"] / 5e9, 1, delta=0.2)
        worst = 0
        for r in lines:
            if r["what"] in ("fitted", "predicted"):
                self.assertEqual(r["what"] == "fitted", r["workers"] <= 4)
                self.assertAlmostEqual(r["error"], r["predicted_us"] / r["measured_us"] - 1, places=5)
                self.assertAlmostEqual(r["measured_us"] / law(r["workers"], r["tokens_per_worker"]), 1, places=6)
            if r["what"] == "predicted":
                worst = max(worst, abs(r["error"]))
        self.assertAlmostEqual([r["error"] for r in lines if r["what"] == "worst_error"][0], worst, places=6)
        self.assertLess(worst, 0.25)

    def test_mistakes(self):
        self.assertEqual(simulate("--measured", "/nowhere").returncode, 1)
        self.assertEqual(simulate("--measured", __file__).returncode, 1)
        self.assertEqual(simulate("extra").returncode, 2)
        with measured(lambda p, t: 100, sizes=(8, 16)) as file:
            done = simulate("--measured", file.name)
            self.assertEqual(done.returncode, 1)
            self.assertIn("fewer than", done.stderr)


if __name__ == "__main__":
    unittest.main()
