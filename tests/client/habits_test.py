#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What users of other programs try first: names of commands, ids as names, --timeout, --help.

    habits_test.py BIN        BIN: the folder of the programs
"""
import os
import socket
import sys
import time
import unittest

import daily

BIN = os.path.abspath(sys.argv.pop(1))
SHAPE = ("--q-heads=1", "--dim=8", "--kv-type=f32", "--replicas=1")


class Habits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = daily.Cluster(BIN)
        cls.cluster.coordinator()
        cls.cluster.worker("a")
        cls.ctl = cls.cluster.ctl
        cls.ctl("wait", "workers", "1")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def test_other_names(self):
        self.ctl("session", "create", *SHAPE, "here")
        for words in (("session", "list"), ("session", "ls")):
            self.assertEqual([s["id"] for s in self.cluster.json(*words)], [s["id"] for s in self.cluster.json("sessions")])
            self.assertIn("here", self.ctl(*words, "--sort=name")[0])
        for words in (("worker", "list"), ("worker", "ls")):
            self.assertEqual([w["name"] for w in self.cluster.json(*words)], ["a"])
        self.assertEqual(self.cluster.json("token", "ls"), [])
        self.ctl("session", "delete", "here", "--yes")

    def test_one_worker(self):
        listed, = self.cluster.json("workers")
        shown = self.cluster.json("worker", "show", "a")
        self.assertEqual(list(shown), list(listed))
        self.assertEqual((shown["name"], shown["endpoint"]), ("a", listed["endpoint"]))
        self.assertRegex(self.ctl("worker", "show", "a")[0], r"(?m)^last step +-$")
        self.assertIn("there is no worker 'x'", self.ctl("worker", "show", "x", code=3)[1])

    def test_version(self):
        said = self.cluster.json("version")
        self.assertEqual(said["client"], said["coordinator"])
        out, err = self.ctl("version", "--timeout=200ms", code=5, BANYAN_ENDPOINT=f"unix://{self.cluster.folder}/nobody")
        self.assertIn(said["client"], out)
        self.assertNotIn("coordinator ", out)
        self.assertTrue(err)

    def test_an_id_is_no_name(self):
        self.ctl("session", "create", *SHAPE, "one")
        ident = self.cluster.json("session", "show", "one")["id"]
        for name in (ident, "0x12ab", ident.upper().replace("0X", "0x")):
            self.assertIn("must not be a number like 0x12ab", self.ctl("session", "create", *SHAPE, name, code=4)[1])
        self.assertIn("must not be a number like 0x12ab", self.ctl("session", "fork", "one", "0", ident, code=4)[1])
        for name in ("0x", "0xylophone", "12ab"):
            self.ctl("session", "create", *SHAPE, name)
            self.ctl("session", "delete", name, "--yes")
        self.ctl("session", "delete", "one", "--yes")

    def test_help_is_short(self):
        said = self.ctl("session", "delete", "--help")[0]
        self.assertIn("--dry-run", said)
        self.assertIn("Every command also takes: --endpoint --token-file", said)
        self.assertLess(len(said.splitlines()), 20, said)
        self.assertEqual(self.ctl("help", "session", "delete")[0], said)
        self.assertEqual(self.ctl("session", "delete", "-o", "json", "--help")[0], said)
        self.assertIn("CA certificates to trust", self.ctl("--help")[0])

    def test_timeout_is_the_connections_too(self):
        """A server that never says a word."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            endpoint = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
            began = time.monotonic()
            self.ctl("status", "--timeout=300ms", code=None, BANYAN_ENDPOINT=endpoint)
            self.assertLess(time.monotonic() - began, 2.5)
            began = time.monotonic()
            self.ctl("status", "--timeout=5s", code=None, BANYAN_ENDPOINT=endpoint)
            self.assertGreater(time.monotonic() - began, 4.5)


class Tenants(unittest.TestCase):
    def setUp(self):
        self.cluster = daily.Cluster(BIN)
        self.ready = f"{self.cluster.folder}/ready.json"
        self.cluster.more = ("--http", "127.0.0.1:0", "--ready-file", self.ready)
        self.cluster.coordinator()
        end = time.monotonic() + daily.PATIENCE_S
        while not os.path.exists(self.ready):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def tearDown(self):
        self.cluster.close()

    def token(self, name, access, *more, **env):
        path = f"{self.cluster.folder}/{name}.token"
        self.cluster.ctl("token", "create", name, f"--access={access}", *more, "--out", path, **env)
        return {"BANYAN_TOKEN_FILE": path}

    def test_tenants(self):
        admin = self.token("root", "admin")
        team = self.token("team", "user", "--tenant=team", **admin)
        self.cluster.worker("a")
        self.cluster.ctl("wait", "workers", "1", **admin)
        self.cluster.ctl("session", "create", *SHAPE, "theirs", **team)
        self.cluster.ctl("session", "create", *SHAPE, "ours", **admin)
        self.assertEqual([s["name"] for s in self.cluster.json("sessions", "--tenant=team", **admin)], ["theirs"])
        self.assertEqual(len(self.cluster.json("sessions", **admin)), 2)
        rows = {t["tenant"]: t["sessions"] for t in self.cluster.json("tenant", "list", **admin)}
        self.assertEqual(rows, {"default": 1, "team": 1})
        ident = self.cluster.json("session", "show", "theirs", **team)["id"]
        said = self.cluster.ctl("session", "show", "theirs", code=3, **admin)[1]
        self.assertIn(f"the session 'theirs' is of the tenant team: give its id, {ident}", said)
        self.assertEqual(self.cluster.json("session", "show", ident, **admin)["name"], "theirs")
        self.assertNotIn("tenant", self.cluster.ctl("session", "show", "ours", code=3, **team)[1].split("(")[0])

    def test_refused_tokens(self):
        """Counted as tokens over a stream, too, and the reason is told."""
        admin = self.token("root", "admin")
        brief = self.token("brief", "user", "--expires=1s", **admin)
        wrong = f"{self.cluster.folder}/wrong.token"
        with open(wrong, "w", encoding="utf-8", opener=lambda *a: os.open(*a, 0o600)) as file:
            file.write("bt_0000000000000000000000000000000000000000000\n")
        before = self.refused()
        self.assertIn("a client token is required", self.cluster.ctl("status", code=7)[1])
        self.assertIn("the client token is wrong or was revoked", self.cluster.ctl("status", code=7, BANYAN_TOKEN_FILE=wrong)[1])
        end = time.monotonic() + daily.PATIENCE_S
        while "the client token has expired" not in (said := self.cluster.ctl("status", code=None, **brief)[1]):
            self.assertLess(time.monotonic(), end, said)
            time.sleep(0.1)
        after = self.refused()
        self.assertGreaterEqual(after["token"] - before["token"], 3)
        self.assertEqual(after["connection"], before["connection"])

    def refused(self):
        lines = [line for line in daily.metrics(self.ready).splitlines() if line.startswith("banyan_refused_total{")]
        return {line.split('"')[1]: int(float(line.split()[-1])) for line in lines}

    def test_a_peer_that_is_refused_again_and_again_is_logged_once(self):
        """A worker of another cluster dials without end."""
        log = f"{self.cluster.folder}/coordinator.log"
        with open(f"{self.cluster.folder}/other.secret", "w", encoding="utf-8", opener=lambda *a: os.open(*a, 0o600)) as file:
            file.write("ab" * 32 + "\n")
        self.cluster.start("stranger", "banyan-worker", "--coordinator", self.cluster.endpoint, "--name", "stranger", "--memory", "64M",
                           "--device", "cpu", "--bandwidth", "1G", secret=f"{self.cluster.folder}/other.secret")
        end = time.monotonic() + daily.PATIENCE_S
        while self.refused()["connection"] < 6:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)
        with open(log, encoding="utf-8") as file:
            lines = [line for line in file if "refused" in line and "stranger" in line]
        self.assertEqual(len(lines), 1, lines)


if __name__ == "__main__":
    unittest.main()
