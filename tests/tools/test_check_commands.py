#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_commands.py: pages with one offence each, and programs that are scripts."""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import check_commands


def option(name, arg="", letter=""):
    return {"name": name, "letter": letter, "arg": arg, "help": ""}


TABLES = {
    "banyanctl": {"options": [option("endpoint", "URL", "e"), option("json")], "commands": [
        {"name": "status", "options": [option("watch", "TIME", "w")]}, {"name": "session verify", "options": [option("seed", "N")]}]},
    "banyan-coordinator": {"options": [option("scrub", "HOURS")]},
    "banyan-worker": {"options": [option("drain")]},
}


def check(text, name="docs/x.md", more=None):
    """Status and output for a tree with this file."""
    with tempfile.TemporaryDirectory() as root:
        os.environ["GIT_CEILING_DIRECTORIES"] = os.path.dirname(root)
        for path, content in {name: text, **(more or {})}.items():
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(content)
        programs = os.path.join(root, "build")  # which is not searched
        os.makedirs(programs)
        for program, table in TABLES.items():
            path = os.path.join(programs, program)
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\ncat <<'END'\n{json.dumps(table)}\nEND\n")
            os.chmod(path, 0o755)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = check_commands.main([programs, "--root", root])
        return status, out.getvalue()


class CheckCommands(unittest.TestCase):
    def assert_clean(self, text, **more):
        self.assertEqual(check(text, **more), (0, ""), text)

    def assert_offence(self, text, rule, line=1, **more):
        status, out = check(text, **more)
        self.assertEqual((status, out.count("\n")), (1, 1), f"{text}: {out}")
        self.assertIn(f":{line}: {rule}", out)

    def test_commands(self):
        for text in ("`banyanctl status`", "`banyanctl --endpoint status session verify NAME`", "`banyanctl COMMAND`",
                     "`bin/banyanctl session SESSION`", "`session verify S`", "plain banyanctl stats"):
            self.assert_clean(text)
        self.assert_offence("`banyanctl stats`", "banyanctl has no command 'stats'")
        self.assert_offence("one\n\n`banyanctl session\nverifies`", "banyanctl has no command 'session verifies'", line=3)
        self.assert_offence("`session verifies`", "banyanctl has no command 'session verifies'")
        self.assert_offence("```sh\necho; ./banyanctl -e x stats && true\n```", "banyanctl has no command 'stats'", line=2)

    def test_options(self):
        for text in ("`banyanctl status --watch 1s --json`", "`banyanctl session verify --seed=1 s`", "`banyan-worker --drain`",
                     "`banyanctl status -w 1s`", "`banyan-coordinator --scrub 1 …`", "`banyanctl status | grep --count x`",
                     "`--scrub`", "`--seed 1`", "`--watch TIME`"):
            self.assert_clean(text)
        self.assert_offence("`banyanctl status --seed 1`", "banyanctl status has no option --seed")
        self.assert_offence("`banyan-worker --scrub 1`", "banyan-worker has no option --scrub")
        self.assert_offence("`banyanctl session verify -w 1s`", "banyanctl session verify has no option -w")
        self.assert_offence("```sh\nbanyan-coordinator \\\n    --absent\n```", "banyan-coordinator has no option --absent", line=2)
        self.assert_offence("`--absent`", "no program has the option --absent")

    def test_options_of_others(self):
        self.assert_clean("`--fast`", more={"tests/run.sh": "case $1 in --fast) ;; esac\n"})
        self.assert_clean("`--rows`", more={"bench/x.c": '{"rows", 0, COMMON_OPTION_U64}\n'})
        self.assert_offence("`--fast`", "no program has the option --fast", more={"docs/y.md": "--fast\n"})

    def test_what_is_not_read(self):
        for text in ("```\nbanyanctl stats\n```", "```output\nbanyanctl stats\n```", "```c\n// banyanctl stats\n```"):
            self.assert_clean(text)
        self.assert_clean("`banyanctl stats`", name="docs/measurements/m.md")
        self.assert_offence("```\n$ banyanctl stats\n```", "banyanctl has no command 'stats'", line=2)

    def test_deployed(self):
        self.assert_offence("a: 'banyanctl session verifies'\n", "banyanctl has no command", name="deploy/prometheus/alerts.yaml")
        self.assert_clean("a: banyanctl status\n", name="deploy/prometheus/alerts.yaml")


if __name__ == "__main__":
    unittest.main()
