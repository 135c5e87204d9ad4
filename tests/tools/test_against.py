#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/against: what it makes of two trees' figures, and its exit status. A script stands for cmake, and for
a benchmark one that prints what its tree says: nothing is built.

    test_against.py AGAINST
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

AGAINST = sys.argv.pop(1)
CMAKE = """#!/bin/bash
[ "$1" = --build ] || exit 0
mkdir -p build/release/bench
for name in sessions attach; do
    [ -f bench/$name.c ] || continue
    cp bench/$name.c build/release/bench/$name
    chmod +x build/release/bench/$name
done
echo "$PWD" >>"$BUILT"
"""


class Against(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = os.path.realpath(self.folder.name)
        for folder in ("bench", "bin"):
            os.makedirs(f"{self.root}/{folder}")
        shutil.copy(AGAINST, f"{self.root}/bench/against")
        self.script("bin/cmake", CMAKE)
        self.git("init", "-q")
        self.git("config", "user.email", "a@example.org")
        self.git("config", "user.name", "a")

    def git(self, *args):
        subprocess.run(["git", *args], cwd=self.root, check=True, stdout=subprocess.DEVNULL)

    def script(self, name, text):
        with open(f"{self.root}/{name}", "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(f"{self.root}/{name}", 0o755)

    def bench(self, name, **record):
        """A benchmark that prints this; what it was called with goes to `called`."""
        line = json.dumps({"bench": name, **record})
        self.script(f"bench/{name}.c", f"#!/bin/bash\necho \"$PWD $*\" >>{self.root}/called\necho '{line}'\n")

    def commit(self):
        self.git("add", "bench")
        self.git("commit", "-q", "-m", "base")

    def against(self, *args):
        env = dict(os.environ, PATH=f"{self.root}/bin:{os.environ['PATH']}", BUILT=f"{self.root}/built")
        return subprocess.run([f"{self.root}/bench/against", *args], cwd=self.root, env=env, check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def test_as_fast_is_status_0(self):
        self.bench("sessions", workers=4, steps_per_s=1000)
        self.commit()
        done = self.against("HEAD", "--bench", "sessions", "--pairs", "3", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        figure = json.loads(done.stdout)
        self.assertEqual((figure["line"], figure["figure"], figure["pairs"]), ("sessions workers=4", "steps_per_s", 3))
        self.assertAlmostEqual(figure["ratio"], 1)

    def test_slower_is_status_1(self):
        self.bench("sessions", workers=4, steps_per_s=1000)
        self.commit()
        self.bench("sessions", workers=4, steps_per_s=900)
        done = self.against("HEAD", "--bench", "sessions", "--pairs", "3")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("SLOWER", done.stdout)
        self.assertEqual(self.against("HEAD", "--bench", "sessions", "--pairs", "3", "--least", "0.8").returncode, 0)

    def test_longer_is_slower(self):
        self.bench("sessions", what="step", p50_us=100)
        self.commit()
        self.bench("sessions", what="step", p50_us=150)
        done = self.against("HEAD", "--bench", "sessions", "--pairs", "2", "--json")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertAlmostEqual(json.loads(done.stdout)["ratio"], 100 / 150)

    def test_one_pair_says_nothing_for_sure(self):
        self.bench("sessions", steps_per_s=1000)
        self.commit()
        self.bench("sessions", steps_per_s=10)
        self.assertEqual(self.against("HEAD", "--bench", "sessions", "--pairs", "1").returncode, 0)

    def test_floors_are_not_ours(self):
        self.bench("attach", workers=1, bytes_per_s=5, socket_bytes_per_s=1000)
        self.commit()
        self.bench("attach", workers=1, bytes_per_s=5, socket_bytes_per_s=10)
        done = self.against("HEAD", "--bench", "attach", "--pairs", "2", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 1)

    def test_runs_take_turns_and_options_go_along(self):
        self.bench("sessions", steps_per_s=1000)
        self.commit()
        self.assertEqual(self.against("HEAD", "--bench", "sessions", "--pairs", "2", "--", "--milliseconds", "10").returncode, 0)
        with open(f"{self.root}/called", encoding="utf-8") as file:
            called = [line.split() for line in file]
        trees = [words[0] for words in called]
        self.assertEqual(trees, [trees[0], trees[1], trees[1], trees[0]])
        self.assertNotEqual(trees[0], trees[1])
        self.assertTrue(all(words[1:] == ["--json", "--milliseconds", "10"] for words in called))

    def test_what_the_base_does_not_have_is_left_out(self):
        self.bench("sessions", steps_per_s=1000)
        self.commit()
        self.bench("attach", bytes_per_s=1000)
        done = self.against("HEAD", "--bench", "sessions", "--bench", "attach", "--pairs", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("attach: ", done.stderr)
        self.assertNotIn("bytes_per_s", done.stdout)

    def test_wrong_use_is_status_2(self):
        self.bench("sessions", steps_per_s=1000)
        self.commit()
        for args in ((), ("no-commit",), ("HEAD", "--bench", "nosuch"), ("HEAD", "--bench", "../x"), ("HEAD", "--pairs", "0"),
                     ("--upload-pack=x",)):
            self.assertEqual(self.against(*args).returncode, 2, args)

    def test_what_fails_is_status_3(self):
        self.script("bench/sessions.c", "#!/bin/bash\necho no cluster >&2\nexit 1\n")
        self.commit()
        done = self.against("HEAD", "--bench", "sessions")
        self.assertEqual(done.returncode, 3)
        self.assertIn("no cluster", done.stderr)


if __name__ == "__main__":
    unittest.main()
