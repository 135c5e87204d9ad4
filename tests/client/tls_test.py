#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cluster over TLS as an operator has it: certificates of 'banyanctl pki', contexts, join-command, doctor,
HTTPS, probe.

    tls_test.py BIN        BIN: the folder of the programs
"""
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

import daily

BIN = os.path.abspath(sys.argv.pop(1))


class Tls(unittest.TestCase):
    def setUp(self):
        self.cluster = daily.Cluster(BIN)
        self.folder = pathlib.Path(self.cluster.folder)
        self.ca = str(self.folder / "ca")
        self.ctl("pki", "init", self.ca)
        self.issue("coordinator")
        self.issue("worker")

    def tearDown(self):
        self.cluster.close()

    def ctl(self, *words, **more):
        return self.cluster.ctl(*words, **{"BANYAN_ENDPOINT": None, **more})

    def issue(self, role, *more, name=None):
        self.ctl("pki", "issue", self.ca, "--role", role, "--host=localhost,127.0.0.1", "--name", name or role, *more)

    def files(self, name):
        return "--tls-cert", f"{self.ca}/{name}.pem", "--tls-key", f"{self.ca}/{name}.key", "--tls-ca", f"{self.ca}/ca.pem"

    def start(self, name, program, *args):
        """What its ready file says."""
        ready = self.folder / f"{name}.ready"
        ready.unlink(missing_ok=True)
        self.cluster.start(name, program, "--ready-file", str(ready), *args)
        until = time.monotonic() + daily.PATIENCE_S
        while not ready.exists():
            self.assertIsNone(self.cluster.processes[name].poll(), self.log(name))
            self.assertLess(time.monotonic(), until)
            time.sleep(0.02)
        return json.loads(ready.read_text())

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def coordinator(self, *args, listen="tls://127.0.0.1:0,nng+tls://localhost:0"):
        ready = self.start("coordinator", "banyan-coordinator", "--listen", listen, "--store", ":memory:", "--heartbeat", "2s",
                           *self.files("coordinator"), *args)
        self.endpoint = ready["endpoints"][0]
        return ready

    def worker(self, name, *args):
        return self.start(name, "banyan-worker", "--coordinator", self.endpoint, "--name", name, "--memory", "64M", "--device", "cpu",
                          "--bandwidth", "1G", *self.files("worker"), *args)

    def tls(self, **more):
        return {"BANYAN_ENDPOINT": self.endpoint, "BANYAN_TLS_CA": f"{self.ca}/ca.pem", **more}

    def wait_log(self, name, text):
        until = time.monotonic() + daily.PATIENCE_S
        while text not in self.log(name):
            self.assertLess(time.monotonic(), until, self.log(name))
            time.sleep(0.02)

    # ---- clients ----
    def test_how_clients_are_told(self):
        """Options, the environment, and a context; and a worker speaks as its coordinator does where nothing
        else is said."""
        ready = self.coordinator()
        worker = self.worker("a")
        self.assertTrue(worker["endpoint"].startswith("tls://127.0.0.1:"), worker)
        self.assertTrue(worker["edge_endpoint"].startswith("tls://127.0.0.1:"), worker)
        self.assertIn("give --tls-ca", self.ctl("ping", "-e", self.endpoint, code=4)[1])
        self.ctl("ping", "--count=1", **self.tls())
        self.ctl("ping", "--count=1", "-e", ready["endpoints"][1], "--tls-ca", f"{self.ca}/ca.pem")
        here = os.getcwd()
        os.chdir(self.ca)
        self.ctl("context", "add", "prod", "--endpoint", self.endpoint, "--tls-ca", "ca.pem")
        os.chdir(here)
        self.ctl("context", "use", "prod")
        self.ctl("wait", "workers", "1")
        text = (self.folder / "home/.config/banyan/contexts").read_text()
        self.assertIn(f"tls-ca = {self.ca}/ca.pem\n", text)
        self.assertEqual(self.cluster.json("context", "show", BANYAN_ENDPOINT=None)["tls_ca"], f"{self.ca}/ca.pem")
        self.assertEqual(self.cluster.json("context", "show", "prod")["tls_ca"], f"{self.ca}/ca.pem")
        # The environment stands over the current context, and a context that is named over the environment.
        self.assertIn("/none", self.ctl("ping", BANYAN_TLS_CA="/none", code=11)[1])
        self.ctl("ping", "--count=1", "--context=prod", BANYAN_TLS_CA="/none")

    def test_clients_with_certificates(self):
        self.issue("client", name="me")
        self.coordinator("--tls-client-cert=require")
        said = self.ctl("ping", "--timeout=2s", code=7, **self.tls())[1]
        self.assertIn("give --tls-cert and --tls-key", said)
        self.assertNotIn("token", said)
        self.ctl("ping", "--count=1", "--tls-cert", f"{self.ca}/me.pem", "--tls-key", f"{self.ca}/me.key", **self.tls())
        self.ctl("ping", "--count=1", **self.tls(BANYAN_TLS_CERT=f"{self.ca}/me.pem", BANYAN_TLS_KEY=f"{self.ca}/me.key"))

    def test_mistakes_of_daemons(self):
        cert, key, ca = f"{self.ca}/worker.pem", f"{self.ca}/worker.key", f"{self.ca}/ca.pem"
        store = ("--store", ":memory:", "--secret-file", str(self.folder / "secret"), "--listen", "tls://127.0.0.1:0")
        for words, code, said in (
                (("--tls-cert", cert), 2, "--tls-key is missing"),
                (("--tls-ca", ca), 2, "--tls-cert is missing"),
                (("--tls-client-cert=require",), 2, "needs --tls-cert"),
                (("--http=127.0.0.1:0", "--http-tls=on"), 3, "needs --tls-cert"),
                (("--tls-cert", cert, "--tls-key", key, "--tls-ca", ca), 3, "pki issue --role=coordinator"),
                (("--tls-cert", cert, "--tls-key", f"{self.ca}/coordinator.key", "--tls-ca", ca), 3, "is not that of the certificate"),
                (("--tls-cert", "/none", "--tls-key", key, "--tls-ca", ca), 3, "/none"),
                ((), 3, "--tls-cert"),
        ):
            done = subprocess.run([f"{BIN}/banyan-coordinator", *store, *words], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, code, (words, done.stderr))
            self.assertIn(said, done.stderr)

    # ---- a worker joins ----
    def test_what_join_command_prints_lets_a_worker_join(self):
        ready = self.coordinator("--insecure", listen="tcp://0.0.0.0:0,tls://0.0.0.0:0")
        port = ready["endpoints"][1].rpartition(":")[2]
        self.endpoint = f"tls://127.0.0.1:{port}"
        out, _ = self.ctl("join-command", "--host=127.0.0.1", "--secret-file", f"{self.folder}/secret", "--show-secret", **self.tls())
        self.assertIn(f"--coordinator={self.endpoint} ", out)
        issue = re.search(r"banyanctl (pki issue) CA --role=worker --host=NAME --name=worker --out=worker-tls", out)
        self.assertTrue(issue, out)
        there = self.folder / "there"
        self.ctl("pki", "issue", self.ca, "--role=worker", "--host=127.0.0.1", "--name=worker", "--out", str(there))
        script = re.sub(r"^banyan-worker ", "exec banyan-worker --name=joined --memory=64M --device=cpu --bandwidth=1G ", out, flags=re.M)
        worker = subprocess.Popen(["sh", "-euc", script], cwd=there, env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
                                  stderr=subprocess.DEVNULL)
        try:
            self.ctl("wait", "workers", "1", **self.tls())
        finally:
            worker.send_signal(signal.SIGTERM)
            self.assertEqual(worker.wait(daily.PATIENCE_S), 0)
        out, _ = self.ctl("join-command", "--form=systemd", "--host=c.example", **self.tls())
        self.assertIn("tls-cert = /etc/banyan/worker.pem", out)
        self.assertIn(f"coordinator = tls://c.example:{port}|", out)

    # ---- on, while it runs (docs/operating/tls.md) ----
    def test_a_plain_cluster_changes_over(self):
        """Each daemon is restarted alone; the session is there at each moment, for clients without TLS until
        the end of it."""
        def free():
            with socket.create_server(("127.0.0.1", 0)) as server:
                return server.getsockname()[1]

        tcp, tls = f"tcp://127.0.0.1:{free()}", f"tls://127.0.0.1:{free()}"
        store = ("--store", f"{self.folder}/store.db", "--heartbeat", "2s", "--replicas=2")
        plain, guarded = {"BANYAN_ENDPOINT": tcp}, {"BANYAN_ENDPOINT": tls, "BANYAN_TLS_CA": f"{self.ca}/ca.pem"}

        def coordinator(listen, *more):
            if "coordinator" in self.cluster.processes:
                self.cluster.stop("coordinator")
            self.start("coordinator", "banyan-coordinator", "--listen", listen, *store, *more)

        def worker(name, coordinator, *more):
            if name in self.cluster.processes:
                self.cluster.stop(name)
            return self.start(name, "banyan-worker", "--coordinator", coordinator, "--name", name, "--host", name, "--memory=64M",
                              "--device=cpu", "--bandwidth=1G", "--store", f"{self.folder}/{name}", *more)

        def check(*clients):
            for env in clients:
                self.ctl("wait", "workers", "3", **env)
                self.ctl("wait", "whole", **env)
                self.assertIn("all 1 layers are right", self.ctl("session", "verify", "--seed=1", "s", **env)[0])

        coordinator(tcp)
        for name in "abc":
            worker(name, tcp)
        self.ctl("session", "create", "--q-heads=1", "--kv-heads=1", "--dim=4", "--kv-type=f32", "s", **plain)
        self.attach("s", 600, **plain)
        check(plain)
        coordinator(f"{tcp},{tls}", *self.files("coordinator"))
        check(plain, guarded)
        for name in "abc":
            worker(name, tcp, *self.files("worker"))
            check(plain, guarded)
        for name in "abc":
            ready = worker(name, tls, *self.files("worker"))
            self.assertEqual({ready[key][:6] for key in ("endpoint", "edge_endpoint")}, {"tls://"})
            check(guarded)
        coordinator(tls, *self.files("coordinator"))
        check(guarded)
        self.ctl("ping", "--timeout=1s", code=5, **plain)

    def attach(self, session, tokens, **env):
        shape = {"dtype": "F32", "shape": [tokens, 1, 4]}
        size = tokens * 16
        header = json.dumps({"layers.0.k": {**shape, "data_offsets": [0, size]},
                             "layers.0.v": {**shape, "data_offsets": [size, 2 * size]}}).encode()
        header += b" " * (-len(header) % 8)
        rows = self.folder / "rows.safetensors"
        numbers = struct.pack(f"<{8 * tokens}f", *(i % 11 / 11 for i in range(8 * tokens)))
        rows.write_bytes(struct.pack("<Q", len(header)) + header + numbers)
        self.ctl("attach", "--commit", session, str(rows), **env)

    # ---- what is seen of certificates ----
    def findings(self):
        seen = self.cluster.json("doctor", code=None, **self.tls())["findings"]
        return [(f["level"], f["found"]) for f in seen if f["what"] == "certificate"]

    def test_doctor_and_reload(self):
        self.coordinator()
        self.worker("a")
        self.ctl("wait", "workers", "1", **self.tls())
        seen = self.findings()
        self.assertEqual([level for level, _ in seen], ["ok"] * 4, seen)
        self.assertEqual(len([found for _, found in seen if re.match(r"worker a: its certificate expires in 36[45] days", found)]), 1, seen)
        self.issue("worker", "--replace", "--days=29")
        self.cluster.processes["a"].send_signal(signal.SIGHUP)
        self.wait_log("a", "certificates reloaded")
        seen = self.findings()
        [warned] = [found for level, found in seen if level == "warn"]
        self.assertRegex(warned, r"worker a: its certificate expires in 2[89] days")

    # ---- HTTPS ----
    def ask(self, url, *cert):
        context = ssl.create_default_context(cafile=f"{self.ca}/ca.pem")
        if cert:
            context.load_cert_chain(*cert)
        with urllib.request.urlopen(url, context=context, timeout=daily.PATIENCE_S) as answer:
            return answer.read().decode()

    def test_https(self):
        """On where others can reach it, off on loopback, and nothing else is spoken at the port."""
        http = self.coordinator("--http=0.0.0.0:0", "--http-insecure")["http"]
        at = f"localhost:{http.rpartition(':')[2]}"
        self.assertIn("https=", self.log("coordinator"))
        self.assertEqual(self.ask(f"https://{at}/livez"), "ok\n")
        metrics = self.ask(f"https://{at}/metrics")
        [till] = re.findall(r'banyan_tls_certificate_expiry_timestamp_seconds\{which="own"\} (\S+)', metrics)
        [shown] = self.cluster.json("pki", "show", f"{self.ca}/coordinator.pem")
        self.assertEqual(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(float(till))), shown["not_after"])
        page = self.ask(f"https://{at}/")
        self.assertIn("<!doctype html>", page.lower())
        with self.assertRaises((OSError, urllib.error.URLError)):
            self.ask(f"http://{at}/livez")
        with self.assertRaises(urllib.error.URLError) as refused:
            urllib.request.urlopen(f"https://{at}/livez", timeout=daily.PATIENCE_S)
        self.assertIn("CERTIFICATE_VERIFY_FAILED", str(refused.exception))
        with self.assertRaises(ssl.SSLError), socket.create_connection(("127.0.0.1", int(at.rpartition(":")[2]))) as plain:
            context = ssl.create_default_context(cafile=f"{self.ca}/ca.pem")
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            context.wrap_socket(plain, server_hostname="localhost")
        self.assertEqual(self.ctl("probe", f"https://{at}", BANYAN_TLS_CA=f"{self.ca}/ca.pem")[0], "alive\n")
        self.assertIn("no worker", self.ctl("probe", "--ready", f"https://{at}", "--tls-ca", f"{self.ca}/ca.pem", code=5)[1])
        self.assertIn("certificate", self.ctl("probe", f"https://127.0.0.2:{at.rpartition(':')[2]}", "--tls-ca", f"{self.ca}/ca.pem",
                                              code=5)[1])
        self.ctl("probe", at, code=5)
        # New connections have the new certificate, and those that are there go on.
        self.issue("coordinator", "--replace", "--days=3")
        self.cluster.processes["coordinator"].send_signal(signal.SIGHUP)
        self.wait_log("coordinator", "certificates reloaded")
        [shown] = self.cluster.json("pki", "show", f"{self.ca}/coordinator.pem")
        context = ssl.create_default_context(cafile=f"{self.ca}/ca.pem")
        with socket.create_connection(("127.0.0.1", int(at.rpartition(":")[2]))) as plain, \
                context.wrap_socket(plain, server_hostname="localhost") as link:
            self.assertEqual(int(link.getpeercert()["serialNumber"], 16), int(shown["serial"], 16))
        http = self.worker("a", "--http=127.0.0.1:0")["http"]
        with urllib.request.urlopen(f"http://{http}/livez", timeout=daily.PATIENCE_S) as answer:
            self.assertEqual(answer.read(), b"ok\n")
        http = self.worker("b", "--http=127.0.0.1:0", "--http-tls=on")["http"]
        self.assertEqual(self.ask(f"https://{http}/livez"), "ok\n")

    def test_https_for_those_with_a_certificate(self):
        """Then it may be reached by others: none of them is answered."""
        self.issue("client", name="me")
        http = self.coordinator("--http=0.0.0.0:0", "--tls-client-cert=require")["http"]
        at = f"https://127.0.0.1:{http.rpartition(':')[2]}"
        mine = (f"{self.ca}/me.pem", f"{self.ca}/me.key")
        self.assertEqual(self.ask(f"{at}/livez", *mine), "ok\n")
        with self.assertRaises((OSError, urllib.error.URLError)):
            self.ask(f"{at}/livez")
        self.assertEqual(self.ctl("probe", at, "--tls-cert", mine[0], "--tls-key", mine[1], "--tls-ca", f"{self.ca}/ca.pem")[0], "alive\n")
        self.ctl("probe", at, "--tls-ca", f"{self.ca}/ca.pem", code=5)

    def test_a_caller_who_says_nothing_is_let_go(self):
        http = self.coordinator("--http=127.0.0.1:0", "--http-tls=on")["http"]
        port = int(http.rpartition(":")[2])
        for greeting in (b"", b"GET /livez HTTP/1.1\r\n\r\n", bytes([22, 3, 1, 0, 5, 1, 0, 0, 1, 0])):
            with socket.create_connection(("127.0.0.1", port)) as silent:
                silent.sendall(greeting)
                silent.settimeout(daily.PATIENCE_S)
                while silent.recv(4096):  # an alert, and then the end: within the server's time-out
                    pass
        self.assertEqual(self.ask(f"https://{http}/livez"), "ok\n")


if __name__ == "__main__":
    unittest.main()
