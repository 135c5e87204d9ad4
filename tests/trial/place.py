# SPDX-License-Identifier: Apache-2.0
"""The place of the trial: real daemons over TLS, each with its own certificate, tokens of two tenants, and
what an attacker would have stolen of it. Ended with the object."""
import contextlib
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import wire

PATIENCE_S = wire.PATIENCE_S


class Place:
    """tls: False: all endpoints are plain. Tokens are made with `token`; that of the token file is an
    admin's."""

    def __init__(self, binaries, workers=2, tls=True, coordinator=(), worker=()):
        self.bin, self.tls, self.processes = pathlib.Path(binaries), tls, {}
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="banyan-trial-"))
        self.pki, self.more_worker = self.path / "pki", list(worker)
        self.admin = "the-admin's-token-of-this-trial"
        self.private("admin.token", self.admin + "\n")
        self.private("door.token", "what-workers-take-beside-passes\n")
        try:
            if tls:
                self.run("pki", "init", self.pki)
            self.start_coordinator(*coordinator)
            for i in range(workers):
                self.start_worker(f"w{i}")
            self.until(lambda: self.active() == workers, f"{workers} workers are active")
        except BaseException:
            self.stop()
            raise

    def private(self, name, text):
        path = self.path / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    # ---- daemons

    def issue(self, role, name):
        """The path of a certificate and its key, without their endings."""
        if not (self.pki / f"{name}.pem").exists():
            host = [] if role == "client" else ["--host", "127.0.0.1"]
            self.run("pki", "issue", self.pki, "--role", role, "--name", name, *host)
        return self.pki / name

    def certificate(self, role, name):
        if not self.tls:
            return []
        pair = self.issue(role, name)
        return [f"--tls-cert={pair}.pem", f"--tls-key={pair}.key", f"--tls-ca={self.pki}/ca.pem"]

    def start(self, name, program, *arguments):
        ready = self.path / f"{name}.ready"
        ready.unlink(missing_ok=True)
        with open(self.path / f"{name}.log", "ab") as log:
            process = subprocess.Popen([self.bin / program, f"--secret-file={self.path}/secret", f"--ready-file={ready}", *arguments],
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.processes[name] = process
        self.until(lambda: ready.exists() or process.poll() is not None, f"{name} is ready")
        assert process.poll() is None, f"{name} ended with {process.returncode}: {self.log(name)}"
        return json.loads(ready.read_text())

    def start_coordinator(self, *more, name="coordinator"):
        scheme = "tls" if self.tls else "tcp"
        ready = self.start(name, "banyan-coordinator", f"--listen={scheme}://127.0.0.1:0,nng+{scheme}://127.0.0.1:0",
                           f"--store={self.path}/store.db", f"--token-file={self.path}/admin.token", "--http=127.0.0.1:0",
                           *self.certificate("coordinator", name), *more)
        listens = ready["endpoints"] if "endpoints" in ready else [ready["endpoint"]]
        endpoint = next(e for e in listens if e.startswith(f"{scheme}://"))
        if name == "coordinator":
            self.endpoint, self.ready = endpoint, ready
            self.nng = next((e for e in listens if e.startswith("nng+")), None)
        return endpoint

    def start_worker(self, name, *more, certificate=None, coordinator=None):
        scheme = "tls" if self.tls else "tcp"
        return self.start(name, "banyan-worker", f"--name={name}", f"--host=host-{name}", f"--coordinator={coordinator or self.endpoint}",
                          f"--listen={scheme}://127.0.0.1:0", f"--edge-listen={scheme}://127.0.0.1:0", "--memory=64M", "--threads=1",
                          "--device=cpu", "--bandwidth=1G", f"--token-file={self.path}/door.token",
                          *self.certificate("worker", certificate or name), *self.more_worker, *more)

    def worker(self, name):
        return json.loads((self.path / f"{name}.ready").read_text())

    def log(self, name):
        return (self.path / f"{name}.log").read_text(errors="replace")

    def memory(self, name="coordinator"):
        """Bytes of memory that the daemon has."""
        for line in pathlib.Path(f"/proc/{self.processes[name].pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"{name} is gone")

    def end(self, name, how=signal.SIGTERM):
        process = self.processes.pop(name)
        process.send_signal(how)
        return process.wait(PATIENCE_S)

    def stop(self):
        """All daemons must have lived, and end well."""
        ends = {name: process.poll() for name, process in self.processes.items()}
        for name in [*self.processes][::-1]:
            ends[name] = self.end(name) if ends[name] is None else ends[name]
        self.processes.clear()
        wrong = {name: code for name, code in ends.items() if code != 0}
        if wrong:
            raise AssertionError(f"daemons ended with {wrong}: " + "".join(self.log(name)[-2000:] for name in wrong))
        shutil.rmtree(self.path)

    # ---- clients

    def run(self, *words, code=0):
        done = subprocess.run([self.bin / "banyanctl", *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S,
                              stdin=subprocess.DEVNULL, env={"HOME": str(self.path), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"})
        assert code is None or done.returncode == code, f"banyanctl {words}: {done.returncode}; {done.stdout}{done.stderr}"
        return done.stdout if code == 0 else done.stdout + done.stderr

    def ctl(self, *words, token=None, code=0):
        """banyanctl, with this token; None: the admin's."""
        path = self.private("this.token", (token or self.admin) + "\n")
        tls = [f"--tls-ca={self.pki}/ca.pem"] if self.tls else []
        return self.run(*words, "-e", self.endpoint, "-t", path, *tls, code=code)

    def json(self, *words, **more):
        return json.loads(self.ctl(*words, "-o", "json", **more))

    def token(self, name, access="user", tenant="default"):
        """A new token."""
        return self.json("token", "create", name, f"--access={access}", f"--tenant={tenant}")["token"]

    def context(self, pair=None):
        return wire.context(self.pki / "ca.pem", pair) if self.tls else None

    def link(self, token=None, endpoint=None, **more):
        """A link of a client; None: with the admin's token."""
        return wire.Link(endpoint or self.endpoint, self.context(), token=self.admin if token is None else token, **more)

    def active(self):
        with self.link() as link:
            return sum(w["state"] == "active" for w in link.call("CLUSTER_INFO").must()["workers"])

    def until(self, so, what):
        end = time.monotonic() + PATIENCE_S
        while not so():
            assert time.monotonic() < end, f"not within {PATIENCE_S} s: {what}"
            time.sleep(0.02)

    @property
    def secret(self):
        return wire.read_secret(self.path / "secret")

    def session(self, link, name, n=20, seed=1, spec=None):
        """A session with n rows, attached at its workers and committed: its id."""
        made = link.call("SESSION_CREATE", {"spec": spec or wire.SPEC, "name": name}).must()["session"]
        self.put(link, made, 0, n, seed)
        link.call("ATTACH_COMMIT", {"session": made, "layer": 0, "first": 0, "count": n}).must()
        return made

    def put(self, link, session, first, count, seed=1):
        """Rows into all holders: as a client does it."""
        opened = link.call("ATTACH_OPEN", {"session": session, "first": first, "count": count}).must()
        for chunk in opened["chunks"]:
            start, end = max(first, chunk["first"]), min(first + count, chunk["first"] + wire.SHAPE.chunk)
            for holder in chunk["holders"]:
                worker = opened["workers"][holder]
                with self.door(worker["endpoint"], opened) as door:
                    put(door, opened["ticket"], session, start, end - start, seed).must()
        return opened

    def door(self, endpoint, opened=None, token=None):
        """A client's link to a worker: with the pass that came with a ticket, or with a token."""
        credentials = token if token is not None else (opened or {}).get("pass") or ""
        return wire.Link(endpoint, self.context(), token=credentials)


def part(first, count, seed):
    """Rows [first, first + count) of the stream of rows of this seed."""
    first = min(first, 4096)  # of absurd positions any rows will do
    return wire.rows(first + count, seed)[first * wire.ROW_BYTES:]


def put(door, ticket, session, first, count, seed=1):
    return door.call("CHUNK_PUT", {"ticket": ticket, "session": session, "layer": 0, "first": first, "count": count},
                     [part(first, count, seed), part(first, count, seed + 1)])


def read(door, ticket, session, incarnation, chunk, first, count):
    return door.call("CHUNK_READ", {"ticket": ticket, "session": session, "incarnation": incarnation, "chunk": chunk, "layer": 0,
                                    "first": first, "count": count})


class Trial(unittest.TestCase):
    """A test case that says which code it expects."""

    def assertCode(self, answer, code, *words):
        self.assertEqual(answer.code, code, repr(answer))
        for word in words:
            self.assertIn(word, answer.message)

    def assertItem(self, answer, code=wire.OK):
        self.assertEqual(answer.item["code"], code, answer.item["message"])

    @contextlib.contextmanager
    def assertRefused(self, *codes):
        """The link is refused with one of these codes, or its connection ends."""
        with self.assertRaises((wire.Refused, wire.Closed)) as found:
            yield found
        if isinstance(found.exception, wire.Refused):
            self.assertIn(found.exception.code, codes, found.exception.message)


def binaries():
    """The folder of the programs, from the command line."""
    return sys.argv.pop(1)
