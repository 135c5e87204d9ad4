#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The systemd units: what they expose, that the options which they give exist, and that the daemons tell a
service manager what its units wait for: that they are ready, that their loop runs, that they leave.
    units_test.py SOURCE BIN
"""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

SOURCE, BIN = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
UNITS = SOURCE / "deploy" / "systemd"
MOST = {"banyan-coordinator.service": 12, "banyan-worker@.service": 20}  # tenths, of systemd-analyze security


def table():
    """Of common/secure/harden_calls.c: (call, what the daemons' own filter says of it)."""
    text = re.sub(r"//.*", "", (SOURCE / "common" / "secure" / "harden_calls.c").read_text())
    return [(call, verdict) for verdict, call in re.findall(r"\b(ALLOW|PLACED|CHECK|KILL|MODULES)\((\w+)\)", text)
            if call != "call"]


def group(name):
    """Calls of one of systemd's groups."""
    said = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", name], capture_output=True, text=True, check=True).stdout
    calls = set()
    for word in re.findall(r"^ +([@\w-]+)$", said, re.M):
        calls |= group(word) if word.startswith("@") else {word}
    return calls


def permitted(unit):
    """Calls that SystemCallFilter= of a unit lets through: as systemd.exec(5) reads its lines."""
    calls = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", (UNITS / unit).read_text(), re.M):
        words = set().union(*(group(w) if w.startswith("@") else {w} for w in line.lstrip("~").split()))
        calls = calls - words if line.startswith("~") else calls | words
    return calls


# systemd starts the daemon behind its filter; what belongs to root alone is of no use to a daemon that is
# not.
STARTS = {"execve", "execveat", "fork", "vfork"}
ROOTS = {"fchown"}


class Units(unittest.TestCase):
    def test_calls_are_those_of_the_filter(self):
        """Units and the daemons' own filter (--seccomp) do not contradict each other."""
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze is not here")
        calls = table()
        self.assertGreater(len(calls), 180)
        for unit in MOST:
            may = permitted(unit)
            self.assertIn("seccomp", may, unit)
            needs = {c for c, v in calls if v in ("ALLOW", "CHECK") or (v == "PLACED" and "worker" in unit)}
            self.assertEqual(sorted(needs - may - ROOTS), [], f"{unit} refuses what the daemon needs")
            self.assertEqual(sorted({c for c, v in calls if v in ("KILL", "MODULES")} & may - STARTS), [],
                             f"{unit} permits what ends the daemon")

    def test_what_they_expose(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze is not here")
        for unit, most in MOST.items():
            run = subprocess.run(["systemd-analyze", "security", "--offline=true", f"--threshold={most}", UNITS / unit],
                                 capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def test_options_exist(self):
        for unit in MOST:
            text = (UNITS / unit).read_text()
            program, line = re.search(r"^ExecStart=/usr/bin/(\S+) (.*)$", text, re.M).groups()
            help_text = subprocess.run([BIN / program, "--help"], capture_output=True, text=True, check=True).stdout
            options = re.findall(r"(--[a-z-]+)=", line)
            self.assertTrue(options)
            for option in options:
                self.assertRegex(help_text, rf"{option}\b", unit)


class Told(unittest.TestCase):
    """By the daemons, over a socket as systemd gives them one."""

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.path = pathlib.Path(self.dir.name)

    def start(self, program, *options):
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(str(self.path / f"{program}.notify"))
        manager.settimeout(120)
        self.addCleanup(manager.close)
        process = subprocess.Popen([BIN / program, "--secret-file", self.path / "secret", *options],
                                   env={**os.environ, "NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "200000"})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, manager

    def hears(self, manager, what):
        """Waits for it; what comes before it counts for nothing."""
        while True:
            told = manager.recv(4096).decode().split("\n")
            if any(line.startswith(what) for line in told):
                return told

    def test_ready_running_leaving(self):
        coordinator, of_coordinator = self.start("banyan-coordinator", "--store", ":memory:", "--listen",
                                                 f"unix://{self.path}/c")
        self.assertIn("STATUS=serving", self.hears(of_coordinator, "READY=1"))
        worker, of_worker = self.start("banyan-worker", "--name", "w0", "--memory", "64M", "--coordinator",
                                       f"unix://{self.path}/c", "--listen", f"unix://{self.path}/w", "--edge-listen",
                                       f"unix://{self.path}/we")
        self.hears(of_worker, "READY=1")
        self.hears(of_worker, "STATUS=serving")
        for manager in of_coordinator, of_worker:
            for _ in range(2):
                self.hears(manager, "WATCHDOG=1")
        for process, manager in (worker, of_worker), (coordinator, of_coordinator):
            process.send_signal(signal.SIGTERM)
            self.hears(manager, "STOPPING=1")
            self.assertEqual(process.wait(), 0)

    def test_reloading(self):
        """The manager gets a message when it begins, by its clock, and when it is over, whether the file is
        right or wrong."""
        config = self.path / "c.conf"
        coordinator, manager = self.start("banyan-coordinator", f"--config=-{config}", "--store", ":memory:", "--listen",
                                          f"unix://{self.path}/c") # the file is not there, as the units allow
        self.hears(manager, "READY=1")
        for text in "log-level = warn\n", "log-level = loud\n":
            config.write_text(text)
            coordinator.send_signal(signal.SIGHUP)
            told = self.hears(manager, "RELOADING=1")
            self.assertRegex(told[1], r"^MONOTONIC_USEC=[0-9]+$")
            self.hears(manager, "READY=1")
        coordinator.send_signal(signal.SIGTERM)
        self.hears(manager, "STOPPING=1")
        self.assertEqual(coordinator.wait(), 0)

    def test_units_reload(self):
        for unit in MOST:
            self.assertIn("ExecReload=/bin/kill -HUP $MAINPID", (UNITS / unit).read_text())

    def test_ready_without_a_coordinator(self):
        worker, of_worker = self.start("banyan-worker", "--name", "w0", "--memory", "64M", "--coordinator",
                                       f"unix://{self.path}/nobody", "--listen", f"unix://{self.path}/w",
                                       "--edge-listen", f"unix://{self.path}/we")
        self.assertIn("STATUS=waiting for the coordinator", self.hears(of_worker, "READY=1"))
        worker.send_signal(signal.SIGTERM)
        self.hears(of_worker, "STOPPING=1")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
