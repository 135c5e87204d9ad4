#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/paper: every algorithm is exact and sends what its formula says, on even and uneven shards. No times."""

import json
import os
import subprocess
import sys
import unittest

MPIRUN, BENCH = sys.argv.pop(1), sys.argv.pop(1)
KEYS = {"bench", "algo", "workers", "tokens_per_worker", "q_heads", "kv_heads", "median_us", "p99_us",
        "bytes_sent_per_rank", "formula_bytes", "paper_bytes", "kv_peak_bytes", "max_rel_err"}
OWN = ("tree", "gather", "allreduce1", "allreduce3", "ring", "ring-lean")
LIBRARY = ("tree-library", "allreduce1-library", "allreduce3-library")
# The library itself leaks at its end
ENV = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
           OMPI_MCA_hwloc_base_binding_policy="none", OMPI_MCA_mpi_yield_when_idle="1", ASAN_OPTIONS="detect_leaks=0")


def paper(ranks, *args):
    return subprocess.run([MPIRUN, "-np", str(ranks), BENCH, *args], capture_output=True, text=True, check=False, env=ENV)


def lines(ranks, *args):
    done = paper(ranks, "--json", "--samples", "--rounds", "3", "--geometry", "4/2x64", *args)
    assert done.returncode == 0, done.stderr
    return {r["algo"]: r for r in map(json.loads, done.stdout.splitlines())}


class Paper(unittest.TestCase):
    def check(self, results):
        for r in results.values():
            self.assertLessEqual(KEYS, r.keys())
            self.assertEqual(r["bench"], "paper")
            self.assertLess(r["of_bound"], 1)
            self.assertLess(r["max_rel_err"], 1e-4)
            self.assertEqual(len(r["samples_us"]), r["rounds"])
            self.assertLessEqual(min(r["samples_us"]), r["median_us"] + 0.1)
            self.assertLessEqual(r["median_us"], r["p99_us"])
            self.assertLessEqual(r["p99_us"], max(r["samples_us"]) + 0.1)
            if r["counted"] == "calls":
                self.assertAlmostEqual(r["bytes_sent_per_rank"], r["formula_bytes"], places=3)

    def test_four_ranks(self):
        results = lines(4, "--tokens", "100", "--algo", ",".join(OWN + LIBRARY))
        self.assertEqual(set(results), set(OWN + LIBRARY))
        self.check(results)
        shard, query, partial = 100 * 2 * 64 * 2 * 2, 4 * 64 * 4, 4 * (64 + 2) * 4
        self.assertEqual(results["tree"]["formula_bytes"], 3 * (query + partial) / 4)
        self.assertEqual(results["allreduce1"]["formula_bytes"], 3 * query / 4 + 2 * partial)
        self.assertEqual(results["allreduce3"]["formula_bytes"], results["allreduce1"]["formula_bytes"])
        self.assertEqual(results["ring"]["formula_bytes"], 3 * shard)
        self.assertEqual(results["ring"]["paper_bytes"], 4 * shard)
        self.assertEqual(results["ring-lean"]["formula_bytes"], (1 + 2 + 3) * shard / 4)
        for algo, blocks in (("tree", 1), ("gather", 1), ("allreduce1", 1), ("allreduce3", 1), ("ring", 2), ("ring-lean", 3)):
            self.assertEqual(results[algo]["kv_peak_bytes"], blocks * shard, algo)

    def test_uneven_shards_and_an_empty_one(self):
        self.check(lines(5, "--tokens", "100", "--uneven", "--algo", ",".join(OWN + LIBRARY)))

    def test_one_rank_and_floors(self):
        self.check(lines(1, "--tokens", "1,300", "--algo", ",".join(("tree", "gather", "allreduce3"))))
        ring = lines(2, "--tokens", "300", "--algo", "ring", "--floors")["ring"]
        self.assertGreater(ring["floor_us"], 0)
        self.assertAlmostEqual(ring["floor_us"] / ring["median_us"] / ring["floor_fraction"], 1, places=4)

    def test_mistakes(self):
        for args in (("--algo", "tee"), ("--geometry", "1x1"), ("--tokens", "0"), ("--tokens", "x"), ("--device", "tpu"), ("extra",)):
            done = subprocess.run([BENCH, *args], capture_output=True, text=True, check=False, env=ENV)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn("paper --help", done.stderr)


if __name__ == "__main__":
    unittest.main()
