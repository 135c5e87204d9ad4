#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A drain does not wait for tickets of what is committed, and says for which of its reasons nothing moves.

    drain_test.py BIN        BIN: the folder of the programs
"""
import os
import sys
import time
import unittest

import daily

BIN = os.path.abspath(sys.argv.pop(1))


class Drain(unittest.TestCase):
    def setUp(self):
        self.cluster = daily.Cluster(BIN, "--ticket-life", "2m")
        self.ctl = self.cluster.ctl
        self.cluster.coordinator()
        self.cluster.worker("a")
        self.ctl("wait", "workers", "1")

    def tearDown(self):
        self.cluster.close()

    def attach(self, name, *more, tokens=20, dim=8, replicas=1):
        file = f"{self.cluster.folder}/{name}.safetensors"
        daily.write_tokens(file, tokens, dim)
        self.ctl("session", "create", "--q-heads=1", f"--dim={dim}", "--kv-type=f32", f"--replicas={replicas}", name)
        self.ctl("attach", name, file, *more)

    def stuck(self, worker, says):
        end = time.monotonic() + daily.PATIENCE_S
        while says not in (now := self.cluster.ctl("wait", "drained", worker, "--timeout=0", code=None)[1]):
            self.assertLess(time.monotonic(), end, f"{now}, not {says}")
            time.sleep(0.05)

    def test_what_is_committed_moves_at_once(self):
        """Its ticket is good for two minutes, and names positions past what was attached."""
        self.attach("s", "--commit")
        self.cluster.worker("b")
        self.ctl("wait", "workers", "2")
        began = time.monotonic()
        self.ctl("worker", "drain", "a", "--wait")
        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual(self.cluster.json("session", "show", "s")["length"], 20)

    def test_attached_rows(self):
        self.attach("s")
        self.cluster.worker("b")
        self.ctl("wait", "workers", "2")
        self.ctl("worker", "drain", "a")
        self.stuck("a", "have attached rows that are not committed")
        self.ctl("session", "commit", "s", "0", "20")
        self.ctl("wait", "drained", "a")

    def test_everybody_has_a_copy(self):
        self.cluster.worker("b")
        self.ctl("wait", "workers", "2")
        self.attach("s", "--commit", replicas=2)
        self.ctl("wait", "whole")
        self.ctl("worker", "drain", "a")
        self.stuck("a", "every other worker already has a copy of its chunks")

    def test_no_memory(self):
        """b is filled while a is drained, and then a has a chunk."""
        self.cluster.worker("b")
        self.ctl("wait", "workers", "2")
        self.ctl("worker", "drain", "a")
        file = f"{self.cluster.folder}/two.safetensors"
        daily.write_tokens(file, 512, 1024)  # 4 MiB
        for n in range(40):
            self.ctl("session", "create", "--q-heads=1", "--dim=1024", "--kv-type=f32", "--replicas=1", f"f{n}")
            if self.ctl("attach", f"f{n}", file, "--commit", code=None)[1]:
                break
        else:
            self.fail("b is never full")
        self.ctl("worker", "resume", "a")
        self.attach("last", "--commit", tokens=256, dim=1024)
        self.ctl("worker", "drain", "a")
        self.stuck("a", "no other worker has memory for its chunks")


if __name__ == "__main__":
    unittest.main()
