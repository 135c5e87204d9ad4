#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""banyanctl sessions and workers: in which order, how many, which build. status beside /metrics.

    lists_test.py BIN        BIN: the folder of the programs
"""
import json
import pathlib
import signal
import subprocess
import sys
import time
import unittest
import urllib.request

import daily

BIN = sys.argv.pop(1)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
import openmetrics  # noqa: E402  (its folder is known only now)


class Lists(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = daily.Cluster(BIN)
        cls.cluster.coordinator()
        cls.cluster.worker("a")
        cls.cluster.ctl("wait", "workers", "1")
        for name, tokens, dim in (("middle", 40, 16), ("zebra", 20, 64), ("ant", 60, 4)):
            file = f"{cls.cluster.folder}/{name}.safetensors"
            daily.write_tokens(file, tokens, dim)
            cls.cluster.ctl("session", "create", "--q-heads=1", f"--dim={dim}", "--kv-type=f32", name)
            cls.cluster.ctl("attach", name, file, "--commit")
            if name != "zebra":
                cls.cluster.ctl("session", "truncate", name, str(tokens - 1), "--yes")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def names(self, *words):
        return [s["name"] for s in self.cluster.json("sessions", *words)]

    def test_order(self):
        ids = [s["id"] for s in self.cluster.json("sessions")]
        self.assertEqual(ids, sorted(ids))
        self.assertEqual(self.names("--sort", "name"), ["ant", "middle", "zebra"])
        self.assertEqual(self.names("--sort=name", "-r"), ["zebra", "middle", "ant"])
        self.assertEqual(self.names("--sort=tokens"), ["ant", "middle", "zebra"])
        self.assertEqual(self.names("-s", "idle", "-n1"), ["middle"])
        by_bytes = self.cluster.json("sessions", "--sort=memory")
        self.assertEqual([s["bytes"] for s in by_bytes], sorted((s["bytes"] for s in by_bytes), reverse=True))
        self.assertEqual([s["name"] for s in by_bytes], ["zebra", "middle", "ant"])
        self.assertEqual(self.names("--sort=memory", "--limit=2"), ["zebra", "middle"])
        self.assertEqual(len(self.names("--sort=steps", "--limit=7")), 3)
        self.assertIn("'size' is not one of id, name, memory", self.cluster.ctl("sessions", "--sort=size", code=2)[1])
        self.cluster.ctl("sessions", "--limit=0", code=2)

    def yaml_rows(self, *words):
        """Of block style: objects whose members are values or lists of them, as JSON has them."""
        rows = []
        lines = self.cluster.ctl(*words, "-o", "yaml")[0].splitlines()
        self.assertEqual(lines.pop(0), "---")
        for line in lines:
            self.assertIn(line[:2], ("- ", "  "))
            if line.startswith("    - "):
                rows[-1][key].append(json.loads(line[6:]))
                continue
            if line[0] == "-":
                rows.append({})
            key, value = line[2:].split(":", 1)
            rows[-1][key] = json.loads(value) if value else []
        return rows

    def test_formats(self):
        ctl = self.cluster.ctl
        rows = self.cluster.json("sessions", "--sort=name")
        for row in rows:
            row.pop("idle_ns")
        yaml = self.yaml_rows("sessions", "--sort=name")
        for row in yaml:
            row.pop("idle_ns")
        self.assertEqual(yaml, rows)
        self.assertEqual(ctl("sessions", "-o", "name")[0].split(), sorted(r["id"] for r in rows))
        self.assertEqual(ctl("workers", "-o", "name")[0], "a\n")
        self.assertEqual(ctl("worker", "show", "a", "-o", "name")[0], "a\n")
        # By heading or JSON name, those of --output=wide, too, in the order given.
        lines = ctl("sessions", "--sort=name", "--columns", "tokens,name")[0].splitlines()
        self.assertEqual([line.split() for line in lines],
                         [["TOKENS", "NAME"]] + [[str(r["length"]), r["name"]] for r in rows])
        self.assertEqual(ctl("workers", "--columns=version")[0].split()[0], "VERSION")
        self.assertEqual(self.cluster.json("sessions", "--sort=name", "--columns=name"),
                         [{"name": r["name"]} for r in rows])
        self.assertEqual(ctl("worker", "show", "a", "--columns=NAME")[0].split(), ["name", "a"])
        self.assertIn("no column 'size'; there are id, name", ctl("sessions", "--columns=size", code=2)[1])
        self.assertIn("not one of table, wide, name, json", ctl("sessions", "-o", "xml", code=2)[1])

    def test_examples(self):
        """Each command's help ends with its own two; that they are right: tests/tools/check_commands.py."""
        for command in json.loads(self.cluster.ctl("--tables")[0])["commands"]:
            name, lines = command["name"], command["examples"]
            self.assertEqual(len(lines), 2, name)
            self.assertTrue(all(line == name or line.startswith(name + " ") for line in lines), name)
            says = self.cluster.ctl("help", *name.split())[0]
            self.assertTrue(says.endswith("".join(f"  banyanctl {line}\n" for line in lines)), name)
            self.assertEqual(says.count("banyanctl --help"), 1, name)

    def test_version(self):
        version = subprocess.run([f"{BIN}/banyan-worker", "--version"], capture_output=True, text=True, check=True)
        said = self.cluster.json("workers")
        self.assertEqual([w["version"] for w in said], [version.stdout.split()[-1]])
        self.assertIn(" VERSION ", self.cluster.ctl("workers", "-o", "wide")[0].split("\n")[0])


class NoDevice(unittest.TestCase):
    """Workers with an option for a device that compute on their processors: below the table, once for each
    reason."""

    OLD = "no CUDA device: the driver supports CUDA 12.4, the module needs CUDA 13.0"

    def test_workers(self):
        cluster = daily.Cluster(BIN)
        self.addCleanup(cluster.close)
        cluster.coordinator()
        for i in range(6):
            cluster.worker_without(f"old-{i}", self.OLD)
        cluster.worker_without("odd", "\x1b[31mred\nand " + "long " * 60)
        cluster.worker("plain")
        cluster.ctl("wait", "workers", "8")
        said = {w["name"]: w["no_device"] for w in cluster.json("workers")}
        self.assertEqual({said[f"old-{i}"] for i in range(6)}, {self.OLD})
        self.assertEqual(said["plain"], "")
        self.assertEqual(said["odd"], ("?[31mred?and " + "long " * 60)[:191])
        text = cluster.ctl("workers")[0]
        table, below = text.split("\n\n")
        below = below.splitlines()
        self.assertEqual(len(table.split("\n")), 9)
        self.assertNotIn("12.4", table)
        names = {w["name"] for w in cluster.json("workers")}
        line = next(of for of in below if "12.4" in of)
        head, tail = line.split(" and 2 more use their processors: ")
        self.assertEqual(tail, self.OLD)
        self.assertEqual(len(set(head.split(", ")) & names), 4)
        self.assertTrue(next(of for of in below if "red" in of).startswith("odd uses its processor: ?[31mred?and long "))
        self.assertEqual(len(below), 2)


class Memory(unittest.TestCase):
    """Who holds how much of a session, and what of it its forks have, too."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = daily.Cluster(BIN)
        cls.cluster.coordinator()
        for name in "a", "b":
            cls.cluster.worker(name)
        cls.cluster.ctl("wait", "workers", "2")
        cls.file = f"{cls.cluster.folder}/rows.safetensors"
        daily.write_tokens(cls.file, 320, 16)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    ROW = 2 * 16 * 4

    def make(self, name, *words):
        self.cluster.ctl("session", "create", "--q-heads=1", "--dim=16", "--kv-type=f32", "--chunk-tokens=64", *words, name)
        self.cluster.ctl("attach", name, self.file, "--commit")

    def show(self, name):
        said = self.cluster.json("session", "show", name)
        return said["bytes"], said["shared_bytes"], {h["worker"]: h["bytes"] for h in said["holdings"]}

    def test_holders(self):
        self.make("copied", "--replicas=2")
        self.make("spread", "--replicas=1", "--members=2")
        self.assertEqual(self.show("copied"), (320 * self.ROW, 0, {"a": 320 * self.ROW, "b": 320 * self.ROW}))
        size, shared, held = self.show("spread")
        self.assertEqual((size, shared, sum(held.values())), (320 * self.ROW, 0, 320 * self.ROW))
        self.assertEqual(sorted(held.values()), [128 * self.ROW, 192 * self.ROW])
        self.cluster.ctl("session", "truncate", "spread", "100", "--yes")  # a chunk and a part of one
        self.assertEqual(sum(self.show("spread")[2].values()), 100 * self.ROW)
        said = self.cluster.ctl("session", "show", "copied")[0]
        self.assertRegex(said, r"bytes by worker +40\.0 KiB at a\n +40\.0 KiB at b\n")
        self.assertRegex(said, r"bytes shared +0 B")
        self.cluster.ctl("session", "create", "--q-heads=1", "--dim=16", "empty")
        self.assertEqual(self.show("empty"), (0, 0, {}))

    def test_forks(self):
        self.make("origin", "--replicas=2")
        self.cluster.ctl("session", "fork", "origin", "200", "near")
        self.cluster.ctl("session", "fork", "origin", "70", "far")
        self.assertEqual(self.show("origin")[:2], (320 * self.ROW, 192 * self.ROW))
        self.assertEqual(self.show("near"), (200 * self.ROW, 192 * self.ROW, {"a": 200 * self.ROW, "b": 200 * self.ROW}))
        self.assertEqual(self.show("far")[:2], (70 * self.ROW, 64 * self.ROW))
        self.cluster.ctl("session", "delete", "near", "--yes")
        self.assertEqual(self.show("origin")[:2], (320 * self.ROW, 64 * self.ROW))
        self.cluster.ctl("session", "delete", "origin", "--yes")
        self.assertEqual(self.show("far")[:2], (70 * self.ROW, 0))


    def test_no_room(self):
        big = f"{self.cluster.folder}/big.safetensors"
        daily.write_tokens(big, 1 << 19, 16)  # 64 MiB, twice: each worker has 32 for keys and values
        before = self.cluster.json("sessions")
        said = self.cluster.ctl("session", "create", "--replicas=2", f"--from={big}", "big", code=8)[1]
        self.assertIn("bytes left for another chunk", said)
        self.assertEqual([s["name"] for s in self.cluster.json("sessions")], [s["name"] for s in before])


class Numbers(unittest.TestCase):
    """What /metrics and 'status' both say."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = daily.Cluster(BIN)
        ready = pathlib.Path(cls.cluster.folder, "ready")
        cls.cluster.more = ("--http", "127.0.0.1:0", "--listen", f"{cls.cluster.endpoint},nng+tcp://127.0.0.1:0",
                            "--ready-file", str(ready))
        cls.cluster.coordinator()
        cls.cluster.worker("a")
        cls.cluster.ctl("wait", "workers", "1")
        said = json.loads(ready.read_text())
        cls.http = said["http"]
        cls.nng, = (endpoint for endpoint in said["endpoints"] if endpoint.startswith("nng+"))

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.http}/metrics") as answer:
            return openmetrics.parse(answer.read().decode(), False)

    def until(self, holds):
        end = time.monotonic() + daily.PATIENCE_S
        while not holds():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def test_clients(self):
        def counted():
            metrics = self.metrics()
            return metrics["banyan_clients"].value(), metrics["banyan_limit_used"].value(limit="nng_clients")

        self.until(lambda: counted() == (0, 0))  # an earlier banyanctl may still be ending
        followers = [self.cluster.background("events", "--follow", "-e", self.nng) for _ in range(2)]
        self.until(lambda: counted() == (2, 2))
        self.assertEqual(self.cluster.json("status")["clients"], 3)  # it is one itself
        self.assertEqual(self.cluster.json("status", "-e", self.nng)["clients"], 3)
        for follower in followers:
            follower.terminate()
            follower.communicate(timeout=daily.PATIENCE_S)
        self.until(lambda: counted() == (0, 0))

    def test_lost(self):
        def both():
            metrics, status, names = self.metrics(), self.cluster.json("status"), ("used_bytes", "capacity_bytes", "cold_bytes")
            return tuple((sum(metrics[f"banyan_worker_{name}"].samples.values()), status[name]) for name in names)

        file = f"{self.cluster.folder}/kept.safetensors"
        daily.write_tokens(file, 256, 64)
        self.cluster.ctl("session", "create", "--q-heads=1", "--dim=64", "--kv-type=f32", "--replicas=1", "kept")
        self.cluster.ctl("attach", "kept", file, "--commit")
        size = 2 * 256 * 64 * 4
        self.until(lambda: both()[0][0] >= size)  # heartbeats say so
        self.cluster.worker("b")
        self.cluster.ctl("wait", "workers", "2")
        self.until(lambda: both()[0][0] == both()[0][1])
        with_both = both()
        self.cluster.stop("a", signal.SIGKILL)
        self.until(lambda: [w["state"] for w in self.cluster.json("workers") if w["name"] == "a"] == ["lost"])
        used, capacity, cold = both()
        self.assertEqual((used[0], capacity[0], cold[0]), (used[1], capacity[1], cold[1]))
        self.assertEqual(capacity[0], with_both[1][0] / 2)
        self.assertLess(used[0], size)
        self.assertEqual(self.metrics()["banyan_worker_used_bytes"].value(worker="a"), 0)
        top = self.cluster.json("top", "--once")
        self.assertEqual((top["used_bytes"], top["capacity_bytes"]), (used[1], capacity[1]))
        self.cluster.ctl("session", "delete", "kept", "--yes")


if __name__ == "__main__":
    unittest.main()
