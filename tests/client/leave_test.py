#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers that stop: those that hold nothing leave the list, and no order, store or backup waits for them.

    leave_test.py BIN        BIN: the folder of the programs
"""
import os
import signal
import subprocess
import sys
import time
import unittest

import daily

BIN = os.path.abspath(sys.argv.pop(1))


class Leave(unittest.TestCase):
    def setUp(self):
        self.cluster = daily.Cluster(BIN)
        self.ctl = self.cluster.ctl
        self.cluster.coordinator()

    def tearDown(self):
        self.cluster.close()

    def states(self):
        return {w["name"]: w["state"] for w in self.cluster.json("workers")}

    def until(self, wanted):
        end = time.monotonic() + daily.PATIENCE_S
        while self.states() != wanted:
            self.assertLess(time.monotonic(), end, f"{self.states()}, not {wanted}")
            time.sleep(0.02)

    def session(self, name, worker):
        """Its chunk is at the only worker that is in use."""
        file = f"{self.cluster.folder}/{name}.safetensors"
        daily.write_tokens(file, 20, 8)
        self.ctl("session", "create", "--q-heads=1", "--dim=8", "--kv-type=f32", "--replicas=1", name)
        self.ctl("attach", name, file, "--commit")
        self.assertEqual([w["name"] for w in self.cluster.json("workers") if w["chunks"]], [worker])

    def log(self):
        with open(f"{self.cluster.folder}/coordinator.log", encoding="utf-8") as log:
            return log.read()

    def test_an_empty_one_leaves_the_list(self):
        self.cluster.worker("a")
        self.ctl("wait", "workers", "1")
        self.session("s", "a")
        self.cluster.worker("b")
        self.ctl("wait", "workers", "2")
        self.assertEqual(self.cluster.stop("b"), 0)
        self.until({"a": "active"})
        self.assertIn("a worker without chunks has left worker=b", self.log())
        self.assertNotIn("a worker is lost", self.log())
        self.assertEqual(self.cluster.json("doctor")["fail"], 0)
        # With chunks it is missed, and an empty one that did not say that it ends is missed as well.
        self.cluster.worker("b")
        self.ctl("wait", "workers", "2")
        self.assertEqual(self.cluster.stop("a"), 0)
        self.cluster.stop("b", signal.SIGKILL)
        self.until({"a": "lost", "b": "lost"})
        # Nothing of it is left in the store, and the next process with its name is used.
        self.cluster.worker("b")
        self.ctl("wait", "workers", "1")
        self.assertEqual(self.cluster.stop("b"), 0)
        self.until({"a": "lost"})
        self.cluster.stop("coordinator")
        self.cluster.coordinator()
        self.until({"a": "lost"})

    def test_an_order_to_drain_stays(self):
        self.cluster.worker("a")
        self.cluster.worker("b")
        self.ctl("wait", "workers", "2")
        self.ctl("worker", "drain", "b")
        self.assertEqual(self.cluster.stop("b"), 0)
        self.until({"a": "active", "b": "lost"})
        self.cluster.worker("b")
        self.until({"a": "active", "b": "active"})
        self.assertTrue(next(w for w in self.cluster.json("workers") if w["name"] == "b")["draining"])
        self.ctl("worker", "resume", "b")
        self.assertEqual(self.cluster.stop("b"), 0)
        self.until({"a": "active"})

    def test_accept_waits_for_holders_only(self):
        self.cluster.worker("a", "--store", f"{self.cluster.folder}/a.store")
        self.ctl("wait", "workers", "1")
        self.session("s", "a")
        self.cluster.worker("b")
        self.ctl("wait", "workers", "2")
        self.ctl("backup", f"{self.cluster.folder}/backup")
        for name in ("b", "a", "coordinator"):
            self.assertEqual(self.cluster.stop(name), 0)
        os.rename(f"{self.cluster.folder}/store.db", f"{self.cluster.folder}/old.db")
        subprocess.run([f"{BIN}/banyan-coordinator", "--secret-file", f"{self.cluster.folder}/secret", "--store",
                        f"{self.cluster.folder}/store.db", "--restore-backup", f"{self.cluster.folder}/backup"], check=True,
                       capture_output=True)
        self.cluster.coordinator()
        self.until({"a": "lost", "b": "lost"})
        self.assertIn("not connected: a. ", self.ctl("accept", code=9)[1])
        self.cluster.worker("a", "--store", f"{self.cluster.folder}/a.store")
        self.ctl("wait", "workers", "1")
        self.ctl("accept")
        self.assertEqual(self.cluster.json("session", "show", "s")["length"], 20)

    def test_names_stay(self):
        """Workers without --name have the same names each time."""
        def start(key):
            self.cluster.start(key, "banyan-worker", "--coordinator", self.cluster.endpoint, "--host", "here", "--memory", "64M",
                               "--device", "cpu", "--bandwidth", "1G")
        start("first")
        self.until({"here-0": "active"})
        start("second")
        self.until({"here-0": "active", "here-1": "active"})
        self.assertEqual(self.cluster.stop("first"), 0)
        self.until({"here-1": "active"})
        self.cluster.stop("second", signal.SIGKILL)
        self.until({"here-1": "lost"})
        start("first")
        start("second")
        self.until({"here-0": "active", "here-1": "active"})


if __name__ == "__main__":
    unittest.main()
