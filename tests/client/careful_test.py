#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What destroys says what before: --dry-run changes nothing, and users at a terminal are asked; scripts are
not.

    careful_test.py BIN        BIN: the folder of the programs
"""
import os
import signal
import subprocess
import sys
import unittest

import daily

BIN = sys.argv.pop(1)


class Careful(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = daily.Cluster(BIN)
        cls.ctl = cls.cluster.ctl
        cls.cluster.coordinator()
        cls.cluster.worker("a")
        cls.ctl("wait", "ready")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def session(self, name):
        self.ctl("session", "create", "--q-heads=1", "--dim=8", "--kv-type=f32", "--chunk-tokens=16", "--replicas=1", name)
        path = f"{self.cluster.folder}/{name}.safetensors"
        daily.write_tokens(path, 20, 8)
        self.ctl("attach", name, path, "--commit")
        return self.cluster.json("session", "show", name)["id"]

    def names(self):
        return {s["name"] for s in self.cluster.json("sessions")}

    def asked(self, *words, answer, code):
        """What it has asked at a terminal, and what it has said then."""
        terminal = daily.Terminal(self.cluster, *words)
        terminal.until("Continue? [y/N] ")
        terminal.type(answer)
        self.assertEqual(terminal.end(), code, terminal.shown)
        return terminal.shown

    def test_delete(self):
        session = self.session("gone")
        chunks = self.cluster.json("session", "show", "gone")["chunks"]
        for dry in ("--dry-run", "-n"):
            out = self.ctl("session", "delete", "gone", dry)[0]
            self.assertRegex(out, rf"^would delete session gone \({session}\) with 20 tokens: {chunks} chunks, .*B, at 1 workers "
                             r"\(a\)\n$")
        said = self.cluster.json("session", "delete", "gone", "--dry-run", "--yes")
        self.assertEqual({key: said[key] for key in ("dry_run", "action", "id", "name", "length", "chunks", "members")},
                         {"dry_run": True, "action": "session delete", "id": session, "name": "gone", "length": 20,
                          "chunks": chunks, "members": ["a"]})
        self.ctl("session", "delete", "nobody", "--dry-run", code=3)
        for answer in ("n\r", "\r", "\x04", "yess\r", "no\r"):
            shown = self.asked("session", "delete", "gone", answer=answer, code=6)
            self.assertIn(f"about to delete session gone ({session}) with 20 tokens", shown)
            self.assertIn(f"of the cluster at {self.cluster.endpoint} (BANYAN_ENDPOINT)", shown)
            self.assertIn("nothing was done", shown)
        terminal = daily.Terminal(self.cluster, "session", "delete", "gone")
        terminal.until("Continue?")
        terminal.type("\x03")
        self.assertEqual(terminal.end(), 128 + signal.SIGINT)
        self.assertIn("gone", self.names())
        self.assertIn(f"deleted {session}", self.asked("session", "delete", "gone", answer="y\r", code=0))
        self.assertNotIn("gone", self.names())

    def test_not_asked(self):
        """With --yes; where stdin is no terminal; where stdout is none."""
        self.session("one")
        terminal = daily.Terminal(self.cluster, "session", "delete", "one", "-y")
        self.assertEqual(terminal.end(), 0)
        self.assertNotIn("Continue?", terminal.shown)
        self.session("two")
        self.assertEqual(self.ctl("session", "delete", "two")[1], "") # neither
        self.session("three")
        command = [f"{BIN}/banyanctl", "session", "delete", "three"]
        master, slave = os.openpty()
        done = subprocess.run(command, stdin=slave, capture_output=True, text=True, timeout=daily.PATIENCE_S,
                              env=self.cluster.env())
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.session("four")
        done = subprocess.run([*command[:-1], "four"], stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.PIPE,
                              text=True, timeout=daily.PATIENCE_S, env=self.cluster.env())
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        os.close(master)
        os.close(slave)
        self.assertFalse(self.names() & {"one", "two", "three", "four"})

    def test_truncate(self):
        session = self.session("short")
        self.assertEqual(self.ctl("session", "truncate", "short", "5", "--dry-run")[0],
                         f"would keep the first 5 of 20 tokens of session short ({session}), and destroy the 15 after them\n")
        self.assertEqual(self.ctl("session", "truncate", "short", "20", "--dry-run")[0],
                         f"would keep the first 20 of 20 tokens of session short ({session})\n")
        # As without it
        self.assertIn("past the end", self.ctl("session", "truncate", "short", "21", "--dry-run", code=4)[1])
        self.assertIn("past the end", self.ctl("session", "truncate", "short", "21", code=4)[1])
        self.assertEqual(self.cluster.json("session", "show", "short")["length"], 20)
        self.assertEqual(self.cluster.json("session", "truncate", "short", "5", "-n")["destroy"], 15)
        self.asked("session", "truncate", "short", "5", answer="n\r", code=6)
        self.assertEqual(self.cluster.json("session", "show", "short")["length"], 20)
        self.asked("session", "truncate", "short", "5", answer="yes\r", code=0)
        self.assertEqual(self.cluster.json("session", "show", "short")["length"], 5)
        self.ctl("session", "truncate", "short", "3")
        self.assertEqual(self.cluster.json("session", "show", "short")["length"], 3)

    def test_forget(self):
        self.assertIn("it is active", self.ctl("worker", "forget", "a", "--dry-run", code=9)[1])
        self.assertIn("there is no worker 'x'", self.ctl("worker", "forget", "x", "--dry-run", code=3)[1])
        self.cluster.worker("b")
        self.ctl("wait", "workers", "2")
        self.cluster.stop("b", signal.SIGKILL)
        while {w["name"]: w["state"] for w in self.cluster.json("workers")}["b"] != "lost":
            pass
        self.assertEqual(self.ctl("worker", "forget", "b", "--dry-run")[0],
                         "would remove worker b of host host-b, which holds nothing, from the list\n")
        self.asked("worker", "forget", "b", answer="n\r", code=6)
        self.assertIn("b", {w["name"] for w in self.cluster.json("workers")})
        self.asked("worker", "forget", "b", answer="y\r", code=0)
        self.assertNotIn("b", {w["name"] for w in self.cluster.json("workers")})

    def test_quarantine(self):
        """A worker holds what is in another store."""
        cluster = daily.Cluster(BIN)
        try:
            cluster.coordinator()
            cluster.worker("a")
            cluster.ctl("wait", "ready")
            cluster.ctl("session", "create", "--q-heads=1", "--dim=8", "--kv-type=f32", "s")
            daily.write_tokens(f"{cluster.folder}/s.safetensors", 20, 8)
            cluster.ctl("attach", "s", f"{cluster.folder}/s.safetensors", "--commit")
            session = cluster.json("session", "show", "s")["id"]
            cluster.stop("coordinator")
            for name in os.listdir(cluster.folder):
                if name.startswith("store.db"):
                    os.remove(os.path.join(cluster.folder, name))
            cluster.coordinator()
            cluster.ctl("wait", "ready")
            while not cluster.json("quarantine", "list"):
                pass
            self.assertIn("give --yes", cluster.ctl("quarantine", "drop", "a", code=2)[1]) # a script must say so
            self.assertRegex(cluster.ctl("quarantine", "drop", "a", "--dry-run")[0],
                             r"^would drop 1 sessions, .*, that a holds in quarantine\n$")
            self.assertEqual(cluster.json("quarantine", "drop", "a", session, "-n")["sessions"], 1)
            cluster.ctl("quarantine", "drop", "a", "0x1234", "-n", code=3)
            terminal = daily.Terminal(cluster, "quarantine", "drop", "a")
            terminal.until("Continue?")
            terminal.type("n\r")
            self.assertEqual(terminal.end(), 6)
            self.assertEqual(len(cluster.json("quarantine", "list")), 1)
            terminal = daily.Terminal(cluster, "quarantine", "drop", "a")
            terminal.until("Continue?")
            terminal.type("y\r")
            self.assertEqual(terminal.end(), 0)
            self.assertEqual(cluster.json("quarantine", "list"), [])
        finally:
            cluster.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
