# SPDX-License-Identifier: Apache-2.0
"""A server that speaks the dashboard's API with invented numbers, for sizes that no test machine has: 256
workers and 10,000 sessions. It serves the page's files from the source, with the headers of the daemon.
Numbers move from one answer to the next.

    canned.py [--workers N] [--sessions N] [--port P]      then open http://127.0.0.1:P/
"""
import argparse
import http.server
import json
import math
import pathlib
import random
import sys
import threading
import time
import urllib.parse

PAGE = pathlib.Path(__file__).resolve().parents[2] / "coordinator" / "dashboard" / "page"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".svg": "image/svg+xml"}
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
STATES = ("active",) * 40 + ("degraded", "unavailable")
WORDS = ("war-and-peace", "monorepo", "case-law", "genome", "support", "notebook", "archive", "agent", "radio", "atlas")


class Cluster:
    """What the invented cluster says. One at a time: its lock is the server's."""

    def __init__(self, workers, sessions, seed=7, name="w{:03}"):
        self.random, self.name = random.Random(seed), name
        self.lock, self.started = threading.Lock(), time.monotonic()
        hosts = max(1, workers // 8)
        self.workers = [self.worker(i, f"node-{i * hosts // workers + 1:02}") for i in range(workers)]
        self.sessions = [self.session(i) for i in range(sessions)]
        self.planned = None  # how many workers the plans have; None: all
        self.asked, self.sorted = [], set()
        self.term = self.events_term = 12  # of the coordinator, and of its events

    def ns(self):
        return int((time.monotonic() - self.started) * 1e9) + 3_600_000_000_000

    def steps(self):
        return int((self.ns() - 3_600_000_000_000) * 1e-9 * 1840) + 48_211_904

    def worker(self, i, host):
        r = self.random
        capacity = 64 << 30
        state = "lost" if i % 97 == 41 else "suspect" if i % 97 == 67 else "active"
        return {"name": self.name.format(i), "host": host, "state": state, "endpoint": f"tcp://{host}:7500", "kernel": "avx512",
                "version": "1.0.0", "no_device": "", "engine": "stream", "drain_reason": "new memory" if i % 89 == 30 else "", "draining": i % 89 == 30,
                "slow": i % 101 == 11, "pace": 0.98, "capacity_bytes": capacity, "used_bytes": int(capacity * r.uniform(0.35, 0.8)), "reserved_bytes": int(capacity * 0.05),
                "cold_bytes": (3 << 30) if i % 5 == 0 else 0, "store_bytes": 0, "quarantined_bytes": 0, "quarantined_sessions": 0,
                "planned_bandwidth": int(r.uniform(88e9, 96e9)), "seen_bandwidth": int(r.uniform(80e9, 95e9)), "threads": 16,
                "chunks": r.randrange(4000, 9000), "tokens": r.randrange(1_000_000, 2_200_000), "sessions": r.randrange(40, 400),
                "steps": r.randrange(10**6, 10**7), "moves": 0, "last_compute_ns": r.randrange(180_000, 950_000), "heartbeat_age_ns": 10**8}

    def session(self, i):
        r = self.random
        tokens = int(10 ** r.uniform(2.5, 6.2))
        return {"id": f"{0x100000001 + i:016x}", "name": f"{WORDS[i % len(WORDS)]}-{i:05}" if i % 19 else "", "state": r.choice(STATES),
                "tokens": tokens, "bytes": tokens * 131072, "chunks": -(-tokens // 256), "thin_chunks": 0, "layers": 32,
                "members": max(1, min(16, tokens // 4096)), "replicas": 2, "steps": r.randrange(10**6), "idle_ns": int(10 ** r.uniform(8, 13))}

    # ---- answers ----
    def cluster(self, _):
        steps = self.steps()
        counts = [0] * 7 + [steps // 40, steps // 8, steps // 2, steps // 4, steps // 12, steps // 60, steps // 900] + [0] * 14
        return {"cluster": "production", "version": "1.0.0", "ready": True, "health": "ok", "term": 12,
                "uptime_ns": self.ns(), "now_ns": self.ns(), "limits": [], "clients": 48, "sessions": len(self.sessions),
                "session_states": {"lost": 0, "unavailable": sum(s["state"] == "unavailable" for s in self.sessions),
                                   "degraded": sum(s["state"] == "degraded" for s in self.sessions), "changing": 0, "active": 1, "lost_chunks": 0},
                "thin_chunks": 212, "moves": 3, "wished_chunks": 0, "items": 17,
                "counters": {"steps": steps, "frames": steps // 3, "retries": 31, "failures": 4, "partial_answers": 0, "audited": 0,
                             "audit_differences": 0, "moved_chunks": 0, "moved_bytes": 0, "struck_copies": 0, "corrupt_copies": 0},
                "took": {"first_ns": 1024, "counts": counts, "sum_ns": 0}, "tree": {"first_ns": 1024, "counts": counts, "sum_ns": 0}}

    def all_workers(self, query):
        for w in self.workers:
            if w["state"] == "active":
                w["steps"] += self.random.randrange(40, 400)
                w["last_compute_ns"] = self.random.randrange(180_000, 950_000)
                w["heartbeat_age_ns"] = self.random.randrange(10**7, 6 * 10**8)
        if "name" in query:
            limits = [{"name": "kv_bytes", "flag": "the worker's --memory", "used": 31 << 30, "max": 64 << 30, "refused": 0}, {"name": "steps", "flag": "--max-steps", "used": 3, "max": 1024, "refused": 2}]
            return {"now_ns": self.ns(), "workers": [{**w, "limits": limits} for w in self.workers if w["name"] == query["name"]]} if any(w["name"] == query["name"] for w in self.workers) else None
        return {"now_ns": self.ns(), "workers": self.workers}

    def plan(self, number):
        """A tree of two levels: within a host a fan of 3, between hosts of 4."""
        workers = self.workers[:self.planned]
        members = workers if number == 1 else workers[: max(1, len(workers) // (2 * number))]
        nodes, tops = [], []
        for i, w in enumerate(members):
            first = i == 0 or members[i - 1]["host"] != w["host"]
            if first:
                parent = -1 if not tops else tops[(len(tops) - 1) // 4]
                tops.append(i)
            else:
                parent = tops[-1] + (i - tops[-1] - 1) // 3
            nodes.append([w["name"], w["host"], parent])
        return {"id": f"{number:016x}", "state": "ready", "engine": "stream", "root": members[0]["name"], "members": len(members),
                "sessions": 4000 // number, "in_flight": 2, "digest": "5f3a" * 4, "why": "", "nodes": nodes}

    def plans(self, _):
        return {"plans": [{k: v for k, v in self.plan(n).items() if k != "nodes"} for n in (1, 2, 3, 4)]}

    def list(self, query):
        keys = {"idle": "idle_ns"}
        sort, down = query.get("sort", "name"), query.get("order") == "down"
        text, state = query.get("q", "").lower(), query.get("state", "")
        rows = [s for s in self.sessions if (not text or text in s["name"].lower() or text in s["id"]) and (not state or s["state"] == state)]
        rows.sort(key=lambda s: (sort == "name" and not s["name"], s[keys.get(sort, sort)], s["id"]), reverse=down)
        offset, limit = int(query.get("offset", 0)), int(query.get("limit", 100))
        return {"total": len(self.sessions), "matching": len(rows), "sorted": len(rows), "offset": offset, "sessions": rows[offset:offset + limit]}

    def busy(self, query):
        """Whether this order has not been asked for yet: the first time it is 429, as a coordinator says that
        has just sorted."""
        wish = tuple(sorted((name, value) for name, value in query.items() if name not in ("offset", "limit")))
        with self.lock:
            first = wish not in self.sorted
            self.sorted.add(wish)
        return first

    def one(self, identity):
        s = next((s for s in self.sessions if s["id"] == identity), None)
        if not s:
            return None
        n, chunks = max(1, min(s["members"], len(self.workers))), s["chunks"]
        lanes = [{"worker": w["name"], "active": w["state"] == "active", "tokens": 0, "chunks": 0, "serves": [], "follows": []} for w in self.workers[:n]]
        for c in range(chunks):
            run = (c // 9) % n
            end = min(s["tokens"], (c + 1) * 256)
            for kind, lane in (("serves", lanes[run]), ("follows", lanes[(run + 1) % n])):
                if lane[kind] and sum(lane[kind][-1]) == c * 256:
                    lane[kind][-1][1] += end - c * 256
                elif len(lane[kind]) < 400:
                    lane[kind].append([c * 256, end - c * 256])
            lanes[run]["tokens"] += end - c * 256
            lanes[run]["chunks"] += 1
        return {**s, "epoch": 14, "incarnation": 1, "length": s["tokens"], "end": s["tokens"], "forgotten": 0, "sealed": max(0, chunks - 1),
                "grain": 0, "lengths": [s["tokens"]] * s["layers"], "holders": lanes, "lost": [], "plan": f"{1:016x}",
                "spec": {"q_heads": 32, "kv_heads": 8, "k_dim": 128, "v_dim": 128, "kv_type": "bf16", "window": 0, "kinds": 0, "chunk_tokens": 256,
                         "replicas": 2, "token_bytes": 131072, "idle_ttl_ns": 0}}

    def mass(self, identity):
        s = self.one(identity)
        bins = min(128, s["chunks"])
        steps = []
        for layer in range(s["layers"]):
            r = random.Random(layer * 31 + int(identity, 16))
            spots = [(r.randrange(bins), r.uniform(0.2, 1) * (0.4 + layer / s["layers"])) for _ in range(5)]
            row = [0.002 * r.random() + sum(h * math.exp(-abs(b - at) / 1.4) for at, h in spots) * 0.3 for b in range(bins)]
            row[0] += 0.9 if layer > 3 else 0.2
            row[-1] += 0.8
            row[-2] += 0.3 if bins > 1 else 0
            total = sum(row)
            steps.append({"step": s["steps"] + layer, "layer": layer, "first": s["tokens"] - 1, "rows": 1, "visible": s["tokens"], "append": True,
                          "attempts": 1, "age_ns": 10**9, "left_out": 0, "bin_tokens": -(-s["chunks"] // bins) * 256, "bins": [x / total for x in row],
                          "workers": [], "sink": 0.0, "failure": None})
        return {"session": identity, "watching": True, "full": False, "steps": steps}

    def trace(self, identity):
        lanes, r = self.one(identity)["holders"], self.random
        steps = [{"step": 1, "layer": layer, "first": 0, "rows": 1, "visible": 1, "append": True, "attempts": 1, "age_ns": 10**9, "left_out": 0,
                  "total_ns": 1_140_000, "tree_ns": 1_040_000, "mass_ns": 0, "coordinator_ns": 100_000,
                  "workers": [{"worker": lane["worker"], "rank": i, "parent": (i - 1) // 3 if i else -1, "tokens": lane["tokens"],
                               "queue_ns": r.randrange(9_000, 60_000), "compute_ns": r.randrange(380_000, 520_000),
                               "wait_ns": 0 if 3 * i + 1 >= len(lanes) else r.randrange(120_000, 420_000)} for i, lane in enumerate(lanes)]} for layer in range(8)]
        return {"session": identity, "watching": True, "full": False, "steps": steps}

    def events(self, query):
        def name(i):
            return self.workers[i % len(self.workers)]["name"]
        texts = [("info", "worker-active", "the worker is active: it has its layouts", name(3)),
                 ("warn", "worker-slow", "it computes at 41 % of its planned speed, others do not: its chunks move", name(11)),
                 ("error", "worker-lost", "a worker is lost: three heartbeats are missing; others serve its chunks", name(41)),
                 ("info", "session-created", "a session was created", "")]
        now = time.time_ns()
        after = int(query.get("after", 0))
        anew = after > 0 and int(query.get("term", 0)) != self.events_term
        after = 0 if anew else after
        events = [{"seq": n, "term": self.events_term, "wall_ns": now - ((40 - n) * 37 + (86400 if n < 8 else 0)) * 10**9, "severity": texts[n % 4][0], "kind": texts[n % 4][1], "text": texts[n % 4][2],
                   "worker": texts[n % 4][3] or None, "session": None if n % 4 != 3 else self.sessions[n]["id"], "session_name": self.sessions[n]["name"] or None,
                   "epoch": 0, "count": 1} for n in range(1, 41) if n > after and len(self.sessions) > 40]
        return {"term": self.term, "first": 1, "last": 40 if events or after else 0, "anew": anew, "events": events}

    def history(self, _):
        """A sample each 30 s of the hour before the first answer."""
        r, n = random.Random(3), 120
        end = 3_600_000_000_000
        load = [1 + 0.35 * math.sin(i / 11) + 0.1 * r.random() for i in range(n)]
        series = {"at_ns": [end - (n - 1 - i) * 30 * 10**9 for i in range(n)], "span_ns": [30 * 10**9] * n, "steps": [int(55_000 * x) for x in load],
                  "failures": [4 if i == 71 else 0 for i in range(n)], "retries": [31 if i == 71 else 0 for i in range(n)],
                  "p50_ns": [int(430_000 * (0.8 + 0.2 * x)) for x in load], "p99_ns": [int((2_900_000 if i != 71 else 9_000_000) * (0.8 + 0.2 * x)) for i, x in enumerate(load)],
                  "used_bytes": [int(sum(w["used_bytes"] for w in self.workers) * (0.9 + 0.1 * i / n)) for i in range(n)], "capacity_bytes": [sum(w["capacity_bytes"] for w in self.workers)] * n,
                  "workers": [len(self.workers)] * n, "active": [len(self.workers) - (i > 70) * (len(self.workers) > 41) for i in range(n)],
                  "sessions": [len(self.sessions)] * n, "thin_chunks": [212 if i > 70 else 0 for i in range(n)]}
        return {"now_ns": self.ns(), "every_ns": 30 * 10**9, "most": n, "counters": {"failures": 4, "retries": 31}, "series": series}

    def tenants(self, query):
        names = ["default", "research", "search-production-eu-west", "search-production-us-east", "chat"]
        r = random.Random(5)
        rows = [{"name": name, "steps": r.randrange(10**7), "quotas": {q: {"used": r.randrange(1, most), "max": most if i % 3 else 0, "refused": 12 if i == 2 and q == "steps_per_s" else 0}
                                                                       for q, most in (("bytes", 1 << 40), ("sessions", 4000), ("steps_per_s", 900), ("steps_in_flight", 64), ("connections", 128), ("watches", 16))}}
                for i, name in enumerate(names)]
        some = [row for row in rows if query.get("q", "").lower() in row["name"]]
        return {"total": len(rows), "matching": len(some), "offset": 0, "tenants": some}

    def answer(self, path, query):
        words = path.split("/")
        with self.lock:
            self.asked.append(path)
            if words[0] == "sessions" and len(words) > 1:
                return {2: self.one, 3: self.mass if words[-1] == "mass" else self.trace}[len(words)](words[1])
            if words[0] == "plans" and len(words) > 1:
                return self.plan(int(words[1], 16))
            return {"cluster": self.cluster, "workers": self.all_workers, "plans": self.plans, "sessions": self.list, "events": self.events,
                    "history": self.history, "tenants": self.tenants}[words[0]](query)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if url.path.startswith("/api/v1/"):
            path, query = url.path[len("/api/v1/"):], dict(urllib.parse.parse_qsl(url.query))
            if path == "sessions" and self.server.cluster.busy(query):
                self.send(429, "application/json", b'{"error": "ask again"}')
                return
            answer = self.server.cluster.answer(path, query)
            self.send(200 if answer else 404, "application/json", json.dumps(answer or {"error": "there is no such thing"}).encode())
            return
        file = PAGE / ("index.html" if url.path == "/" else pathlib.Path(url.path).name)
        if file.is_file():
            self.send(200, TYPES[file.suffix], file.read_bytes())
        else:
            self.send(404, "text/plain", b"")

    def send(self, code, kind, body):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a browser that has gone
            super().handle_error(request, address)


def serve(workers, sessions, port=0, **options):
    server = Server(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.cluster = Cluster(workers, sessions, **options)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--workers", type=int, default=256)
    parser.add_argument("--sessions", type=int, default=10000)
    parser.add_argument("--port", type=int, default=9499)
    options = parser.parse_args()
    server = serve(options.workers, options.sessions, options.port)
    print(f"http://127.0.0.1:{server.server_port}/", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
