#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""research/paper_service.sh: the whole service on emulated hosts answers exactly, by each engine, and with workers on a
device where a module for it is named. No times.

    paper_service_test.py NETCLUSTER SERVICE BUILD [MODULE]
"""

import json
import os
import subprocess
import sys
import unittest

CLUSTER, SERVICE, BUILD = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
MODULE = sys.argv.pop(1) if len(sys.argv) > 1 else None


def run(engine, *args, of_script=(), **env):
    command = [CLUSTER, "--nodes", "2", "--per-node", "2", SERVICE, "--build", BUILD, "--engine", engine, "--per-node", "2", *of_script, "--",
               "--json", "--samples", "--geometry", "4/2x64", "--rounds", "5", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=dict(os.environ, **env))


def service(engine, *args, **more):
    done = run(engine, *args, **more)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class Service(unittest.TestCase):
    def check(self, engine):
        results = service(engine, "--tokens", "16", "+", "--json", "--samples", "--geometry", "4/2x64", "--rounds", "5", "--tokens", "512")
        self.assertEqual([r["tokens_per_worker"] for r in results], [16, 512])
        for r in results:
            self.assertEqual((r["algo"], r["workers"], len(r["samples_us"])), (f"service-{engine}", 4, 5))
            self.assertLess(r["of_bound"], 1)
            self.assertEqual(r["kv_peak_bytes"], r["tokens_per_worker"] * 2 * 64 * 2 * 2)
            self.assertGreater(r["bytes_sent_per_rank"], r["formula_bytes"])
            self.assertEqual(r["device"], "cpu")

    def test_stream(self):
        self.check("stream")

    def test_mpi(self):
        if not os.path.exists(os.path.join(BUILD, "lib", "banyan-mpi.so")):
            self.skipTest("banyan-mpi.so is not built")
        self.check("mpi")

    @unittest.skipUnless(MODULE, "no device module")
    def test_on_a_device(self):
        on_device = ("--device", "cuda", "--device-module", MODULE, "--memory", "512M")
        (r,) = service("stream", "--tokens", "32", of_script=on_device)
        self.assertEqual((r["workers"], r["device"]), (4, "cuda"))
        self.assertLess(r["of_bound"], 1)
        done = run("stream", "--tokens", "32", of_script=on_device, BANYAN_EMULATED_DEVICES="0")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("--device cuda: a worker has none", done.stderr)


if __name__ == "__main__":
    if os.geteuid() != 0 or subprocess.run([CLUSTER, "--nodes", "1", "--per-node", "1", "true"], check=False).returncode != 0:
        print("skipped: no root, or no network namespaces here")
        raise SystemExit(77)
    unittest.main()
