#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A stolen client token, of a user of one tenant: what it can and cannot do, and that revoking it ends that.

    token_test.py BIN        BIN: the folder of the programs
"""
import os
import time
import unittest

import place
import wire

BIN = place.binaries()
READ_ONLY = {"HEALTH_CHECK", "CLUSTER_INFO", "SESSION_OPEN", "SESSION_CLOSE", "SESSION_INFO", "SESSION_LIST", "SESSION_PLAN",
             "SESSION_WATCH", "PREFIX_FIND", "PREFIX_LIST",
             "SESSION_STEP", "READ_OPEN", "ATTEND", "EVENTS", "QUOTA_SHOW"}
USER = READ_ONLY | {"SESSION_CREATE", "SESSION_DELETE", "SESSION_TRUNCATE", "SESSION_FORK", "ATTACH_OPEN", "ATTACH_COMMIT", "PREFIX_KEEP", "PREFIX_DROP"}
OPERATOR = {"HEALTH_CHECK", "CLUSTER_INFO", "SESSION_OPEN", "SESSION_CLOSE", "SESSION_INFO", "SESSION_LIST", "SESSION_PLAN",
            "SESSION_WATCH", "EVENTS", "PREFIX_LIST", "PREFIX_DROP",
            "QUARANTINE_LIST", "QUARANTINE_DROP", "WORKER_DRAIN", "WORKER_FORGET", "REBALANCE", "SCRUB", "BACKUP", "BACKUP_READ",
            "QUOTA_SHOW"}
CLIENTS = {name for name, number in wire.METHODS.items() if 32 <= number < 64 or name.startswith("PREFIX_")}
WORKERS = {name for name, number in wire.METHODS.items() if 64 <= number < 80}
INTERNAL = {name for name, number in wire.METHODS.items() if number >= 96} - {"CHUNK_READ"} - CLIENTS


class StolenToken(place.Trial):
    @classmethod
    def setUpClass(cls):
        cls.ground = place.Place(BIN, coordinator=["--ticket-life=4s"])
        cls.token, cls.other = cls.ground.token("stolen", tenant="red"), cls.ground.token("of-blue", tenant="blue")
        with cls.ground.link(cls.token) as link:
            cls.own = cls.ground.session(link, "mine", 20)
        with cls.ground.link(cls.other) as link:
            cls.foreign = cls.ground.session(link, "theirs", 20)

    @classmethod
    def tearDownClass(cls):
        cls.ground.stop()

    def setUp(self):
        self.link = self.ground.link(self.token)
        self.addCleanup(self.link.close)

    def test_what_it_can(self):
        """All that its owner can: the sessions of its tenant."""
        listed = self.link.call("SESSION_LIST", {"limit": 256}).must()["sessions"]
        self.assertEqual([s["name"] for s in listed], ["mine"])
        self.assertItem(wire.attend(self.link, self.own, 19))
        self.assertItem(wire.attend(self.link, self.own, 20, append=9))
        made = self.ground.session(self.link, "made-with-it", 20)
        self.link.call("SESSION_DELETE", {"session": made}).must()
        opened = self.link.call("READ_OPEN", {"session": self.own, "first": 0, "count": 16}).must()
        with self.ground.door(opened["workers"][opened["chunks"][0]["holders"][0]]["endpoint"], opened) as door:
            got = place.read(door, opened["ticket"], self.own, opened["incarnation"], opened["chunks"][0]["chunk"], 0, 16)
            self.assertEqual(got.tensors[0], place.part(0, 16, 1))

    def test_what_others_have(self):
        """Nothing of another tenant's: tenant_test.py has all methods."""
        self.assertCode(self.link.call("SESSION_INFO", {"session": self.foreign}), wire.NOT_FOUND)
        self.assertCode(self.link.call("SESSION_DELETE", {"session": self.foreign}), wire.NOT_FOUND)
        self.assertItem(wire.attend(self.link, self.foreign, 19), wire.NOT_FOUND)

    def denied(self, access, may):
        with self.ground.link(self.ground.token(f"tried-{access}", access, "red")) as link:
            for method in sorted(CLIENTS):
                answer = link.call(method)
                if method in may:
                    self.assertNotIn(answer.code, (wire.PERMISSION_DENIED, wire.UNAUTHENTICATED), f"{access} {method}: {answer}")
                else:
                    self.assertEqual(answer.code, wire.PERMISSION_DENIED, f"{access} {method}: {answer}")

    def test_what_only_operators_and_admins_may(self):
        """Each method of the coordinator, with each access."""
        before = self.ground.json("token", "list")
        self.assertEqual({w["draining"] for w in self.ground.json("workers")}, {False})
        for method in sorted(CLIENTS - USER):
            self.assertCode(self.link.call(method), wire.PERMISSION_DENIED, "'user'")
        self.assertCode(self.link.call("TOKEN_CREATE", {"name": "more", "access": "admin"}), wire.PERMISSION_DENIED)
        self.assertCode(self.link.call("TOKEN_REVOKE", {"name": "of-blue"}), wire.PERMISSION_DENIED)
        self.assertCode(self.link.call("WORKER_DRAIN", {"worker": "w0"}), wire.PERMISSION_DENIED)
        self.assertEqual([t["name"] for t in self.ground.json("token", "list")], [t["name"] for t in before])
        self.assertEqual({w["draining"] for w in self.ground.json("workers")}, {False})

    def test_with_each_access(self):
        """The table of docs/operating/tenants.md, from outside: no method is open to a caller that must not
        have it, new ones included."""
        self.denied("read-only", READ_ONLY)
        self.denied("user", USER)
        self.denied("operator", OPERATOR)

    def test_a_read_only_token_changes_nothing(self):
        with self.ground.link(self.ground.token("looks", "read-only", "red")) as link:
            length = link.call("SESSION_INFO", {"session": self.own}).must()["length"]
            self.assertEqual(wire.attend(link, self.own, length, append=3).code, wire.PERMISSION_DENIED)
            for method, body in (("SESSION_TRUNCATE", {"session": self.own, "length": 1}), ("SESSION_DELETE", {"session": self.own}),
                                 ("ATTACH_OPEN", {"session": self.own, "first": 32, "count": 1})):
                self.assertCode(link.call(method, body), wire.PERMISSION_DENIED)
            self.assertEqual(link.call("SESSION_INFO", {"session": self.own}).must()["length"], length)

    def test_an_operators_token_has_no_rows(self):
        """It sees that sessions are there, and neither K, V nor answers of them."""
        with self.ground.link(self.ground.token("operates", "operator")) as link:
            self.assertEqual(link.call("SESSION_INFO", {"session": self.foreign}).must()["name"], "theirs")
            for method in ("READ_OPEN", "ATTACH_OPEN", "SESSION_STEP", "SESSION_DELETE", "ATTACH_COMMIT", "SESSION_FORK"):
                self.assertCode(link.call(method, {"session": self.foreign}), wire.PERMISSION_DENIED)
            self.assertEqual(wire.attend(link, self.foreign, 19).code, wire.PERMISSION_DENIED)
            watched = link.call("SESSION_WATCH", {"session": self.foreign, "steps": 1})
            self.assertEqual(watched.tensors, [])

    def test_methods_of_workers(self):
        """The coordinator takes no registration and no heartbeat over a client's link."""
        for method in sorted(WORKERS):
            self.assertCode(self.link.call(method, {}), wire.PERMISSION_DENIED)
        self.assertEqual(self.ground.active(), 2)

    def test_methods_of_coordinators(self):
        """What a coordinator sends to workers: not at the coordinator, not at a worker's public door, not at
        its edge."""
        for method in sorted(INTERNAL):
            self.assertIn(self.link.call(method).code, (wire.UNIMPLEMENTED, wire.PERMISSION_DENIED), method)
        opened = self.link.call("READ_OPEN", {"session": self.own, "first": 0, "count": 16}).must()
        worker = self.ground.worker("w0")
        with self.ground.door(worker["endpoint"], opened) as door:
            for method in sorted(INTERNAL):
                self.assertIn(door.call(method).code, (wire.UNIMPLEMENTED, wire.PERMISSION_DENIED), method)
        with self.assertRefused(wire.PERMISSION_DENIED, wire.UNAUTHENTICATED):
            self.ground.door(worker["edge_endpoint"], opened)

    def test_posing_as_a_daemon(self):
        """A hello that says worker or coordinator, without the secret and without a certificate."""
        for endpoint in (self.ground.endpoint, self.ground.worker("w0")["endpoint"], self.ground.worker("w0")["edge_endpoint"]):
            for role in (wire.WORKER, wire.COORDINATOR):
                with self.assertRefused(wire.PERMISSION_DENIED, wire.UNAUTHENTICATED):
                    wire.Link(endpoint, self.ground.context(), role, token=self.token)
        for role in (0, 4, 2**31):
            with self.assertRefused(wire.INVALID_ARGUMENT, wire.PERMISSION_DENIED, wire.UNAUTHENTICATED):
                wire.Link(self.ground.endpoint, self.ground.context(), role, token=self.token)

    def test_calls_before_the_hello(self):
        for endpoint in (self.ground.endpoint, self.ground.worker("w0")["endpoint"]):
            for method in ("SESSION_LIST", "LINK_PROOF", "CHUNK_PUT", "REGISTER"):
                with wire.Link(endpoint, self.ground.context(), hello=False) as link:
                    self.assertCode(link.call(method), wire.UNAUTHENTICATED)
                    with self.assertRaises(wire.Closed):
                        link.call("LINK_HELLO", {"version": 1, "role": wire.CLIENT, "nonce": bytes(32)})

    def test_tokens_that_are_nearly_right(self):
        near = self.token[:-1] + ("A" if self.token[-1] != "A" else "B")
        for wrong in ("", "bt_", near, self.token + "A", self.token[:-1], self.token.lower(), self.token + "\0", "\0", "x" * 256):
            with self.assertRefused(wire.UNAUTHENTICATED):
                self.ground.link(wrong)
        with self.assertRefused(wire.UNAUTHENTICATED):
            self.ground.link(os.urandom(32))

    # ---- at the workers

    def opened(self, session=None, first=32, count=16, read=False):
        link = self.link if session is None else self.ground.link(self.other)
        try:
            return link.call("READ_OPEN" if read else "ATTACH_OPEN", {"session": session or self.own, "first": first,
                                                                      "count": count}).must()
        finally:
            if link is not self.link:
                link.close()

    def holder(self, opened):
        return opened["workers"][opened["chunks"][0]["holders"][0]]["endpoint"]

    def test_puts_without_a_ticket(self):
        opened = self.opened()
        with self.ground.door(self.holder(opened), opened) as door:
            for ticket in (b"", bytes(32), bytes(64), os.urandom(70), self.token.encode(), opened["pass"].encode()[:128]):
                self.assertCode(place.put(door, ticket, self.own, 32, 1), wire.PERMISSION_DENIED)
                self.assertCode(place.read(door, ticket, self.own, opened["incarnation"], opened["chunks"][0]["chunk"], 0, 1),
                                wire.PERMISSION_DENIED)
            place.put(door, opened["ticket"], self.own, 32, 1).must()

    def test_a_ticket_for_another_session(self):
        """Its own ticket is of no use for the other tenant's session, nor for other positions of its own."""
        opened = self.opened()
        with self.ground.door(self.holder(opened), opened) as door:
            self.assertCode(place.put(door, opened["ticket"], self.foreign, 32, 1), wire.PERMISSION_DENIED, "another session")
            self.assertCode(place.put(door, opened["ticket"], self.own, 31, 1), wire.PERMISSION_DENIED, "other positions")
            self.assertCode(place.put(door, opened["ticket"], self.own, 48, 1), wire.PERMISSION_DENIED, "other positions")
            self.assertCode(place.put(door, opened["ticket"], self.own, 1 << 36, 1), wire.PERMISSION_DENIED, "other positions")
        read = self.opened(first=0, read=True)
        with self.ground.door(self.holder(read), read) as door:
            chunk, incarnation = read["chunks"][0]["chunk"], read["incarnation"]
            self.assertCode(place.read(door, read["ticket"], self.foreign, incarnation, chunk, 0, 1), wire.PERMISSION_DENIED)
            self.assertCode(place.read(door, read["ticket"], self.own, incarnation, chunk, 16, 1), wire.PERMISSION_DENIED)
            for wrong in (chunk + 1, chunk - 1, 0, 1 << 63):
                got = place.read(door, read["ticket"], self.own, incarnation, wrong, 0, 1)
                self.assertNotEqual(got.code, wire.OK)
                self.assertEqual(got.tensors, [])

    def test_a_ticket_for_something_else(self):
        """To read, used to put; to put, used to read."""
        to_put, to_read = self.opened(first=0), self.opened(first=0, read=True)
        with self.ground.door(self.holder(to_read), to_read) as door:
            self.assertCode(place.put(door, to_read["ticket"], self.own, 0, 1, seed=5), wire.PERMISSION_DENIED)
            self.assertCode(place.read(door, to_put["ticket"], self.own, to_put["incarnation"], to_put["chunks"][0]["chunk"], 0, 1),
                            wire.PERMISSION_DENIED)
            got = place.read(door, to_read["ticket"], self.own, to_read["incarnation"], to_read["chunks"][0]["chunk"], 0, 1)
            self.assertEqual(got.tensors[0], place.part(0, 1, 1))

    def test_an_edited_ticket(self):
        """Each byte of it, and each length."""
        opened = self.opened()
        ticket = opened["ticket"]
        with self.ground.door(self.holder(opened), opened) as door:
            for i in range(len(ticket)):
                edited = ticket[:i] + bytes([ticket[i] ^ 1]) + ticket[i + 1:]
                self.assertCode(place.put(door, edited, self.own, 32, 1), wire.PERMISSION_DENIED)
            for edited in (ticket[:-1], ticket + b"\0", ticket[1:], ticket + ticket, ticket[:-32] + b"\x30\x00" + ticket[-32:]):
                self.assertCode(place.put(door, edited, self.own, 32, 1), wire.PERMISSION_DENIED)
            forged = wire.make_ticket(bytes(32), session=self.foreign, incarnation=1, term=99, first=0, count=1 << 40,
                                      expires_wall_ns=1 << 62)
            self.assertCode(place.put(door, forged, self.foreign, 0, 1), wire.PERMISSION_DENIED)

    def assertExpires(self, door, opened, session):
        """The worker's count of its life is behind the coordinator's by the way of a heartbeat."""
        time.sleep(opened["life_ns"] / 1e9)
        end = time.monotonic() + 60
        while (answer := place.put(door, opened["ticket"], session, 32, 1)).code == wire.OK and time.monotonic() < end:
            time.sleep(0.1)
        self.assertCode(answer, wire.FAILED_PRECONDITION, "expired")

    def test_a_ticket_that_has_expired(self):
        opened = self.opened()
        with self.ground.door(self.holder(opened), opened) as door:
            self.assertExpires(door, opened, self.own)

    def test_a_worker_without_a_pass(self):
        """Neither the token itself nor an edited pass opens a worker's door."""
        opened = self.opened()
        good = opened["pass"]
        endpoint = self.holder(opened)
        for wrong in ("", self.token, good[:-1] + ("0" if good[-1] != "0" else "1"), good[:3] + "00000000" + good[11:], good[:-2],
                      good + "00", "bp_"):
            with self.assertRefused(wire.UNAUTHENTICATED):
                self.ground.door(endpoint, token=wrong)
        with self.assertRefused(wire.UNAUTHENTICATED):
            self.ground.link(good)  # and a pass is no token
        self.ground.door(endpoint, token=good).close()

    # ---- and its end

    def test_revoked(self):
        """Its open link ends, and nothing else: not that of the tenant's other token, not what the thief has
        made."""
        stolen = self.ground.token("soon-revoked", tenant="red")
        with self.ground.link(stolen) as thief, self.ground.link(self.other) as other:
            made = self.ground.session(thief, "made-by-the-thief", 20)
            opened = thief.call("ATTACH_OPEN", {"session": made, "first": 32, "count": 16}).must()
            thief.send("EVENTS", {"wait_ns": 40 * 10**9, "max": 1, "kinds": ["coordinator"]})  # and a call that waits
            self.ground.ctl("token", "revoke", "soon-revoked")
            with self.assertRaises(wire.Closed):
                while True:
                    thief.receive()
            with self.assertRefused(wire.UNAUTHENTICATED):
                self.ground.link(stolen)
            self.assertItem(wire.attend(other, self.foreign, 19))
            self.assertItem(wire.attend(self.link, self.own, 19))
            self.assertEqual(self.link.call("SESSION_INFO", {"session": made}).must()["length"], 20)
            # What docs/operating/security.md states: what it had been given for the workers is good until it
            # expires by itself
            with self.ground.door(self.holder(opened), opened) as door:
                self.assertIn(place.put(door, opened["ticket"], made, 32, 1).code, (wire.OK, wire.FAILED_PRECONDITION))
                self.assertExpires(door, opened, made)
            self.link.call("SESSION_DELETE", {"session": made}).must()


if __name__ == "__main__":
    unittest.main(verbosity=2)
