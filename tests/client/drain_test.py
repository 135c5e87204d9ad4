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

    def workers(self):
        return {w["name"]: w for w in self.cluster.json("workers")}

    def chunks(self):
        return {name: w["chunks"] for name, w in self.workers().items()}

    def test_cordon(self):
        """No new chunks, nothing moves; it is in the store, with the reason, and when."""
        self.attach("s", "--commit")
        self.cluster.worker("b")
        self.ctl("wait", "workers", "2")
        self.ctl("worker", "cordon", "a", "--reason", "loud fan")
        self.assertIn("worker-cordoned", {e["kind"] for e in self.cluster.json("events")})
        for n in range(4):
            self.attach(f"t{n}", "--commit")
        self.assertEqual(self.chunks(), {"a": 1, "b": 4})
        self.ctl("rebalance", "--wait")
        self.assertEqual(self.chunks(), {"a": 1, "b": 4})
        self.cluster.stop("coordinator")
        self.cluster.coordinator()
        self.ctl("wait", "workers", "2")
        a = self.workers()["a"]
        self.assertEqual((a["cordoned"], a["draining"], a["drain_reason"]), (True, False, "loud fan"))
        self.assertLess(abs(a["drain_at_s"] - time.time()), 600)
        table = self.ctl("workers")[0]
        self.assertIn("active, cordoned", table)
        self.assertRegex(table, r"a gets no new chunks: loud fan \(\d{4}-\d\d-\d\d \d\d:\d\dZ\)")
        self.attach("u", "--commit")
        self.assertEqual(self.chunks(), {"a": 1, "b": 5})
        self.ctl("worker", "uncordon", "a")
        self.assertFalse(self.workers()["a"]["cordoned"])
        self.attach("v", "--commit")
        self.assertEqual(self.chunks(), {"a": 2, "b": 5})

    def test_who_has_drained(self):
        self.cluster.worker("b")
        self.ctl("wait", "workers", "2")
        self.ctl("token", "create", "root", "--access=admin", "--out", f"{self.cluster.folder}/root")
        admin = {"BANYAN_TOKEN_FILE": f"{self.cluster.folder}/root"}
        says = self.ctl("doctor", code=None)[0]  # whatever workers are called, "a" for example
        self.assertIn(" a client token is required", says)
        self.ctl("worker", "drain", "a", "--wait", **admin)
        self.assertEqual(self.cluster.json("worker", "show", "a", **admin)["drain_by"], "root")
        self.assertIn("a is draining: no reason given (root, ", self.ctl("workers", **admin)[0])

    def test_forget_what_is_lost(self):
        for name in "bd":
            self.cluster.worker(name)
        self.ctl("wait", "workers", "3")
        self.attach("s", "--commit")
        holder = next(name for name, n in self.chunks().items() if n)
        for name in "abd":
            self.cluster.processes[name].kill()
            self.cluster.processes.pop(name).wait()
        end = time.monotonic() + daily.PATIENCE_S
        while {w["state"] for w in self.workers().values()} != {"lost"}:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        self.ctl("worker", "forget", code=2)
        self.ctl("worker", "forget", "a", "--lost", code=2)
        says = self.ctl("worker", "forget", "--lost", "--yes", code=9)
        self.assertEqual(says[0].count("is forgotten"), 2)
        self.assertIn(f"{holder} is not forgotten: 1 chunks", says[1])
        self.assertEqual([*self.workers()], [holder])


if __name__ == "__main__":
    unittest.main()
