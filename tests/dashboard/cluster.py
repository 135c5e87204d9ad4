# SPDX-License-Identifier: Apache-2.0
"""Real daemons for tests of the dashboard: a coordinator with --http, and workers on hosts of invented
names."""
import json
import pathlib
import struct
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

LAYERS, HEADS, DIM = 4, 2, 16


def write_tensors(path, names, rows):
    """Tensors of HEADS heads, in the format of safetensors."""
    header, size = {}, rows * HEADS * DIM * 4
    for i, name in enumerate(names):
        header[name] = {"dtype": "F32", "shape": [rows, HEADS, DIM], "data_offsets": [i * size, (i + 1) * size]}
    text, n = json.dumps(header).encode(), rows * HEADS * DIM * len(names)
    path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack(f"<{n}f", *((i * 37 % 101) / 50 - 1 for i in range(n))))


class Cluster:
    def __init__(self, binaries, workers=4, options=(), token=None):
        self.binaries, self.processes = binaries, {}
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        self.endpoint, self.token = f"unix://{self.path}/c", token
        self.options = list(options)
        if token:
            (self.path / "token").write_text(token + "\n")
            (self.path / "token").chmod(0o600)
            self.options += ["--token-file", str(self.path / "token")]
        self.http = "127.0.0.1:0"
        self.start_coordinator()
        for i in range(workers):
            self.start(f"w{i}", "banyan-worker", "--name", f"w{i}", "--host", f"host-{i // 2}", "--memory", "64M", "--threads", "1", "--coordinator", self.endpoint,
                       "--listen", f"unix://{self.path}/w{i}", "--edge-listen", f"unix://{self.path}/e{i}")
        self.wait(lambda: sum(w["state"] == "active" for w in self.api("workers")["workers"]) == workers)

    def start_coordinator(self):
        ready = self.start("coordinator", "banyan-coordinator", "--listen", self.endpoint, "--store", self.path / "db", "--http", self.http, *self.options)
        self.http = ready["http"]
        self.url = f"http://{self.http}/"

    def start(self, name, program, *options):
        ready = self.path / f"{name}.ready"
        with open(self.path / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen([self.binaries / program, "--secret-file", self.path / "secret", "--ready-file", ready, *options], stderr=log)
        self.wait(lambda: ready.exists() or self.processes[name].poll() is not None)
        assert self.processes[name].poll() is None, (self.path / f"{name}.log").read_text()
        return json.loads(ready.read_text())

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()
        (self.path / f"{name}.ready").unlink(missing_ok=True)

    def stop(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.folder.cleanup()

    def wait(self, what, seconds=60):
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, f"not within {seconds} s"
            time.sleep(0.05)

    def ctl(self, *arguments):
        token = ["-t", str(self.path / "token")] if self.token else []
        run = subprocess.run([self.binaries / "banyanctl", *arguments, "-e", self.endpoint, *token], capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    def session(self, name, rows, *options):
        """A session with so many tokens in each layer. Its id."""
        tensors = self.path / f"{rows}.safetensors"
        if not tensors.exists():
            write_tensors(tensors, "qkv", rows)
        self.ctl("session", "create", f"--layers={LAYERS}", f"--q-heads={HEADS}", f"--dim={DIM}", "--kv-type=f32", "--chunk-tokens=16", *options, name)
        for layer in range(LAYERS):
            self.ctl("attend", name, tensors, f"--layer={layer}")
        return next(s["id"] for s in self.api("sessions", q=name)["sessions"] if s["name"] == name)

    def step(self, name, trace=True):
        """One more token, layer by layer."""
        tensors = self.path / "1.safetensors"
        if not tensors.exists():
            write_tensors(tensors, "qkv", 1)
        for layer in range(LAYERS):
            self.ctl("attend", name, tensors, f"--layer={layer}", *(["--trace"] if trace else []))

    def ask(self, path, method="GET", **headers):
        """(status, headers, body)"""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token and "Authorization" not in headers and path.startswith("api/"):
            headers["Authorization"] = f"Bearer {self.token}"
        headers.setdefault("X-Banyan", "1")
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def api(self, path, **query):
        words = "&".join(f"{name}={urllib.parse.quote(str(value))}" for name, value in query.items())
        for _ in range(50):
            status, _, body = self.ask(f"api/v1/{path}{'?' + words if words else ''}")
            if status != 429:  # the sessions were sorted in another order just now
                break
            time.sleep(0.1)
        assert status == 200, (path, status, body)
        return json.loads(body)
