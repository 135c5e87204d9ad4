#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""banyanctl join-command: what it prints lets a worker join, and never the secret unasked. banyanctl probe:
its exit codes.

    join_test.py BIN        BIN: the folder of the programs
"""
import json
import os
import pathlib
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest

import daily

BIN = os.path.abspath(sys.argv.pop(1))
SOURCE = pathlib.Path(__file__).resolve().parents[2]


class Join(unittest.TestCase):
    def setUp(self):
        self.cluster = daily.Cluster(BIN)
        self.folder = pathlib.Path(self.cluster.folder)
        self.ctl = self.cluster.ctl

    def tearDown(self):
        self.cluster.close()

    def coordinator(self, *options, listen=None):
        """Waits until it answers; returns its ready file."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        if listen:
            options = (*options, "--listen", f"{self.cluster.endpoint},{listen}")
        self.cluster.more = (*options, "--ready-file", str(ready))
        self.cluster.coordinator()
        end = time.monotonic() + daily.PATIENCE_S
        while not ready.exists():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        return json.loads(ready.read_text())

    def token(self):
        path = self.folder / "token"
        path.write_text("a token for a test\n")
        path.chmod(0o600)
        return str(path)

    def port(self, ready):
        return next(e for e in ready["endpoints"] if e.startswith("tcp:")).rsplit(":", 1)[1]

    def attach(self, **auth):
        """K and V of one token go straight to the worker, which admits the client by its pass."""
        shape = {"dtype": "F32", "shape": [1, 1, 4]}
        header = json.dumps({"layers.0.k": {**shape, "data_offsets": [0, 16]}, "layers.0.v": {**shape, "data_offsets": [16, 32]}}).encode()
        header += b" " * (-len(header) % 8)
        rows = self.folder / "rows.safetensors"
        rows.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<8f", *range(8)))
        self.ctl("session", "create", "--q-heads=1", "--kv-heads=1", "--dim=4", "--kv-type=f32", "s", **auth)
        self.ctl("attach", "--commit", "s", str(rows), **auth)
        self.assertEqual(self.cluster.json("session", "show", "s", **auth)["length"], 1)

    # ---- join-command ----
    def test_what_it_prints_lets_a_worker_join(self):
        """The lines are run as they stand, by a shell, in a folder that is as another machine's."""
        ready = self.coordinator("--token-file", self.token(), "--insecure", listen="tcp://0.0.0.0:0")
        auth = {"BANYAN_TOKEN_FILE": self.token()}
        out, _ = self.ctl("join-command", "--host", "127.0.0.1", "--secret-file", f"{self.folder}/secret", "--show-secret", **auth)
        self.assertIn(f"--coordinator=tcp://127.0.0.1:{self.port(ready)} ", out)
        there = self.folder / "there"
        there.mkdir()
        self.assertNotIn("token", out)
        script = re.sub(r"^banyan-worker ", "exec banyan-worker --name=joined --memory=64M --device=cpu --bandwidth=1G ", out, flags=re.M)
        worker = subprocess.Popen(["sh", "-euc", script], cwd=there, env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
                                  stderr=subprocess.DEVNULL)
        try:
            self.ctl("wait", "workers", "1", **auth)
            self.attach(**auth)
            seen = self.cluster.json("doctor", code=None, **auth)
            self.assertFalse([f for f in seen["findings"] if f["level"] == "fail" and "joined" in f["found"]], seen)
            self.assertEqual((there / "cluster.secret").stat().st_mode & 0o777, 0o600)
            self.assertEqual((there / "cluster.secret").read_text().lower(), (self.folder / "secret").read_text())
        finally:
            worker.send_signal(signal.SIGTERM)
            self.assertEqual(worker.wait(daily.PATIENCE_S), 0)

    def test_the_secret_is_not_shown_unasked(self):
        self.coordinator("--insecure", listen="tcp://0.0.0.0:0")
        secret = (self.folder / "secret").read_text().strip()
        given = ("join-command", "--host", "10.0.0.5", "--secret-file", f"{self.folder}/secret")
        for words in (given, (*given, "--form", "systemd"), (*given, "-o", "json")):
            out, err = self.ctl(*words)
            self.assertNotIn(secret, (out + err).lower())
            self.assertIn(f"{self.folder}/secret", out)
            self.assertIn("tcp://10.0.0.5:", out)
        self.assertEqual(self.cluster.json(*given, "--show-secret")["secret"], secret)
        self.assertIn(f"echo {secret} > /etc/banyan/cluster.secret", self.ctl(*given, "--show-secret", "--form", "systemd")[0])
        # It is nowhere on this machine: what to copy is said all the same, and there is nothing to show.
        none = dict(XDG_STATE_HOME=str(self.folder / "nowhere"))
        if not os.access("/etc/banyan/cluster.secret", os.R_OK):
            self.assertIn("the coordinator's --secret-file", self.ctl("join-command", "--host", "a", **none)[0])
            self.assertIn("give --secret-file", self.ctl("join-command", "--host", "a", "--show-secret", code=11, **none)[1])
        self.ctl("join-command", "--host", "a", "--secret-file", f"{self.folder}/absent", code=11)

    def test_systemd(self):
        """The lines are those of the package: its file of options, and credentials that the unit takes by
        itself."""
        ready = self.coordinator("--token-file", self.token(), "--insecure", listen="tcp://0.0.0.0:0")
        out, _ = self.ctl("join-command", "--form=systemd", "--host=c.example", BANYAN_TOKEN_FILE=self.token())
        script = re.search(r"sudo (sed -i '[^']*') (/etc/banyan/worker.conf)", out)
        unit = SOURCE / "deploy" / "systemd"
        self.assertNotIn("token", (unit / "banyan-worker@.service").read_text())
        # Over the package's own file it says what a worker takes.
        options = self.folder / "worker.conf"
        options.write_text((unit / "worker.conf").read_text())
        subprocess.run([*shlex.split(script[1]), str(options)], check=True)
        said = subprocess.run([f"{BIN}/banyan-worker", f"--config={options}", "--print-config"], check=True, text=True,
                              stdout=subprocess.PIPE).stdout
        self.assertIn(f"coordinator = tcp://c.example:{self.port(ready)}\n", said)
        self.assertRegex(said, "(?m)^insecure = true$")  # there is no TLS, and the lines say so
        self.assertIn("This cluster has no TLS", out)
        self.assertNotIn("/etc/banyan/token", out)
        self.assertIn("systemctl enable --now banyan-worker@0", out)

    def test_a_worker_with_a_token_says_so(self):
        """It needs none, and the token that it was given may be an admin's."""
        self.coordinator("--token-file", self.token())
        for name, options in (("with", ("--token-file", self.token())), ("without", ())):
            ready, log = self.folder / f"{name}.ready", self.folder / f"{name}.log"
            with log.open("w") as out:
                worker = subprocess.Popen([f"{BIN}/banyan-worker", f"--name={name}", f"--coordinator={self.cluster.endpoint}", "--memory=64M",
                                           f"--secret-file={self.folder}/secret", "--device=cpu", "--bandwidth=1G", f"--ready-file={ready}",
                                           *options], stderr=out)
            try:
                self.ctl("wait", "workers", "1", BANYAN_TOKEN_FILE=self.token())
            finally:
                worker.send_signal(signal.SIGTERM)
                self.assertEqual(worker.wait(daily.PATIENCE_S), 0)
            self.assertEqual("a worker needs no token" in log.read_text(), name == "with", log.read_text())
            self.ctl("worker", "forget", name, code=None, BANYAN_TOKEN_FILE=self.token())

    def test_where_the_coordinator_is(self):
        self.ctl("join-command", code=5)
        self.coordinator()
        self.assertIn("listens at no address that workers on other machines can dial", self.ctl("join-command", code=9)[1])
        self.cluster.stop("coordinator")
        ready = self.coordinator(listen="nng+tcp://127.0.0.1:0,tcp://127.0.0.1:0")
        self.ctl("join-command", code=9)  # loopback
        self.cluster.stop("coordinator")
        ready = self.coordinator("--insecure", listen="tcp://0.0.0.0:0")
        port = self.port(ready)
        self.assertIn("has no token", self.ctl("join-command", "--host", "::1")[0])
        self.assertEqual(self.cluster.json("join-command", "--host", "fd00::1")["coordinator"], f"tcp://[fd00::1]:{port}")
        for host in ("a b", "a,b", "x;reboot", "'", "$(reboot)", "0.0.0.0", "a" * 300):
            self.assertIn("is not a name or an address", self.ctl("join-command", "--host", host, code=2)[1])
        said = self.ctl("join-command", "-o", "json", code=None)
        if said[0]:  # this machine has an address but loopback
            self.assertRegex(json.loads(said[0])["coordinator"], rf"^tcp://(?!127\.|0\.0\.0\.0|\[::1?\]).+:{port}$")
            # What this command was given, and others can use, is taken as it is: with those that stand by.
            address = json.loads(said[0])["coordinator"]
            both = f"{address},tcp://192.0.2.7:7412"
            self.assertEqual(self.cluster.json("join-command", BANYAN_ENDPOINT=both)["coordinator"], both)

    # ---- probe ----
    def test_probe(self):
        ready = self.coordinator("--http", "127.0.0.1:0")
        address = ready["http"]
        self.assertEqual(self.ctl("probe", address), ("alive\n", ""))
        self.assertEqual(self.ctl("probe", BANYAN_HTTP=address)[0], "alive\n")
        self.assertEqual(self.cluster.json("probe", address), {"address": address, "alive": True})
        self.assertIn("is not ready: [-]workers failed: no worker is active", self.ctl("probe", "--ready", address, code=5)[1])
        self.cluster.worker("a")
        self.ctl("wait", "ready")
        self.assertEqual(self.ctl("probe", "--ready", address)[0], "ready\n")
        self.cluster.processes["coordinator"].send_signal(signal.SIGSTOP)
        self.ctl("probe", "--timeout", "300ms", address, code=6)
        self.cluster.processes["coordinator"].send_signal(signal.SIGCONT)
        self.ctl("probe", address)
        self.cluster.stop("a")
        self.cluster.stop("coordinator")
        self.assertIn("refused", self.ctl("probe", address, code=5)[1])

    def test_probe_of_what_is_no_daemon(self):
        for address in ("", "localhost", "127.0.0.1:0", "127.0.0.1:x", "http://127.0.0.1:80", "unix:///tmp/x"):
            self.assertIn("is not a HOST:PORT", self.ctl("probe", address, code=2)[1], address)
        for answer in (b"", b"hello\r\n", b"HTTP/1.1 99 x\r\n\r\n", b"\0" * 10000, b"HTTP/1.1 500 x\r\n\r\n\x1b[2Jno\r\n"):
            with socket.create_server(("127.0.0.1", 0)) as server:
                def serve(answer=answer, server=server):
                    with server.accept()[0] as peer:
                        peer.recv(4096)
                        peer.sendall(answer)
                thread = threading.Thread(target=serve)
                thread.start()
                out, err = self.ctl("probe", f"127.0.0.1:{server.getsockname()[1]}", code=5)
                thread.join()
                self.assertEqual(out, "")
                self.assertNotIn("\x1b", err)


if __name__ == "__main__":
    unittest.main()
