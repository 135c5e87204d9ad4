#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/run.sh: its options, and what --no-install says of a machine where something is missing. Nothing is
built.

Also a rule for all our scripts: under pipefail no reader of a pipe ends early.

    test_run.py RUN
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

RUN = sys.argv.pop(1)
# What the script itself needs to come as far as its first stage
TOOLS = ("awk", "bash", "cat", "cc", "dirname", "env", "mktemp", "rm")


def run(*args, **env):
    return subprocess.run([RUN, *args], capture_output=True, text=True, check=False, env=dict(os.environ, **env), timeout=60)


class Run(unittest.TestCase):
    def test_mistakes(self):
        for args in (["-j", "0"], ["-j"], ["-jx"], ["-j", "1.5"], ["--asan", "--tsan"], ["--none"]):
            done = run(*args)
            self.assertEqual((done.returncode, done.stdout), (2, ""), args)
            self.assertTrue(done.stderr.startswith("tests/run.sh: "), done.stderr)

    def test_no_install_lists_what_is_missing(self):
        with tempfile.TemporaryDirectory() as path:
            for tool in TOOLS:
                os.symlink(shutil.which(tool), os.path.join(path, tool))
            os.symlink("/bin/true", os.path.join(path, "apt-get"))  # must not be asked
            for args in (["--no-install"], ["--no-install", "-j", "3", "--ci"], ["-j3", "--asan", "--no-install"]):
                done = run(*args, PATH=path)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertEqual(done.stderr, "")
                lines = done.stdout.splitlines()
                self.assertIn("FAILED", lines[0])
                for word in ("command protoc-c (in Debian: protobuf-c-compiler)", "module libevent_pthreads (in Debian: libevent-dev)",
                             "command cppcheck", "command c++ (in Debian: build-essential)"):
                    self.assertTrue(any(word in line for line in lines), f"{word}: {lines}")
                self.assertFalse(any("command cc " in line for line in lines), lines)

    def test_no_reader_ends_early(self):
        """`sort | head` fails now and then: sort may still be writing when head has ended, and dies of
        SIGPIPE."""
        root = os.path.join(os.path.dirname(os.path.abspath(RUN)), "..")
        early = re.compile(r"\|\s*(head\b|grep\s+-\w*q|sed\s+(-\w+\s+)*'?\d*q)")
        scripts = []
        for folder, folders, files in os.walk(root):
            folders[:] = [f for f in folders if f != "build" and not f.startswith(".git")]
            for path in (os.path.join(folder, f) for f in files):
                with open(path, "rb") as file:
                    if not re.match(rb"#!.*\bbash$|# SPDX.*\n.*tests/gpu\.sh", file.read(200), re.MULTILINE):
                        continue
                with open(path, encoding="utf-8") as file:
                    scripts.append(path)
                    for number, line in enumerate(file, 1):
                        self.assertIsNone(early.search(line.replace("||", "")), f"{path}:{number}: {line}")
        self.assertGreater(len(scripts), 20)


if __name__ == "__main__":
    unittest.main()
