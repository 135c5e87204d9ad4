#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""banyanctl doctor: a cluster that is well, and each of what may be wrong with one.

    doctor_test.py BIN [SKEWED_CLOCK]      BIN: the folder of the programs; SKEWED_CLOCK: skewed_clock.c as a library
"""
import os
import re
import signal
import subprocess
import sys
import time
import unittest

import daily

BIN = sys.argv.pop(1)
CLOCK = sys.argv.pop(1) if len(sys.argv) > 1 and os.path.exists(sys.argv[1]) else None
VERSION = subprocess.run([f"{BIN}/banyanctl", "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]


class Doctor(unittest.TestCase):
    def setUp(self):
        self.cluster = daily.Cluster(BIN)

    def tearDown(self):
        self.cluster.close()

    def start(self, *workers):
        self.cluster.coordinator()
        for name in workers:
            self.cluster.worker(name)
        if workers:
            self.cluster.ctl("wait", "workers", str(len(workers)))

    def until_lost(self, name):
        while [w["state"] for w in self.cluster.json("workers") if w["name"] == name] != ["lost"]:
            pass

    def spread(self):
        """A session with a part at each of two workers."""
        self.cluster.ctl("session", "create", "--q-heads=1", "--dim=8", "--kv-type=f32", "--replicas=1", "--members=2",
                         "--chunk-tokens=16", "s")
        daily.write_tokens(f"{self.cluster.folder}/s.safetensors", 64, 8)
        self.cluster.ctl("attach", "s", f"{self.cluster.folder}/s.safetensors", "--commit")

    def doctor(self, code=0, **env):
        """{(level, what): [found]} """
        said = self.cluster.json("doctor", code=code, **env)
        found = {}
        for finding in said["findings"]:
            found.setdefault((finding["level"], finding["what"]), []).append(finding["found"])
            self.assertEqual(finding["do"] == "", finding["level"] == "ok", finding)
        for level in ("ok", "warn", "fail"):
            self.assertEqual(said[level], sum(len(texts) for (of, _), texts in found.items() if of == level))
        return found

    def test_no_device(self):
        self.start("a")
        self.cluster.worker_without("b", "no CUDA device: the driver supports CUDA 12.4")
        self.cluster.ctl("wait", "workers", "2")
        found = self.doctor()
        self.assertEqual(found["warn", "device"], ["worker b computes on its processor: no CUDA device: the driver supports CUDA 12.4"])
        self.assertIn("--device cpu", self.cluster.ctl("doctor")[0])

    def test_well(self):
        self.start("a", "b")
        found = self.doctor()
        self.assertEqual([key for key in found if key[0] == "fail"], [])
        self.assertEqual(sorted(found["ok", "version"]), [f"coordinator: {VERSION}", f"worker a: {VERSION}", f"worker b: {VERSION}"])
        self.assertEqual(len(found["ok", "clock"]), 3)
        self.assertEqual(len(found["ok", "files"]), 3)
        self.assertEqual(len(found.get(("ok", "disk"), []) + found.get(("warn", "disk"), [])), 1) # workers have no files
        self.assertEqual(sorted(found["ok", "worker"]), [f"{name} is active: the coordinator can reach it" for name in "ab"])
        self.assertEqual(found["ok", "hosts"], ["workers are on different hosts"])
        self.assertIn(("ok", "edges"), found)
        self.assertEqual(found["ok", "sessions"], ["0 sessions, all copies present"])
        out = self.cluster.ctl("doctor")[0]
        self.assertRegex(out, rf"(?m)^ok    version      worker b: {re.escape(VERSION)}$")
        self.assertNotIn("\033", out)

    def test_lost_worker(self):
        self.start("a", "b")
        self.spread()
        self.cluster.stop("b", signal.SIGKILL)
        self.until_lost("b")
        found = self.doctor(code=9)
        self.assertEqual(found["fail", "worker"], ["b of host host-b is lost"])
        self.assertEqual(found["fail", "sessions"], ["1 of 1 sessions are unavailable"])
        self.assertEqual(found["warn", "hosts"], ["all workers are on one host: if it fails, all copies of a session are lost"])
        self.assertIn(" checks failed", self.cluster.ctl("doctor", code=9)[1])

    def test_no_coordinator(self):
        found = self.doctor(code=5)
        self.assertIn("cannot reach the coordinator", found["fail", "coordinator"][0])
        self.start()
        self.assertIn("no worker is active", self.doctor(code=9)["fail", "workers"][0])

    def test_edges(self):
        """Workers that dial each other for the first time when the sockets' names are gone."""
        self.start("a", "b")
        self.spread()
        for name in "ab":
            os.rename(f"{self.cluster.folder}/{name}.sock", f"{self.cluster.folder}/{name}.elsewhere")
        step = self.cluster.background("session", "verify", "s", "--timeout=60s")
        end = time.monotonic() + daily.PATIENCE_S
        found = {}
        while ("fail", "edge") not in found:
            self.assertLess(time.monotonic(), end, found)
            found = self.doctor(code=None)
        self.assertRegex(found["fail", "edge"][0], "^(a cannot reach b|b cannot reach a)$")
        self.assertNotIn(("ok", "edges"), found)
        step.kill()
        step.communicate()

    def test_token(self):
        right, wrong = (f"{self.cluster.folder}/{name}" for name in ("right", "wrong"))
        for path in (right, wrong):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
                file.write(f"the-{os.path.basename(path)}-token\n")
        self.cluster.more = ("--token-file", right)
        self.cluster.coordinator()
        self.cluster.worker("a")
        self.cluster.ctl("wait", "ready", BANYAN_TOKEN_FILE=right)
        self.assertEqual(self.doctor(BANYAN_TOKEN_FILE=right)["ok", "token"], ["accepted by the coordinator"])
        for path, said in ((wrong, "the client token is wrong or was revoked"), (None, "client token is required")):
            self.assertIn(said, self.doctor(code=7, BANYAN_TOKEN_FILE=path)["fail", "token"][0])
        self.assertIn("does not exist", self.doctor(code=5, BANYAN_TOKEN_FILE="/nonexistent")["fail", "token"][0])

    def test_one_of_two_endpoints(self):
        """The others of a list are looked at, too."""
        self.start("a")
        found = self.doctor(BANYAN_ENDPOINT=f"{self.cluster.endpoint},unix:///nonexistent", code=9)
        self.assertIn(("fail", "coordinator"), found)
        self.assertIn(("ok", "coordinator"), found)
        self.assertIn(("ok", "worker"), found)

    @unittest.skipIf(CLOCK is None, "no library with a clock (sanitizers)")
    def test_clocks(self):
        self.start("a")
        for seconds, level in (("3600", "fail"), ("10", "warn"), ("-10", "warn")):
            with self.subTest(seconds):
                os.environ.update(LD_PRELOAD=CLOCK, BANYAN_TEST_SKEW_S=seconds)
                try:
                    self.cluster.worker("b")
                finally:
                    del os.environ["LD_PRELOAD"], os.environ["BANYAN_TEST_SKEW_S"]
                self.cluster.ctl("wait", "workers", "2")
                found = self.doctor(code=9 if level == "fail" else 0)
                where = "behind" if seconds[0] == "-" else "ahead of"
                self.assertRegex(found[level, "clock"][0], rf"^worker b: its clock is .* {where} the coordinator's$")
                self.assertEqual(len(found["ok", "clock"]), 2)
                self.cluster.stop("b")
                self.until_lost("b")
                self.cluster.ctl("worker", "forget", "b")


if __name__ == "__main__":
    unittest.main(verbosity=2)
