#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A flood from one client: whatever it pours over the coordinator, another client's steps go on, with the
answers that they ought to have, and the coordinator's memory stays below what docs/operating/security.md
states.

    flood_test.py BIN        BIN: the folder of the programs
"""
import contextlib
import http.client
import os
import re
import resource
import select
import socket
import struct
import threading
import unittest

import place
import wire

BIN = place.binaries()
MAX_BYTES = 64 << 20
# Clients' requests, frames that have begun (--max-bytes each), unread answers (half of it), and 160 KiB for
# each connection
MEMORY = MAX_BYTES * 5 // 2 + (512 + 256) * (160 << 10)
SANITIZED = "BANYAN_TRIAL_SANITIZED" in os.environ  # a sanitizer's own memory does not count
STEPS = 25  # that the other client makes while the flood lasts


class Victim(threading.Thread):
    """Another client, which attends on and on."""

    def __init__(self, ground, token):
        super().__init__(daemon=True)
        self.ground, self.token, self.done, self.wrong, self.going = ground, token, 0, [], True
        with ground.link(token) as link:
            self.session = ground.session(link, "of-the-other-client", 40)
            self.right = wire.attend(link, self.session, 39).tensors
        assert len(self.right) == 1 and len(self.right[0]) == wire.ROW_BYTES

    def run(self):
        try:
            with self.ground.link(self.token) as link:
                while self.going:
                    answer = wire.attend(link, self.session, 39)
                    if answer.item["code"] != wire.OK or answer.tensors != self.right:
                        self.wrong.append(answer.item)
                    self.done += 1
        except Exception as error:  # the test reports it, in its own thread
            self.wrong.append(error)


class Flood(place.Trial):
    @classmethod
    def setUpClass(cls):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192), most))
        cls.ground = place.Place(BIN, coordinator=[f"--max-bytes={MAX_BYTES}", "--max-clients=512"])
        cls.token = cls.ground.token("flood", tenant="loud")
        cls.victim = Victim(cls.ground, cls.ground.token("other", tenant="quiet"))
        with cls.ground.link(cls.token) as link:
            cls.session = cls.ground.session(link, "of-the-flood", 40)
        cls.before = cls.ground.memory()
        cls.victim.start()

    @classmethod
    def tearDownClass(cls):
        cls.victim.going = False
        cls.victim.join(wire.PATIENCE_S)
        cls.ground.stop()

    def run_on(self):
        """The other client makes its steps, right ones, while the flood is there; the coordinator has its
        memory."""
        from_here = self.victim.done
        self.ground.until(lambda: self.victim.done >= from_here + STEPS or self.victim.wrong, f"{STEPS} steps of the other client")
        self.assertEqual(self.victim.wrong[:3], [])
        if not SANITIZED:
            self.assertLess(self.ground.memory() - self.before, MEMORY)

    def crowd(self, stack, n, say=b""):
        """n connections that say this and no more."""
        out = []
        for _ in range(n):
            one = stack.enter_context(wire.dial(self.ground.endpoint))
            with contextlib.suppress(OSError):  # it may have been closed for a newer one
                one.sendall(say)
            out.append(one)
        return out

    def tearDown(self):
        """A client that comes now is served, and nothing is lost."""
        with self.ground.link(self.ground.admin) as link:
            for session in (self.victim.session, self.session):
                info = link.call("SESSION_INFO", {"session": session}).must()
                self.assertEqual((info["length"], info["state"]), (40, "active"))

    def test_connections(self):
        """Thousands of silent ones."""
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                self.crowd(stack, 600)
                self.run_on()

    def test_half_hellos(self):
        """Hellos without a proof, halves of one, and words that are none."""
        hello = wire.frame({"method": wire.METHODS["LINK_HELLO"], "request": 1, "remaining_ns": 10**9,
                            "body": wire.PROTO.pack("LinkHelloRequest", {"version": 1, "role": wire.CLIENT, "nonce": bytes(32)})})
        with contextlib.ExitStack() as stack:
            for say in (hello, hello[:40], b"GET / HTTP/1.1\r\n\r\n", os.urandom(64)):
                self.crowd(stack, 300, say)
                self.run_on()
            if self.ground.tls:  # the same inside of TLS
                for say in (hello, hello[:40]):
                    for _ in range(40):
                        with contextlib.suppress(wire.Closed):
                            link = wire.Link(self.ground.endpoint, self.ground.context(), hello=False)
                            stack.callback(link.close)
                            link.send_bytes(say)
                    self.run_on()

    def test_half_handshakes(self):
        """TLS handshakes that end in the middle, or never begin."""
        first = client_hello()
        with contextlib.ExitStack() as stack:
            for say in (first, first[:5], first[:-7], first[:5] + bytes(len(first) - 5), b"\x16\x03\x01\xff\xff" + bytes(4000)):
                self.crowd(stack, 400, say)
                self.run_on()

    def test_frames_of_maximal_size(self):
        """With a token: frames of 64 MiB less a bit, begun over many connections and never ended."""
        payload = (64 << 20) - 64
        body = wire.PROTO.pack("AttendRequest", {"items": [{"session": self.session, "rows": 1}]})
        header = {"method": wire.METHODS["ATTEND"], "request": 7, "remaining_ns": 60 * 10**9, "body": body,
                  "tensors": [{"dtype": wire.U8, "dims": [payload], "offset": 0, "bytes": payload}]}
        packed = wire.PROTO.pack("Header", header)
        head = wire.prefix(len(packed), payload) + packed
        head += bytes(wire.align(len(head)))
        piece = bytes(1 << 20)
        with contextlib.ExitStack() as stack:
            links = [stack.enter_context(self.ground.link(self.token)) for _ in range(8)]
            for link in links:
                link.send_bytes(head)
                for _ in range(62):
                    link.send_bytes(piece)
                self.run_on()
            for link in links[1:]:  # only the first has its place
                self.assertCode(wire.Answer("ATTEND", *link.receive()), wire.RESOURCE_EXHAUSTED, "--max-bytes")
        self.run_on()

    def test_a_length_that_is_no_length(self):
        """Prefixes that promise more than there is memory."""
        with contextlib.ExitStack() as stack:
            for header_len, payload_len in ((64, (1 << 40) - 64), (64, (1 << 63)), ((1 << 32) - 1, 0), (1 << 20, (1 << 40) + 64)):
                for _ in range(20):
                    link = stack.enter_context(self.ground.link(self.token))
                    with contextlib.suppress(wire.Closed):
                        link.send_bytes(wire.prefix(header_len, payload_len) + bytes(1 << 16))
                self.run_on()

    def test_answers_that_nobody_reads(self):
        """Requests on and on, over connections whose answers stay where they are."""
        with contextlib.ExitStack() as stack:
            for _ in range(20):
                link = stack.enter_context(self.ground.link(self.token))
                link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                link.socket.settimeout(0.2)  # where the coordinator does not read on
                with contextlib.suppress(wire.Closed):
                    for _ in range(3000):
                        link.send("CLUSTER_INFO")
                self.run_on()

    def test_thousands_of_steps(self):
        """All of them at once; each is answered at last, the other client's meanwhile."""
        links = [self.ground.link(self.token) for _ in range(4)]
        item = {"session": self.session, "first": 39, "rows": 1}
        body, q = wire.PROTO.pack("AttendRequest", {"items": [item]}), wire.rows(1, 117)
        answers = 0

        def pour(link):
            for _ in range(1000):
                link.send("ATTEND", body, [q])

        pourers = [threading.Thread(target=pour, args=(link,), daemon=True) for link in links]
        for pourer in pourers:
            pourer.start()
        self.run_on()
        for link in links:
            for _ in range(1000):
                answer = wire.Answer("ATTEND", *link.receive())
                self.assertCode(answer, wire.OK)
                self.assertIsNone(answer.body["items"][0]["status"])
                answers += 1
        for pourer in pourers:
            pourer.join(wire.PATIENCE_S)
        for link in links:
            link.close()
        self.assertEqual(answers, 4000)
        self.run_on()

    def test_connections_to_http(self):
        """Hundreds of silent ones, from one address; health and metrics are asked for from another."""
        host, port = self.ground.ready["http"].rsplit(":", 1)

        def files():
            return len(os.listdir(f"/proc/{self.ground.processes['coordinator'].pid}/fd"))

        def ask(path):
            with contextlib.closing(http.client.HTTPConnection(host, int(port), wire.PATIENCE_S, ("127.0.0.2", 0))) as other:
                other.request("GET", path)
                answer = other.getresponse()
                text = answer.read().decode()
                self.assertEqual(answer.status, 200, text)
                return text

        before = files()
        with contextlib.ExitStack() as stack:
            for _ in range(6):
                for _ in range(100):
                    one = stack.enter_context(contextlib.closing(socket.socket()))
                    one.setblocking(False)
                    one.connect_ex((host, int(port)))
                ask("/livez")
                self.assertLess(files() - before, 150)
                self.run_on()
            dropped = re.search(r"^banyan_http_dropped_total (\d+)", ask("/metrics"), re.M)
            self.assertGreater(int(dropped[1]), 0)

    def test_sessions_without_end(self):
        """Each connection makes sessions and watches them: the other client still has its own."""
        with contextlib.ExitStack() as stack:
            made = []
            for i in range(4):
                link = stack.enter_context(self.ground.link(self.token))
                for k in range(100):
                    made.append(link.call("SESSION_CREATE", {"spec": wire.SPEC, "name": f"flood-{i}-{k}"}).must()["session"])
                for session in made[-100:]:
                    link.send("SESSION_WATCH", {"session": session, "steps": 1, "wait_ns": 40 * 10**9})
                self.run_on()
            with self.ground.link(self.token) as link:
                for session in made:
                    link.call("SESSION_DELETE", {"session": session}).must()


def client_hello():
    """What a TLS client says first."""
    here, there = socket.socketpair()
    with there, wire.context(verify=False).wrap_socket(here, do_handshake_on_connect=False) as tls:
        tls.setblocking(False)
        with contextlib.suppress(OSError):
            tls.do_handshake()
        ready, _, _ = select.select([there], [], [], 1)
        assert ready
        data = there.recv(8192)
    assert struct.unpack(">H", data[3:5])[0] == len(data) - 5
    return data


if __name__ == "__main__":
    unittest.main(verbosity=2)
