#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/explore: its options, and what it makes of what the kinds find. They stand for themselves here:
nothing is built.

    test_explore.py EXPLORE
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

EXPLORE = sys.argv.pop(1)
KINDS = {"sim/run": "seeds from 7", "fuzz/run.sh": "| codec |", "chaos/run": "{}", "failpoints/run": "{}", "mutation/run": "1 of 1"}


class Explore(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        os.makedirs(f"{self.folder.name}/tests")
        os.makedirs(f"{self.folder.name}/bin")
        shutil.copy(EXPLORE, f"{self.folder.name}/tests/explore")
        self.script("bin/cmake", "exit 0")
        for kind, said in KINDS.items():
            self.kind(kind, f"echo '{said}'")

    def script(self, name, text):
        path = f"{self.folder.name}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/bash\n{text}\n")
        os.chmod(path, 0o755)

    def kind(self, name, text):
        self.script(f"tests/{name}", f'echo "{name} $*" >>{self.folder.name}/called\n{text}')

    def explore(self, *args):
        env = dict(os.environ, PATH=f"{self.folder.name}/bin:{os.environ['PATH']}")
        return subprocess.run([f"{self.folder.name}/tests/explore", *args], capture_output=True, text=True, check=False, env=env, timeout=300)

    def called(self):
        with open(f"{self.folder.name}/called", encoding="utf-8") as file:
            return file.read().splitlines()

    def test_mistakes(self):
        for args in (["--minutes", "0"], ["--minutes"], ["--minutes", "1.5"], ["-j", "x"], ["--rounds", "-1"], ["--none"], ["lives"]):
            done = self.explore(*args)
            self.assertEqual((done.returncode, done.stdout), (2, ""), args)
            self.assertTrue(done.stderr.startswith("tests/explore: "), done.stderr)

    def test_all_in_turn(self):
        done = self.explore("--minutes", "12", "-j", "2")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertIn("Nothing was found.", done.stdout)
        called = self.called()
        for line in ("sim/run --seeds 1000000000 --minutes 2.00", "sim/run --memory --seeds 1000000000 --minutes 2.00",
                     "chaos/run --stores on --minutes 1.00", "chaos/run --stores off --minutes 1.00",
                     "failpoints/run --minutes 2.00", "mutation/run --minutes 2.00 --jobs 2 --least 100"):
            self.assertEqual(called.count(line), 1, called)
        self.assertTrue(any(line.startswith("fuzz/run.sh --seconds") for line in called), called)

    def test_some_and_rounds(self):
        done = self.explore("--minutes", "4", "--rounds", "2", "failpoints", "sim")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.called(), ["failpoints/run --minutes 1.00", "sim/run --seeds 1000000000 --minutes 1.00"] * 2)

    def test_what_is_found_is_printed_and_the_rest_runs(self):
        self.kind("sim/run", "echo 'seeds from 7'; echo 'seed 9 fails: a row is lost'; echo '  replay: chaos_test --seed 9'; exit 1")
        self.kind("mutation/run", "echo 'SURVIVED  count-twice'; exit 1")
        done = self.explore("sim", "mutants", "failpoints")
        self.assertEqual(done.returncode, 1, done.stdout)
        for text in ("seed 9 fails: a row is lost", "chaos_test --seed 9", "SURVIVED  count-twice", "Found by: sim mutants."):
            self.assertIn(text, done.stdout)
        self.assertEqual(len(self.called()), 3)
        with open(f"{self.folder.name}/build/explore/sim.log", encoding="utf-8") as file:
            self.assertIn("seed 9 fails", file.read())

    def test_the_second_half_of_chaos_runs(self):
        self.kind("chaos/run", '[ "$2" = off ] || { echo "seed 4: wrong"; exit 1; }')
        done = self.explore("chaos")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("seed 4: wrong", done.stdout)
        self.assertEqual(len(self.called()), 2)

    def test_what_does_not_build(self):
        self.script("bin/cmake", "echo 'no compiler'; exit 1")
        done = self.explore("sim")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no compiler", done.stdout)


if __name__ == "__main__":
    unittest.main()
