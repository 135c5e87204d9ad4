#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""banyanctl support-bundle, backup verify and config check.

    support_test.py BIN        BIN: the folder of the programs
"""
import json
import os
import sys
import tarfile
import unittest

import daily

BIN = os.path.abspath(sys.argv.pop(1))


class Support(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = daily.Cluster(BIN)
        cls.folder = cls.cluster.folder
        cls.cluster.more = ("--http", "127.0.0.1:0", "--ready-file", f"{cls.folder}/ready")
        cls.cluster.coordinator()
        cls.cluster.worker("a")
        cls.ctl = staticmethod(cls.cluster.ctl)
        cls.ctl("wait", "workers", "1")
        cls.ctl("session", "create", "--q-heads=1", "--dim=16", "chat")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def file(self, name, text):
        path = f"{self.folder}/{name}"
        with open(path, "wb" if isinstance(text, bytes) else "w") as out:
            out.write(text)
        return path

    def test_bundle(self):
        token, key = "0123456789abcdef" * 4, "MIIBVAIBADANBgkqhkiG9w0BAQEFAASCAT4wggE6"
        log = self.file("w.log", f"token={token} trace={'ab' * 16}\nAuthorization: Bearer geheim and more\n"
                                 f"-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\nlast line\n")
        with open(f"{self.folder}/ready", encoding="utf-8") as ready:
            http = json.load(ready)["http"]
        out = f"{self.folder}/b.tar"
        says = self.ctl("support-bundle", out, log, f"{self.folder}/missing.log", "--metrics", http)[0]
        self.assertIn("read it before you send it", says)
        self.assertEqual(os.stat(out).st_mode & 0o777, 0o600)
        with tarfile.open(out) as tar:
            parts = {m.name: tar.extractfile(m).read().decode() for m in tar.getmembers()}
        self.assertEqual(json.loads(parts["workers.json"])[0]["name"], "a")
        self.assertEqual(json.loads(parts["sessions.json"])[0]["name"], "chat")
        self.assertIn("worker-active", {e["kind"] for e in json.loads(parts["events.json"])})
        self.assertIn("banyan_store_failing 0", parts["metrics.txt"])
        kept = parts["files/1-w.log"]
        for secret in (token, "geheim", key):
            self.assertNotIn(secret, kept)
        for rest in ("ab" * 16, " and more", "BEGIN PRIVATE KEY", "END PRIVATE KEY", "last line"):
            self.assertIn(rest, kept)
        self.assertRegex(parts["MANIFEST"], r"files/2-missing.log No such file")
        self.assertRegex(parts["MANIFEST"], r"status.json +ok")
        self.ctl("support-bundle", out, code=11)  # it is there
        nobody = f"{self.folder}/n.tar"
        self.ctl("support-bundle", nobody, "--timeout=1s", BANYAN_ENDPOINT=f"unix://{self.folder}/nobody")
        with tarfile.open(nobody) as tar:
            self.assertIn("code 5", tar.extractfile("MANIFEST").read().decode())

    def test_backup_verify(self):
        path = f"{self.folder}/x.backup"
        self.ctl("backup", path)
        made = self.cluster.json("backup", "verify", path, BANYAN_ENDPOINT="unix:///nobody")
        self.assertEqual((made["sessions"], made["bytes"]), (1, os.path.getsize(path)))
        with open(path, "rb") as file:
            whole = file.read()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        head = bytearray(whole)
        head[50] ^= 1
        for data, why in ((whole[:-1], "its end is missing"), (whole + b"x", "it continues"), (bytes(flipped), "its contents"),
                          (bytes(head), "its header"), (b"hello", "not a backup"), (b"", "not a backup")):
            self.assertIn(why, self.ctl("backup", "verify", self.file("bad", data), code=10)[1])
        self.ctl("backup", "verify", f"{self.folder}/none", code=11)

    def test_config_check(self):
        good = self.file("coordinator.conf", "max-workers = 5\n")
        self.assertIn("is right for banyan-coordinator", self.ctl("config", "check", good)[0])
        self.assertTrue(self.cluster.json("config", "check", good)["right"])
        self.assertIn("memory", self.ctl("config", "check", self.file("worker.conf", "memory = much\n"), code=4)[1])
        wrong = self.ctl("config", "check", good, "--daemon=worker", code=4)[1]
        self.assertIn("banyan-worker would not start", wrong)
        self.ctl("config", "check", f"{self.folder}/none", code=11)


if __name__ == "__main__":
    unittest.main()
