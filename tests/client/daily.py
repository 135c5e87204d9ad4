# SPDX-License-Identifier: Apache-2.0
"""A cluster, banyanctl, and banyanctl at a terminal, for the tests of what operators use daily (*_test.py
beside this)."""
import fcntl
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
import urllib.request

PATIENCE_S = 60  # for what hangs; nothing is measured


class Cluster:
    """A coordinator, with a store, and workers, which are started when a test likes to."""

    def __init__(self, binaries, *coordinator):
        self.bin, self.folder = binaries, tempfile.mkdtemp(prefix="banyan-daily-")
        self.endpoint = f"unix://{self.folder}/c.sock"
        self.home = os.path.join(self.folder, "home")
        os.mkdir(self.home)
        self.processes, self.more = {}, coordinator

    def start(self, name, program, *args, secret=None):
        with open(f"{self.folder}/{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [f"{self.bin}/{program}", "--secret-file", secret or f"{self.folder}/secret", *args], stdout=log, stderr=log)

    def coordinator(self):
        self.start("coordinator", "banyan-coordinator", "--listen", self.endpoint, "--store", f"{self.folder}/store.db",
                   "--heartbeat", "2s", *([] if "--ticket-life" in self.more else ["--ticket-life", "1s"]), *self.more)

    def worker(self, name, *args, device="cpu"):
        self.start(name, "banyan-worker", "--coordinator", self.endpoint, "--name", name, "--host", f"host-{name}", "--memory",
                   "64M", "--device", device, "--bandwidth", "1G", "--edge-listen", f"unix://{self.folder}/{name}.sock", *args)

    def worker_without(self, name, why):
        """A worker that looks for a device with no_device.c, which says why there is none."""
        os.environ["BANYAN_TEST_NO_DEVICE"] = why
        self.worker(name, "--device-module", os.environ["BANYAN_TEST_MODULE"], device="auto")
        del os.environ["BANYAN_TEST_NO_DEVICE"]

    def stop(self, name, sig=signal.SIGTERM):
        process = self.processes.pop(name)
        process.send_signal(sig)
        return process.wait(PATIENCE_S)

    def close(self):
        for name in [*self.processes][::-1]:
            code = self.stop(name)
            assert code == 0, f"{name} ended with {code}: look into {self.folder}"
        shutil.rmtree(self.folder)

    def env(self, **more):
        """Neither the user's own contexts nor the user's own cluster; a variable that is None is not set."""
        env = {key: value for key, value in os.environ.items() if not key.startswith(("BANYAN_", "XDG_"))}
        env.update({"HOME": self.home, "BANYAN_ENDPOINT": self.endpoint, "LC_ALL": "C.UTF-8", **more})
        return {key: value for key, value in env.items() if value is not None}

    def ctl(self, *words, code=0, **env):
        """What banyanctl says, stdout and stderr; it ends with this exit code, None: with any."""
        done = subprocess.run([f"{self.bin}/banyanctl", *words], capture_output=True, text=True, timeout=PATIENCE_S,
                              stdin=subprocess.DEVNULL, env=self.env(**env))
        assert code is None or done.returncode == code, f"banyanctl {words}: {done.returncode}, not {code}; {done.stdout}{done.stderr}"
        return done.stdout, done.stderr

    def json(self, *words, **more):
        return json.loads(self.ctl(*words, "-o", "json", **more)[0])

    def background(self, *words):
        return subprocess.Popen([f"{self.bin}/banyanctl", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                stdin=subprocess.DEVNULL, env=self.env())


def page(ready, path):
    """What a daemon with this ready file answers by its --http."""
    with open(ready, encoding="utf-8") as file:
        address = json.load(file)["http"]
    with urllib.request.urlopen(f"http://{address}/{path}") as answer:
        return answer.read().decode()


def metrics(ready):
    return page(ready, "metrics")


class Terminal:
    """banyanctl with a terminal of its own: what it shows, and keys. held: it begins with go()."""

    def __init__(self, cluster, *words, size=(24, 100), held=False, **env):
        self.shown = ""
        gate, self.gate = os.pipe()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.close(self.gate)
            os.read(gate, 1)
            os.execve(f"{cluster.bin}/banyanctl", ["banyanctl", *words], cluster.env(TERM="xterm", **env))
        os.close(gate)
        self.resize(*size)
        if not held:
            self.go()

    def go(self):
        os.close(self.gate)

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def modes(self):
        return termios.tcgetattr(self.fd)

    def read(self):
        """False: the terminal has no reader any more."""
        if not select.select([self.fd], [], [], 0.05)[0]:
            return True
        try:
            got = os.read(self.fd, 65536)
        except OSError:
            return False
        self.shown += got.decode(errors="replace")
        return bool(got)

    def until(self, text, after=0):
        """Reads on until it has shown this; where."""
        end = time.monotonic() + PATIENCE_S
        while text not in self.shown[after:]:
            assert self.read() and time.monotonic() < end, f"'{text}' is not in what it showed:\n{self.shown[after:]!r}"
        return self.shown.index(text, after)

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def code(self):
        """Its exit code, or 128 + signal. The terminal stays open."""
        end = time.monotonic() + PATIENCE_S
        while self.read() and time.monotonic() < end:
            pass
        status = os.waitpid(self.pid, 0)[1]
        return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def end(self):
        code = self.code()
        os.close(self.fd)
        return code


def write_tokens(path, tokens, dim):
    """A .safetensors file with K and V of one layer and one head, zeros."""
    size = tokens * dim * 4
    shape = [tokens, 1, dim]
    header = json.dumps({"layers.0.k": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]},
                         "layers.0.v": {"dtype": "F32", "shape": shape, "data_offsets": [size, 2 * size]}}).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + bytes(2 * size))
