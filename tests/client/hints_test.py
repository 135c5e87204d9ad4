#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What banyanctl advises below a failure fits this very failure: three that share their codes with others.

    hints_test.py BIN [FULL_DISK]      BIN: the folder of the programs; FULL_DISK: full_disk.c as a library
"""
import os
import sys
import unittest

import daily

BIN = sys.argv.pop(1)
FULL_DISK = sys.argv.pop(1) if len(sys.argv) > 1 and os.path.isfile(sys.argv[1]) else None
SHAPE = ("--q-heads=1", "--dim=8", "--kv-type=f32", "--chunk-tokens=16", "--replicas=1")


class Hints(unittest.TestCase):
    def setUp(self):
        self.cluster = daily.Cluster(BIN)
        self.full = os.path.join(self.cluster.folder, "full")
        if FULL_DISK:
            os.environ.update(LD_PRELOAD=FULL_DISK, BANYAN_TEST_FULL=self.full)
        self.ready_file = os.path.join(self.cluster.folder, "ready.json")
        self.cluster.more = ("--http", "127.0.0.1:0", "--ready-file", self.ready_file)
        self.cluster.coordinator()
        for name in ("LD_PRELOAD", "BANYAN_TEST_FULL"):
            os.environ.pop(name, None)
        self.cluster.worker("a")
        self.cluster.ctl("wait", "ready")

    def tearDown(self):
        self.cluster.close()

    def ready(self):
        return daily.page(self.ready_file, "readyz?verbose")

    def fails(self, *words, code, reason, hint, **env):
        """The lines below the sentence, which names the reason."""
        said = self.cluster.ctl(*words, code=code, **env)[1].splitlines()
        self.assertTrue(said[0].endswith(f", {reason})"), said)
        self.assertEqual(len(said), 2, said)
        self.assertIn(hint, said[1])

    def test_the_last_admin_token(self):
        path = os.path.join(self.cluster.folder, "token")
        with open(path, "w", encoding="utf-8", opener=lambda *a: os.open(*a, 0o600)) as file:
            file.write(self.cluster.json("token", "create", "root", "--access", "admin")["token"])
        self.fails("token", "revoke", "root", code=9, reason="TOKEN", hint="'banyanctl token list'", BANYAN_TOKEN_FILE=path)
        self.fails("token", "revoke", "toor", code=3, reason="TOKEN", hint="'banyanctl token list'", BANYAN_TOKEN_FILE=path)
        self.fails("sessions", code=7, reason="CREDENTIALS", hint="BANYAN_TOKEN_FILE")

    def test_a_quota(self):
        self.cluster.ctl("quota", "set", "default", "--sessions", "1")
        self.cluster.ctl("session", "create", *SHAPE, "one")
        self.fails("session", "create", *SHAPE, "two", code=8, reason="QUOTA", hint="'banyanctl quota show'")
        self.cluster.ctl("quota", "set", "default", "--sessions", "2", "--steps-per-second", "1")
        self.fails("bench", "--tokens", "256", "--q-heads", "1", "--kv-heads", "1", "--dim", "8", code=8, reason="QUOTA",
                   hint="'banyanctl quota show'")

    def test_memory(self):
        self.cluster.ctl("session", "create", "--q-heads=1", "--dim=1024", "--kv-type=f32", "--chunk-tokens=4096", "--replicas=1",
                         "--layers=64", "huge")
        path = os.path.join(self.cluster.folder, "huge.safetensors")
        daily.write_tokens(path, 1, 1024)
        self.fails("attach", "huge", path, code=8, reason="FULL", hint="add workers")

    def test_what_is_not_there(self):
        self.fails("session", "show", "nothing", code=3, reason="NO_SESSION", hint="'banyanctl sessions'")

    @unittest.skipUnless(FULL_DISK, "a sanitizer's library has to come first")
    def test_the_disk_of_the_store(self):
        self.cluster.ctl("session", "create", *SHAPE, "one")
        with open(self.full, "w", encoding="utf-8"):
            pass
        try:
            for words in (("session", "create", *SHAPE, "two"), ("session", "delete", "one"), ("worker", "drain", "a"),
                          ("quota", "set", "default", "--sessions", "1"), ("session", "fork", "one", "0", "three")):
                self.fails(*words, code=8, reason="STORE", hint="the coordinator's --store")
            said = self.ready()
            self.assertRegex(said, r"(?m)^\[!\]writes warning: .*(full|space)")
            self.assertIn("[+]store ok\n", said)
            self.assertTrue(said.endswith("\nok\n"), said)  # what is there is served
            self.assertRegex(daily.metrics(self.ready_file), "(?m)^banyan_store_failing 1$")
        finally:
            os.unlink(self.full)
        self.cluster.ctl("session", "create", *SHAPE, "two")
        self.assertIn("[+]writes ok\n", self.ready())


if __name__ == "__main__":
    unittest.main(verbosity=2)
