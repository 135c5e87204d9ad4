#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A machine in the middle of every way: client to coordinator, client to worker, worker to coordinator,
coordinator to worker and worker to worker.

    middle_test.py BIN        BIN: the folder of the programs
"""
import socket
import ssl
import unittest

import middle
import place
import pretender
import wire

BIN = place.binaries()
MARKER = b"marker-of-key+value-in-the-clear"
assert len(MARKER) == 2 * wire.ROW_BYTES
BY_HAND = {"members": 2, "replicas": 2}


def free_ports(n):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class Led(place.Place):
    """A place whose daemons reach each other, and clients the workers, at 127.0.0.9: there the machine in the
    middle is."""

    def __init__(self, tls=True):
        self.middles = {}
        super().__init__(BIN, workers=2, tls=tls, coordinator=["--audit=1"])

    def issue(self, role, name):
        if not (self.pki / f"{name}.pem").exists():
            self.run("pki", "issue", self.pki, "--role", role, "--name", name, "--host", "127.0.0.1,127.0.0.9")
        return self.pki / name

    def start_coordinator(self, *more, name="coordinator"):
        endpoint = super().start_coordinator(*more, name=name)
        for way in ("client", "worker"):
            self.middles[f"{way} to coordinator"] = middle.Middle(wire.address(endpoint))
        return endpoint

    def start_worker(self, name, *more, certificate=None, coordinator=None):
        public, edge = free_ports(2)
        scheme = "tls" if self.tls else "tcp"
        self.middles[f"client to {name}"] = middle.Middle(("127.0.0.1", public), "127.0.0.9", public)
        self.middles[f"daemons to {name}"] = middle.Middle(("127.0.0.1", edge), "127.0.0.9", edge)
        return super().start_worker(name, *more, "--advertise=127.0.0.9", f"--listen={scheme}://127.0.0.1:{public}",
                                    f"--edge-listen={scheme}://127.0.0.1:{edge}",
                                    coordinator=self.led("worker to coordinator"))

    def led(self, way):
        return f"{'tls' if self.tls else 'tcp'}://127.0.0.1:{self.middles[way].port}"

    def stop(self):
        for one in self.middles.values():
            one.close()
        super().stop()


def use(ground, token, name):
    """A tenant's life, by way of the middle: a session with the marker in it, attached, attended and read."""
    with ground.link(token, ground.led("client to coordinator")) as link:
        made = link.call("SESSION_CREATE", {"spec": {**wire.SPEC, **BY_HAND}, "name": name}).must()["session"]
        opened = link.call("ATTACH_OPEN", {"session": made, "first": 0, "count": 64}).must()
        for chunk in opened["chunks"]:
            for holder in chunk["holders"]:
                with ground.door(opened["workers"][holder]["endpoint"], opened) as door:
                    door.call("CHUNK_PUT", {"ticket": opened["ticket"], "session": made, "layer": 0, "first": chunk["first"], "count": 16},
                              [MARKER * 8, MARKER * 8]).must()
        link.call("ATTACH_COMMIT", {"session": made, "layer": 0, "first": 0, "count": 64}).must()
        item = {"session": made, "first": 64, "rows": 2, "append": True}
        answer = link.call("ATTEND", {"items": [item]}, [MARKER, MARKER, MARKER]).must()
        assert answer["items"][0]["status"] is None, answer
        return made, opened


class InTheMiddle(place.Trial):
    @classmethod
    def setUpClass(cls):
        cls.ground = Led()
        cls.token = cls.ground.token("led-astray", tenant="red")
        cls.session, cls.opened = use(cls.ground, cls.token, "watched")
        with cls.ground.link(cls.token) as link:
            cls.right = wire.attend(link, cls.session, 65)
        assert cls.right.item["code"] == wire.OK and len(cls.right.tensors[0]) == wire.ROW_BYTES

    @classmethod
    def tearDownClass(cls):
        cls.ground.stop()

    def ways(self):
        return sorted(self.ground.middles)

    def attend(self, way="client to coordinator"):
        """One step over a new link by this way; None: no answer came. An answer that comes is right, or an
        error."""
        try:
            with self.ground.link(self.token, self.ground.led(way) if way else None) as link:
                answer = wire.attend(link, self.session, 65)
        except (wire.Closed, wire.Refused):
            return None
        if answer.code != wire.OK or answer.item["code"] != wire.OK:
            self.assertIn(answer.item["code"], (wire.UNAVAILABLE, wire.ABORTED, wire.DEADLINE_EXCEEDED, wire.CANCELLED), answer.item)
            return None
        self.assertEqual(answer.tensors, self.right.tensors)
        return answer

    def recovers(self):
        self.ground.until(lambda: self.ground.active() == 2, "both workers are there again")
        self.ground.until(lambda: self.attend() is not None, "a step is answered again")

    def test_records(self):
        """It has bytes of all ways, and in none of them K, V, a token, a pass, a name or a proof of the
        secret."""
        for way in self.ways():
            self.assertGreater(len(self.ground.middles[way].everything()), 300, way)
            text = self.ground.middles[way].everything()
            for word in (MARKER[:wire.ROW_BYTES], MARKER[-wire.ROW_BYTES:], self.token.encode(), self.opened["pass"].encode(),
                         self.opened["ticket"],
                         b"watched", b"BNYN", b"host-w0", self.ground.secret):
                self.assertNotIn(word, text, way)

    def test_records_of_plain_links(self):
        """The same without TLS: it has all of this. So the test before this one can fail."""
        plain = Led(tls=False)
        try:
            token = plain.token("plain", tenant="red")
            _, opened = use(plain, token, "watched")
            found = {way: one.everything() for way, one in plain.middles.items()}
            for way, word in (("client to coordinator", token.encode()), ("client to coordinator", MARKER), ("client to w0", MARKER),
                              ("client to w0", opened["pass"].encode()), ("worker to coordinator", b"host-w0"),
                              ("daemons to w0", MARKER[:wire.ROW_BYTES])):
                self.assertIn(word, found[way], way)
        finally:
            plain.stop()

    def test_flips(self):
        """A bit of what passes: the link is lost. No wrong answer, on no way."""
        for way in self.ways():
            one = self.ground.middles[way]
            for which in (1, 6, 12):
                flipped = one.flipped
                one.flip(which)
                end = 40
                while one.flipped == flipped and end:
                    end -= 1
                    self.attend()
                    self.read(way)
                one.flip(0)
                if "worker to coordinator" not in way:  # there it may take as long as a heartbeat
                    self.assertGreater(one.flipped, flipped, way)
            self.recovers()

    def read(self, way):
        """Where the way is one to a worker's public door: rows, right ones or none."""
        if not way.startswith("client to w"):
            return
        with self.ground.link(self.token) as link:
            opened = link.call("READ_OPEN", {"session": self.session, "first": 0, "count": 16})
        if opened.code != wire.OK:
            return
        opened, name = opened.body, way.removeprefix("client to ")
        port = self.ground.middles[way].port
        try:
            with self.ground.door(f"tls://127.0.0.9:{port}", opened) as door:
                got = place.read(door, opened["ticket"], self.session, opened["incarnation"], opened["chunks"][0]["chunk"], 0, 16)
                if got.code == wire.OK:
                    self.assertEqual(got.tensors, [MARKER * 8, MARKER * 8], name)
        except (wire.Closed, wire.Refused):
            pass

    def test_cuts(self):
        """Every way, in the middle of steps: they fail or are right, and go on afterwards."""
        for way in self.ways():
            for _ in range(3):
                self.ground.middles[way].cut()
                self.attend()
            self.recovers()
        with self.ground.link(self.token) as link:
            self.assertEqual(link.call("SESSION_INFO", {"session": self.session}).must()["length"], 66)

    def test_delays(self):
        for way in self.ways():
            self.ground.middles[way].delay_s = 0.15
        try:
            self.ground.until(lambda: self.attend() is not None, "a step is answered, late")
        finally:
            for way in self.ways():
                self.ground.middles[way].delay_s = 0
        self.recovers()

    def test_replays(self):
        """What a client has said, said again by the machine: nothing of it is done, and nothing is
        answered."""
        with self.ground.link(self.token, self.ground.led("client to coordinator")) as link:
            made = self.ground.session(link, "to-be-deleted-once", 20)
            link.call("SESSION_DELETE", {"session": made}).must()
        with self.ground.link(self.token) as link:
            kept = self.ground.session(link, "to-be-deleted-once", 20)
            said = [bytes(up) for up, _ in self.ground.middles["client to coordinator"].recorded]
            for words in said:
                with socket.create_connection(wire.address(self.ground.endpoint), 30) as again:
                    again.sendall(words)
                    again.shutdown(socket.SHUT_WR)
                    answer = b""
                    try:
                        while data := again.recv(65536):
                            answer += data
                    except OSError:
                        pass
                    self.assertNotIn(b"BNYN", answer)
            self.assertEqual(link.call("SESSION_INFO", {"session": kept}).must()["length"], 20)
            self.assertEqual(link.call("SESSION_INFO", {"session": self.session}).must()["length"], 66)
            link.call("SESSION_DELETE", {"session": kept}).must()

    def ping(self, endpoint, *more):
        path = self.ground.private("led.token", self.token + "\n")
        return self.ground.run("ping", "-e", endpoint, "-t", path, "--timeout=5s", *more, code=None)

    def test_its_own_certificate(self):
        """One of another authority, for the right host and role, is not trusted: no token is shown."""
        other = self.ground.path / "other-authority"
        self.ground.run("pki", "init", other)
        self.ground.run("pki", "issue", other, "--role", "coordinator,worker", "--name", "middle", "--host", "127.0.0.1")
        false = pretender.Pretender(self.ground, other / "middle", secret=self.ground.secret)
        try:
            said = self.ping(false.endpoint, f"--tls-ca={self.ground.pki}/ca.pem")
            self.assertIn("certificate", said)
            self.assertEqual((false.came > 0, false.heard), (True, []))
        finally:
            false.close()
        # And at the acceptors: with a certificate of its own it is no daemon
        for role in (wire.WORKER, wire.COORDINATOR):
            with self.assertRefused(wire.PERMISSION_DENIED, wire.UNAUTHENTICATED):
                wire.Link(self.ground.endpoint, self.ground.context(other / "middle"), role, secret=self.ground.secret)

    def test_the_right_certificate_for_another_host(self):
        """A coordinator's certificate of the right authority for another host: clients do not trust it."""
        self.ground.run("pki", "issue", self.ground.pki, "--role", "coordinator", "--name", "elsewhere", "--host", "coordinator.example")
        false = pretender.Pretender(self.ground, self.ground.pki / "elsewhere")
        try:
            self.ping(false.endpoint, f"--tls-ca={self.ground.pki}/ca.pem")
            self.assertEqual((false.came > 0, false.heard), (True, []))
        finally:
            false.close()

    def test_strips(self):
        """Plain answers to a peer that dials tls://, plain hellos to one that serves it: neither end goes on
        in the clear."""
        false = pretender.Pretender(self.ground, None, tls=False)
        try:
            self.ping(false.endpoint.replace("tcp://", "tls://"), f"--tls-ca={self.ground.pki}/ca.pem")
            self.assertGreater(false.came, 0)
            self.assertNotIn(self.token.encode(), false.bytes)
            self.assertEqual(false.heard, [])
        finally:
            false.close()
        for way in self.ways():
            with self.assertRaises(wire.Closed):
                wire.Link(f"tcp://{self.ground.middles[way].host}:{self.ground.middles[way].port}", token=self.token)
        self.assertIn("TLS", self.ping(self.ground.endpoint.replace("tls://", "tcp://")))

    def test_older_tls(self):
        """No stream link speaks less than TLS 1.3."""
        for endpoint in (self.ground.endpoint, self.ground.worker("w0")["endpoint"], self.ground.worker("w0")["edge_endpoint"]):
            old = self.ground.context()
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            with self.assertRaises(wire.Closed):
                wire.Link(endpoint, old, token=self.token)


if __name__ == "__main__":
    unittest.main(verbosity=2)
