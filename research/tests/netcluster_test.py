#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""research/netcluster.sh: hosts reach each other, the command's status comes back, and nothing is left, whatever ends it."""

import os
import signal
import subprocess
import sys
import unittest

SCRIPT = sys.argv.pop(1)


def ours(pid):
    """What a script of this pid has made and not removed."""
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout.split()
    return [n for n in names if n.startswith(f"bnc{pid}-")] + [n for n in os.listdir("/tmp") if n.startswith(f"bnc{pid}.")]


def start(*args):
    return subprocess.Popen([SCRIPT, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Netcluster(unittest.TestCase):
    def test_hosts_talk_at_their_rates(self):
        # Host 0 serves, host 3 (of the other node) asks through the agent; both say who they are.
        ask = 'exec 3<>/dev/tcp/10.77.0.1/7000; head -c5 <&3; hostname'
        serve = ("import os, socket, subprocess\n"
                 "s = socket.create_server(('10.77.0.1', 7000))\n"
                 f"p = subprocess.Popen([os.environ['NETCLUSTER_AGENT'], '10.77.0.4', {ask!r}])\n"
                 "c, peer = s.accept()\n"
                 "print(peer[0], os.environ['NETCLUSTER_HOSTS'], flush=True)\n"  # before the other one speaks
                 "c.sendall(b'hello'); c.close()\n"
                 "raise SystemExit(p.wait() or 7)")
        run = start("--nodes", "2", "--per-node", "2", "--fast", "300M", "--slow", "30M", sys.executable, "-c", serve)
        out, err = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 7, err)
        self.assertIn("10.77.0.4 10.77.0.1 10.77.0.2 10.77.0.3 10.77.0.4", out)
        self.assertIn("hellohost3", out)
        self.assertEqual(ours(run.pid), [])

    def test_cleans_up_when_interrupted(self):
        for sig, status in ((signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            run = start("--nodes", "1", "--per-node", "2", "sh", "-c", "echo there; sleep 1000")
            self.assertEqual(run.stdout.readline(), "there\n")
            self.assertNotEqual(ours(run.pid), [])
            run.send_signal(sig)
            run.communicate(timeout=60)
            self.assertEqual(run.returncode, status)
            self.assertEqual(ours(run.pid), [])

    def test_cleans_up_what_a_killed_one_left(self):
        run = start("--nodes", "1", "--per-node", "2", "sh", "-c", "echo there; exec sleep 1000")
        self.assertEqual(run.stdout.readline(), "there\n")
        run.kill()
        run.wait()
        self.assertNotEqual(ours(run.pid), [])
        self.assertEqual(subprocess.run([SCRIPT, "--clean"], check=False).returncode, 0)
        self.assertEqual(ours(run.pid), [])
        run.communicate(timeout=60) # its command is gone, too: the pipe ends

    def test_mistakes(self):
        for args in ((), ("--nodes", "0", "true"), ("--fast", "x", "true"), ("--nodes", "16", "--per-node", "16", "true"), ("--what", "true")):
            run = subprocess.run([SCRIPT, *args], capture_output=True, text=True, check=False)
            self.assertEqual(run.returncode, 2, args)


if __name__ == "__main__":
    if os.geteuid() != 0 or subprocess.run([SCRIPT, "--nodes", "1", "--per-node", "1", "true"], check=False).returncode != 0:
        print("skipped: no root, or no network namespaces here")
        raise SystemExit(77)
    unittest.main()
