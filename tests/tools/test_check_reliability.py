#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_reliability.py: a small tree that agrees, and one difference each."""
import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import check_reliability

PAGE = "docs/operating/reliability.md"
BASE = {
    PAGE: "an error (1 of them), an error at each of 2 named places\n\n| between | points |\n|---|---|\n"
          "| x | `store_…`, `drain_…` |\n\n| bug | found by seed |\n|---|---|\n| skip a check | 3 |\n\nmore\n",
    "tests/mutation/planted.list": "## skip-a-check\nsee: chaos\n",
    "coordinator/a.c": 'COMMON_FAILPOINT("store_written");\nif (COMMON_FAILPOINT_FAILS("drain_stored"))\n',
}


def check(files):
    """What it says of the base tree with these files (name -> text)."""
    with tempfile.TemporaryDirectory() as root:
        for name, text in {**BASE, **files}.items():
            os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
            with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                file.write(text)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = check_reliability.main([root])
        return status, out.getvalue()


class CheckReliability(unittest.TestCase):
    def assert_offence(self, files, word):
        status, out = check(files)
        self.assertEqual(status, 1)
        self.assertEqual(out.count("\n"), 1, out)
        self.assertIn(word, out)

    def test_agrees(self):
        self.assertEqual(check({}), (0, ""))

    def test_a_bug_that_is_not_reported(self):
        self.assert_offence({"tests/mutation/planted.list": "## skip-a-check\n\n## one-more\n"}, "not in the table: one more")

    def test_a_bug_that_is_not_planted(self):
        text = BASE[PAGE].replace("| 3 |\n", "| 3 |\n| another | 4 |\n")
        self.assert_offence({PAGE: text}, "not in planted.list: another")

    def test_the_number_of_points(self):
        self.assert_offence({"worker/b.c": 'COMMON_FAILPOINT("store_answered");\n'}, "3 failpoints, 1 of which")
        self.assert_offence({PAGE: BASE[PAGE].replace("(1 of", "(2 of")}, "says (2 of them)")

    def test_kinds_of_points(self):
        text = BASE["coordinator/a.c"].replace("drain_stored", "hold_taken")
        status, out = check({"coordinator/a.c": text})
        self.assertEqual((status, out.count("\n")), (1, 2))
        self.assertIn("hold_… are in the sources alone", out)
        self.assertIn("drain_… are in the table alone", out)


if __name__ == "__main__":
    unittest.main()
