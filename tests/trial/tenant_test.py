#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A second tenant on the cluster: whatever it asks, what the first one has is as if it were not there.

    tenant_test.py BIN        BIN: the folder of the programs
"""
import re
import unittest
import urllib.error
import urllib.request

import place
import wire

BIN = place.binaries()
KEY = 0x1234567812345678
MARKER = b"first-tenant's-key-and-value-row"  # 32 bytes: two rows of K
assert len(MARKER) == 2 * wire.ROW_BYTES


class SecondTenant(place.Trial):
    """`red` has sessions; `blue` tries to find out."""

    @classmethod
    def setUpClass(cls):
        cls.ground = place.Place(BIN)
        cls.red_token, cls.blue_token = cls.ground.token("red-one", tenant="red"), cls.ground.token("blue-one", tenant="blue")
        with cls.ground.link(cls.red_token) as red:
            cls.session = cls.ground.session(red, "secret-plans", 40)
            assert wire.attend(red, cls.session, 39).item["code"] == wire.OK

    @classmethod
    def tearDownClass(cls):
        cls.ground.stop()

    def setUp(self):
        self.red, self.blue = self.ground.link(self.red_token), self.ground.link(self.blue_token)
        self.addCleanup(self.red.close)
        self.addCleanup(self.blue.close)

    def same(self, method, body_of, tensors=(), item=False):
        """A foreign session's answer is that of one that never was, but for the id in it."""
        nowhere = self.session ^ 0x5A5A5A5A00000000
        answers = []
        for session in (self.session, nowhere):
            answer = self.blue.call(method, body_of(session), tensors)
            status = answer.body["items"][0]["status"] if item else answer.status
            self.assertEqual(status["code"], wire.NOT_FOUND, f"{method}: {answer}")
            text = repr((status, answer.tensors))
            for form in (f"{session}", f"{session:016x}", f"{session:x}"):
                text = text.replace(form, "ID")
            answers.append(text)
        self.assertEqual(answers[0], answers[1], method)

    def test_each_method_by_id(self):
        """Each method of clients that names a session."""
        tried = set()
        bodies = {
            "ATTACH_OPEN": lambda s: {"session": s, "first": 0, "count": 16},
            "READ_OPEN": lambda s: {"session": s, "first": 0, "count": 16},
            "ATTACH_COMMIT": lambda s: {"session": s, "layer": 0, "first": 0, "count": 16},
            "SESSION_FORK": lambda s: {"session": s, "length": 16, "name": "stolen"},
            "SESSION_TRUNCATE": lambda s: {"session": s, "length": 1},
            "SESSION_WATCH": lambda s: {"session": s, "steps": 1},
            "PREFIX_KEEP": lambda s: {"session": s, "prefix": b"0123456789abcdef"},
            "SESSION_INFO": lambda s: {"session": s, "memory": True},
        }
        for method in ("SESSION_OPEN", "SESSION_CLOSE", "SESSION_DELETE", "SESSION_INFO", "SESSION_TRUNCATE", "SESSION_FORK",
                       "SESSION_PLAN",
                       "ATTACH_OPEN", "ATTACH_COMMIT", "READ_OPEN", "SESSION_WATCH", "SESSION_STEP", "PREFIX_KEEP", "PREFIX_DROP"):
            self.same(method, bodies.get(method, lambda s: {"session": s}))
            tried.add(method)
        for append in (False, True):
            tensors = [wire.rows(1)] * (3 if append else 1)
            parts = {"k_bytes": wire.ROW_BYTES, "v_bytes": wire.ROW_BYTES} if append else {}
            self.same("ATTEND", lambda s, append=append, parts=parts: {"items": [{
                "session": s, "first": 40, "rows": 1, "append": append, "q_heads": 1, "v_dim": 4, "q_bytes": wire.ROW_BYTES, **parts}]},
                tensors, item=True)
        tried.add("ATTEND")
        named = {name for name, number in wire.METHODS.items() if (32 <= number < 64 or name.startswith("PREFIX_"))
                 and any(field[0] == "session" for field in wire.PROTO.messages[wire.message_of(name)[0]])}
        self.assertLessEqual(named - {"SCRUB", "QUARANTINE_DROP", "EVENTS"}, tried, "a method that this test does not know")
        with self.ground.link(self.red_token) as red:
            self.assertEqual(red.call("SESSION_INFO", {"session": self.session}).must()["length"], 40)

    def test_its_name(self):
        """As if the name were free: blue may take it, and has another session then."""
        for method in ("SESSION_OPEN", "SESSION_INFO"):
            one, other = (self.blue.call(method, {"name": name}) for name in ("secret-plans", "secret-plane"))
            self.assertEqual(one.code, wire.NOT_FOUND)
            self.assertEqual(repr(one.status).replace("secret-plans", "N"), repr(other.status).replace("secret-plane", "N"))
        own = self.blue.call("SESSION_CREATE", {"spec": wire.SPEC, "name": "secret-plans"}).must()["session"]
        self.assertNotEqual(own, self.session)
        self.assertEqual(self.blue.call("SESSION_INFO", {"name": "secret-plans"}).must()["session"], own)
        self.assertEqual(self.red.call("SESSION_INFO", {"name": "secret-plans"}).must()["session"], self.session)
        self.blue.call("SESSION_DELETE", {"session": own}).must()
        self.assertEqual(self.red.call("SESSION_INFO", {"name": "secret-plans"}).must()["session"], self.session)

    def test_its_keys(self):
        """The key of a create or fork gives no other tenant's session."""
        made = self.red.call("SESSION_CREATE", {"spec": wire.SPEC, "key": KEY}).must()["session"]
        other = self.blue.call("SESSION_CREATE", {"spec": wire.SPEC, "key": KEY}).must()["session"]
        self.assertNotEqual(made, other)
        self.assertEqual(self.red.call("SESSION_CREATE", {"spec": wire.SPEC, "key": KEY}).must()["session"], made)
        self.red.call("SESSION_DELETE", {"session": made}).must()
        self.blue.call("SESSION_DELETE", {"session": other}).must()

    def test_lists_and_counts(self):
        """Sessions, steps, chunks and workers' counts do not move with what red does."""
        before = self.blue.call("CLUSTER_INFO").must()
        self.assertEqual(self.blue.call("SESSION_LIST", {"limit": 256}).must()["sessions"], [])
        made = self.ground.session(self.red, "counted", 200)
        for _ in range(5):
            self.assertItem(wire.attend(self.red, made, 199))
        after = self.blue.call("CLUSTER_INFO").must()
        for told in (before, after):
            told.pop("uptime_ns")
        self.assertEqual(before, after)
        self.assertEqual((after["sessions"], after["chunks"], after["steps"], after["workers"]), (0, 0, 0, []))
        for after_id in (0, self.session, made, self.session - 1, made - 1):
            page = self.blue.call("SESSION_LIST", {"after": after_id, "limit": 256}).must()
            self.assertEqual((page["sessions"], page["next"]), ([], 0))
        self.red.call("SESSION_DELETE", {"session": made}).must()

    def test_quotas(self):
        """It sees what it may have itself, and of another tenant not even whether it is there."""
        own = self.blue.call("QUOTA_SHOW").must()
        self.assertEqual([t["tenant"] for t in own["tenants"]], ["blue"])
        one, other = (self.blue.call("QUOTA_SHOW", {"tenant": name}) for name in ("red", "nobody"))
        self.assertNotEqual(one.code, wire.OK)
        self.assertEqual(repr(one.status).replace("red", "N"), repr(other.status).replace("nobody", "N"))
        self.assertCode(self.blue.call("QUOTA_SET", {"tenant": "red", "quotas": [{"name": "sessions", "max": 1}]}), wire.PERMISSION_DENIED)

    def test_events(self):
        """What happens to red's sessions is no event of blue's, by no filter; nor is it counted as one that
        blue has missed."""
        made = self.ground.session(self.red, "eventful", 20)
        self.red.call("SESSION_TRUNCATE", {"session": made, "length": 0}).must()
        self.red.call("SESSION_DELETE", {"session": made}).must()
        for filters in ({}, {"session": made}, {"session_name": "eventful"}, {"session": self.session}, {"worker": "w0"},
                        {"severity": "info"}):
            told = self.blue.call("EVENTS", {"max": 256, **filters}).must()
            self.assertEqual([e for e in told["events"] if e["session"] or e["session_name"] or e["worker"]], [])
            text = repr(told["events"])
            for word in ("eventful", "secret-plans", f"{made:016x}", "w0", "w1", "red"):
                self.assertNotIn(word, text)

    def test_tickets_and_passes(self):
        """Its own are of no use for red's rows."""
        own = self.ground.session(self.blue, "own", 20)
        ours = self.blue.call("READ_OPEN", {"session": own, "first": 0, "count": 16}).must()
        theirs = self.red.call("READ_OPEN", {"session": self.session, "first": 0, "count": 16}).must()
        for worker in theirs["workers"]:
            with self.ground.door(worker["endpoint"], ours) as door:
                got = place.read(door, ours["ticket"], self.session, theirs["incarnation"], theirs["chunks"][0]["chunk"], 0, 16)
                self.assertEqual((got.code, got.tensors), (wire.PERMISSION_DENIED, []))
                # Red's chunk in the name of its own session
                got = place.read(door, ours["ticket"], own, ours["incarnation"], theirs["chunks"][0]["chunk"], 0, 16)
                self.assertEqual(got.tensors, [])
                self.assertNotEqual(got.code, wire.OK)
        self.blue.call("SESSION_DELETE", {"session": own}).must()

    def test_names_of_workers(self):
        """Nowhere in what a user gets: names and hosts of workers, other tenants' names."""
        own = self.ground.session(self.blue, "where", 40)
        told = [self.blue.call("SESSION_PLAN", {"session": own}).must(), self.blue.call("SESSION_INFO",
                                                                                        {"session": own, "memory": True}).must(),
                self.blue.call("CLUSTER_INFO").must(), wire.attend(self.blue, own, 39, mass_bins=2).body,
                self.blue.call("ATTEND", {"items": [{"session": own, "first": 39, "rows": 1}], "want_trace": True}, [wire.rows(1)]).must(),
                self.blue.call("SESSION_STEP", {"session": own}).must(),
                self.blue.call("ATTACH_OPEN", {"session": own, "first": 40, "count": 1}).must()]
        for one in told:
            for word in ("'w0'", "'w1'", "host-w", "'red'"):
                self.assertNotIn(word, repr(one))
        self.blue.call("SESSION_DELETE", {"session": own}).must()

    def test_over_http(self):
        """With a user's token --http shows nothing of sessions or the cluster; its metrics name its own
        tenant and, without a token, none: those who run the cluster see all."""
        url = f"http://{self.ground.ready['http']}/"
        for path in ("api/v1/sessions", "api/v1/workers", "api/v1/cluster", "api/v1/events", "api/v1/history", "api/v1/tenants"):
            request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {self.blue_token}", "X-Banyan": "1"})
            with self.assertRaises(urllib.error.HTTPError) as found:
                urllib.request.urlopen(request, timeout=30).close()
            self.assertIn(found.exception.code, (401, 403, 404))
            body = found.exception.read()
            found.exception.close()
            self.assertNotIn(b"secret-plans", body)
        operator = self.ground.token("watch-metrics", "operator")
        for token, tenants in ((None, set()), (self.blue_token, {"blue"}), (operator, {"red", "blue", "default"}),
                               (self.ground.admin, {"red", "blue", "default"})):
            text = self.metrics(url, token)
            self.assertEqual(set(re.findall(r'tenant="([^"]*)"', text)), tenants)
            self.assertIn("banyan_sessions ", text)  # the rest is there
            for word in ("secret-plans", f"{self.session:016x}", self.red_token, self.blue_token):
                self.assertNotIn(word, text)
            if "red" not in tenants:
                self.assertNotIn("red", re.findall(r'"([^"]*)"', text))
        for wrong in ("bt_" + "x" * 43, self.blue_token + "x", ""):
            with self.assertRaises(urllib.error.HTTPError) as found:
                self.metrics(url, wrong)
            self.assertEqual((found.exception.code, found.exception.headers["WWW-Authenticate"]), (401, "Bearer"))
            found.exception.close()

    def metrics(self, url, token):
        request = urllib.request.Request(url + "metrics", headers={} if token is None else {"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read().decode()

    def test_what_ids_tell(self):
        """Not how many sessions others make, nor how many there are, nor when each was made: ids of two
        tenants, made in turns, are in no order, share neither half, and are as far from each other as random
        numbers. Neither do those of chunks; and a pass does not say in the clear whose it is."""
        made, turns = [], 32
        for _ in range(turns):  # one place of those that live, used again and again; then new ones
            session = self.blue.call("SESSION_CREATE", {"spec": wire.SPEC}).must()["session"]
            self.blue.call("SESSION_DELETE", {"session": session}).must()
            made.append(session)
        kept = []
        for turn in range(turns):
            who = (self.red, self.blue)[turn % 2]
            kept.append((who, who.call("SESSION_CREATE", {"spec": wire.SPEC}).must()["session"]))
        for _, session in kept[::2]:
            self.assertCode(self.blue.call("SESSION_INFO", {"session": session}), wire.NOT_FOUND)
        ids = made + [session for _, session in kept]
        self.no_pattern(ids)
        opened = [self.blue.call("ATTACH_OPEN", {"session": session, "first": 0, "count": 64}).must() for _, session in kept[1::2]]
        self.no_pattern([chunk["chunk"] for one in opened for chunk in one["chunks"]])
        theirs = self.red.call("ATTACH_OPEN", {"session": kept[0][1], "first": 0, "count": 16}).must()
        for told in (opened[0], theirs):
            self.assertNotEqual(bytes.fromhex(told["pass"][3:])[:3], bytes(3))  # a tenant's number is small
        for who, session in kept:
            who.call("SESSION_DELETE", {"session": session}).must()

    def no_pattern(self, ids):
        """What numbers in the order of their making are if chance makes them. Chance breaks this less than
        once in 10^5 times."""
        n = len(ids)
        self.assertGreaterEqual(n, 32)
        for half in (lambda x: x >> 32, lambda x: x & 0xFFFFFFFF):
            self.assertEqual(len({half(x) for x in ids}), n)
            self.assertGreater(max(map(half, ids)) - min(map(half, ids)), 1 << 30)
        rises = sum(a < b for a, b in zip(ids, ids[1:]))
        self.assertTrue(n / 5 < rises < n * 4 / 5, ids)  # neither up nor down
        steps = [b - a for a, b in zip(ids, ids[1:])]
        self.assertEqual(len(set(steps)), n - 1)
        self.assertGreater(min(map(abs, steps)), 1 << 24)

    def test_memory(self):
        """A marker in red's rows, deleted: blue's rows, put or not, never have it, in the memory that red's
        had."""
        spec = {**wire.SPEC, "members": 2}
        for _ in range(4):
            made = self.red.call("SESSION_CREATE", {"spec": spec}).must()["session"]
            self.fill(self.red, made, MARKER * 512)
            self.red.call("SESSION_DELETE", {"session": made}).must()
            own = self.blue.call("SESSION_CREATE", {"spec": spec}).must()["session"]
            opened = self.fill(self.blue, own, b"\1" * wire.ROW_BYTES, every=16)
            for chunk in opened["chunks"]:
                for holder in chunk["holders"]:
                    with self.ground.door(opened["workers"][holder]["endpoint"], opened) as door:
                        read = self.blue.call("READ_OPEN", {"session": own, "first": 0, "count": 1})
                        ticket = read.body["ticket"] if read.code == wire.OK else opened["ticket"]
                        for first, count in ((chunk["first"], 16), (chunk["first"], 1), (chunk["first"] + 1, 15)):
                            got = place.read(door, ticket, own, opened["incarnation"], chunk["chunk"], first, count)
                            for tensor in got.tensors:
                                self.assertNotIn(MARKER[:wire.ROW_BYTES], tensor)
            answer = wire.attend(self.blue, own, 0, visible=1)
            for tensor in answer.tensors:
                self.assertNotIn(MARKER[:wire.ROW_BYTES], tensor)
            self.blue.call("SESSION_DELETE", {"session": own}).must()

    def fill(self, link, session, data, every=1):
        """1024 rows of K and V of these bytes, or the first row of each chunk alone, put and committed where
        they are whole."""
        n = 1024
        opened = link.call("ATTACH_OPEN", {"session": session, "first": 0, "count": n}).must()
        doors = [self.ground.door(worker["endpoint"], opened) for worker in opened["workers"]]
        count = wire.SHAPE.chunk if every == 1 else 1
        rows = (data * (count * wire.ROW_BYTES // len(data) + 1))[:count * wire.ROW_BYTES]
        for chunk in opened["chunks"]:
            for holder in chunk["holders"]:
                doors[holder].call("CHUNK_PUT", {"ticket": opened["ticket"], "session": session, "layer": 0, "first": chunk["first"],
                                                 "count": count},
                                   [rows, rows]).must()
        for door in doors:
            door.close()
        link.call("ATTACH_COMMIT", {"session": session, "layer": 0, "first": 0, "count": n if every == 1 else 1}).must()
        return opened


if __name__ == "__main__":
    unittest.main(verbosity=2)
