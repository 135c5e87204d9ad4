#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tutorials of one machine, run as they stand: every command, and what a reader sees of it
(guide_page.py).

    tutorial_test.py SOURCE BIN PAGE...      PAGE: first-cluster, resume, your-model

Pages run in this order, in one folder and one shell, as for a reader who goes on from page to page; the last
command of first-cluster, which stops the cluster, comes after all pages. Only where daemons are reached
differs: a unix socket in the place of port 7412, so that tests may run beside each other. What a page needs
besides BIN must be in PATH: `python` with PyTorch and Transformers, for which client/python/tests/run.sh
tutorials runs this.
"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from guide_page import differs, steps_of

SOURCE, BIN = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
PAGES = sys.argv[3:]
LIMIT_S = 1500


class Tutorial(unittest.TestCase):
    def setUp(self):
        # A short path: a socket's has 107 bytes at most.
        folder = tempfile.TemporaryDirectory(prefix="tutorial-", ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        (self.path / "build" / "first").mkdir(parents=True)
        (self.path / "bin").mkdir()
        (self.path / "examples").symlink_to(SOURCE / "examples")
        self.endpoint = f"unix://{self.path}/c"
        daemon = self.path / "bin" / "banyan-coordinator"
        daemon.write_text(f'#!/bin/sh\nexec {BIN}/banyan-coordinator --listen {self.endpoint} "$@"\n')
        daemon.chmod(0o755)

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("BANYAN_", "XDG_"))}
        kept |= {name: os.environ[name] for name in ("BANYAN_LIBRARY", "BANYAN_BIN") if name in os.environ}
        state = {f"XDG_{name}_HOME": str(self.path / name.lower()) for name in ("STATE", "CONFIG")}
        return {**kept, **state, "BANYAN_ENDPOINT": self.endpoint, "PYTHONDONTWRITEBYTECODE": "1", "OMP_WAIT_POLICY": "PASSIVE",
                "HF_HUB_OFFLINE": "1", "PATH": f"{self.path}/bin:{BIN}:{os.environ['PATH']}"}

    def run_steps(self, steps):
        """Runs all in one shell; step -> what it printed, or None where it was not reached."""
        parts = []
        for n, step in enumerate(steps):
            script = step.script.replace("tcp://127.0.0.1:7412", self.endpoint)
            parts.append(f"exec >{self.path}/{n}.out\n{script}echo >{self.path}/{n}.done\n")
        with open(self.path / "errors", "w", encoding="utf-8") as errors:
            shell = subprocess.Popen(["bash", "-e"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, text=True,
                                     cwd=self.path / "build" / "first", env=self.environment(), start_new_session=True)
        try:
            shell.communicate("".join(parts), timeout=LIMIT_S)
        finally:
            try:
                os.killpg(shell.pid, signal.SIGKILL)  # daemons, too
            except ProcessLookupError:
                pass
            shell.wait()
        return [(self.path / f"{n}.out").read_text() if (self.path / f"{n}.done").exists() else None for n in range(len(steps))]

    def test_pages(self):
        steps, last = [], []
        for page in PAGES:
            found = [step for step in steps_of((SOURCE / "docs/tutorial" / f"{page}.md").read_text()) if step.kind == "run"]
            self.assertGreater(len(found), 1, page)
            for step in found:
                step.page = page
            if page == "first-cluster":
                *found, stop = found
                last = [stop]
            steps += found
        for step, printed in zip(steps + last, self.run_steps(steps + last)):
            where = f"{step.page}.md:{step.line}"
            self.assertIsNotNone(printed, f"{where}: failed\n{step.script}\n{self.logs()}")
            if step.output is not None:
                line = differs(step.output, printed)
                self.assertIsNone(line, f"{where}: of what it shows this is not so: {line}\n{printed}")

    def logs(self):
        """The last lines of what each process has written."""
        files = [*self.path.glob("*.out"), *self.path.glob("build/first/*.log"), self.path / "errors"]
        return "\n".join(f"--- {file.name}\n" + "\n".join(file.read_text(errors="replace").splitlines()[-8:]) for file in files if file.exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
