#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A stolen worker certificate with its key, without the cluster's secret and with it: what it opens and what
it does not.

    worker_key_test.py BIN        BIN: the folder of the programs
"""
import signal
import subprocess
import threading
import time
import unittest

import place
import pretender
import wire

BIN = place.binaries()


class StolenWorkerKey(place.Trial):
    @classmethod
    def setUpClass(cls):
        cls.ground = place.Place(BIN)
        cls.token = cls.ground.token("someone", tenant="red")
        cls.pair = cls.ground.pki / "w0"  # what was stolen
        cls.secret = cls.ground.secret    # and, in the second half of the tests, this
        cls.context = cls.ground.context(cls.pair)
        with cls.ground.link(cls.token) as link:
            cls.session = cls.ground.session(link, "someone's", 40)

    @classmethod
    def tearDownClass(cls):
        cls.ground.stop()

    def doors(self):
        return self.ground.endpoint, self.ground.worker("w1")["endpoint"], self.ground.worker("w1")["edge_endpoint"]

    def link(self, endpoint, role, secret=None, context=None):
        return wire.Link(endpoint, context or self.context, role, secret=secret)

    # ---- the certificate alone

    def test_without_the_secret(self):
        """Neither as worker nor as coordinator, at any door; nor as a client without a token."""
        for endpoint in self.doors():
            for role in (wire.WORKER, wire.COORDINATOR, wire.CLIENT):
                with self.assertRefused(wire.UNAUTHENTICATED, wire.PERMISSION_DENIED):
                    self.link(endpoint, role)

    def test_without_the_secret_it_cannot_be_believed(self):
        """A worker that is led to it hangs up before it has proved or revealed anything."""
        self.hears_nothing(pretender.Pretender(self.ground, self.pair, wire.COORDINATOR))

    # ---- the secret alone

    def test_the_secret_without_a_certificate(self):
        """And with one of a client, or of another authority."""
        stranger = self.ground.path / "stranger"
        if not stranger.exists():
            self.ground.run("pki", "init", stranger)
            self.ground.run("pki", "issue", stranger, "--role", "worker,coordinator", "--name", "w0", "--host", "127.0.0.1")
        client = self.ground.issue("client", "a-client")
        for pair in (None, client, stranger / "w0"):
            for endpoint in self.doors():
                for role in (wire.WORKER, wire.COORDINATOR):
                    with self.assertRefused(wire.UNAUTHENTICATED, wire.PERMISSION_DENIED):
                        self.link(endpoint, role, self.secret, self.ground.context(pair))

    def test_over_plain_links(self):
        """The secret is of no use without TLS where endpoints are tls://."""
        for endpoint in self.doors():
            with self.assertRaises(wire.Closed):
                wire.Link(endpoint, None, wire.WORKER, secret=self.secret)

    # ---- both

    def hears_nothing(self, false):
        """A worker that joins the pretender reveals nothing."""
        try:
            process = threading.Thread(target=self.join_and_end, args=(false,), daemon=True)
            process.start()
            self.ground.until(lambda: false.came >= 2, "the worker has tried twice")
            self.assertNotIn("LINK_PROOF", false.heard)
            self.assertNotIn("REGISTER", false.heard)
            process.join(wire.PATIENCE_S)
        finally:
            false.close()

    def join_and_end(self, false):
        with open(self.ground.path / "led-astray.log", "ab") as log:
            process = subprocess.Popen(
                [self.ground.bin / "banyan-worker", f"--secret-file={self.ground.path}/secret", "--name=led-astray", "--memory=64M",
                 "--threads=1",
                 "--device=cpu", "--bandwidth=1G", f"--coordinator={false.endpoint}", "--listen=tls://127.0.0.1:0",
                 "--edge-listen=tls://127.0.0.1:0", *self.ground.certificate("worker", "w1")], stdin=subprocess.DEVNULL, stdout=log,
                 stderr=log)
        end = time.monotonic() + wire.PATIENCE_S
        while false.came < 2 and time.monotonic() < end:
            time.sleep(0.02)
        process.terminate()
        process.wait(wire.PATIENCE_S)

    def test_as_coordinator_to_workers(self):
        """Dialling: the certificate does not say it."""
        for endpoint in self.doors()[1:]:
            with self.assertRefused(wire.PERMISSION_DENIED) as found:
                self.link(endpoint, wire.COORDINATOR, self.secret)
            self.assertIn("banyan:coordinator", str(found.exception))

    def test_as_coordinator_to_the_coordinator(self):
        with self.assertRefused(wire.PERMISSION_DENIED):
            self.link(self.ground.endpoint, wire.COORDINATOR, self.secret)

    def test_as_coordinator_that_is_dialled(self):
        """A worker that is led to it, with the right secret, reveals nothing to it."""
        self.hears_nothing(pretender.Pretender(self.ground, self.pair, wire.COORDINATOR, self.secret))

    def test_as_coordinator_to_clients(self):
        """A client that is led to it does not show its token."""
        false = pretender.Pretender(self.ground, self.pair, wire.COORDINATOR, self.secret)
        try:
            path = self.ground.private("someone.token", self.token + "\n")
            said = self.ground.run("ping", "-e", false.endpoint, "-t", path, f"--tls-ca={self.ground.pki}/ca.pem", "--timeout=5s",
                                   code=None)
            self.assertGreater(false.came, 0)
            self.assertNotIn(self.token.encode(), false.bytes, said)
        finally:
            false.close()

    def test_what_a_worker_may_not(self):
        """As a worker it has no method of coordinators, at the others' edges, and none of clients at the
        coordinator."""
        with self.link(self.ground.worker("w1")["edge_endpoint"], wire.WORKER, self.secret) as link:
            for method in ("LAYOUT_SET", "SESSION_DROP", "INVENTORY", "ROWS_COMMIT", "ROWS_ABORT", "CHUNK_PULL", "PLAN_INSTALL", "AUDIT",
                           "MASS"):
                self.assertCode(link.call(method), wire.PERMISSION_DENIED)
        with self.link(self.ground.endpoint, wire.WORKER, self.secret) as link:
            for method in ("SESSION_LIST", "SESSION_DELETE", "ATTEND", "TOKEN_CREATE", "READ_OPEN", "BACKUP", "EVENTS"):
                self.assertCode(link.call(method), wire.PERMISSION_DENIED)

    def test_drain_of_others(self):
        """A worker may ask to be drained itself; for another it would need that one's instance."""
        with self.link(self.ground.endpoint, wire.WORKER, self.secret) as link:
            for body in ({"worker": "w1"}, {"worker": "w1", "instance": 1}, {"worker": "w1", "instance": 1, "resume": True}):
                self.assertIn(link.call("WORKER_DRAIN", body).code, (wire.PERMISSION_DENIED, wire.FAILED_PRECONDITION,
                                                                     wire.INVALID_ARGUMENT))
        self.assertEqual({w["draining"] for w in self.ground.json("workers")}, {False})

    def test_beats_of_others(self):
        """What it says in other workers' names is not heard: numbers of workers can be guessed."""
        with self.link(self.ground.endpoint, wire.WORKER, self.secret) as link:
            told = [link.call("HEARTBEAT", {"worker": (term << 16 | life) << 32 | slot, "used_bytes": 1 << 40}).code
                    for term in (1, 2, 3) for life in range(16) for slot in (1, 2)]
        self.assertEqual(set(told), {wire.PERMISSION_DENIED, wire.NOT_FOUND})
        self.assertGreaterEqual(told.count(wire.PERMISSION_DENIED), 2)
        for worker in self.ground.json("workers"):
            self.assertLess(worker["used_bytes"], 1 << 40)

    # ---- what it can: stated in docs/operating/security.md, shown here

    def test_what_it_can_join(self):
        """It joins under a name of its own, and is given chunks, with their keys and values."""
        self.ground.start_worker("evil", certificate="w0")
        try:
            self.ground.until(lambda: self.ground.active() == 3, "the thief's worker is active")
            with self.ground.link(self.token) as link:
                made = self.ground.session(link, "given-away", 200, spec={**wire.SPEC, "members": 3})
                self.assertIn("evil", [w["name"] for w in self.ground.json("workers") if w["chunks"]])
                link.call("SESSION_DELETE", {"session": made}).must()
        finally:
            self.ground.end("evil")

    def test_what_it_can_read(self):
        """At another worker's edge it reads rows of any session; with the secret it makes tickets and passes
        for itself."""
        with self.ground.link(self.token) as link:
            opened = link.call("READ_OPEN", {"session": self.session, "first": 0, "count": 16}).must()
        chunk, holder = opened["chunks"][0]["chunk"], opened["chunks"][0]["holders"][0]
        endpoint = opened["workers"][holder]["endpoint"]
        name = next(n for n in ("w0", "w1") if self.ground.worker(n)["endpoint"] == endpoint)
        with self.link(self.ground.worker(name)["edge_endpoint"], wire.WORKER, self.secret) as link:
            got = place.read(link, b"", self.session, opened["incarnation"], chunk, 0, 16)
            self.assertEqual(got.tensors[0], place.part(0, 16, 1))
        forged = wire.make_ticket(self.secret, read=True, session=self.session, incarnation=opened["incarnation"], term=1 << 32, first=0,
                                  count=16, expires_wall_ns=time.time_ns() + 10**11)
        with self.ground.door(endpoint, opened) as link:
            self.assertEqual(place.read(link, forged, self.session, opened["incarnation"], chunk, 0, 16).tensors[0], place.part(0, 16, 1))

    def test_a_living_workers_name(self):
        """A second worker with a living one's name does not take its place."""
        with open(self.ground.path / "usurper.log", "wb") as log:
            process = subprocess.Popen(
                [self.ground.bin / "banyan-worker", f"--secret-file={self.ground.path}/secret", "--name=w1", "--host=host-usurper",
                 "--memory=64M",
                 "--threads=1", "--device=cpu", "--bandwidth=1G", f"--coordinator={self.ground.endpoint}", "--listen=tls://127.0.0.1:0",
                 "--edge-listen=tls://127.0.0.1:0", *self.ground.certificate("worker", "w0")], stdin=subprocess.DEVNULL, stdout=log,
                 stderr=log)
        try:
            self.ground.until(lambda: process.poll() is not None or "w1" in self.ground.log("usurper"), "the usurper has tried")
            end = time.monotonic() + 3
            while time.monotonic() < end:
                workers = {w["name"]: w for w in self.ground.json("workers")}
                self.assertEqual((workers["w1"]["host"], workers["w1"]["state"]), ("host-w1", "active"), self.ground.log("usurper"))
                time.sleep(0.2)
        finally:
            process.terminate()
            process.wait(wire.PATIENCE_S)
        with self.ground.link(self.token) as link:
            self.assertItem(wire.attend(link, self.session, 39))

    def test_a_lost_workers_name(self):
        """With a certificate that names its worker, the name of a worker that is lost is not to be had, nor
        any other."""
        ground = self.ground
        for name in ("w2", "w3"):
            ground.run("pki", "issue", ground.pki, "--role=worker", "--host=127.0.0.1", f"--name={name}", f"--worker={name}")
        ground.start_worker("w2")
        ground.until(lambda: ground.active() == 3, "the named worker is active")
        ground.end("w2", signal.SIGKILL)
        state = {w["name"]: w["state"] for w in ground.json("workers")}
        self.assertIn("w2", state)
        for name in ("w2", "w9"):
            with open(ground.path / f"as-{name}.log", "wb") as log:
                process = subprocess.Popen(
                    [ground.bin / "banyan-worker", f"--secret-file={ground.path}/secret", f"--name={name}", "--host=host-thief",
                     "--memory=64M", "--threads=1", "--device=cpu", "--bandwidth=1G", f"--coordinator={ground.endpoint}",
                     "--listen=tls://127.0.0.1:0", "--edge-listen=tls://127.0.0.1:0", *ground.certificate("worker", "w3")],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                ground.until(lambda: process.poll() is not None or "names other workers" in ground.log(f"as-{name}"), "the thief was refused")
                self.assertIn(f"not {name}: start it", ground.log(f"as-{name}"))
                self.assertNotIn("host-thief", [w["host"] for w in ground.json("workers")])
            finally:
                process.terminate()
                process.wait(wire.PATIENCE_S)
        ground.start_worker("w2")  # whose it is
        try:
            ground.until(lambda: ground.active() == 3, "the named worker is back")
        finally:
            ground.end("w2")
            ground.until(lambda: ground.active() == 2, "it has gone")


if __name__ == "__main__":
    unittest.main(verbosity=2)
