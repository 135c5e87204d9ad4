#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of docs/tools/build_site.py: how a page is altered for MkDocs, the order of the pages, and dead links
of a site."""
import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "tools"))
import build_site as site
import heading_slug


def tree(root, files):
    for name, text in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


class Rendered(unittest.TestCase):
    def assert_rendered(self, text, wanted):
        self.assertEqual(site.rendered(text), wanted)

    def test_blocks_begin_after_an_empty_line(self):
        self.assert_rendered("a:\n- b\n- c\n", "a:\n\n- b\n- c\n")
        self.assert_rendered("a\n| b |\n|---|\n| c |", "a\n\n| b |\n|---|\n| c |")
        self.assert_rendered("a\n```sh machine=x\n- b\n```", "a\n\n```sh\n- b\n```")
        self.assert_rendered("- a\n  b\n- c", "- a\n  b\n- c")

    def test_what_belongs_to_an_item(self):
        self.assert_rendered("- a:\n\n  ```\n  x = 1\n  ```\n  b\n\n  c", "- a:\n\n\n        x = 1\n\n    b\n\n    c")

    def test_bars_in_tables(self):
        self.assert_rendered("| `a\\|b` | c\\|d |", "| `a|b` | c\\|d |")


class Site(unittest.TestCase):
    def test_links_of_a_page(self):
        with tempfile.TemporaryDirectory() as root:
            tree(root, {"docs/a.md": "# A", "common/x.h": "", "client/README.md": "# C"})
            files = {"docs/a.md", "common/x.h", "client/README.md"}
            text, needs = site.page(root, "docs/a.md", "[x](../common/x.h) [c](../client) [d](../common) [h](#b) [w](https://x.y/)", files)
            self.assertEqual(text, "[x](../common/x.h) [c](../client/README.md) d [h](#b) [w](https://x.y/)")
            self.assertEqual(needs, {"common/x.h"})

    def test_order(self):
        with tempfile.TemporaryDirectory() as root:
            tree(root, {"README.md": "# R", "docs/README.md": "# D\n[b](concepts/b.md) [a](concepts/a.md)", "docs/measurements/README.md": "# M",
                        "docs/concepts/a.md": "# The `a`", "docs/concepts/b.md": "# B", "docs/GPU.md": "# G", "client/README.md": "# C"})
            names = {"README.md", "docs/README.md", "docs/measurements/README.md", "docs/concepts/a.md", "docs/concepts/b.md",
                     "docs/GPU.md", "client/README.md"}
            text = "\n".join(site.nav_of(root, names))
            self.assertIn('- Concepts:\n      - "B": docs/concepts/b.md\n      - "The a": docs/concepts/a.md\n', text)
            self.assertIn('- Operating:\n      - "G": docs/GPU.md\n', text)
            self.assertIn('      - "client": client/README.md', text)
            self.assertNotIn("- Engines:\n      -", text)

    def test_dead_links(self):
        pages = {"index.html": '<h1 id="a">A</h1><a href="b/#x">b</a><a href="https://x.y">w</a><a href="#a">s</a>',
                 "b/index.html": '<h2 id="x"></h2><a href="..">up</a>'}
        with tempfile.TemporaryDirectory() as root:
            tree(root, pages)
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(site.check(root), 0)
            for link, why in (("c/", "no such page"), ("b/#y", "no heading #y"), ("#b", "no heading #b")):
                tree(root, {"index.html": pages["index.html"] + f'<a href="{link}">c</a>'})
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    self.assertEqual(site.check(root), 1, link)
                self.assertIn(f"index.html: ({link}): ", out.getvalue())
                self.assertIn(why, out.getvalue())

    def test_headings(self):
        for text, wanted in (("A step", "a-step"), ("The `first` step, at last", "the-first-step-at-last"), ("banyan_error", "banyan_error")):
            self.assertEqual(heading_slug.slugify(text, "-"), wanted)


if __name__ == "__main__":
    unittest.main()
