#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""banyanctl wait returns when it is so, not before, and says what is missing when its time is over.

    wait_test.py BIN        BIN: the folder of the programs
"""
import signal
import sys
import time
import unittest

import daily

BIN = sys.argv.pop(1)


class Wait(unittest.TestCase):
    def setUp(self):
        self.cluster = daily.Cluster(BIN)
        self.ctl = self.cluster.ctl

    def tearDown(self):
        self.cluster.close()

    def test_usage(self):
        self.assertIn("'many' is not a number of workers", self.ctl("wait", "workers", "many", code=2)[1])
        self.ctl("wait", "workers", "0", code=2)
        self.ctl("wait", "workers", code=2)
        self.ctl("wait", code=2)
        self.assertIn("Default: no limit.", self.ctl("wait", "ready", "--help")[0])
        self.assertNotIn("Default: the context's", self.ctl("wait", "ready", "--help")[0].split("--timeout")[1].split("\n")[0])

    def test_ready_and_workers(self):
        out, err = self.ctl("wait", "ready", "--timeout", "0", code=6)
        self.assertEqual(out, "")
        self.assertIn("banyanctl: not now: ", err)
        self.assertIn("cannot reach the coordinator", err)
        waiting = self.cluster.background("wait", "ready")
        two = self.cluster.background("wait", "workers", "2", "-o", "json")
        self.cluster.coordinator()
        self.assertIn("0 of 0 workers are active", self.until_said("wait", "ready", "--timeout=0", says="serving"))
        self.assertIsNone(waiting.poll())
        self.cluster.worker("a")
        out, err = waiting.communicate(timeout=daily.PATIENCE_S)
        self.assertEqual((waiting.returncode, out), (0, "the coordinator is serving, and 1 of 1 worker is active\n"), err)
        self.assertIn("not within 300.0 ms: 1 of 2 workers are active",
                      self.ctl("--timeout", "300ms", "wait", "workers", "2", code=6)[1])
        self.assertIsNone(two.poll())
        self.cluster.worker("b")
        out, err = two.communicate(timeout=daily.PATIENCE_S)
        self.assertEqual(two.returncode, 0, err)
        self.assertIn('"now": "2 workers are active"', out)
        self.ctl("wait", "workers", "1")

    def until_said(self, *words, says):
        """Again and again, with exit code 6, until it says this."""
        end = time.monotonic() + daily.PATIENCE_S
        while time.monotonic() < end:
            err = self.ctl(*words, code=6)[1]
            if says in err:
                return err
        self.fail(f"it did not say '{says}', but {err}")

    def test_drained(self):
        self.cluster.coordinator()
        for name in "ab":
            self.cluster.worker(name)
        self.ctl("wait", "workers", "2")
        self.assertIn("there is no worker 'c'", self.ctl("wait", "drained", "c", code=3)[1])
        self.assertIn("'banyanctl worker drain a'", self.ctl("wait", "drained", "a", code=9)[1])
        self.ctl("worker", "drain", "a")
        self.assertEqual(self.ctl("wait", "drained", "a", "--timeout=1m")[0],
                         "a is drained: it has no chunks and can be stopped\n")
        # Two copies that must be at two workers: nothing can move
        self.ctl("worker", "resume", "a")
        self.session("s")
        self.ctl("worker", "drain", "a")
        self.assertRegex(self.ctl("wait", "drained", "a", "--timeout", "1s", code=6)[1], r"a has \d+ chunks .* of 1 sessions; ")
        waiting = self.cluster.background("wait", "drained", "a")
        self.ctl("session", "delete", "s")
        self.assertEqual(waiting.wait(daily.PATIENCE_S), 0)
        waiting.communicate()

    def session(self, name):
        """With two copies of two chunks."""
        self.ctl("session", "create", "--q-heads=1", "--dim=8", "--kv-type=f32", "--replicas=2", "--chunk-tokens=16", name)
        path = f"{self.cluster.folder}/{name}.safetensors"
        daily.write_tokens(path, 20, 8)
        self.ctl("attach", name, path, "--commit")

    def test_whole(self):
        self.cluster.coordinator()
        self.cluster.worker("a")
        self.ctl("wait", "ready")
        self.assertEqual(self.ctl("wait", "whole")[0], "all copies are present\n")
        self.session("s")
        self.assertRegex(self.ctl("wait", "whole", "--timeout=1s", code=6)[1], r"\d chunks have too few copies")
        waiting = self.cluster.background("wait", "whole")
        self.cluster.worker("b")
        self.assertEqual(waiting.wait(daily.PATIENCE_S), 0, waiting.communicate())
        waiting.communicate()
        self.assertEqual(self.cluster.json("status")["thin_chunks"], 0)
        # What the loss of a worker takes from it
        self.cluster.stop("b", signal.SIGKILL)
        while [w["state"] for w in self.cluster.json("workers") if w["name"] == "b"] == ["active"]:
            pass
        self.ctl("wait", "whole", "--timeout=0", code=6)

    def test_a_terminal(self):
        """What it waits for is shown, and gone at the end."""
        self.cluster.coordinator()
        self.until_said("wait", "ready", "--timeout=0", says="serving")
        terminal = daily.Terminal(self.cluster, "wait", "workers", "1")
        terminal.until("waiting: 0 of 1 workers are active")
        self.cluster.worker("a")
        terminal.until("\r\033[K1 worker is active")
        self.assertEqual(terminal.end(), 0)

    def test_wrong_token(self):
        """What waiting does not mend ends it at once."""
        self.assertIn("does not exist", self.ctl("wait", "ready", "--token-file=/nonexistent/token", code=11)[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
