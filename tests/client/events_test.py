#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""banyanctl events over real daemons: what they are about, filters, and --follow over restarts.

    events_test.py BIN        BIN: the folder of the programs
"""
import json
import os
import re
import select
import signal
import sys
import time
import unittest

import daily

BIN = sys.argv.pop(1)


class Follower:
    """banyanctl events --follow, as a program reads it."""

    def __init__(self, cluster, *words):
        self.process = cluster.background("events", "--follow", "-o", "json", *words)
        self.texts = {self.process.stdout: "", self.process.stderr: ""}
        for stream in self.texts:
            os.set_blocking(stream.fileno(), False)

    def read(self):
        for stream in select.select([*self.texts], [], [], 0.05)[0]:
            self.texts[stream] += stream.read() or ""

    def until(self, what, wanted):
        end = time.monotonic() + daily.PATIENCE_S
        while not wanted(self):
            assert time.monotonic() < end and self.process.poll() is None, f"no {what}: {self.texts}"
            self.read()

    @property
    def events(self):
        text = self.texts[self.process.stdout]
        return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]

    @property
    def said(self):
        return self.texts[self.process.stderr]

    def until_kind(self, kind, **about):
        def found(self):
            return [e for e in self.events if e["kind"] == kind and all(e[key] == value for key, value in about.items())]
        self.until(f"{kind} {about}", found)
        return found(self)[-1]

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(daily.PATIENCE_S)
        for stream in self.texts:
            stream.close()


class Events(unittest.TestCase):
    def setUp(self):
        self.cluster = daily.Cluster(BIN, "--events", "64")
        self.cluster.coordinator()
        for name in ("a", "b"):
            self.cluster.worker(name)
        self.cluster.ctl("wait", "workers", "2")

    def tearDown(self):
        self.cluster.close()

    def kinds(self, *words):
        return [e["kind"] for e in self.cluster.json("events", *words)]

    def test_what_is_there_and_filters(self):
        self.cluster.ctl("session", "create", "--q-heads=1", "--dim=4", "--kv-type=f32", "book")
        events = self.cluster.json("events")
        self.assertEqual([e["seq"] for e in events], list(range(1, len(events) + 1)))
        self.assertEqual(events[0]["kind"], "coordinator-started")
        self.assertEqual(sorted(e["worker"] for e in events if e["kind"] == "worker-joined"), ["a", "b"])
        made = events[-1]
        self.assertEqual((made["kind"], made["session_name"], made["severity"], made["count"], made["worker"]),
                         ("session-created", "book", "info", 1, None))
        self.assertRegex(made["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        self.assertEqual(self.kinds("--kind", "session"), ["session-created"])
        self.assertEqual(self.kinds("--kind=session-created,worker-joined", "--worker", "a"), ["worker-joined"])
        self.assertEqual(self.kinds("--session", "book"), ["session-created"])
        self.assertEqual(self.kinds("--session", made["session"]), ["session-created"])
        self.assertEqual(self.kinds("--severity", "error"), [])
        self.assertEqual(self.kinds("-n", "1"), ["session-created"])
        self.assertEqual(self.kinds("--since", str(made["seq"] - 1)), ["session-created"])
        self.assertEqual(self.kinds("--since", f"{made['term']}/{made['seq'] - 1}"), ["session-created"])
        self.assertEqual(self.kinds("--since", "1h"), [e["kind"] for e in events])
        self.assertEqual(self.kinds("--since", made["time"][:19] + "Z", "--kind", "session"), ["session-created"])
        self.assertEqual(self.kinds("--since", "2100-01-01"), [])
        table = self.cluster.ctl("events", "--kind", "session")[0].splitlines()
        self.assertRegex(table[0], r"^TIME +SEVERITY KIND +ABOUT WHAT$")
        self.assertRegex(table[1], r"info +session-created book +a session was created")
        self.assertIn("no events", self.cluster.ctl("events", "--severity", "error")[1])
        # Another coordinator's number.
        out, complaint = self.cluster.ctl("events", "--since", f"{made['term'] + 7}/3", "-o", "json")
        self.assertEqual(len(json.loads(out)), len(events))
        self.assertIn("has restarted", complaint)

    def test_wrong_words(self):
        for words, says in ((("--kind", "worker-lostt"), "unknown event kind"), (("--since", "tomorrow"), "--since"),
                            (("--since", "0/3"), "--since"), (("--since", "3/"), "--since"),
                            (("--severity", "debug"), "'debug' is not one of"), (("--session", ""), "--session"),
                            (("--worker", "x" * 65), "--worker"), (("--limit", "many"), "--limit")):
            self.assertIn(says, self.cluster.ctl("events", *words, code=2)[1])
        listed = self.cluster.ctl("help", "events")[0]
        for kind in re.findall(r"^  ([a-z-]+): .", listed, re.M):
            self.cluster.ctl("events", "--kind", kind)
        self.assertIn("worker-lost: it is gone, and why", listed)

    def test_follow(self):
        follower = Follower(self.cluster)
        try:
            self.cluster.ctl("worker", "drain", "b", "--reason", "new memory", "--wait")
            drained = follower.until_kind("worker-draining", worker="b")
            self.assertIn("reason=new memory", drained["text"])
            follower.until_kind("worker-drained", worker="b")
            self.assertEqual(follower.events[0]["kind"], "coordinator-started")
            self.cluster.stop("b", signal.SIGKILL)
            lost = follower.until_kind("worker-lost", worker="b")
            self.assertEqual(lost["severity"], "warn")
            self.assertIn("edge connection lost", lost["text"])
            before = follower.events
            self.assertEqual([e["seq"] for e in before], list(range(before[0]["seq"], before[0]["seq"] + len(before))))
            # The coordinator ends and comes back on its store; the reader goes on by itself.
            for sig in (signal.SIGTERM, signal.SIGKILL):
                seen = len(follower.events)
                self.cluster.stop("coordinator", sig)
                self.cluster.coordinator()
                follower.until("restart", lambda f, seen=seen: "coordinator-started" in [e["kind"] for e in f.events[seen:]])
                follower.until("worker", lambda f, seen=seen: ("worker-active", "a") in
                               [(e["kind"], e["worker"]) for e in f.events[seen:]])
            places = [(e["term"], e["seq"]) for e in follower.events]
            self.assertEqual(places, sorted(set(places)))
            self.assertEqual(follower.said.count("has restarted"), 2)
            self.cluster.ctl("session", "create", "--q-heads=1", "--dim=4", "--kv-type=f32", "later")
            follower.until_kind("session-created", session_name="later")
        finally:
            follower.end()

    def test_a_gap_is_told(self):
        self.cluster.ctl("session", "create", "--q-heads=1", "--dim=4", "--kv-type=f32", "s0")
        last = self.cluster.json("events")[-1]
        while self.cluster.json("events", "-n1")[0]["seq"] < last["seq"] + 70:  # the ring has 64
            for i in range(10):
                self.cluster.ctl("session", "create", "--q-heads=1", "--dim=4", "--kv-type=f32", f"x{i}")
                self.cluster.ctl("session", "delete", f"x{i}", "--yes")
        out, complaint = self.cluster.ctl("events", "--since", f"{last['term']}/{last['seq']}", "-o", "json")
        self.assertEqual(len(json.loads(out)), 64)
        lost = json.loads(out)[0]["seq"] - last["seq"] - 1
        self.assertGreater(lost, 0)
        self.assertIn(f"{lost} events were lost", complaint)

    def test_refusals(self):
        follower = Follower(self.cluster)
        try:
            self.cluster.start("twin", "banyan-worker", "--coordinator", self.cluster.endpoint, "--name", "a", "--memory", "64M",
                               "--device", "cpu", "--bandwidth", "1G")
            refused = follower.until_kind("worker-refused", worker="a")
            self.assertIn("another worker has this name", refused["text"])
            self.cluster.stop("twin", signal.SIGKILL)
            self.cluster.ctl("session", "show", "no-such-session", code=3)  # the caller's own error
            with open(f"{self.cluster.folder}/other", "w", encoding="utf-8") as file:
                os.chmod(file.name, 0o600)
                file.write("f" * 64 + "\n")
            self.cluster.start("stranger", "banyan-worker", "--coordinator", self.cluster.endpoint, "--name", "c", "--memory", "64M",
                               "--device", "cpu", "--bandwidth", "1G", "--secret-file", file.name)
            refused = follower.until_kind("refused-client")
            self.assertEqual(refused["severity"], "warn")
            self.cluster.stop("stranger", signal.SIGKILL)
        finally:
            follower.end()


if __name__ == "__main__":
    unittest.main()
