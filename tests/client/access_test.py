#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What banyanctl says to a tenant, whose token shows no workers: nothing that is hidden is reported as missing.

    access_test.py BIN        BIN: the folder of the programs
"""
import os
import sys
import unittest

import daily

BIN = os.path.abspath(sys.argv.pop(1))


class Access(unittest.TestCase):
    def setUp(self):
        self.cluster = daily.Cluster(BIN)
        self.cluster.coordinator()
        self.admin = self.made("root", "admin")
        self.user = self.made("team", "user", "--tenant=team", **self.admin)

    def tearDown(self):
        self.cluster.close()

    def made(self, name, access, *more, **env):
        path = f"{self.cluster.folder}/{name}.token"
        self.cluster.ctl("token", "create", name, f"--access={access}", *more, "--out", path, **env)
        return {"BANYAN_TOKEN_FILE": path}

    def ctl(self, *words, code=0):
        return self.cluster.ctl(*words, code=code, **self.user)

    def test_before_there_is_a_worker(self):
        self.assertIn("the cluster is not ready: no worker is active", self.ctl("wait", "ready", "--timeout=0", code=6)[1])
        said, _ = self.ctl("doctor", code=9)
        self.assertIn("fail  cluster      not ready: no worker is active", said)

    def test_a_healthy_cluster(self):
        self.cluster.worker("a")
        self.cluster.ctl("wait", "workers", "1", **self.admin)
        self.assertEqual(self.ctl("wait", "ready", "--timeout=10s")[0], "the cluster is ready\n")
        self.assertEqual(self.ctl("wait", "whole")[0], "all copies are present of the chunks of this tenant's sessions\n")
        for words in (("workers",), ("wait", "workers", "1")):
            out, err = self.ctl(*words, code=7)
            self.assertEqual(out, "")
            self.assertIn("a token of the access 'user' does not show workers", err)
        said, _ = self.ctl("doctor")
        self.assertIn("ready: the coordinator serves", said)
        self.assertIn("'user' of the tenant team: workers, limits and other tenants' sessions are not shown", said)
        self.assertNotIn("nothing can be computed", said)
        self.assertIn(" 0 fail", said)
        said, _ = self.ctl("status")
        self.assertRegex(said, r"(?m)^readiness +ready$")
        self.assertIn("does not show workers, limits and figures of the whole cluster", said)
        for title in ("workers", "memory used", "chunks", "LIMIT"):
            self.assertNotRegex(said, rf"(?m)^{title} ")
        record = self.cluster.json("status", **self.user)
        self.assertEqual((record["readiness"], record["tenant"], record["access"], record["sessions"]), ("ready", "team", "user", 0))
        self.assertNotIn("workers", record)
        self.assertIn("no workers are shown", self.ctl("top", "--once")[0])
        # An operator's commands say all of it.
        self.assertIn("workers_active", self.cluster.json("status", **self.admin))
        self.assertEqual([w["name"] for w in self.cluster.json("workers", **self.admin)], ["a"])


if __name__ == "__main__":
    unittest.main()
