#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of docs/tools/reference.py and its pages: small sources, and what is made of them."""
import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "tools"))
import page_c
import page_cli
import page_errors
import page_events
import page_metrics
import page_python
import reference
import wording

HEADER = """// SPDX
// The library.
#ifndef BANYAN_H
#define BANYAN_H
#define BANYAN_API x
typedef enum banyan_code { // codes
    BANYAN_OK = 0,
    BANYAN_NOT_FOUND =
        5, // no such session
} banyan_code;
typedef enum banyan_reason { // why
    BANYAN_REASON_NONE = 0, // the code is enough
    // DATA_LOSS: of a read:
    // it differs. Then: attach (docs/x/hole.md).
    // ABORTED, UNKNOWN: it came late. Then: try
    // again.
    BANYAN_REASON_HOLE = 7,
} banyan_reason;
// ---- sessions ----------
// Opens it.
BANYAN_API banyan_code banyan_session_open(banyan_client *client, uint64_t id, const char *name, banyan_session **out);
typedef struct banyan_range {
    uint64_t first, count; // tokens
} banyan_range; // [first, first + count)
#ifdef __cplusplus
"""


class Tree(unittest.TestCase):
    def page(self, module, files):
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                os.makedirs(os.path.join(root, os.path.dirname(name)), exist_ok=True)
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(text)
            return "\n".join(module.page(root, root))


class Wording(unittest.TestCase):
    def test_marks_and_code(self):
        self.assertEqual(wording.coded("a * b, k_scale, --watch, `x*`, NOT_FOUND, 'banyanctl top'"),
                         "a \\* b, k_scale, `--watch`, `x*`, `NOT_FOUND`, `banyanctl top`")
        self.assertEqual(wording.cell("a|b\nc"), "a\\|b c")

    def test_width(self):
        lines = wording.prose("word " * 60 + "`" + "code " * 10 + "`", "- ", "  ")
        self.assertTrue(all(len(line) <= 100 for line in lines), lines)
        self.assertTrue(lines[-1].endswith("`code code code code code code code code code code `"))
        self.assertEqual(lines[1][:6], "  word")

    def test_lists_of_help(self):
        self.assertEqual(wording.told("One\ntwo.\n  a: x\n  b: y"), ["One two.", "", "- `a`: x", "- `b`: y", ""])


class Pages(Tree):
    def test_metrics(self):
        files = {f"{folder}/x.c": "" for folder in page_metrics.FOLDERS}
        source = 'static const char part[] = "Its " "part.";\n{gauge, "banyan_a", "Of \\"a\\".", NULL, NULL, 1},\n' \
                 '{COMMON_METRIC_COUNTER, "banyan_b_total", part, "worker", NULL},\n'
        text = self.page(page_metrics, {**files, "worker/metrics.c": source, "coordinator/m.c": '{gauge, "banyan_a", "Of a.", NULL,'})
        self.assertIn("| `banyan_b_total` | `worker` | counter | Its part. |", text.split("## Workers")[1])
        self.assertIn("| `banyan_a` | – | gauge |", text.split("## Both daemons")[1])
        for wrong in ('f("banyan_c");', '{gauge, "banyan_c", absent, NULL'):
            with self.assertRaises(SystemExit, msg=wrong):
                self.page(page_metrics, {**files, "worker/metrics.c": wrong})

    def test_events(self):
        text = self.page(page_events, {"proto/model/event.h": '#define PROTO_EVENT_KINDS(X) \\\n X(A_B, "a-b", 4, 10,   \\\n   "it is")\n'})
        self.assertIn("## a\n\n| kind | what happened | at most |\n|---|---|---|\n| `a-b` | it is | 4 per 10 s |", text)
        with self.assertRaises(SystemExit):
            self.page(page_events, {"proto/model/event.h": "#define PROTO_EVENT_KINDS(X)\n"})

    def test_c(self):
        text = self.page(page_c, {"client/banyan.h": HEADER})
        self.assertIn("### banyan_session_open\n\n```c\nbanyan_code banyan_session_open(banyan_client *client, uint64_t id, const char *name,\n"
                      "                                banyan_session **out);\n```\n\nOpens it.", text)
        self.assertIn("### banyan_range\n\n\\[first, first + count).\n\n| `struct` |  |\n|---|---|\n| `uint64_t first, count` | tokens |", text)
        self.assertLess(text.index("## General"), text.index("## Sessions"))

    def test_errors(self):
        files = {"client/banyan.h": HEADER, "docs/reference/exit-codes.md": "\n## banyanctl\n| code | m | c | w |\n|---|---|---|---|\n"
                 "| 0 | done | OK | |\n| 3 | no such | NOT_FOUND | |\n\n## x\n",
                 "proto/model/reason.h": "X(HOLE, 7)"}
        text = self.page(page_errors, files)
        self.assertIn("| `NOT_FOUND` | 5 | 3 | no such session |", text)
        self.assertIn("| `HOLE` | 7 | `DATA_LOSS` | of a read: it differs | attach (docs/x/hole.md) |\n"
                      "| `HOLE` | 7 | ABORTED, UNKNOWN | it came late | try again |", text)
        for wrong in ({"proto/model/reason.h": "X(HOLE, 7) X(NEW, 8)"}, {"proto/model/reason.h": "X(HOLE, 6)"},
                      {"client/banyan.h": HEADER.replace(" Then: try\n    // again.", "")}):
            with self.assertRaises(SystemExit, msg=str(wrong)[:80]):
                self.page(page_errors, {**files, **wrong})

    def test_python(self):
        folder = "client/python/banyan"
        files = {f"{folder}/__init__.py": '"""About."""\nfrom .a import A, f\n__all__ = ["A", "f", "__version__"]\n',
                 f"{folder}/a.py": 'from .b import B\nclass A(B):\n    """An A."""\n    def own(self, x: int) -> int:\n        """Its own."""\n'
                 'def f():\n    """A function.\n\n    Args:\n        x, y: numbers.\n    """\n',
                 f"{folder}/b.py": 'class B:\n    def __init__(self, n: int) -> None:\n        pass\n    def base(self) -> None:\n        """Of B."""\n'
                 '    def _hidden(self):\n        """No."""\n    def own(self):\n        """Replaced."""\n',
                 f"{folder}/transformers/__init__.py": '__all__ = []\n'}
        text = self.page(page_python, files)
        for part in ("### A\n\n```python\nA(n: int) -> None\n```\n\nAn A.", "#### A.own\n\n```python\nown(x: int) -> int\n```\n\nIts own.",
                     "#### A.base", "- `x`, `y`: numbers."):
            self.assertIn(part, text)
        for part in ("_hidden", "Replaced", "### B\n"):
            self.assertNotIn(part, text)
        with self.assertRaises(SystemExit):
            self.page(page_python, {**files, f"{folder}/__init__.py": 'from .a import A\n__all__ = ["A", "gone"]\n'})

    def test_cli(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in page_cli.PROGRAMS:
                path = os.path.join(folder, name)
                commands = ', "commands": [{"name": "top", "synopsis": "[X]", "summary": "look", "about": "", "options": [], "examples": ["top a", "top b"]}]'
                with open(path, "w", encoding="utf-8") as file:
                    file.write("#!/bin/sh\ncat <<'END'\n" + '{"program": "%s", "about": "does it", "options": [{"name": "all", "letter": "a", '
                               '"arg": "N|M", "help": "So many."}]%s}\nEND\n' % (name, commands if name == "banyanctl" else ""))
                os.chmod(path, 0o755)
            text = "\n".join(page_cli.page(folder, folder))
        self.assertIn("## banyanctl\n\nDoes it.\n\n| option |  |\n|---|---|\n| `-a`, `--all N\\|M` | So many. |", text)
        self.assertIn("### top\n\n```\nbanyanctl top [X]\n```\n\nLook.", text)
        self.assertIn("```sh\nbanyanctl top a\nbanyanctl top b\n```", text)


class Check(unittest.TestCase):
    def test_links(self):
        self.assertEqual(reference.linked("see (docs/operating/tls.md), docs/GPU.md\n```\ndocs/GPU.md\n```\n"),
                         "see ([tls](../operating/tls.md)), [GPU](../GPU.md)\n```\ndocs/GPU.md\n```\n")

    def test_stale(self):
        with tempfile.TemporaryDirectory() as root:
            for folder in ("proto/model", "docs/reference"):
                os.makedirs(os.path.join(root, folder))
            with open(os.path.join(root, "proto/model/event.h"), "w", encoding="utf-8") as file:
                file.write('#define PROTO_EVENT_KINDS(X) X(A, "a", 1, 1, "x")\n')
            arguments = ["--root", root, "events"]
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertEqual(reference.main(["--check", *arguments]), 1)
                self.assertEqual(reference.main(arguments), 0)
                self.assertEqual(reference.main(["--check", *arguments]), 0)
            self.assertIn("docs/reference/events.md is not current", out.getvalue())


if __name__ == "__main__":
    unittest.main()
