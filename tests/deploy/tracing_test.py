#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Traces of steps, end to end: a client, a coordinator and workers send their spans to a collector, which is
a real HTTP server here, and to files. What arrives is OTLP to the letter, and makes one tree; a collector
that is away, slow, busy or refuses costs spans, and no step.
    tracing_test.py SOURCE BIN
"""
import email.utils
import json
import os
import pathlib
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

SOURCE, BIN = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
sys.path.insert(0, str(SOURCE / "tests" / "tools"))
import openmetrics  # noqa: E402  (its folder is known only now)
import otlp  # noqa: E402

WORKERS = 5
SLACK = 2_000_000  # nanoseconds: processes of one host have one clock, and each reads it by itself


def write_tensors(path):
    """q, k and v of four rows, one head of 8 numbers, in the format of safetensors."""
    header = {name: {"dtype": "F32", "shape": [4, 1, 8], "data_offsets": [i * 128, (i + 1) * 128]} for i, name in enumerate("qkv")}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<96f", *(i % 7 for i in range(96))))


def traceparent(number, flags="01"):
    return f"00-{number:032x}-{number + 1:016x}-{flags}"


class Base(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.endpoint = f"unix://{self.path}/c"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "BANYAN_"))}
        self.processes, self.http = {}, {}
        write_tensors(self.path / "t.safetensors")

    def start(self, name, *options, limit=None):
        kind = name.rstrip("0123456789")
        ready = self.path / f"{name}.ready"
        own = {"coordinator": ("--store", ":memory:", "--listen", self.endpoint),
               "worker": ("--name", name, "--memory", "64M", "--coordinator", self.endpoint, "--bandwidth", "1G", "--listen",
                          f"unix://{self.path}/{name}.p", "--edge-listen", f"unix://{self.path}/{name}.e")}[kind]

        def before():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        log = (self.path / f"{name}.log").open("w")
        self.addCleanup(log.close)
        process = subprocess.Popen(
            [BIN / f"banyan-{kind}", "--secret-file", self.path / "secret", "--http", "127.0.0.1:0", "--ready-file", ready, *own,
             *map(str, options)], stderr=log, env=self.environment,
            preexec_fn=before if limit else None)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.processes[name] = process
        while not ready.exists():  # CTest's time is the limit
            self.assertIsNone(process.poll(), self.log(name))
            time.sleep(0.02)
        self.http[name] = json.loads(ready.read_text())["http"]

    def cluster(self, *options, workers=1, worker_options=()):
        self.start("coordinator", *options)
        for i in range(workers):
            self.start(f"worker{i}", *worker_options)
        self.ctl("session", "create", "--q-heads=1", "--dim=8", "--kv-type=f32", f"--members={workers}", "s")

    def stop(self, name):
        self.processes[name].send_signal(signal.SIGTERM)
        self.assertEqual(self.processes[name].wait(), 0)

    def log(self, name):
        return (self.path / f"{name}.log").read_text()

    def wait_log(self, name, text):
        while text not in self.log(name):
            time.sleep(0.02)

    def ctl(self, *arguments, code=0, **environment):
        run = subprocess.run([BIN / "banyanctl", *map(str, arguments), "-e", self.endpoint], capture_output=True, text=True,
                             env={**self.environment, **environment})
        self.assertEqual(run.returncode, code, run.stdout + run.stderr)
        return run.stdout + run.stderr

    def step(self, number=None, flags="01", **environment):
        more = ["--traceparent", traceparent(number, flags)] if number else []
        return self.ctl("attend", "s", self.path / "t.safetensors", *more, **environment)

    def collector(self, port=0):
        collector = otlp.Collector(port)
        self.addCleanup(collector.close)
        return collector

    def metric(self, who, name, **labels):
        request = urllib.request.Request(f"http://{self.http[who]}/metrics")
        with urllib.request.urlopen(request) as answer:
            return openmetrics.parse(answer.read().decode(), False)[name].value(**labels)

    def wait_metric(self, number, who, name, **labels):
        while self.metric(who, name, **labels) != number:
            time.sleep(0.02)


class Tree(Base):
    def check_tree(self, spans, number, workers):
        """All spans of one traced step, from the client down."""
        self.assertEqual({span.trace for span in spans}, {f"{number:032x}"})
        by_id = {span.id: span for span in spans}
        self.assertEqual(len(by_id), len(spans))
        of = {}
        for span in spans:
            of.setdefault(span.name, []).append(span)
        self.assertEqual({name: len(found) for name, found in of.items()},
                         {"banyan.attend": 1, "coordinator.step": 1, "coordinator.queue": 1, "coordinator.tree": 1,
                          "coordinator.answer": 1, "worker.step": workers, "worker.queue": workers, "worker.compute": workers,
                          "worker.merge": workers})
        above = {"coordinator.step": "banyan.attend", "coordinator.queue": "coordinator.step", "coordinator.tree": "coordinator.step",
                 "coordinator.answer": "coordinator.step", "worker.queue": "worker.step", "worker.compute": "worker.step",
                 "worker.merge": "worker.step"}
        for span in spans:
            if span.name == "banyan.attend":
                self.assertEqual(span.parent, f"{number + 1:016x}")
                continue
            parent = by_id[span.parent]
            self.assertGreaterEqual(span.start, parent.start - SLACK, span)
            self.assertLessEqual(span.end, parent.end + SLACK, span)
            if span.name in above:
                self.assertEqual(parent.name, above[span.name])
            remote = span.name in ("coordinator.step", "worker.step")
            self.assertEqual(bool(span.flags & 0x200), remote)
        return of

    def test_all_processes(self):
        collector = self.collector()
        self.cluster("--trace-otlp", collector.url, workers=WORKERS, worker_options=("--trace-otlp", collector.url))
        self.step()
        self.step(100, "00")
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://localhost:{collector.port}/", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
               "OTEL_SERVICE_NAME": "engine"}
        answer = json.loads(self.ctl("attend", "s", self.path / "t.safetensors", "--traceparent", traceparent(7), "--json", **env))
        collector.wait(lambda c: len(c.spans) >= 5 + 4 * WORKERS)
        of = self.check_tree(collector.spans, 7, WORKERS)  # nothing of the steps before: they were not sampled
        steps = {span.attributes["banyan.worker"]: span for span in of["worker.step"]}
        self.assertEqual(set(steps), {f"worker{i}" for i in range(WORKERS)})
        self.assertEqual({span.resource["service.instance.id"] for span in of["worker.step"]}, set(steps))
        by_id = {span.id: span for span in collector.spans}
        roots = [span for span in steps.values() if by_id[span.parent].name == "coordinator.tree"]
        self.assertEqual([span.attributes["banyan.rank"] for span in roots], [0])
        self.assertEqual(roots[0].attributes["banyan.worker"], of["coordinator.tree"][0].attributes["banyan.root"])
        for span in steps.values():
            if span is not roots[0]:
                self.assertEqual(by_id[span.parent].name, "worker.step")
                self.assertLess(by_id[span.parent].attributes["banyan.rank"], span.attributes["banyan.rank"])
        self.assertTrue({s.parent for s in steps.values()} & {s.id for s in steps.values() if s is not roots[0]} or WORKERS < 3,
                        "a tree of more than one level")
        step, attend = of["coordinator.step"][0], of["banyan.attend"][0]
        self.assertEqual((attend.service, step.service), ("engine", "banyan-coordinator"))
        self.assertEqual((attend.kind, step.kind, of["coordinator.tree"][0].kind), (3, 2, 3))
        for span in (attend, step, *steps.values()):
            self.assertEqual((span.attributes["banyan.layer"], span.attributes["banyan.position"], span.attributes["banyan.rows"]),
                             (0, 8, 4))
        self.assertEqual(len({span.attributes["banyan.session"] for span in (attend, step, *steps.values())}), 1)
        self.assertEqual({attend.attributes["banyan.plan_digest"], step.attributes["banyan.plan_digest"]},
                         {answer["digest"].removeprefix("0x")})
        self.assertEqual(len({span.attributes["banyan.epoch"] for span in (of["coordinator.tree"][0], *steps.values())}), 1)
        self.assertEqual(sum(span.attributes["banyan.tokens"] for span in steps.values()), 12)
        self.assertEqual(step.attributes["banyan.bytes"], 3 * 4 * 8 * 4)
        self.assertEqual(collector.wrong, [])

    def test_children_of_who_exports(self):
        """A process that exports nothing is left out of the tree, which stays one."""
        collector = self.collector()
        self.cluster(workers=2, worker_options=("--trace-otlp", collector.url))
        self.step(20)
        collector.wait(lambda c: sum(span.name == "worker.step" for span in c.spans) == 2)
        steps = sorted((span for span in collector.spans if span.name == "worker.step"), key=lambda s: s.attributes["banyan.rank"])
        self.assertEqual([span.parent for span in steps], [f"{21:016x}", steps[0].id])

    def test_refused_items(self):
        self.cluster()
        for bad in ("", "00", traceparent(5).upper().replace("0", "A"), traceparent(5)[:-1], traceparent(5) + "-x", traceparent(0),
                    "ff" + traceparent(5)[2:], traceparent(5).replace("-", "_")):
            self.assertIn("traceparent", self.ctl("attend", "s", self.path / "t.safetensors", f"--traceparent={bad}", code=4))
        self.ctl("attend", "s", self.path / "t.safetensors", "--traceparent", "42" + traceparent(5)[2:] + "-what comes later")

    def test_failed_step(self):
        collector = self.collector()
        self.cluster("--trace-otlp", collector.url)
        self.ctl("attend", "s", self.path / "t.safetensors", "--first", 1000, "--traceparent", traceparent(40), code=4)
        collector.wait(lambda c: any(span.name == "coordinator.step" for span in c.spans))
        step, = (span for span in collector.spans if span.name == "coordinator.step")
        self.assertRegex(step.error, "^[A-Z_]+: .")
        self.assertRegex(self.log("coordinator"), f"traced step failed session=[0-9a-f]+ layer=0 first=1000 .* trace={40:032x}")


class Samples(Base):
    def test_reload_draws_and_rotates(self):
        config, file = self.path / "config", self.path / "spans.jsonl"
        config.write_text("")
        self.cluster("--config", config)
        self.step()
        self.assertFalse(file.exists())
        config.write_text(f"trace-file = {file}\ntrace-sample = 1\n")
        self.processes["coordinator"].send_signal(signal.SIGHUP)
        self.wait_log("coordinator", "changed: trace-file, trace-sample")
        for _ in range(3):
            self.step()
        self.wait_metric(12, "coordinator", "banyan_trace_exported_spans_total", to="file")
        spans = [span for line in file.read_text().splitlines() for span in otlp.read(line)]
        roots = [span for span in spans if not span.parent]
        self.assertEqual([span.name for span in roots], ["coordinator.step"] * 3)
        self.assertEqual(len({span.trace for span in spans}), 3)
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)
        file.rename(self.path / "old")
        self.processes["coordinator"].send_signal(signal.SIGHUP)
        while not file.exists():
            time.sleep(0.02)
        self.step(9)  # brings its own
        self.stop("coordinator")  # and what waits is written at the end
        self.assertEqual({span.trace for line in file.read_text().splitlines() for span in otlp.read(line)}, {f"{9:032x}"})

    def test_reload_under_a_step(self):
        """What begins to export while a step is in hand has no span of it: none would know its own id."""
        names = ("coordinator", "worker0", "worker1")
        file, config = ({name: self.path / f"{name}.{what}" for name in names} for what in ("spans", "config"))

        def export(name, on):
            before = self.log(name).count("changed: trace-file")
            config[name].write_text(f"trace-file = {file[name]}\n" if on else "")
            self.processes[name].send_signal(signal.SIGHUP)
            while self.log(name).count("changed: trace-file") == before:
                time.sleep(0.02)

        def spans():
            return [span for name in names for line in file[name].read_text().splitlines() for span in otlp.read(line)]

        for name in names:
            config[name].write_text(f"trace-file = {file[name]}\n")
            self.start(name, "--config", config[name])
        self.ctl("session", "create", "--q-heads=1", "--dim=8", "--kv-type=f32", "--members=2", "s")
        self.step(1)
        for name in names:
            export(name, False)  # what waited is written
        root, = (span.attributes["banyan.worker"] for span in spans() if span.attributes.get("banyan.rank") == 0)
        child = "worker0" if root == "worker1" else "worker1"
        self.processes[child].send_signal(signal.SIGSTOP)
        with subprocess.Popen([BIN / "banyanctl", "attend", "s", self.path / "t.safetensors", "--traceparent", traceparent(2), "-e",
                               self.endpoint], env=self.environment, stdout=subprocess.DEVNULL) as step:
            self.wait_metric(1, root, "banyan_parts_in_hand")
            export("coordinator", True)
            export(root, True)
            self.processes[child].send_signal(signal.SIGCONT)
            self.assertEqual(step.wait(), 0)
        self.step(3)
        for name in ("coordinator", root):
            self.stop(name)
        self.assertEqual({span.trace for span in spans()}, {f"{number:032x}" for number in (1, 3)})
        self.assertEqual([span for span in spans() if span.id == span.parent], [])

    def test_options(self):
        for options, says in ((("--trace-sample", "0.5"), "--trace-file or --trace-otlp"), (("--trace-sample", "2"), "0 to 1"),
                              (("--trace-otlp", "https://localhost/"), "http://HOST:PORT"), (("--trace-otlp", "nonsense"), "http://"),
                              (("--trace-file", self.path), "cannot open the file of spans")):
            run = subprocess.run([BIN / "banyan-coordinator", "--secret-file", self.path / "secret", "--store", ":memory:", "--listen",
                                  self.endpoint, *map(str, options)], capture_output=True, text=True, timeout=60)
            self.assertIn(run.returncode, (2, 3))
            self.assertIn(says, run.stderr)


class Collectors(Base):
    def start_with(self, url):
        self.cluster("--trace-otlp", url)

    def test_busy(self):
        """429 and 503: the same spans are sent again, after Retry-After where there is one."""
        collector = self.collector()
        date = email.utils.formatdate(time.time() + 1, usegmt=True)
        collector.answers = [(503, {"Retry-After": "1"}, ""), (429, {}, ""), (503, {"Retry-After": date}, ""), (502, {"Retry-After": "x"}, "")]
        self.start_with(collector.url)
        self.step(1)
        collector.wait(lambda c: c.spans)
        self.assertEqual(len(collector.bodies), 5)
        self.assertEqual(len(set(collector.bodies)), 1)
        self.assertEqual(len(collector.spans), 4)
        self.wait_metric(4, "coordinator", "banyan_trace_exported_spans_total", to="otlp")
        self.wait_metric(0, "coordinator", "banyan_trace_queued_spans")
        self.assertEqual(self.metric("coordinator", "banyan_trace_dropped_spans_total", to="otlp"), 0)
        self.wait_log("coordinator", "the collector accepts spans again")
        self.assertEqual(self.log("coordinator").count("spans are waiting"), 1)

    def test_refused_and_partial(self):
        collector = self.collector()
        collector.answers = [(400, {}, "no"), (200, {}, '{"partialSuccess": {"rejectedSpans": "3", "errorMessage": "why"}}')]
        self.start_with(collector.url)
        self.step(1)
        self.wait_metric(4, "coordinator", "banyan_trace_dropped_spans_total", to="otlp")
        self.assertIn("the collector answers 400", self.log("coordinator"))
        self.step(2)
        self.wait_metric(7, "coordinator", "banyan_trace_dropped_spans_total", to="otlp")
        self.assertEqual(self.metric("coordinator", "banyan_trace_exported_spans_total", to="otlp"), 1)
        self.assertEqual(len(collector.bodies), 2)  # neither was sent again

    def test_slow(self):
        """While the collector does not answer, steps do; what waits beyond the bound is dropped, and
        counted."""
        collector = self.collector()
        collector.hold.clear()
        self.start_with(collector.url)
        self.step(1)
        collector.wait(lambda c: c.bodies)
        self.assertIn("plan digest", self.step(2))
        self.assertEqual(self.metric("coordinator", "banyan_trace_exported_spans_total", to="otlp"), 0)
        collector.hold.set()
        collector.wait(lambda c: {span.trace for span in c.spans} == {f"{1:032x}", f"{2:032x}"})

    def test_away(self):
        first = self.collector()
        port = first.port
        first.close()
        self.start_with(f"http://127.0.0.1:{port}")  # its path is the usual one
        self.step(1)
        self.wait_log("coordinator", "spans are waiting")
        self.step(2)
        collector = self.collector(port)
        collector.wait(lambda c: {span.trace for span in c.spans} == {f"{1:032x}", f"{2:032x}"})
        self.assertEqual(self.metric("coordinator", "banyan_trace_dropped_spans_total", to="otlp"), 0)

    def test_end(self):
        """What waits is sent at the end; a collector that holds the last request does not hold the daemon."""
        collector = self.collector()
        self.start_with(collector.url)
        self.step(1)
        self.stop("coordinator")
        self.assertEqual(len(collector.spans), 4)

    def test_end_without_a_collector(self):
        collector = self.collector()
        collector.hold.clear()
        self.start_with(collector.url)
        self.step(1)
        self.stop("coordinator")
        self.assertIn("dropped at the end", self.log("coordinator"))


class Files(Base):
    def test_full(self):
        self.cluster("--trace-file", "/dev/full")
        self.step(1)
        self.wait_metric(4, "coordinator", "banyan_trace_dropped_spans_total", to="file")
        self.step(2)
        self.assertEqual(self.log("coordinator").count("spans cannot be written"), 1)
        self.assertIn("No space left", self.log("coordinator"))

    def test_half_a_line(self):
        """What does not fit is taken back: the file has whole lines."""
        file = self.path / "spans"
        self.start("coordinator", "--trace-file", file, limit=3000)
        self.start("worker0")
        self.ctl("session", "create", "--q-heads=1", "--dim=8", "--kv-type=f32", "s")
        self.step(1)
        self.wait_metric(4, "coordinator", "banyan_trace_exported_spans_total", to="file")
        self.step(2)
        self.wait_metric(4, "coordinator", "banyan_trace_dropped_spans_total", to="file")
        line, = file.read_text().splitlines()
        self.assertEqual({span.trace for span in otlp.read(line)}, {f"{1:032x}"})

    def test_client(self):
        self.cluster()
        file = self.path / "client"
        self.step(1, BANYAN_TRACE_FILE=str(file))
        self.step(2, "00", BANYAN_TRACE_FILE=str(file))
        span, = otlp.read(file.read_text())
        self.assertEqual((span.service, span.name, span.trace, span.parent), ("libbanyan", "banyan.attend", f"{1:032x}", f"{2:016x}"))
        self.assertIn("BANYAN_TRACE_FILE", self.ctl("status", code=4, BANYAN_TRACE_FILE="/nowhere/at/all"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
