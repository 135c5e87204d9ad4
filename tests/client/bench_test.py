#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""banyanctl bench: what it says, of each type of K and V, and that nothing of it stays, however it ends.

    bench_test.py BIN        BIN: the folder of the programs
"""
import signal
import sys
import time
import unittest

import daily

BIN = sys.argv.pop(1)
SMALL = ["--tokens", "1000", "--q-heads", "4", "--kv-heads", "2", "--dim", "32", "--steps", "7"]


class Bench(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = daily.Cluster(BIN)
        cls.cluster.coordinator()
        cls.cluster.worker("a")
        cls.cluster.worker("b")
        cls.cluster.ctl("wait", "workers", "2")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def sessions(self):
        return self.cluster.json("sessions")

    def test_types(self):
        for kind, row in (("f32", 512), ("f16", 256), ("bf16", 256), ("int8", 144), ("fp8", 144)):
            said = self.cluster.json("bench", *SMALL, "--kv-type", kind, "--layers", "3", "--replicas", "2")
            self.assertEqual(said["bytes"], 1000 * 3 * row, kind)
            self.assertEqual((said["tokens"], said["replicas"], said["attach"]["bytes"]), (1000, 2, said["bytes"]))
            for times in (said["step"], said["append"]):
                self.assertEqual(times["count"], 7)
                self.assertTrue(0 < times["p50_ns"] <= times["p90_ns"] <= times["p99_ns"] <= times["max_ns"], times)
                self.assertEqual(times["floor_ns"], said["ping_ns"] + said["memory_ns"])
                self.assertAlmostEqual(times["to_floor"], times["p50_ns"] / times["floor_ns"], places=4)
            # A worker says that it is quick as --bandwidth does: 1 GiB/s.
            self.assertAlmostEqual(said["memory_ns"] / (said["part_bytes"] / 2**30 * 1e9), 1, delta=0.01)
            self.assertIsNone(said["attach"]["most_bytes_per_s"])  # the workers say that they are on other hosts
            self.assertGreater(said["step_mean"]["total_ns"], said["step_mean"]["compute_ns"])
        self.assertEqual(self.sessions(), [])

    def test_table(self):
        out, err = self.cluster.ctl("bench", *SMALL)
        self.assertEqual(err, "")
        lines = out.split("\n")
        self.assertRegex(lines[0], r"^1000 tokens, 1 layer, 4 query and 2 KV heads of 32, bf16: 250\.0 KiB of K and V, "
                                   r"1 copy, on \d workers?$")
        self.assertEqual(lines[2].split(), ["P50", "P90", "P99", "MOST", "FLOOR", "P50", "/", "FLOOR"])
        self.assertEqual([lines[3].split()[0], lines[4].split()[0]], ["step", "append"])
        self.assertRegex(out, r"\nattach \S+ .iB/s; workers are on other machines: ")
        self.assertEqual(self.sessions(), [])

    def test_wrong_input(self):
        self.assertIn("is not one of f32", self.cluster.ctl("bench", "--kv-type", "f64", code=2)[1])
        self.assertIn("32 is not a multiple of 7", self.cluster.ctl("bench", "--kv-heads", "7", code=2)[1])
        err = self.cluster.ctl("bench", "--tokens", "2000000", code=8)[1]
        self.assertIn("it needs 7.6 GiB in all copies, and the workers have ", err)
        self.assertEqual(self.sessions(), [])

    def test_interrupted(self):
        for sig in (signal.SIGINT, signal.SIGTERM):
            running = self.cluster.background("bench", *SMALL, "--steps", "1000000")
            until = time.monotonic() + daily.PATIENCE_S
            while not any(s["name"].startswith("banyanctl-bench-") and s["steps"] for s in self.sessions()):
                self.assertLess(time.monotonic(), until)
            running.send_signal(sig)
            out, err = running.communicate(timeout=daily.PATIENCE_S)
            self.assertEqual((running.returncode, out, err), (6, "", "banyanctl: ended early\n"))
            self.assertEqual(self.sessions(), [])


if __name__ == "__main__":
    unittest.main()
