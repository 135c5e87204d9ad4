#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""research/paper: every algorithm is exact and sends what its formula says, on even and uneven shards. No times.

    paper_test.py MPIRUN PAPER [MODULE]     with a device module: the same over its devices
"""

import json
import os
import subprocess
import sys
import unittest

MPIRUN, BENCH = sys.argv.pop(1), sys.argv.pop(1)
MODULE = sys.argv.pop(1) if len(sys.argv) > 1 else None
KEYS = {"bench", "algo", "workers", "tokens_per_worker", "q_heads", "kv_heads", "median_us", "p99_us",
        "bytes_sent_per_rank", "formula_bytes", "paper_bytes", "kv_peak_bytes", "max_rel_err"}
OWN = ("tree", "gather", "allreduce1", "allreduce3", "ring", "ring-lean")
LIBRARY = ("tree-library", "allreduce1-library", "allreduce3-library")
# The library itself leaks at its end
ENV = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
           OMPI_MCA_hwloc_base_binding_policy="none", OMPI_MCA_mpi_yield_when_idle="1", ASAN_OPTIONS="detect_leaks=0")


def paper(ranks, *args, **env):
    return subprocess.run([MPIRUN, "-np", str(ranks), BENCH, *args], capture_output=True, text=True, check=False, env=dict(ENV, **env))


def lines(ranks, *args, **env):
    done = paper(ranks, "--json", "--samples", "--rounds", "3", "--geometry", "4/2x64", *args, **env)
    assert done.returncode == 0, done.stderr
    return {r["algo"]: r for r in map(json.loads, done.stdout.splitlines())}


class Checks(unittest.TestCase):
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


class Paper(Checks):
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
            self.assertEqual(results[algo]["device"], "cpu")
            self.assertNotIn("staged_bytes_per_rank", results[algo])

    def test_uneven_shards_and_an_empty_one(self):
        self.check(lines(5, "--tokens", "100", "--uneven", "--algo", ",".join(OWN + LIBRARY)))

    def test_one_rank_and_floors(self):
        self.check(lines(1, "--tokens", "1,300", "--algo", ",".join(("tree", "gather", "allreduce3"))))
        ring = lines(2, "--tokens", "300", "--algo", "ring", "--floors")["ring"]
        self.assertGreater(ring["floor_us"], 0)
        self.assertAlmostEqual(ring["floor_us"] / ring["median_us"] / ring["floor_fraction"], 1, places=4)

    def test_mistakes(self):
        for args in (("--algo", "tee"), ("--geometry", "1x1"), ("--tokens", "0"), ("--tokens", "x"), ("--device", "tpu"), ("--device", "cuda:x"),
                     ("--device-module", "x"), ("extra",)):
            done = subprocess.run([BENCH, *args], capture_output=True, text=True, check=False, env=ENV)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn("paper --help", done.stderr)


class Device(Checks):
    """The local attention of every algorithm on a device, whose module may be the emulated one."""

    DEVICE = ("--device", "cuda", "--device-module", MODULE)

    def check_device(self, results, name="cuda:0 ("):
        self.check(results)
        for r in results.values():
            self.assertTrue(r["device"].startswith(name), r["device"])
            self.assertTrue(r["kernel"].startswith("cuda-"), r["kernel"])

    def test_three_ranks(self):
        results = lines(3, "--tokens", "100", "--algo", ",".join(OWN + LIBRARY), *self.DEVICE)
        self.assertEqual(set(results), set(OWN + LIBRARY))
        self.check_device(results)
        shard = 100 * 2 * 64 * 2 * 2
        for algo, blocks in (("tree", 1), ("gather", 1), ("allreduce1", 1), ("allreduce3", 1), ("ring", 2), ("ring-lean", 3)):
            self.assertEqual(results[algo]["kv_peak_bytes"], blocks * shard, algo)
        # Down: every rank's own block (lean: the root's stays). Up: two blocks on the root, what stays on the others
        self.assertAlmostEqual(results["ring"]["staged_bytes_per_rank"], (3 + 2 + 1 + 1) * shard / 3, places=3)
        self.assertAlmostEqual(results["ring-lean"]["staged_bytes_per_rank"], (2 + 2) * shard / 3, places=3)
        for algo in OWN[:4] + LIBRARY:
            self.assertNotIn("staged_bytes_per_rank", results[algo])

    def test_uneven_shards_an_empty_one_and_floors(self):
        results = lines(3, "--tokens", "300", "--uneven", "--floors", "--algo", ",".join(OWN), *self.DEVICE)
        self.check_device(results)
        for algo in ("ring", "ring-lean"):
            self.assertGreater(results[algo]["floor_compute_us"], 0)

    def test_a_device_by_number(self):
        args = ("--device-module", MODULE, "--tokens", "50", "--algo", "tree,ring", "--device")
        self.check_device(lines(2, *args, "cuda:1", BANYAN_EMULATED_DEVICES="2"), "cuda:1 (")
        self.fails(paper(2, *args, "cuda:2", BANYAN_EMULATED_DEVICES="2"), 1, "no CUDA device 2")

    def fails(self, done, ranks, *words):
        """Nothing but sentences of the program: one for each rank that says something, which hold the words."""
        said = [line for line in done.stderr.splitlines() if line.startswith("paper:")]
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "")
        self.assertLessEqual(len(said), ranks, said)
        for word in words:
            self.assertTrue(any(word in line for line in said), (word, done.stderr))

    def test_no_device_and_no_module(self):
        self.fails(paper(2, *self.DEVICE, BANYAN_EMULATED_DEVICES="0"), 1, "--device cuda: no CUDA device")
        self.fails(paper(2, *self.DEVICE[:3], "/nowhere/module.so"), 1, "cannot load the module: /nowhere/module.so")
        self.fails(paper(2, *self.DEVICE[:3], "/proc/self/exe"), 1, "--device cuda: ")

    def test_a_device_that_is_lost(self):
        for fault in ("1", "9"):
            done = paper(2, "--geometry", "4/2x64", "--tokens", "50", "--rounds", "20", "--algo", "tree", *self.DEVICE, BANYAN_EMULATED_FAULT=fault)
            self.fails(done, 3, "is lost", "tree is wrong")

    def test_more_than_its_memory(self):
        done = paper(2, "--tokens", "2048", "--algo", "ring", *self.DEVICE, BANYAN_EMULATED_MEMORY="30000000")
        self.fails(done, 4, "no room for 16777216 bytes", "ring: no memory")


if __name__ == "__main__":
    unittest.main(defaultTest="Device" if MODULE else "Paper")
