#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_links.py: small trees with one offence each."""
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import check_links

BASE = {"common/log.h": "", "steps/call.c": "", "docs/GUIDE.md": "# Guide\n## The `first` step, at last\n", "deploy/go.sh": ""}


def check(files):
    """Runs the tool over the base tree with these files (name -> text): status and output."""
    with tempfile.TemporaryDirectory() as root:
        for name, text in {**BASE, **files}.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        os.environ["GIT_CEILING_DIRECTORIES"] = os.path.dirname(root)  # whatever lies around the scratch directory
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            status = check_links.main(["--root", root])
        return status, out.getvalue()


class CheckLinks(unittest.TestCase):
    def assert_offence(self, text, word, line=2):
        status, out = check({"docs/x.md": "# X\n" + text + "\n"})
        self.assertEqual(status, 1, text)
        self.assertEqual(out.count("\n"), 1, out)
        self.assertTrue(out.startswith(f"docs/x.md:{line}: "), out)
        self.assertIn(word, out)

    def assert_clean(self, text):
        self.assertEqual(check({"docs/x.md": "# X\n" + text + "\n"}), (0, ""), text)

    def test_links(self):
        for text in ("[a](GUIDE.md)", "[a](../common/log.h), [b](../common)", "[a](https://example.org/absent.md)",
                     "[a](#x)", "![p](GUIDE.md)", "[a](GUIDE.md#the-first-step-at-last)"):
            self.assert_clean(text)
        self.assert_offence("[a](ABSENT.md)", "ABSENT.md does not exist")
        self.assert_offence("[a](common/log.h)", "common/log.h does not exist")  # from the root, not from here
        self.assert_offence("![p](absent.svg)", "absent.svg")
        self.assert_offence("[a](GUIDE.md) and [b](../absent/)", "absent")

    def test_versions(self):
        project = {"CMakeLists.txt": "project(banyan VERSION 1.2.3 LANGUAGES C)\n"}
        for text in ("tar xf banyan-1.2.3-linux.tar.gz", "Banyan 1.2.3", "ok  version   worker a-0: 1.2.3", "Banyan 1.2.2~git1", "libc 2.36.1",
                     "`find_package(banyan 1.2 REQUIRED)`"):
            self.assertEqual(check({**project, "docs/x.md": f"# X\n{text}\n"}), (0, ""), text)
        for text in ("tar xf banyan-1.2.2-linux.tar.gz", "Banyan 0.2.3", "ok  version   coordinator: 1.2.4",
                     "`find_package(banyan 1.1 REQUIRED)`"):
            status, out = check({**project, "docs/x.md": f"# X\n{text}\n"})
            self.assertEqual((status, out.count("\n")), (1, 1), out)
            self.assertIn("the project's is 1.2.3", out)
        self.assertEqual(check({**project, "deploy/kustomization.yaml": "    newName: r/banyan\n    newTag: 1.2.0\n"})[0], 1)

    def test_header(self):
        code = "void banyan_put(void); // as banyan_get\n"
        self.assertEqual(check({"client/banyan.h": code + "void banyan_get(void);\n"}), (0, ""))
        self.assertEqual(check({"client/banyan.h": code}), (1, "client/banyan.h:1: banyan_get is not declared here\n"))

    def test_headings(self):
        self.assert_offence("[a](#absent)", "no heading gives #absent")
        self.assert_offence("[a](GUIDE.md#first-step)", "#first-step")
        self.assert_offence("```\n# comment\n```\n[a](#comment)", "#comment", line=5)

    def test_names_of_files(self):
        for text in ("`common/log.h`", "`log.h`, `call.c`", "`../common/log.h`", "`deploy/go.sh --all`", "`mpi.h`",
                     "`kernels/NAME.c`", "`x_*.c`", "a plain absent.c"):
            self.assert_clean(text)
        self.assert_offence("`common/absent.h`", "common/absent.h does not exist")
        self.assert_offence("`call.c`, `absent.c`", "absent.c")
        self.assert_offence("`common/call.c`", "common/call.c")  # of another folder
        self.assert_offence("`deploy/absent.sh --all`", "deploy/absent.sh")

    def test_rooms(self):
        tree = {"a/core/state.c": "", "a/core/state.h": "", "a/core/pace.h": "", "a/main.c": "", "a/turn.c": ""}
        for text, lacks in (("a/core/   state pace", None), ("a/core/   state,\n          pace", None), ("a/core/   state", "a/core/ has pace"),
                            ("a/        main\na/core/   state pace\nevery room   turn", None), ("a/        main core/", "a/ has turn"),
                            ("a/core/   state\nb/        pace", "a/core/ has pace"),
                            ("a/        main turn", "a/ has a/core/"), ("a/        main turn core/", None), ("ls a/core/", None)):
            status, out = check({**tree, "docs/x.md": f"# X\n```\n{text}\n```\n"})
            self.assertEqual((status, out.count("\n")), (1, 1) if lacks else (0, 0), text + out)
            self.assertIn(lacks or "", out)

    def assert_source(self, text, word):
        status, out = check({"common/log.h": "// one\n" + text + "\n"})
        self.assertEqual((status, out), (0, "") if word is None else (1, out), text)
        if word is not None:
            self.assertTrue(out.startswith("common/log.h:2: "), out)
            self.assertIn(word, out)

    def test_pages_that_sources_name(self):
        bold = {"docs/BOLD.md": "# B\n**Lives.** A text.\n- **Sums** of rows\n"}
        for text in ("// docs/GUIDE.md", "// (docs/GUIDE.md, \"The first step, at last\")", '"see docs/GUIDE.md"',
                     "// https://example.org/docs/absent.md", "// other/docs/absent.md", "// docs/NAME.md"):
            self.assert_source(text, None)
        self.assert_source("// docs/ABSENT.md", "docs/ABSENT.md does not exist")
        self.assert_source('// (docs/GUIDE.md, "First")', 'docs/GUIDE.md has no heading "First"')
        for heading, status in (("Lives", 0), ("Sums", 0), ("Rows", 1)):
            self.assertEqual(check({**bold, "common/log.h": f'// docs/BOLD.md, "{heading}"\n'})[0], status, heading)

    def test_index(self):
        page = {"docs/operating/a.md": "# A\n", "docs/measurements/b.md": "# B\n"}
        self.assertEqual(check(page), (0, ""))  # there is no index
        status, out = check({**page, "docs/README.md": "[g](GUIDE.md)\n[x](measurements/b.md)\n"})
        self.assertEqual((status, out), (1, "docs/operating/a.md: is not linked from docs/README.md\n"))
        status, out = check({**page, "docs/README.md": "[g](GUIDE.md)\n[a](operating/a.md#a)\n", "docs/measurements/README.md": "# M\n"})
        self.assertEqual(status, 1)
        self.assertIn("docs/measurements/b.md: is not linked from docs/measurements/README.md\n", out)

    def test_fences(self):
        self.assert_clean("```sh\ncc absent.c\n[a](absent.md)\n```")
        self.assert_clean("```\n ├─▶ steps/call.c: cut │\n```")
        self.assert_offence("```\n ├─▶ steps/absent.c: cut │\n```", "steps/absent.c", line=3)

    def test_exit_status_and_git(self):
        with tempfile.TemporaryDirectory() as root:
            for name in ("tracked.md", "ignored.md"):
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write("[a](absent.md)\n")
            git = ["git", "-C", root]
            subprocess.run([*git, "init", "-q"], check=True)
            subprocess.run([*git, "add", "tracked.md"], check=True)
            command = [sys.executable, check_links.__file__, "--root", root]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout.split(": ")[0]), (1, "tracked.md:1"))
            self.assertNotIn("ignored", done.stdout)
            subprocess.run([*git, "rm", "-q", "--cached", "tracked.md"], check=True)
            self.assertEqual(subprocess.run(command, check=False).returncode, 0)

    def test_every_offence_is_printed(self):
        status, out = check({"docs/x.md": "[a](b.md) `c.h`\n[d](e.md)\n"})
        self.assertEqual((status, out.count("\n")), (1, 3))


if __name__ == "__main__":
    unittest.main()
