#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""banyanctl top at a terminal: what it shows, its keys, and that the terminal is given back however it ends;
one frame for scripts; --watch.

    top_test.py BIN        BIN: the folder of the programs
"""
import os
import re
import signal
import sys
import termios
import unittest

import daily

BIN = sys.argv.pop(1)
ENTER, LEAVE = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"


class Top(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = daily.Cluster(BIN)
        cls.cluster.coordinator()
        cls.cluster.worker("w2", "--memory", "128M")
        cls.cluster.worker("w10")
        cls.cluster.ctl("wait", "workers", "2")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def top(self, *words, **more):
        terminal = daily.Terminal(self.cluster, "top", "-i", "200ms", *words, **more)
        terminal.until(ENTER)
        return terminal

    def given_back(self, terminal, before, code):
        """The page, the cursor, and the modes that it had."""
        self.assertEqual(terminal.code(), code, terminal.shown)
        self.assertGreater(terminal.shown.rindex(LEAVE), terminal.shown.rindex(ENTER))
        self.assertEqual(terminal.shown[terminal.shown.rindex(LEAVE) + len(LEAVE):].strip(), "")
        self.assertEqual(terminal.modes(), before)
        os.close(terminal.fd)

    def test_one_frame(self):
        out, err = self.cluster.ctl("top", "--interval=100ms")
        self.assertEqual(err, "")
        lines = out.rstrip("\n").split("\n")
        self.assertEqual(len(lines), 6)
        self.assertRegex(lines[0], r"^cluster \S+, term 1, up .*, 2 of 2 workers active, at unix:///")
        self.assertRegex(lines[1], r"^sessions 0, steps/s 0\.0, memory 0 B of \d+\.\d MiB \(0%\), clients \d+, answers in ")
        self.assertEqual(lines[3].split(), ["WORKER", "STATE", "MEMORY", "USED", "SPEED", "SEEN", "TOKENS", "STEPS/S"])
        self.assertRegex(lines[4], r"^w2 +active +0 B +0% +1\.0 GiB/s +- +0 +0\.0$") # not w10 first
        self.assertTrue(all(len(line) <= 100 for line in lines), lines)
        self.assertNotIn("\033", out)
        self.assertEqual(self.cluster.ctl("top", "-i100ms", "--reverse")[0].split("\n")[4].split()[0], "w10")
        said = self.cluster.json("top", "-i", "100ms", "--sort", "name")
        self.assertEqual([w["name"] for w in said["workers"]], ["w2", "w10"])
        self.assertEqual((said["workers_active"], said["steps_per_s"]), (2, 0))
        self.assertEqual(said["capacity_bytes"], sum(w["capacity_bytes"] for w in said["workers"]))
        self.assertIn("name, state, memory", self.cluster.ctl("top", "--sort", "age", code=2)[1])
        self.cluster.ctl("top", "-e", "unix:///nonexistent", "--timeout=100ms", code=5)
        once = daily.Terminal(self.cluster, "top", "--once", "-i100ms")
        self.assertEqual(once.end(), 0)
        self.assertNotIn(ENTER, once.shown)
        self.assertIn("w10", once.shown)

    def test_keys(self):
        terminal = self.top()
        terminal.until("[n name]")
        self.assertLess(terminal.until("w2 "), terminal.until("w10 "))
        for key, on in {"m": "[m memory]", "P": "[p speed]", "e": "[e seen]", "t": "[t tokens]", "c": "[c steps]",
                        "s": "[s state]", "n": "[n name]", "r": "[r reverse]"}.items():
            after = len(terminal.shown)
            terminal.type(key)
            terminal.until(on, after)
        after = len(terminal.shown)
        at = terminal.until("WORKER", after)
        self.assertLess(terminal.until("w10 ", at), terminal.until("w2 ", at))
        terminal.type("q")
        self.assertEqual(terminal.end(), 0)

    def test_size(self):
        terminal = self.top(size=(24, 60))
        at = terminal.until("STATE")
        line = re.search(r"WORKER[^\033]*", terminal.shown[at - 40:])[0]
        self.assertEqual(len(line), 60)
        after = len(terminal.shown)
        terminal.resize(24, 200)
        terminal.until("STEPS/S", after)
        after = len(terminal.shown)
        terminal.resize(7, 100) # too few lines for both workers
        terminal.until("and 2 more", after)
        terminal.type("q")
        self.assertEqual(terminal.end(), 0)

    def test_colours(self):
        terminal = self.top()
        terminal.until("\033[7mWORKER")
        terminal.type("q")
        terminal.end()
        terminal = self.top(NO_COLOR="1")
        terminal.until("WORKER")
        terminal.type("q")
        terminal.end()
        self.assertIsNone(re.search(r"\033\[[0-9;]*m", terminal.shown))

    def test_ends(self):
        """The terminal is as it was."""
        for what, code in ((lambda t: t.type("q"), 0), (lambda t: t.type("\x03"), 128 + signal.SIGINT),
                           *((lambda t, s=s: os.kill(t.pid, s), 128 + s)
                             for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGABRT))):
            with self.subTest(code):
                terminal = daily.Terminal(self.cluster, "top", held=True)
                before = terminal.modes()
                terminal.go()
                terminal.until("[n name]")
                self.assertFalse(terminal.modes()[3] & (termios.ICANON | termios.ECHO))
                what(terminal)
                self.given_back(terminal, before, code)

    def test_stopped(self):
        """^Z gives the terminal back, and fg takes it again."""
        terminal = self.top()
        terminal.until("[n name]")
        os.kill(terminal.pid, signal.SIGTSTP)
        self.assertTrue(os.WIFSTOPPED(os.waitpid(terminal.pid, os.WUNTRACED)[1]))
        at = terminal.until(LEAVE)
        os.kill(terminal.pid, signal.SIGCONT)
        at = terminal.until(ENTER, at)
        terminal.until("[n name]", at)
        terminal.type("q")
        self.assertEqual(terminal.end(), 0)

    def test_away(self):
        """While the coordinator does not answer it says so, reacts to keys, and goes on when it does."""
        cluster = daily.Cluster(BIN)
        try:
            terminal = daily.Terminal(cluster, "top", "-i", "200ms", "--timeout", "500ms")
            terminal.until("no answer for")
            terminal.until(f"s: cannot reach the coordinator at {cluster.endpoint}")
            cluster.coordinator()
            terminal.until("0 of 0 workers active")
            cluster.worker("a")
            terminal.until("1 of 1 workers active")
            after = len(terminal.shown)
            cluster.stop("coordinator", signal.SIGKILL)
            terminal.until("no answer for", after)
            after = len(terminal.shown)
            terminal.type("m")
            terminal.until("[m memory]", after)
            cluster.coordinator()
            terminal.until("term 2", after)
            cluster.processes["coordinator"].send_signal(signal.SIGSTOP) # takes calls, and answers none
            after = len(terminal.shown)
            terminal.until("no answer for", after)
            terminal.type("q")
            self.assertEqual(terminal.end(), 0)
            cluster.processes["coordinator"].send_signal(signal.SIGCONT)
        finally:
            cluster.close()

    def test_watch(self):
        for command in ("workers", "status", "sessions"):
            with self.subTest(command):
                terminal = daily.Terminal(self.cluster, command, "--watch", "100ms")
                at = terminal.until("\033[H\033[2J")
                terminal.until("\033[H\033[2J", at + 1)
                terminal.type("\x03")
                self.assertEqual(terminal.end(), 128 + signal.SIGINT)
        process = self.cluster.background("workers", "--watch=100ms")
        lines = [process.stdout.readline() for _ in range(12)]
        process.send_signal(signal.SIGTERM)
        process.communicate()
        self.assertGreaterEqual(len([line for line in lines if line.startswith("NAME ")]), 2)
        self.assertNotIn("\033", "".join(lines))
        self.cluster.ctl("workers", "--watch=1ms", code=2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
