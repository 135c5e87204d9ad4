#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/package.sh: its words; and that its Debian packages hold what this build installs, each file once.
    packages_test.py SOURCE BUILD
"""
import fnmatch
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
SCRIPT = SOURCE / "deploy" / "package.sh"
DEBIAN = SOURCE / "deploy" / "debian"
OPTIONAL = {f"usr/lib/*/banyan/banyan-{name}.so" for name in ("mpi", "cuda", "nccl")}  # as far as this build has them
NOT_PACKAGED = {"usr/lib/*/banyan/libggml-banyan.so"}  # needs ggml, which Debian 12 does not have


def run(*words):
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)


class Words(unittest.TestCase):
    def test_help(self):
        done = run("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for option in ("--out=DIR", "--cuda=auto|on|off", "--jobs=N", "--tests"):
            self.assertIn(option, done.stdout)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 120)

    def test_mistakes(self):
        for words, said in (([], "which format"), (["rpm"], "unknown format 'rpm'"), (["../package"], "unknown format"), (["deb", "tar"], "one format"),
                            (["deb", "--cuda=maybe"], "auto, on or off"), (["tar", "--jobs=0"], "not a number of jobs"),
                            (["tar", "--jobs=-1"], "not a number"), (["--fast"], "unknown option '--fast'"), (["tar", "--out="], "unknown option"),
                            (["deb", "--tests"], "--tests goes with tar"), (["oci", "--tests"], "not with oci"),
                            (["tar_tests"], "unknown format"), (["tests"], "unknown format")):
            done = run(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertTrue(done.stderr.startswith("package.sh: ") and said in done.stderr, done.stderr)

    def test_version(self):
        release = re.search(r"^project\(banyan VERSION ([0-9.]+)", (SOURCE / "CMakeLists.txt").read_text(), re.M)[1]
        self.assertRegex(run("--version").stdout, rf"^{re.escape(release)}(~git[0-9]{{14}}\.[0-9a-f]+(\+dirty)?)?\n$")


class FatBinary(unittest.TestCase):
    """deploy/package/fatbin.py: machine code that was not asked for becomes zeros, and all else stays as it
    is."""

    @staticmethod
    def binary(*entries):
        body = b""
        for kind, architecture, code in entries:
            body += struct.pack("<HHIQ", kind, 257, 64, len(code)) + bytes(12) + struct.pack("<I", architecture) + bytes(32) + code
        return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body

    @staticmethod
    def elf(**sections):
        """Sections behind each other, then their table."""
        data, heads, names = b"\x7fELF\x02" + bytes(59), [(0, 0, 0)], b"\0"
        for name, content in (*((n, c) for n, c in sections.items()), ("names", None)):
            at = len(names)
            names += name.encode() + b"\0"
            content = names if content is None else content
            heads.append((at, len(data), len(content)))
            data += content
        table = b"".join(struct.pack("<IIQQQQ", name, 1, 0, 0, at, size) + bytes(24) for name, at, size in heads)
        return data[:40] + struct.pack("<Q", len(data)) + data[48:58] + struct.pack("<HHH", 64, len(heads), len(heads) - 1) + data[64:] + table

    def sort(self, data, wanted="80,90"):
        with tempfile.TemporaryDirectory() as name:
            source, target = pathlib.Path(name) / "from", pathlib.Path(name) / "to"
            source.write_bytes(data)
            done = subprocess.run([sys.executable, "-B", SOURCE / "deploy/package/fatbin.py", wanted, source, target], capture_output=True, text=True)
            return done, target.read_bytes() if target.exists() else None

    def test_what_is_kept(self):
        magic_elsewhere = b"text " + struct.pack("<IHHQ", 0xBA55ED50, 7, 16, 1 << 60)
        kept = [(2, 75, b"a" * 24), (2, 80, b"b" * 32), (2, 90, b"c" * 8), (1, 90, b"d" * 40), (2, 120, b"e" * 16)]
        zeros = [(kind, architecture, code if kind == 2 and architecture in (80, 90) else bytes(len(code))) for kind, architecture, code in kept]
        none = [(kind, architecture, bytes(len(code))) for kind, architecture, code in kept]
        done, out = self.sort(self.elf(text=magic_elsewhere, __nv_relfatbin=self.binary(*kept), fat=self.binary(*kept) + self.binary(*kept[:2])))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(out, self.elf(text=magic_elsewhere, __nv_relfatbin=self.binary(*none), fat=self.binary(*zeros) + self.binary(*zeros[:2])))

    def test_what_is_damaged(self):
        good = self.binary((2, 80, b"b" * 32), (2, 90, b"c" * 8))
        longer = bytearray(good)
        longer[16 + 8] = 200  # an entry that goes beyond the binary's end
        cut = bytearray(good)
        cut[8:16] = struct.pack("<Q", 1 << 40)
        for data, said in ((b"text", "not a 64-bit ELF"), (b"", "not a 64-bit ELF"), (self.elf(fat=bytes(longer)), "beyond its end"), (self.elf(fat=bytes(cut)), "beyond the file's end"),
                           (self.elf(fat=self.binary((2, 90, b"c"))), "no machine code for sm_80"), (self.elf(), "no machine code"),
                           (self.elf(fat=good)[:80], "fatbin.py: ")):
            done, out = self.sort(data)
            self.assertEqual((done.returncode, done.stdout, out), (1, "", None), (said, done))
            self.assertIn(said, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


class Again(unittest.TestCase):
    """What was compiled before is used again, but for what has changed since: by content, not by when it was
    changed."""

    def test_times(self):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            tree, tools = root / "tree", root / "tools"
            files = {"CMakeLists.txt": "project(banyan VERSION 0.1.0 LANGUAGES C)\n", "common/a.h": "1\n", "common/b.h": "1\n", "deploy/debian/control": "\n"}
            for path in ("package.sh", "package/deb.sh"):
                files[f"deploy/{path}"] = (SOURCE / "deploy" / path).read_text()
            for path, text in files.items():
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                (tree / path).write_text(text)
            tools.mkdir()
            made = "mkdir -p obj-x && touch obj-x/a.o ../x.deb ../x.changes ../x.buildinfo"
            for tool, text in (("dpkg-buildpackage", made), ("dh", ""), ("dh_python3", "")):
                (tools / tool).write_text(f"#!/bin/sh\n{text}\n")
                (tools / tool).chmod(0o755)
            work = tree / "build/packages/deb/source"
            for round_ in range(2):
                done = subprocess.run(["bash", tree / "deploy/package.sh", "deb"], capture_output=True, text=True,
                                      env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
                self.assertEqual(done.returncode, 0, done.stderr)
                if round_ == 0:
                    compiled = (work / "obj-x/a.o").stat().st_mtime_ns
                    (tree / "common/a.h").write_text("2\n")
                    os.utime(tree / "common/a.h", ns=(compiled - 10**9, compiled - 10**9)) # while it was compiled
            self.assertEqual((work / "common/a.h").read_text(), "2\n")
            self.assertGreater((work / "common/a.h").stat().st_mtime_ns, compiled)
            self.assertLess((work / "common/b.h").stat().st_mtime_ns, compiled)


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        root = pathlib.Path(cls.folder.name)
        done = subprocess.run(["cmake", "--install", BUILD, "--prefix", root / "usr"], capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        # Debian's library folder is lib/ARCHITECTURE, that of a prefix elsewhere may be lib
        cls.installed = {re.sub(r"^usr/lib/(?!systemd/|[^/]*-linux-gnu/)", "usr/lib/any/", str(p.relative_to(root)))
                         for p in root.rglob("*") if not p.is_dir()}
        cls.patterns = {}
        for path in DEBIAN.glob("*.install"):
            for line in path.read_text().splitlines():
                cls.patterns.setdefault(line.split()[0], []).append(path.stem)

    @staticmethod
    def matches(pattern, name):
        return fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name, pattern + "/*")

    def test_each_named_file_is_installed(self):
        for pattern in self.patterns:
            if pattern.startswith(("client/", "deploy/")):
                self.assertTrue((SOURCE / pattern).exists(), pattern)
            elif pattern not in OPTIONAL:
                self.assertTrue(any(self.matches(pattern, name) for name in self.installed), f"{pattern}: the build does not install it")

    def test_each_installed_file_is_in_one_package(self):
        for name in self.installed:
            if any(self.matches(pattern, name) for pattern in NOT_PACKAGED):
                continue
            of = [package for pattern, packages in self.patterns.items() if self.matches(pattern, name) for package in packages]
            self.assertEqual(len(of), 1, f"{name}: in {of or 'no package'}; deploy/debian/*.install")

    def test_packages_are_known(self):
        known = set(re.findall(r"^Package: (\S+)$", (DEBIAN / "control").read_text(), re.M))
        for path in DEBIAN.iterdir():
            package = path.name.split(".")[0]
            if "." in path.name and package != "source":
                self.assertIn(package, known, path)
        self.assertEqual(known, {package for packages in self.patterns.values() for package in packages})

    def test_scripts_are_shell(self):
        for path in DEBIAN.iterdir():
            if path.suffix in (".postinst", ".prerm", ".postrm"):
                self.assertTrue(path.read_text().rstrip().endswith("#DEBHELPER#"), path)
                self.assertEqual(subprocess.run(["sh", "-n", path]).returncode, 0, path)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
