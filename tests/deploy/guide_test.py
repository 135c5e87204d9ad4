#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial/three-machines.md as a page that is run: each of its commands has a machine; and the
    comparison of what it shows can fail. guide_test.py SOURCE
"""
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
from guide_page import differs, steps_of

SOURCE = pathlib.Path(sys.argv[1]).resolve()
PAGE = (SOURCE / "docs/tutorial/three-machines.md").read_text()


class Page(unittest.TestCase):
    def test_all_of_it_is_run(self):
        steps = steps_of(PAGE)
        self.assertEqual({s.machine for s in steps if s.kind == "run"}, {"build", "a", "b", "c"})
        self.assertGreater(sum(s.output is not None for s in steps), 10)
        self.assertEqual([s.heading for s in steps if s.kind == "hand"], ["Install", "Upgrade"])  # packages are copied
        for step in steps:
            if step.kind == "run":
                self.assertNotIn("sudo ", step.script, step.line)  # all is done as root
                self.assertLess(max(map(len, step.script.splitlines())), 101, step.line)

    def test_blocks(self):
        for text in ("```sh\nls\n```\n", "```sh machine=\nls\n```\n", "```output\nx\n```\n", "```text machine=a\nx\n```\n"):
            with self.assertRaises(ValueError, msg=text):
                steps_of(text)
        run, on = steps_of("# H\n```sh machine=a\nls\n```\n```output\nx\ny\n```\n<!-- machine=b on -->\n```ini\nno = command\n```\n")
        self.assertEqual((run.kind, run.machine, run.script, run.output, run.heading, run.line), ("run", "a", "ls\n", "x\ny\n", "H", 2))
        self.assertEqual((on.kind, on.machine), ("on", "b"))


class Shown(unittest.TestCase):
    def test_same(self):
        for shown, real in (("a  b\n", "a b\n"), ("rtt 1.25 ms\n", "rtt 940 µs\n"), ("0x0123456789abcdef x\n", "0xfedcba9876543210 x\n"),
                            ("…\nlast\n", "one\ntwo\nlast\n"), ("first\n…\n", "first\nmore\n"), ("a … z\n", "a 1 2 z\n"), ("ok 12.5 GiB/s\n", "ok 900 MiB/s\n"),
                            ("version 0.1.0\n", "version 0.1.0~git20261124004424.dcfbf79ac.1\n"), ("x\n", "x\n"), ("", "")):
            self.assertIsNone(differs(shown, real), (shown, real))

    def test_different(self):
        for shown, real in (("3 workers\n", "2 workers\n"), ("a\nb\n", "b\na\n"), ("a\n", "a\nb\n"), ("a\nb\n", "a\n"), ("a\nc\n", "a\nb\nc\n"),
                            ("active\n", "lost\n"), ("…\nlast\n", "one\ntwo\n"), ("a … z\n", "a 1 2 y\n"), ("x\n", ""), ("rtt 1.25 ms\n", "rtt never\n"),
                            ("664 tokens\n", "663 tokens\n")):
            self.assertIsNotNone(differs(shown, real), (shown, real))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
