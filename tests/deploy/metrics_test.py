#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a coordinator and a worker serve over --http, asked as Prometheus asks: both formats are right (our
own strict parser, and promtool where it is installed), numbers agree with what was done, every metric of the
alerts and of the dashboard is there, the alerts' own tests pass.
    metrics_test.py SOURCE BIN
"""
import json
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

SOURCE, BIN = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
sys.path.insert(0, str(SOURCE / "tests" / "tools"))
import openmetrics  # noqa: E402  (its folder is known only now)

RULES = SOURCE / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARD = SOURCE / "deploy" / "grafana" / "banyan.json"
ACCEPT = {False: "text/plain;version=0.0.4", True: "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3"}
TRACE = "0af7651916cd43dd8448eb211c80319c"
METRIC = re.compile(r"\b((?:banyan|process)_[a-z0-9_]+)\b")


def promtool(*arguments, text=None):
    """None: it is not here."""
    if not shutil.which("promtool"):
        return None
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, input=text, cwd=RULES.parent)


def write_tensors(path, names, rows):
    """Tensors of one head of 8 numbers, in the format of safetensors."""
    header, size, n = {}, rows * 8 * 4, rows * 8 * len(names)
    for i, name in enumerate(names):
        header[name] = {"dtype": "F32", "shape": [rows, 1, 8], "data_offsets": [i * size, (i + 1) * size]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack(f"<{n}f", *(i % 7 for i in range(n))))


def expressions():
    """(where, expression) of the alerts and of the dashboard."""
    for line in RULES.read_text().split("\n"):
        match = re.match(r"\s+expr: (.*)$", line)
        if match:
            yield RULES.name, match.group(1)
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


class Cluster(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name)
        cls.processes = {}
        cls.endpoint = f"unix://{cls.path}/c"
        tls = cls.path / "tls"
        for words in ("init",), ("issue", "--role=coordinator", "--host=localhost", "--name=c"):
            subprocess.run([BIN / "banyanctl", "pki", words[0], tls, *words[1:]], check=True, stdout=subprocess.DEVNULL)
        coordinator = cls.start("coordinator", "--store", cls.path / "db", "--listen", cls.endpoint, "--fsync",
                                "--tls-cert", tls / "c.pem", "--tls-key", tls / "c.key", "--tls-ca", tls / "ca.pem",
                                "--audit-log", cls.path / "audit.log")
        worker = cls.start("worker", "--name", "w0", "--memory", "64M", "--coordinator", cls.endpoint, "--listen",
                           f"unix://{cls.path}/w", "--edge-listen", f"unix://{cls.path}/we", "--store", cls.path / "kv",
                           "--fsync", "interval")  # a slow disk makes no frame go twice
        cls.address = {"coordinator": coordinator["http"], "worker": worker["http"]}
        write_tensors(cls.path / "t.safetensors", "qkv", 4)
        cls.ctl("session", "create", "--q-heads=1", "--dim=8", "--kv-type=f32", "s")
        for more in (), (), (f"--traceparent=00-{TRACE}-b7ad6b7169203331-01",):
            cls.ctl("attend", "s", cls.path / "t.safetensors", *more)

    @classmethod
    def start(cls, name, *options):
        ready = cls.path / f"{name}.ready"
        process = subprocess.Popen([BIN / f"banyan-{name}", "--secret-file", cls.path / "secret", "--http", "127.0.0.1:0",
                                    "--ready-file", ready, *options])
        cls.addClassCleanup(process.wait)
        cls.addClassCleanup(process.kill)
        cls.processes[name] = process
        while not ready.exists():  # CTest's time is the limit
            assert process.poll() is None, f"banyan-{name} has ended"
            time.sleep(0.02)
        return json.loads(ready.read_text())

    @classmethod
    def ctl(cls, *arguments):
        run = subprocess.run([BIN / "banyanctl", *arguments, "-e", cls.endpoint], capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr

    def ask(self, who, path, accept=None):
        request = urllib.request.Request(f"http://{self.address[who]}{path}", headers={"Accept": accept} if accept else {})
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Content-Type"], error.read().decode()

    def families(self, who, is_openmetrics):
        status, kind, text = self.ask(who, "/metrics", ACCEPT[is_openmetrics])
        self.assertEqual(status, 200)
        self.assertIn("openmetrics-text; version=1.0.0" if is_openmetrics else "text/plain; version=0.0.4", kind)
        return openmetrics.parse(text, is_openmetrics), text

    def test_formats(self):
        for who in self.address:
            plain, text = self.families(who, False)
            other, _ = self.families(who, True)
            as_plain = {name + {"counter": "_total", "info": "_info"}.get(f.kind, "") for name, f in other.items()}
            self.assertEqual(set(plain), as_plain)
            self.assertEqual(other["process_cpu_seconds"].unit, "seconds")
            self.assertIn("text/plain", self.ask(who, "/metrics")[1])
            run = promtool("check", "metrics", text=text)
            if run:
                self.assertEqual((run.returncode, run.stdout + run.stderr), (0, ""), who)

    def test_numbers(self):
        coordinator, worker = self.families("coordinator", False)[0], self.families("worker", False)[0]
        self.assertEqual(coordinator["banyan_steps_total"].value(), 3)
        self.assertEqual(coordinator["banyan_rpc_seconds"].value("banyan_rpc_seconds_count", method="Coordinator.Attend"), 3)
        for name in "banyan_step_seconds", "banyan_step_tree_seconds", "banyan_step_own_seconds":
            self.assertEqual(coordinator[name].value(name + "_count"), 3)
            self.assertGreater(coordinator[name].value(name + "_sum"), 0)
        self.assertLessEqual(coordinator["banyan_step_tree_seconds"].value("banyan_step_tree_seconds_sum"),
                             coordinator["banyan_step_seconds"].value("banyan_step_seconds_sum"))
        self.assertGreater(coordinator["banyan_store_write_seconds"].value("banyan_store_write_seconds_count"), 0)
        self.assertEqual(coordinator["banyan_sessions_state"].value(state="active"), coordinator["banyan_sessions"].value())
        self.assertEqual(coordinator["banyan_workers"].value(state="active"), 1)
        self.assertGreaterEqual(coordinator["banyan_worker_heartbeat_age_seconds"].value(worker="w0"), 0)
        self.assertEqual(worker["banyan_parts_total"].value(), 3)
        for part in "queue", "compute", "tree":
            self.assertEqual(worker["banyan_part_seconds"].value("banyan_part_seconds_count", part=part), 3)
        self.assertEqual(worker["banyan_rpc_seconds"].value("banyan_rpc_seconds_count", method="Worker.Step"), 3)
        while not worker["banyan_store_sync_seconds"].value("banyan_store_sync_seconds_count"):  # CTest's time is the limit
            time.sleep(0.1)
            worker = self.families("worker", False)[0]
        for name, families in ("coordinator", coordinator), ("worker", worker):
            self.assertEqual(families["banyan_ready"].value(), 1)
            self.assertGreater(families["process_resident_memory_bytes"].value(), 1 << 20)
            self.assertLess(abs(time.time() - families["process_start_time_seconds"].value()), 3600)
            fds = len(list(pathlib.Path(f"/proc/{self.processes[name].pid}/fd").iterdir()))
            self.assertLess(abs(families["process_open_fds"].value() - fds), 8)
            version = subprocess.run([BIN / f"banyan-{name}", "--version"], capture_output=True, text=True).stdout
            (_, labels), = families["banyan_build_info"].samples
            self.assertIn(dict(labels)["version"], version)
            self.assertTrue(dict(labels)["revision"])

    def test_the_page_of_metrics(self):
        """docs/reference/metrics.md has each family, with its labels, kind and help text."""
        page = {}
        for row in re.findall(r"^\| `(\w+)` \| (.*?) \| (\w+) \| (.*) \|$", (SOURCE / "docs/reference/metrics.md").read_text(), re.M):
            page[row[0]] = set(re.findall(r"\w+", row[1])), row[2], re.sub(r"[`\\]", "", row[3])
        for who in "coordinator", "worker":
            for name, family in self.families(who, False)[0].items():
                labels = {key for _, have in family.samples for key, _ in have} - {"le"}
                kind = "info" if name.endswith("_info") else family.kind
                self.assertEqual(page.get(name), (labels, kind, family.help.replace("\\", "")), f"{who}: {name}")

    def test_exemplars(self):
        for who, name, n in (("coordinator", "banyan_step_seconds", 1), ("coordinator", "banyan_step_tree_seconds", 1),
                             ("coordinator", "banyan_step_own_seconds", 1), ("worker", "banyan_part_seconds", 3)):
            self.assertEqual(self.families(who, False)[0][name].exemplars, {})
            exemplars = self.families(who, True)[0][name].exemplars
            self.assertEqual(len(exemplars), n)
            for labels, number, when in exemplars.values():
                self.assertEqual(labels["trace_id"], TRACE)
                self.assertRegex(labels["span_id"], "^[0-9a-f]{16}$")
                self.assertLess(abs(time.time() - when), 3600)

    def test_attached_bytes_and_failures(self):
        before = self.families("worker", False)[0]["banyan_attached_bytes_total"].value()
        self.ctl("session", "create", "--q-heads=1", "--dim=8", "--kv-type=f32", "attached")
        write_tensors(self.path / "kv.safetensors", ["layers.0.k", "layers.0.v"], 4)
        self.ctl("attach", "attached", self.path / "kv.safetensors", "--commit")
        after = self.families("worker", False)[0]["banyan_attached_bytes_total"].value()
        self.assertEqual(after - before, 4 * 8 * 4 * 2)
        failures = self.families("coordinator", False)[0]["banyan_rpc_failures_total"].value(code="NOT_FOUND")
        run = subprocess.run([BIN / "banyanctl", "session", "show", "nobody", "-e", self.endpoint], capture_output=True)
        self.assertEqual(run.returncode, 3)
        self.assertEqual(self.families("coordinator", False)[0]["banyan_rpc_failures_total"].value(code="NOT_FOUND"),
                         failures + 1)

    def test_health(self):
        for who, check in ("coordinator", "workers"), ("worker", "coordinator"):
            self.assertEqual(self.ask(who, "/livez")[::2], (200, "ok\n"))
            self.assertEqual(self.ask(who, "/readyz?verbose")[0], 200)
            self.assertIn(f"[+]{check} ok\n", self.ask(who, "/readyz?verbose")[2])
            self.assertEqual(self.ask(who, "/else")[0], 404)

    def test_alerts_and_dashboard_name_what_there_is(self):
        there = set()
        for who in self.address:
            for family in self.families(who, False)[0].values():
                there |= {sample for sample, _ in family.samples}
        named = [(where, name) for where, text in expressions() for name in METRIC.findall(text)]
        self.assertGreater(len(named), 60)
        for where, name in named:
            self.assertIn(name, there, where)

    def test_runbooks(self):
        """Each alert has a section of its own, and each section an alert."""
        rules = RULES.read_text()
        page = (SOURCE / "docs" / "operating" / "alerts.md").read_text()
        alerts = re.findall(r"- alert: (\w+)", rules)
        self.assertEqual(re.findall(r'runbook_url: "docs/operating/alerts.md#(.*)"', rules), [name.lower() for name in alerts])
        self.assertEqual(re.findall(r"^## (\w+)$", page, re.M), alerts)
        for name, severity in re.findall(r"- alert: (\w+).*?severity: (\w+)", rules, re.S):
            self.assertIn(f"## {name}\n*{severity}.*", page)

    def test_alerts(self):
        run = promtool("test", "rules", RULES.with_name("alerts_test.yaml"))
        if not run:
            self.skipTest("promtool is not here: Debian's package prometheus has it")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        tested = RULES.with_name("alerts_test.yaml").read_text()
        for alert in re.findall(r"- alert: (\w+)", RULES.read_text()):
            self.assertIn(f"- name: {alert}\n", tested)
        run = promtool("check", "config", "scrape.yaml")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        rules = self.path / "dashboard.yaml"
        rules.write_text(json.dumps({"groups": [{"name": "g", "rules": [
            {"record": f"r{i}", "expr": text.replace("$__rate_interval", "1m")} for i, (_, text) in enumerate(expressions())]}]}))
        run = promtool("check", "rules", rules)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)


class Start(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def arguments(self, name):
        own = {"coordinator": ("--store", ":memory:", "--listen", f"unix://{self.path}/c"),
               "worker": ("--coordinator", f"unix://{self.path}/c", "--memory", "64M", "--name", "w0")}
        return [BIN / f"banyan-{name}", "--secret-file", self.path / "secret", *own[name]]

    def test_refused(self):
        for name in "coordinator", "worker":
            for address, says in (("0.0.0.0:0", "--http-insecure"), ("nonsense", "HOST:PORT"), ("127.0.0.1:99999", "HOST:PORT"),
                                  ("192.0.2.1:1", "--http-insecure")):
                run = subprocess.run([*self.arguments(name), "--http", address], capture_output=True, text=True, timeout=60)
                self.assertEqual(run.returncode, 3, (name, address))
                self.assertIn(says, run.stderr)
                self.assertNotIn(" ready ", run.stderr)
                self.assertNotIn("serving name", run.stderr)

    def test_beyond_loopback_with_its_own_switch(self):
        for name in "coordinator", "worker":
            process = subprocess.Popen([*self.arguments(name), "--http", "0.0.0.0:0", "--http-insecure"],
                                       stderr=subprocess.PIPE, text=True)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            for line in process.stderr:
                match = re.search(r"http=0\.0\.0\.0:([0-9]+)", line)
                if match:
                    break
            self.assertTrue(match)
            with urllib.request.urlopen(f"http://127.0.0.1:{match.group(1)}/livez") as answer:
                self.assertEqual(answer.read(), b"ok\n")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{match.group(1)}/readyz")
                self.fail("a coordinator without workers and a worker without a coordinator are not ready")
            except urllib.error.HTTPError as error:
                self.assertEqual(error.code, 503)
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            self.assertEqual(process.wait(), 0)
            process.stderr.close()


if __name__ == "__main__":
    if not shutil.which("promtool"):
        print("promtool is not here (Debian's package prometheus): what it would check is skipped", flush=True)
    unittest.main(argv=sys.argv[:1])
