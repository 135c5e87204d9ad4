# SPDX-License-Identifier: Apache-2.0
"""A cluster in a folder that is a system of its own (chroot), and a session in it whose answers are known."""
import fcntl
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

Q_HEADS, DIM, TOKENS = 2, 4, 600  # three chunks
PATIENCE_S = 120
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C",
               "DEBIAN_FRONTEND": "noninteractive"}
FOR_DEB = {"dpkg-buildpackage": "dpkg-dev", "dh": "debhelper", "dh_python3": "dh-python"} # tools of package.sh deb


def skip(why):
    print(f"{pathlib.Path(sys.argv[0]).stem}: skipped: {why}")
    sys.exit(77)


def need(tools):
    """Of a test that makes a system: root, and programs, each with its package in Debian."""
    if os.getuid() != 0:
        skip("a minimal system is made by root")
    for tool, package in tools.items():
        if not shutil.which(tool):
            skip(f"{tool} is not here (in Debian: {package}); deploy/install-deps.sh --packages installs it")


def base_system(name, *more, release=("12", "bookworm")):
    """A minimal Debian, with further packages, made once and kept under the user's cache folder."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "banyan"
    number, codename = release
    root, ready = cache / f"debian-{number}-{name}", cache / f"debian-{number}-{name}.ready"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"debian-{number}-{name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists() or ready.read_text() != ",".join(more):
            if os.environ.get("BANYAN_NO_INSTALL") == "1":
                skip(f"{root} is not there, and nothing is to be installed")
            ready.unlink(missing_ok=True)
            shutil.rmtree(root, ignore_errors=True)
            include = [f"--include={','.join(more)}"] if more else []
            made = subprocess.run(["debootstrap", "--variant=minbase", *include, codename, root], capture_output=True, text=True)
            check(made.returncode == 0, "debootstrap has failed:", made.stdout[-2000:], made.stderr)
            ready.write_text(",".join(more))
    return root


def repack(debs, out):
    """The same packages under the next version."""
    out.mkdir()
    for deb in debs:
        tree = out / "tree"
        subprocess.run(["dpkg-deb", "--raw-extract", deb, tree], check=True)
        control = tree / "DEBIAN/control"
        text = control.read_text()
        version = re.search(r"^Version: (.*)$", text, re.M)[1]
        control.write_text(text.replace(version, version + ".1"))
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, out], check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(tree)


class Failed(Exception):
    pass


def check(truth, *what):
    if not truth:
        raise Failed(" ".join(str(w) for w in what))


def loopback_up():
    """In a network namespace that is new."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = bytearray(struct.pack("16sh22x", b"lo", 1))  # struct ifreq; IFF_UP
        fcntl.ioctl(s, 0x8914, request)  # SIOCSIFFLAGS


class System:
    """What runs in `root`; programs are below `prefix` there."""

    def __init__(self, root, prefix):
        self.root, self.prefix, self.running = pathlib.Path(root), prefix, {}

    def at(self, path):
        return self.root / path.lstrip("/")

    def run(self, *command):
        done = subprocess.run(["chroot", self.root, *command], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=ENVIRONMENT)
        check(done.returncode == 0, " ".join(command), "ended with", done.returncode, "\n", done.stdout, done.stderr)
        return done.stdout

    def ctl(self, *arguments):
        return self.run(f"{self.prefix}/bin/banyanctl", *arguments)

    def start(self, name, program, *options):
        ready, log = self.at(f"/tmp/{name}.ready"), self.at(f"/tmp/{name}.log")
        ready.unlink(missing_ok=True)
        with open(log, "ab") as out:
            command = ["chroot", self.root, f"{self.prefix}/bin/{program}", f"--ready-file=/tmp/{name}.ready", *options]
            process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=ENVIRONMENT)
        self.running[name] = process
        end = time.monotonic() + PATIENCE_S
        while not ready.exists():
            check(process.poll() is None and time.monotonic() < end, name, "does not start:\n", log.read_text())
            time.sleep(0.05)

    def start_coordinator(self):
        self.start("coordinator", "banyan-coordinator", "--secret-file=/etc/banyan/cluster.secret",
                   "--store=/var/lib/private/banyan-coordinator/coordinator.db")

    def start_worker(self, instance):
        self.start(f"w{instance}", "banyan-worker", f"--name=w{instance}", "--coordinator=tcp://127.0.0.1:7412", "--memory=256M", "--threads=1",
                   "--secret-file=/etc/banyan/cluster.secret", f"--store=/var/lib/private/banyan-worker/{instance}")

    def stop(self, name):
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE_S)
        check(code == 0, name, "ended with", code)

    def stop_all(self):
        for name in sorted(self.running, reverse=True): # workers first
            self.stop(name)

    def make_state(self):
        """As systemd makes it for the units."""
        for path in ("banyan-coordinator", "banyan-worker"):
            os.makedirs(self.at(f"/var/lib/private/{path}"), mode=0o700)
            self.at(f"/var/lib/{path}").symlink_to(f"private/{path}")


class Session:
    """One session of random rows, its step through banyanctl, and what attention of that step is."""

    def __init__(self, system, name):
        self.system, self.name, self.draw = system, name, random.Random(7)
        self.keys, self.values = self.rows(TOKENS), self.rows(TOKENS)
        system.ctl("session", "create", f"--q-heads={Q_HEADS}", "--kv-heads=1", f"--dim={DIM}", "--kv-type=f32", "--replicas=2", name)
        self.write("/tmp/context.safetensors", {"layers.0.k": (self.keys, (TOKENS, 1, DIM)), "layers.0.v": (self.values, (TOKENS, 1, DIM))})
        system.ctl("attach", "--commit", name, "/tmp/context.safetensors")

    def rows(self, count):
        return [self.draw.uniform(-2, 2) for _ in range(count * DIM)]

    def write(self, path, tensors):
        header, data = {}, b""
        for name, (values, shape) in tensors.items():
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
            data += struct.pack(f"<{len(values)}f", *values)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.system.at(path).write_bytes(struct.pack("<Q", len(text)) + text + data)

    def answer(self):
        raw = self.system.at("/tmp/answer.safetensors").read_bytes()
        length = struct.unpack("<Q", raw[:8])[0]
        begin, end = json.loads(raw[8:8 + length])["o"]["data_offsets"]
        return raw[8 + length + begin:8 + length + end]

    def step(self):
        """Appends a token and attends it."""
        q, k, v = self.rows(Q_HEADS), self.rows(1), self.rows(1)
        self.write("/tmp/step.safetensors", {"q": (q, (1, Q_HEADS, DIM)), "k": (k, (1, 1, DIM)), "v": (v, (1, 1, DIM))})
        self.system.ctl("attend", "--out=/tmp/answer.safetensors", self.name, "/tmp/step.safetensors")
        self.keys += k
        self.values += v
        got = struct.unpack(f"<{Q_HEADS * DIM}f", self.answer())
        for head in range(Q_HEADS):
            row = q[head * DIM:(head + 1) * DIM]
            logits = [sum(a * b for a, b in zip(row, self.keys[t:t + DIM])) / math.sqrt(DIM) for t in range(0, len(self.keys), DIM)]
            weights = [math.exp(x - max(logits)) for x in logits]
            for d in range(DIM):
                wanted = sum(w * self.values[t * DIM + d] for t, w in enumerate(weights)) / sum(weights)
                check(abs(got[head * DIM + d] - wanted) < 1e-4, "head", head, "element", d, "is", got[head * DIM + d], "and not", wanted)

    def verify(self):
        shown = json.loads(self.system.ctl("session", "show", "-o", "json", self.name))
        check(int(shown["length"]) == len(self.keys) // DIM, "not", len(self.keys) // DIM, "tokens:", shown)
        self.system.ctl("session", "verify", self.name)
