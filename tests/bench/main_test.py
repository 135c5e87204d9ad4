#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every benchmark: --help, and mistakes on its command line (bench/main.h). Nothing is measured.

    main_test.py BENCH...
"""

import os
import subprocess
import sys
import unittest

BENCHES = [sys.argv.pop(1) for _ in range(len(sys.argv) - 1)]


def run(bench, *args):
    return subprocess.run([bench, *args], capture_output=True, text=True, check=False, timeout=60)


class Main(unittest.TestCase):
    def test_help(self):
        for bench in BENCHES:
            with self.subTest(bench):
                done = run(bench, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertTrue(done.stdout.startswith(f"Usage: {os.path.basename(bench)} [options]\n"), done.stdout)
                self.assertEqual(done.stdout.count("--json "), 1)

    def test_mistakes(self):
        for bench in BENCHES:
            name = os.path.basename(bench)
            for args, word in ((["--none"], "--none"), (["--json", "extra"], "unexpected argument 'extra'"), (["--json=1"], "--json")):
                with self.subTest(bench, args=args):
                    done = run(bench, *args)
                    self.assertEqual((done.returncode, done.stdout), (2, ""))
                    self.assertTrue(done.stderr.startswith(f"{name}: ") and word in done.stderr, done.stderr)
                    self.assertTrue(done.stderr.endswith(f"try '{name} --help'\n"), done.stderr)

    def test_options_are_checked_before_anything_starts(self):
        done = run(next(b for b in BENCHES if os.path.basename(b) == "step_latency"), "--only", "nothing")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("step_latency: --only: 'nothing' is none of", done.stderr)


if __name__ == "__main__":
    unittest.main()
