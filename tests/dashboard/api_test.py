#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The dashboard's HTTP against real daemons, without a browser: what it says, whom it says it to, what it
    refuses. api_test.py SOURCE BIN
"""
import http.client
import json
import pathlib
import re
import sys
import unittest

SOURCE, BIN = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
sys.path.insert(0, str(SOURCE / "tests" / "dashboard"))
from cluster import LAYERS, Cluster  # noqa: E402  (its folder is known only now)

PAGE = SOURCE / "coordinator" / "dashboard" / "page"
ODD = 'a "name" <img src=x onerror=alert(1)> \\ & ü'


class Api(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(BIN)
        cls.addClassCleanup(cls.cluster.stop)
        cls.big = cls.cluster.session("big", 300, "--members=4")
        cls.odd = cls.cluster.session(ODD, 8)
        for i in range(12):
            cls.cluster.ctl("session", "create", "--q-heads=1", "--dim=8", f"many-{i:02}")

    def refused(self, path, code, word, **headers):
        status, _, body = self.cluster.ask(path, **headers)
        self.assertEqual(status, code, (path, body))
        self.assertIn(word, json.loads(body)["error"])

    def test_cluster(self):
        c = self.cluster.api("cluster")
        self.assertEqual((c["cluster"], c["ready"], c["sessions"]), ("banyan", True, 14))
        self.assertGreaterEqual(c["counters"]["steps"], 2 * LAYERS)
        self.assertEqual(sum(c["took"]["counts"]), c["counters"]["steps"])
        self.assertEqual(c["session_states"]["active"], 14)
        self.assertTrue(any(limit["name"] == "sessions" and limit["used"] == 14 for limit in c["limits"]), c["limits"])

    def test_workers(self):
        workers = self.cluster.api("workers")["workers"]
        self.assertEqual([(w["name"], w["host"], w["state"]) for w in workers], [(f"w{i}", f"host-{i // 2}", "active") for i in range(4)])
        self.assertEqual(sum(w["tokens"] for w in workers), 308)
        for w in workers:
            self.assertGreater(w["capacity_bytes"], 0)
            self.assertGreater(w["planned_bandwidth"], 0)
            self.assertGreater(w["chunks"], 0)
            self.assertIsInstance(w["no_device"], str)
        one, = self.cluster.api("workers", name="w2")["workers"]
        self.assertEqual(one["name"], "w2")
        self.assertEqual([(limit["flag"], limit["max"]) for limit in one["limits"] if limit["name"] == "kv_bytes"], [("the worker's --memory", one["capacity_bytes"])])
        self.assertNotIn("limits", workers[2])
        self.refused("api/v1/workers?name=w9", 404, "no worker")
        self.refused("api/v1/workers?name=%00", 400, "name")

    def test_plans(self):
        plans = self.cluster.api("plans")["plans"]
        wide = next(p for p in plans if p["members"] == 4)
        plan = self.cluster.api(f"plans/{wide['id']}")
        self.assertEqual(sorted(name for name, _, _ in plan["nodes"]), ["w0", "w1", "w2", "w3"])
        self.assertEqual([parent for _, _, parent in plan["nodes"]].count(-1), 1)
        self.assertEqual(plan["nodes"][0][2], -1)
        self.assertEqual(plan["id"], self.cluster.api(f"sessions/{self.big}")["plan"])
        self.refused("api/v1/plans/00000000000000ff", 404, "no plan")

    def test_session(self):
        s = self.cluster.api(f"sessions/{self.big}")
        self.assertEqual((s["name"], s["lengths"], s["end"], s["grain"], s["lost"]), ("big", [s["end"]] * LAYERS, s["end"], 0, []))
        self.assertEqual(s["spec"]["kv_type"], "f32")
        ranges = sorted((first, n) for lane in s["holders"] for first, n in lane["serves"])
        at = 0
        for first, n in ranges:  # every token is served once
            self.assertEqual(first, at)
            at += n
        self.assertEqual(at, s["end"])
        self.assertEqual(sum(lane["tokens"] for lane in s["holders"]), s["end"])
        self.refused("api/v1/sessions/0000000100000fff", 404, "no session")
        self.refused("api/v1/sessions/zz", 404, "not found")
        self.refused(f"api/v1/sessions/{self.big}/secrets", 404, "not found")

    def test_names_are_text(self):
        self.assertEqual(self.cluster.api(f"sessions/{self.odd}")["name"], ODD)
        self.assertEqual([s["id"] for s in self.cluster.api("sessions", q='"NAME" <img')["sessions"]], [self.odd])

    def test_pages(self):
        names, offset = [], 0
        while True:
            page = self.cluster.api("sessions", limit=5, offset=offset, q="many")
            self.assertEqual((page["total"], page["matching"]), (14, 12))
            if not page["sessions"]:
                break
            names += [s["name"] for s in page["sessions"]]
            offset += 5
        self.assertEqual(names, [f"many-{i:02}" for i in range(12)])
        down = self.cluster.api("sessions", sort="tokens", order="down", limit=2)["sessions"]
        self.assertEqual([s["name"] for s in down], ["big", ODD])
        self.assertEqual(self.cluster.api("sessions", state="degraded")["matching"], 0)
        self.assertEqual(self.cluster.api("sessions", q=self.big)["matching"], 1)
        self.assertEqual(self.cluster.api("sessions", q="\u7532" * 60)["matching"], 0)  # all that the page's box takes

    def test_bad_queries(self):
        for query, word in (("limit=0", "limit"), ("limit=201", "limit"), ("limit=5x", "limit"), ("limit=", "limit"), ("limit=-1", "limit"),
                            ("limit=99999999999999999999999", "limit"), ("offset=262145", "offset"), ("sort=secret", "sort"), ("order=sideways", "order"),
                            ("state=fine", "state"), ("q=" + "a" * 193, "q"), ("q=%zz", "q"), ("q=%0a", "q")):
            self.refused(f"api/v1/sessions?{query}", 400, word)
        for query in ("steps=65", "bins=257", "watch=2", "steps=0"):
            self.refused(f"api/v1/sessions/{self.big}/mass?{query}", 400, query.split("=", maxsplit=1)[0])

    def test_events(self):
        told = self.cluster.api("events")
        self.assertIn("worker-active", [e["kind"] for e in told["events"]])
        seqs = [e["seq"] for e in told["events"]]
        self.assertEqual(seqs, sorted(seqs))
        after = seqs[len(seqs) // 2]
        rest = self.cluster.api("events", after=after, term=told["term"])["events"]
        self.assertEqual((rest[0]["seq"], told["anew"]), (after + 1, False))
        other = self.cluster.api("events", after=after, term=told["term"] + 1)  # of another life
        self.assertEqual((other["events"][0]["seq"], other["anew"]), (1, True))
        self.assertEqual(len(self.cluster.api("events", limit=1)["events"]), 1)
        self.refused("api/v1/events?after=x", 400, "after")

    def test_history(self):
        answer = self.cluster.api("history")
        self.assertEqual((answer["most"], answer["every_ns"]), (120, 30 * 10**9))
        lengths = {len(values) for values in answer["series"].values()}
        self.assertEqual(len(lengths), 1)
        self.assertLessEqual(lengths.pop(), answer["most"])

    def test_tenants(self):
        self.cluster.ctl("quota", "set", "--sessions=100", "default")
        answer = self.cluster.api("tenants")
        self.assertEqual([(t["name"], t["quotas"]["sessions"]) for t in answer["tenants"]], [("default", {"used": 14, "max": 100, "refused": 0})])
        self.assertEqual(self.cluster.api("tenants", q="DEF")["matching"], 1)
        self.assertEqual(self.cluster.api("tenants", q="other")["tenants"], [])
        self.refused("api/v1/tenants?limit=257", 400, "limit")
        self.refused("api/v1/tenants?q=" + "a" * 193, 400, "q")

    def test_files(self):
        for file in PAGE.iterdir():
            status, headers, body = self.cluster.ask(file.name)
            self.assertEqual((status, body), (200, file.read_bytes()))
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
            self.assertIn("default-src 'self'", headers["Content-Security-Policy"])
            again, _, nothing = self.cluster.ask(file.name, If_None_Match=headers["ETag"])
            self.assertEqual((again, nothing), (304, b""))
        self.assertEqual(self.cluster.ask("")[2], (PAGE / "index.html").read_bytes())
        self.assertEqual(self.cluster.ask("api/v1/cluster")[1]["Cache-Control"], "no-store")
        for path in ("../coordinator.db", "%2e%2e/db", "index.html/", "nothing.js", "files.h"):
            self.assertEqual(self.cluster.ask(path)[0], 404, path)

    def test_page_is_its_own(self):
        """No script, style or address of another place in any file."""
        for file in PAGE.iterdir():
            text = file.read_text()
            self.assertNotRegex(text, r"<script(?![^>]*\bsrc=)|\bstyle=\"|\bon[a-z]+=\"|javascript:", file.name)
            self.assertNotRegex(text, r"\binnerHTML\b|\bouterHTML\b|insertAdjacentHTML|document\.write|\beval\(|new Function", file.name)
            for address in re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+[^\s'\"]*", re.sub(r"^\s*//.*$", "", text, flags=re.M)):
                self.assertEqual(address, "http://www.w3.org/2000/svg", file.name)

    def test_methods_and_heads(self):
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            self.assertIn(self.cluster.ask("api/v1/cluster", method)[0], (400, 405, 501), method)
        status, _, body = self.cluster.ask("api/v1/cluster", "HEAD")
        self.assertEqual((status, body), (200, b""))
        self.assertEqual(self.cluster.ask("livez")[0], 200)
        self.assertEqual(self.cluster.ask("metrics")[0], 200)

    def raw(self, path, host, **headers):
        connection = http.client.HTTPConnection(self.cluster.http)
        connection.putrequest("GET", path, skip_host=True)
        for name, value in {**({"Host": host} if host is not None else {}), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        status = connection.getresponse().status
        connection.close()
        return status

    def test_hosts(self):
        for host in ("localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:9411", self.cluster.http):
            self.assertEqual(self.raw("/api/v1/cluster", host), 200, host)
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "[::2]", "evil.example:127.0.0.1"):
            for path in ("/api/v1/cluster", "/", "/app.js"):
                self.assertIn(self.raw(path, host), (400, 421), (host, path))
        for host, code in (("anything.example", 421), ("10.0.0.1", 200), (self.cluster.http, 200)):  # of a scraper: any address
            self.assertEqual(self.raw("/metrics", host), code, host)

    def test_other_sites(self):
        for site, code in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
            self.assertEqual(self.raw("/api/v1/cluster", "localhost", **{"Sec-Fetch-Site": site}), code, site)
        look = f"/api/v1/sessions/{self.odd}/trace?watch="  # a browser that says no site: a page of another one cannot send X-Banyan
        for watch, headers, code in ((1, {}, 403), ("%31", {}, 403), (0, {}, 200), (1, {"X-Banyan": "1"}, 200)):
            self.assertEqual(self.raw(f"{look}{watch}", "localhost", **headers), code, (watch, headers))


class Watching(unittest.TestCase):
    def test_watching(self):
        """Without watch=1 nothing is looked at; with it the next steps are, and the look ends by itself."""
        cluster, name = Cluster(BIN), "watched"
        self.addCleanup(cluster.stop)
        identity = cluster.session(name, 64, "--members=4")
        cluster.step(name, trace=False)
        self.assertEqual(cluster.api(f"sessions/{identity}/mass")["steps"], [])
        self.assertTrue(cluster.api(f"sessions/{identity}/mass", watch=1, steps=LAYERS, bins=8)["watching"])
        self.assertTrue(cluster.api(f"sessions/{identity}/trace", watch=1, steps=LAYERS)["watching"])
        cluster.step(name, trace=False)
        cluster.wait(lambda: len(cluster.api(f"sessions/{identity}/mass", steps=64)["steps"]) == LAYERS)
        for step in cluster.api(f"sessions/{identity}/mass", steps=64)["steps"]:
            self.assertEqual((step["visible"], step["failure"]), (66, None))
            self.assertAlmostEqual(sum(step["bins"]) + step["sink"], 1, places=4)
            self.assertAlmostEqual(sum(w["mass"] for w in step["workers"]) + step["sink"], 1, places=4)
        traces = cluster.api(f"sessions/{identity}/trace", steps=LAYERS)["steps"]
        self.assertEqual([t["layer"] for t in traces], list(range(LAYERS)))
        self.assertEqual(len(traces[0]["workers"]), len(cluster.api(f"sessions/{identity}")["holders"]))
        self.assertGreater(traces[0]["total_ns"], traces[0]["tree_ns"])
        cluster.step(name, trace=False)  # both looks have seen what they wanted
        self.assertEqual(cluster.api(f"sessions/{identity}/mass", steps=64)["steps"][-1]["visible"], 66)
        many = [cluster.session(f"many-{i}", 1) for i in range(12)]
        answers = [cluster.api(f"sessions/{identity}/mass", watch=1) for identity in many]
        self.assertEqual([a["watching"] for a in answers], [True] * 8 + [False] * 4)
        self.assertEqual([a["full"] for a in answers], [False] * 8 + [True] * 4)


class Token(unittest.TestCase):
    def test_token(self):
        cluster = Cluster(BIN, workers=1, token="a-token-of-clients")
        self.addCleanup(cluster.stop)
        paths = ("cluster", "workers", "plans", "sessions", "sessions/0000000100000001", "events", "history", "tenants", "nothing")
        wrong = ("Bearer", "Bearer a-token-of-client", "Bearer a-token-of-clientsx", "Basic a-token-of-clients", "a-token-of-clients")
        for path, given in [*((path, "") for path in paths), *zip(paths, wrong)]:
            status, headers, body = cluster.ask(f"api/v1/{path}", Authorization=given)
            self.assertEqual((status, "token" in json.loads(body)["error"]), (401, True), (path, given))
            self.assertIn("Bearer", headers["WWW-Authenticate"])
        self.assertIn(f'banyan_refused_total{{reason="token"}} {len(wrong)}\n', cluster.ask("metrics")[2].decode())
        self.assertIn("127.0.0.1 over HTTP is refused", "".join(e["text"] for e in cluster.api("events")["events"]))
        self.assertTrue(cluster.api("cluster")["ready"])
        self.assertEqual(cluster.ask("")[0], 200)  # the page asks for it
        self.assertEqual(cluster.ask("metrics")[0], 200)
        made = cluster.ctl("token", "create", "reader", "--tenant", "research", "--access", "user")
        token = re.search(r"\bbanyan_\S+|\S{32,}", made).group()
        for path in paths:  # of a tenant: nothing, not even whether it is there
            status, _, body = cluster.ask(f"api/v1/{path}", Authorization=f"Bearer {token}")
            self.assertEqual((status, "operator or admin" in json.loads(body)["error"]), (403, True), path)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
