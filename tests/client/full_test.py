#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What memory is used, reserved and free: what is attached reserves what it needs, and what refuses is shown.

    full_test.py BIN        BIN: the folder of the programs
"""
import os
import sys
import time
import unittest

import daily

BIN = os.path.abspath(sys.argv.pop(1))
CHUNK = 256


class Memory(unittest.TestCase):
    def setUp(self):
        self.cluster = daily.Cluster(BIN)
        self.ready = f"{self.cluster.folder}/ready.json"
        self.cluster.more = ("--http", "127.0.0.1:0", "--ready-file", self.ready)
        self.cluster.coordinator()
        self.cluster.worker("a")
        self.ctl = self.cluster.ctl
        self.ctl("wait", "workers", "1")

    def tearDown(self):
        self.cluster.close()

    def attach(self, name, tokens, dim, code=0, first=0):
        file = f"{self.cluster.folder}/{name}.safetensors"
        daily.write_tokens(file, tokens, dim)
        if not first:
            self.ctl("session", "create", "--q-heads=1", f"--dim={dim}", "--kv-type=f32", "--replicas=1", name)
        return self.ctl("attach", name, file, "--commit", "--first", str(first), code=code)

    def worker(self):
        return next(w for w in self.cluster.json("workers") if w["name"] == "a")

    def test_a_known_length_reserves_itself(self):
        """4,000 tokens are 16 chunks, and one more is placed ahead of what may be appended."""
        self.attach("s", 4000, 8)
        self.assertLessEqual(self.worker()["chunks"], 17)
        self.attach("s", 4096, 8, first=4000)
        self.assertLessEqual(self.worker()["chunks"], 33)

    def test_it_adds_up(self):
        w = self.worker()
        self.assertEqual(w["used_bytes"] + w["reserved_bytes"] + w["free_bytes"], w["capacity_bytes"])
        self.assertGreater(w["free_bytes"], w["capacity_bytes"] * 0.9)
        status = self.cluster.json("status")
        self.assertEqual((status["reserved_bytes"], status["free_bytes"]), (w["reserved_bytes"], w["free_bytes"]))
        title = self.ctl("workers")[0].split("\n")[0].split()
        self.assertEqual(title[:6], ["NAME", "HOST", "STATE", "USED", "RESERVED", "FREE"])
        self.assertIn("MEMORY", self.ctl("workers", "-o", "wide")[0].split("\n")[0])
        for line in self.ctl("workers")[0].split("\n"):
            self.assertLessEqual(len(line), 120, line)

    def test_full_is_shown_as_full(self):
        """Until one is refused: then little is free, and what is counted says so."""
        dim, n = 256, 0  # 512 KiB a chunk
        while True:
            _, err = self.attach(f"s{n}", 2048, dim, code=None)
            if err:
                break
            n += 1
            self.assertLess(n, 100)
        self.assertIn("bytes left for another chunk", err)
        w = self.worker()
        self.assertLess(w["free_bytes"], 8 * 2 * CHUNK * dim * 4 + w["capacity_bytes"] / 50)
        # What is used is most of it: what is reserved is taken up by what was attached.
        end = time.monotonic() + daily.PATIENCE_S
        while self.worker()["used_bytes"] < 0.8 * w["capacity_bytes"]:
            self.assertLess(time.monotonic(), end, self.worker())
            time.sleep(0.1)
        metrics = daily.metrics(self.ready)
        self.assertRegex(metrics, r"(?m)^banyan_placements_refused_total [1-9]")
        self.assertRegex(metrics, r'(?m)^banyan_worker_free_bytes\{worker="a"\} \d')
        self.assertRegex(metrics, r'(?m)^banyan_worker_reserved_bytes\{worker="a"\} \d')


if __name__ == "__main__":
    unittest.main()
