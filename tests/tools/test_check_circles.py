#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_circles.py: small trees, and what is said of their circles."""
import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import check_circles

# a -> b -> c -> a by headers and sources; d depends on them and stands outside; other/e closes a wider one.
TREE = {
    "worker/a.c": '#include "worker/a.h"\n#include "worker/b.h"\n',
    "worker/a.h": "",
    "worker/b.h": '#include "worker/c.h"\n',
    "worker/c.c": '#include "worker/c.h"\n#include <stdio.h>\n  #  include "worker/a.h"\n',
    "worker/c.h": "",
    "worker/d.c": '#include "worker/a.h"\n',
    "worker/disk/e.c": '#include "worker/disk/e.h"\n#include "worker/d.h"\n',
    "worker/disk/e.h": "",
    "worker/d.h": '#include "worker/disk/e.h"\n',
    "tests/t.c": '#include "tests/t.h"\n',
    "common/f.c": '#include "common/f.h"\n',
    "common/f.h": "",
}


class CheckCircles(unittest.TestCase):
    def run_tool(self, bounds, *more, tree=TREE):
        with tempfile.TemporaryDirectory() as root:
            os.environ["GIT_CEILING_DIRECTORIES"] = os.path.dirname(root)
            for name, text in tree.items():
                os.makedirs(os.path.join(root, os.path.dirname(name)), exist_ok=True)
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(text)
            path = os.path.join(root, "circles.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write(bounds)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                status = check_circles.main(["--root", root, "--bounds", path, *more])
            with open(path, encoding="utf-8") as file:
                return status, out.getvalue(), file.read()

    def test_as_the_file_says(self):
        self.assertEqual(self.run_tool("# head\nworker 3\nworker/** 3 # and\n")[:2], (0, ""))

    def test_one_that_grew(self):
        status, out, _ = self.run_tool("worker 2\nworker/** 3\n")
        self.assertEqual(status, 1)
        self.assertEqual(out, "worker: a circle of 3 objects, 2 are allowed: "
                              "tests/tools/check_circles.py --show 'worker' lists it\n")
        self.assertEqual(self.run_tool("worker/** 3\n")[0], 1)  # a room without a line may have none

    def test_one_that_shrank_and_one_that_is_gone(self):
        status, out, _ = self.run_tool("worker 4\nworker/** 3\nreduce 2\n")
        self.assertEqual(status, 1)
        self.assertIn("worker: the largest circle has 3 objects, no longer 4", out)
        self.assertIn("reduce: stands in circles.txt", out)

    def test_show(self):
        _, out, _ = self.run_tool("", "--show", "worker/**")
        self.assertEqual(out, "3: worker/a worker/b worker/c\n2: worker/d worker/disk/e\n")

    def test_write(self):
        _, _, text = self.run_tool("# head\nworker 9\n", "--write")
        self.assertEqual(text.split(), "# head worker 3 worker/** 3".split())

    def test_a_line_that_makes_no_sense(self):
        for line in ("worker", "worker three", "worker 3\nworker 3"):
            with self.assertRaises(SystemExit):
                self.run_tool(line + "\n")

    def test_a_circle_within_a_long_chain(self):
        tree = {f"worker/n{i:04}.h": f'#include "worker/n{i + 1:04}.h"\n' for i in range(3000)}
        tree["worker/n3000.h"] = '#include "worker/n2990.h"\n'
        _, out, _ = self.run_tool("", "--show", "worker", tree=tree)
        self.assertTrue(out.startswith("11: worker/n2990 "), out)


if __name__ == "__main__":
    unittest.main()
