#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/operating/security.md and the trial are of one mind: each test of an attacker is a line of his table,
each line is a test, and the files that promises are tested by exist."""
import ast
import pathlib
import re
import unittest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = (ROOT / "docs/operating/security.md").read_text()
ATTACKERS = [path for path in sorted(HERE.glob("*_test.py")) if path.name != "table_test.py"]


class Table(unittest.TestCase):
    def test_each_test_is_a_line(self):
        for path in ATTACKERS:
            tests = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
                     and node.name.startswith("test_")}
            self.assertGreater(len(tests), 3, path.name)
            section = re.search(rf"^### [^\n]*\n(?:(?!^#).)*?`tests/trial/{path.name}`(.*?)(?=^##|\Z)", PAGE, re.S | re.M)
            self.assertIsNotNone(section, f"docs/operating/security.md has no part with `tests/trial/{path.name}`")
            lines = set(re.findall(r"^\| .*`(test_\w+)` \|$", section[1], re.M))
            self.assertEqual(tests, lines, path.name)

    def test_files_are_there(self):
        part = re.search(r"^## What each promise is tested by\n(.*?)(?=^## )", PAGE, re.S | re.M)[1]
        named = re.findall(r"`((?:tests|client|bench)/[\w./-]+)`", part)
        self.assertGreater(len(named), 10)
        for name in named:
            self.assertTrue((ROOT / name).exists(), f"docs/operating/security.md names {name}, which is not there")


if __name__ == "__main__":
    unittest.main(verbosity=2)
