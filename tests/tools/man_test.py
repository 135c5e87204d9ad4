#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The manual pages, as a reader sees them, say what --help says, and all that they have to.

    man_test.py SOURCE BIN PAGES      Exit code 77: mandoc is not installed
"""
import os
import re
import shutil
import subprocess
import sys
import unittest

SOURCE, BIN, PAGES = (sys.argv.pop(1) for _ in range(3))
DAEMONS = ("banyan-coordinator", "banyan-worker")
# A page, and the folders whose code its program has.
FOLDERS = {"banyanctl.1": ("common", "proto", "client"), "banyan-llama.1": (), "banyan.3": ("proto", "client"),
           "banyan-coordinator.8": ("common", "proto", "coordinator"),
           "banyan-worker.8": ("common", "proto", "kernels", "reduce", "worker")}
NOT_THE_PAGES = {"BANYAN_FAILPOINT_FILE",  # in no build that is installed
                 "BANYAN_COMPLETION_TIMEOUT", "BANYAN_TOKEN_FILE"}  # banyanctl's, and not the library's


def said(*words):
    return subprocess.run([os.path.join(BIN, words[0]), *words[1:]], check=True, capture_output=True, text=True).stdout


def plain(text):
    return " ".join(text.split())


def rendered(page):
    """The page as text on wide lines: {heading: text}, with "COMMANDS/session show" for a part of a
    section."""
    text = subprocess.run(["mandoc", "-Tutf8", "-Owidth=400", os.path.join(PAGES, page)], check=True, capture_output=True,
                          text=True).stdout
    text = re.sub(".\b", "", text)
    sections, heading, name = {}, "", ""
    for line in text.split("\n"):
        if re.match(r"[A-Z]", line):
            heading = name = line.strip()
        elif re.match(r"   \S", line):
            name = f"{heading}/{line.strip()}"
        sections.setdefault(name, []).append(line)
    return {name: "\n".join(lines[1:]) for name, lines in sections.items()}


def help_options(text):
    """{"-o, --output=table|json": "Form ..."} of a --help."""
    options = text.split("\nOptions:\n")[1].split("\n\n")[0]
    found = {}
    for entry in re.split(r"\n(?=  (?:-\S, |    )--)", options):
        head, _, body = entry.strip().partition("\n") if re.match(r"\s*\S+( --\S+)?\n", entry) else (
            *re.match(r"\s*((?:-\S, )?--\S+)(.*)", entry, re.S).groups()[:1], "", re.match(
                r"\s*((?:-\S, )?--\S+)(.*)", entry, re.S)[2])
        found[head.strip()] = plain(body)
    assert len(found) >= 2, text
    return found


def page_options(text):
    """The same of a section of a page: the head of an entry stands further left than its text, maybe on its
    line."""
    found, head = {}, None
    for line in text.split("\n"):
        entry = re.match(r"     ((?:-\S, )?--[a-z]\S*)(?:\s\s+(.*))?$", line)
        if entry:
            head = entry[1]
            found[head] = entry[2] or ""
        elif head and re.match(r"\s{6,}\S", line):
            found[head] += " " + line
        elif line.strip():
            head = None
    return {head: plain(body) for head, body in found.items()}


class Man(unittest.TestCase):
    maxDiff = None

    def test_lint(self):
        for page in FOLDERS:
            lint = subprocess.run(["mandoc", "-Tlint", "-Wwarning", os.path.join(PAGES, page)], capture_output=True, text=True)
            self.assertEqual((lint.returncode, lint.stdout + lint.stderr), (0, ""), page)

    def test_daemons(self):
        for daemon in DAEMONS:
            page = rendered(f"{daemon}.8")
            text = said(daemon, "--help")
            self.assertEqual(page_options(page["OPTIONS"]), help_options(text), daemon)
            self.assertIn(plain(text.split("\n\n")[1]), plain(page["DESCRIPTION"]))
            for code in re.findall(r"(\d+) ", text.split("\nExit codes: ")[1].replace("\n", " ")):
                self.assertRegex(page["EXIT STATUS"], rf"(?m)^     {code}\s", f"{daemon}: exit code {code}")

    def test_banyanctl(self):
        page = rendered("banyanctl.1")
        text, _, commands = said("banyanctl", "--help").partition("\nCommands:\n")
        self.assertEqual(page_options(page["OPTIONS"]), help_options(text))
        names = [line[2:20].strip() for line in commands.split("\n\n")[0].split("\n")]
        self.assertIn("session create", names)
        self.assertEqual([name for name in page if name.startswith("COMMANDS/")], [f"COMMANDS/{name}" for name in names])
        everywhere = help_options(text)
        for name in names:
            with self.subTest(name):
                text = said("banyanctl", "help", *name.split())
                part = page[f"COMMANDS/{name}"]
                own = {head: body for head, body in help_options(text).items() if everywhere.get(head) != body}
                self.assertEqual(page_options(part), own)
                usage = re.match(r"Usage: (.*)", text)[1]
                self.assertIn(re.sub(r"\s", "", usage), re.sub(r"\s", "", part))
                listed = re.sub(r"(?m)^  (\S+): ", r"\1 ", text.split("\n\n")[1])  # is a list in the page
                about = plain(listed).rstrip(".")
                self.assertIn(about[1:], plain(part))
        codes = re.findall(r"(\d+) [a-z]", plain(said("banyanctl", "help").split("\nExit codes: ")[1]))
        self.assertEqual(re.findall(r"(?m)^     (\d+)\s", page["EXIT STATUS"]), codes)

    def test_launcher(self):
        page = rendered("banyan-llama.1")
        text = said("banyan-llama", "--help")
        self.assertEqual(list(page_options(page["OPTIONS"])), list(help_options(text)))
        self.assertEqual([name for name in page if name.startswith("COMMANDS/")], ["COMMANDS/serve", "COMMANDS/stop"])
        for variable in re.findall(r"\b(?:BANYAN\w*|LLAMA_SERVER)\b", text):
            self.assertIn(variable, plain(page["ENVIRONMENT"]))
        with open(os.path.join(SOURCE, "client/llama/banyan-llama"), encoding="utf-8") as file:
            read = re.findall(r'(?:environ\.get|number_in|program)\((?:"[\w-]+", )?"([A-Z_]+)"', file.read())
        self.assertIn("BANYAN_LOCAL", read)
        for variable in read:
            self.assertIn(variable, text, "--help does not name a variable that it reads")
        for code in re.findall(r"(\d+) ", text.split("\nExit codes: ")[1]):
            self.assertRegex(page["EXIT STATUS"], rf"(?m)^     {code}\s")

    def test_library(self):
        with open(os.path.join(SOURCE, "client/banyan.h"), encoding="utf-8") as file:
            header = re.sub(r"//.*", "", file.read())
        functions = re.findall(r"BANYAN_API[^;]*?\b(banyan_\w+)\(([^;]*)\);", header)
        self.assertGreater(len(functions), 40)
        page = rendered("banyan.3")
        reference = "\n".join(text for name, text in page.items() if name.startswith("DESCRIPTION"))
        for name, parameters in functions:
            wanted = re.sub(r"\s", "", f"{name}({parameters}")
            self.assertTrue(wanted in re.sub(r"\s", "", page["SYNOPSIS"]), name)
            self.assertTrue(wanted in re.sub(r"\s", "", reference), name)
            self.assertTrue(re.search(rf"(?m)^     {name}\(.*\n {{8,}}\S", reference), f"{name}: nothing is said about it")
            self.assertTrue(os.path.exists(os.path.join(PAGES, "man3", f"{name}.3")), name)
        for name in re.findall(r"^typedef (?:struct|enum) (\w+)", header, re.M):
            if name != "banyan_code": # its values are under ERRORS
                self.assertTrue(re.search(rf"(?m)^     (typedef struct )?{name}\b", reference), name)
        for name in re.findall(r"^    (BANYAN_\w+) = ", header, re.M):
            self.assertTrue(name in reference + page["ERRORS"], name)

    def test_environment(self):
        for page, folders in FOLDERS.items():
            text = rendered(page)["ENVIRONMENT"]
            for folder in folders:
                for path, _, names in os.walk(os.path.join(SOURCE, folder)):
                    if path.endswith("client/llama"): # a plug-in of its own: docs/LLAMA.md
                        continue
                    for name in names:
                        if not name.endswith((".c", ".h")) or (page == "banyan.3" and path.endswith("client/ctl")):
                            continue
                        with open(os.path.join(path, name), encoding="utf-8") as file:
                            for variable in re.findall(r'getenv\("(BANYAN_\w+)"\)', file.read()):
                                if variable not in NOT_THE_PAGES or page == "banyanctl.1" and "FAILPOINT" not in variable:
                                    self.assertIn(variable, text, f"{page}: {name} reads it")

    def test_others(self):
        """A page names the others, and none that is not there."""
        for page in FOLDERS:
            there = {f"{other[:-2]}({other[-1]})" for other in FOLDERS if other != page}
            self.assertEqual(set(re.findall(r"[\w-]+\(\d\)", rendered(page)["SEE ALSO"])), there)


if __name__ == "__main__":
    if not shutil.which("mandoc"):
        print("SKIPPED: mandoc is not installed; in Debian: apt-get install mandoc")
        sys.exit(77)
    unittest.main(verbosity=2)
