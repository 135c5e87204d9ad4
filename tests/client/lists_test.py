#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""banyanctl sessions and workers: in which order, how many, which build.

    lists_test.py BIN        BIN: the folder of the programs
"""
import subprocess
import sys
import unittest

import daily

BIN = sys.argv.pop(1)


class Lists(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = daily.Cluster(BIN)
        cls.cluster.coordinator()
        cls.cluster.worker("a")
        cls.cluster.ctl("wait", "workers", "1")
        for name, tokens, dim in (("middle", 40, 16), ("zebra", 20, 64), ("ant", 60, 4)):
            file = f"{cls.cluster.folder}/{name}.safetensors"
            daily.write_tokens(file, tokens, dim)
            cls.cluster.ctl("session", "create", "--q-heads=1", f"--dim={dim}", "--kv-type=f32", name)
            cls.cluster.ctl("attach", name, file, "--commit")
            if name != "zebra":
                cls.cluster.ctl("session", "truncate", name, str(tokens - 1), "--yes")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def names(self, *words):
        return [s["name"] for s in self.cluster.json("sessions", *words)]

    def test_order(self):
        ids = [s["id"] for s in self.cluster.json("sessions")]
        self.assertEqual(ids, sorted(ids))
        self.assertEqual(self.names("--sort", "name"), ["ant", "middle", "zebra"])
        self.assertEqual(self.names("--sort=name", "-r"), ["zebra", "middle", "ant"])
        self.assertEqual(self.names("--sort=tokens"), ["ant", "middle", "zebra"])
        self.assertEqual(self.names("-s", "idle", "-n1"), ["middle"])
        by_bytes = self.cluster.json("sessions", "--sort=memory")
        self.assertEqual([s["bytes"] for s in by_bytes], sorted((s["bytes"] for s in by_bytes), reverse=True))
        self.assertEqual([s["name"] for s in by_bytes], ["zebra", "middle", "ant"])
        self.assertEqual(self.names("--sort=memory", "--limit=2"), ["zebra", "middle"])
        self.assertEqual(len(self.names("--sort=steps", "--limit=7")), 3)
        self.assertIn("'size' is not one of id, name, memory", self.cluster.ctl("sessions", "--sort=size", code=2)[1])
        self.cluster.ctl("sessions", "--limit=0", code=2)

    def test_version(self):
        version = subprocess.run([f"{BIN}/banyan-worker", "--version"], capture_output=True, text=True, check=True)
        said = self.cluster.json("workers")
        self.assertEqual([w["version"] for w in said], [version.stdout.split()[-1]])
        self.assertIn(" VERSION ", self.cluster.ctl("workers")[0].split("\n")[0])


if __name__ == "__main__":
    unittest.main()
