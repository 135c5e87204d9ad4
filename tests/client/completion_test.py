#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a shell offers behind banyanctl, banyan-coordinator and banyan-worker is what --help lists, and what
exists in a cluster: a real shell, where the user presses TAB.

    completion_test.py SHELL BIN        BIN: the folder of the programs. Exit code 77: this shell is not installed
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import shells

SHELL, BIN = sys.argv.pop(1), sys.argv.pop(1)
OPTION = re.compile(r"^  (?:-(.), |    )--([a-z0-9-]+)(?:=(\S+))?(?:  |$)", re.M)
NAMES = ["chat one", "chat:17", "war-and-peace", "it's"]


def said(*words, env=None):
    return subprocess.run([os.path.join(BIN, words[0]), *words[1:]], check=True, capture_output=True, text=True,
                          env=dict(os.environ, **(env or {}))).stdout


def commands():
    """The names that `banyanctl help` lists."""
    listed = said("banyanctl", "help").split("\nCommands:\n")[1].split("\n\n")[0]
    return [line[2:20].strip() for line in listed.split("\n")]


def lines():
    """The start of each line that may have options, and the help of these."""
    yield "banyanctl", said("banyanctl", "--help").split("\nCommands:")[0]
    for command in commands():
        yield f"banyanctl {command}", said("banyanctl", "help", *command.split())
    for daemon in ("banyan-coordinator", "banyan-worker"):
        yield daemon, said(daemon, "--help")


def options(text):
    """(letter or "", name, argument or "") of each option in a --help; a line names those of all commands."""
    found = OPTION.findall(text.partition("\nOptions:\n")[2])
    assert found, text
    everywhere = re.findall(r"--([a-z-]+)", text.partition("\nEvery command also takes:")[2].partition("(")[0])
    if everywhere:
        of_all = OPTION.findall(said("banyanctl", "--help").partition("\nOptions:\n")[2].partition("\nCommands:")[0])
        found += [option for option in of_all if option[1] in everywhere]
    return found


class Cluster:
    """A coordinator and a worker, with sessions; their logs are in `folder`."""

    def __init__(self, folder):
        self.env = {"BANYAN_ENDPOINT": f"unix://{folder}/c.sock"}
        self.processes = []
        secret = ["--secret-file", f"{folder}/secret"]
        self.start(folder, "banyan-coordinator", "--listen", f"unix://{folder}/c.sock", "--store", ":memory:", *secret)
        self.start(folder, "banyan-worker", "--coordinator", f"unix://{folder}/c.sock", "--name", "worker-a", "--memory", "64M",
                   "--device", "cpu", "--bandwidth", "1G", "--ready-file", f"{folder}/ready", *secret)
        end = time.monotonic() + shells.PATIENCE_S
        while not os.path.exists(f"{folder}/ready"):
            if time.monotonic() > end:
                raise AssertionError(f"the worker did not start; look into {folder}")
            time.sleep(0.05)
        for name in (*NAMES, None):
            said("banyanctl", "session", "create", "--q-heads=1", "--dim=8", *([name] if name else []), env=self.env)
        listed = said("banyanctl", "sessions", "-o", "json", env=self.env)
        self.ids = re.findall(r'"id": "(0x[0-9a-f]{16})",\s+"name": "([^"]*)"', listed)
        assert len(self.ids) == len(NAMES) + 1, listed

    def start(self, folder, program, *args):
        with open(os.path.join(folder, f"{program}.log"), "wb") as log:
            self.processes.append(subprocess.Popen([os.path.join(BIN, program), *args], stdout=log, stderr=log))

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            assert process.wait(shells.PATIENCE_S) == 0


class Completion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="banyan-completion-")
        work = os.path.join(cls.folder, "work")
        os.makedirs(os.path.join(work, "folder"))
        for name in ("a.safetensors", "other.json"):
            with open(os.path.join(work, name), "w", encoding="utf-8"):
                pass
        cls.cluster = Cluster(cls.folder)
        env = {"PATH": f"{BIN}:{os.environ['PATH']}", "BANYAN_COMPLETION_TIMEOUT": "1m"}
        cls.shell = shells.SHELLS[SHELL](cls.folder, dict(env, **cls.cluster.env))

    @classmethod
    def tearDownClass(cls):
        cls.shell.close()
        cls.cluster.stop()
        shutil.rmtree(cls.folder)

    def offers(self, line, *expected):
        self.assertEqual(self.shell.offers(line), set(expected), line)

    def test_commands(self):
        names = commands()
        self.assertIn("session create", names)
        firsts = {name.split()[0] for name in names}
        self.offers("banyanctl ", *firsts)
        self.offers("banyanctl --json ", *firsts)
        self.offers("banyanctl help ", *firsts)
        for group in sorted({name.split()[0] for name in names if " " in name}):
            seconds = {name.split()[1] for name in names if name.startswith(f"{group} ")}
            if group in names:  # "backup FILE", and "backup verify FILE"
                for second in seconds:
                    self.offers(f"banyanctl {group} {second[:2]}", second)
            else:
                self.offers(f"banyanctl {group} ", *seconds)
            self.offers(f"banyanctl help {group} ", *seconds)
        self.offers("banyanctl sess", "session", "sessions")
        self.offers("banyanctl nothing ")
        self.offers("banyanctl status ")

    def test_arguments(self):
        """The nth argument is the nth word of the synopsis that is no option: what shells complete hangs on
        it."""
        for command in json.loads(said("banyanctl", "--tables"))["commands"]:
            words = [word for word in command["synopsis"].split() if not word.lstrip("[").startswith("--")]
            with self.subTest(command["name"]):
                if not words or not words[-1].endswith("...]"):
                    self.assertEqual(len(words), command["max_args"])
                self.assertEqual(len([word for word in words if word[0] != "["]), command["min_args"])

    def test_options(self):
        for line, text in lines():
            with self.subTest(line):
                listed = options(text)
                names = {f"--{name}{'=' if arg else ''}" for _, name, arg in listed}
                self.offers(f"{line} --", *names)
                if SHELL == "fish":
                    continue # it would also offer letters behind letters
                letters = {f"-{letter}" for letter, _, _ in listed if letter}
                self.offers(f"{line} -", *names, *letters)

    def test_given_once(self):
        found = self.shell.offers("banyanctl session mass --heads --wait=1s -n 2 x --")
        self.assertTrue({"--layer=", "--bins=", "--json"} <= found, found)
        self.assertFalse({"--heads", "--wait=", "--steps="} & found, found)
        self.assertIn("--timeout=", self.shell.offers("banyanctl worker drain --wait-timeout=1s --"))
        self.assertIn("--wait", self.shell.offers("banyanctl worker drain --wait-timeout=1s --"))
        self.offers("banyanctl session show -- --") # behind -- there are no options

    def test_values(self):
        seen = 0
        for line, text in lines():
            for letter, name, arg in options(text):
                if "|" not in arg:
                    continue
                words = [word for word in arg.split("|") if word == word.lower()]
                with self.subTest(f"{line} --{name}"):
                    self.offers(f"{line} --{name}=", *(f"--{name}={word}" for word in words))
                    self.offers(f"{line} --{name} ", *words)
                    if letter:
                        self.offers(f"{line} -{letter} ", *words)
                    self.offers(f"{line} --{name}={words[-1][:2]}",
                                *(f"--{name}={word}" for word in words if word.startswith(words[-1][:2])))
                seen += 1
        self.assertGreater(seen, 8)
        self.offers("banyanctl completion ", "bash", "zsh", "fish")
        self.offers("banyanctl ping --count=")

    def test_files(self):
        every = ["a.safetensors", "other.json", "folder"]
        self.offers("banyan-coordinator --store=", *(f"--store={name}" for name in every))
        self.offers("banyan-coordinator --store ", *every)
        self.offers("banyan-worker --store=", "--store=folder")
        self.offers("banyanctl session create --spec o", "other.json")
        self.offers("banyanctl session restore ", "folder")
        if SHELL == "fish": # offers files of another ending behind the others
            self.offers("banyanctl attach x ", *every)
        else:
            self.offers("banyanctl attach x ", "a.safetensors", "folder")

    def test_names(self):
        unnamed = [i for i, name in self.cluster.ids if not name]
        unquoted = {word.replace("\\", "") for word in self.shell.offers("banyanctl session show ")}
        self.assertEqual(unquoted, {*NAMES, *unnamed})
        self.offers("banyanctl session show w", "war-and-peace")
        self.offers("banyanctl plan 0x", *(i for i, _ in self.cluster.ids))
        self.offers("banyanctl session show x ")
        self.offers("banyanctl session fork x ") # a length
        self.offers("banyanctl worker drain ", "worker-a")
        self.offers("banyanctl worker drain --wait wo", "worker-a")
        self.offers("banyanctl quarantine drop ", "worker-a")
        self.offers("banyanctl quarantine drop worker-a ") # not the sessions that are served

    def test_another_cluster(self):
        endpoint = self.cluster.env["BANYAN_ENDPOINT"]
        self.shell.set("BANYAN_COMPLETION_TIMEOUT", "1ms")
        self.offers("banyanctl --endpoint=unix:///nonexistent session show ")
        self.offers("banyanctl session show -e unix:///nonexistent ")
        self.offers("banyanctl --endpoint invalid session show ")
        self.shell.set("BANYAN_COMPLETION_TIMEOUT", "1m")
        self.offers(f"banyanctl -e unix:///nonexistent session show --endpoint={endpoint} w", "war-and-peace")

    @unittest.skipIf(SHELL == "fish", "fish has no line outside of a terminal")
    def test_the_line(self):
        for line, words in {
            "banyanctl stat": ["status"],
            "banyanctl session cre": ["session", "create"],
            "banyanctl session show war": ["session", "show", "war-and-peace"],
            "banyanctl session show chat\\ ": ["session", "show", "chat one"],
            'banyanctl session show "chat o': ["session", "show", "chat one"],
            "banyanctl session show chat:": ["session", "show", "chat:17"],
            "banyanctl session show i": ["session", "show", "it's"],
            "banyanctl --output=js": ["--output=json"],
            "banyanctl status --endp": ["status", "--endpoint="],
            "banyanctl session create --spec=oth": ["session", "create", "--spec=other.json"],
            "banyanctl session restore fol": ["session", "restore", "folder"],
            "banyanctl no-such-command x": ["no-such-command", "x"],
        }.items():
            with self.subTest(line):
                # An open quote is closed by the shell with the only match.
                self.assertEqual([word.rstrip("/") for word in self.shell.becomes(line)[1:]], words)


if __name__ == "__main__":
    if not shutil.which(SHELL):
        print(f"SKIPPED: {SHELL} is not installed; in Debian: apt-get install {SHELL}")
        sys.exit(77)
    unittest.main(verbosity=2)
