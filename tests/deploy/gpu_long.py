#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What deploy/package.sh tar --tests makes, in a minimal Debian of its own without a network: tests/gpu.sh
over the emulated device, and what it says where there is no driver and where a disk is full. With nvcc and
nccl.h here the package has the modules for CUDA and NCCL, and NCCL.
    gpu_long.py 12|13 SOURCE BUILD
Needs root, debootstrap, Debian's packages, and what package.sh needs; code 77 where these are not there.
"""
import json
import pathlib
import shutil
import subprocess
import sys

import bare_system
from bare_system import ENVIRONMENT, Failed, base_system, check, need

RELEASES = {"12": "bookworm", "13": "trixie"}
RUN = {"machine", "numbers", "bandwidth", "shapes", "cluster", "nccl"}  # what an emulated device can


def prepare(base, root, packages):
    subprocess.run(["cp", "-a", base, root], check=True)
    archive, = packages.glob("banyan-tests-*.tar.xz")
    subprocess.run(["tar", "-C", root / "opt", "-xf", archive], check=True)
    tree, = (root / "opt").iterdir()
    tree.rename(root / "opt/banyan")
    shutil.rmtree(packages)
    # Debian 13's apt needs OpenSSL
    for name in ("bin/python3", "bin/gcc", *(f"lib/x86_64-linux-gnu/lib{name}.so.{n}" for name, n in (("nng", 1), ("jansson", 4), ("hwloc", 15)))):
        check(not (root / "usr" / name).exists(), "the system is not bare: it has", name)


def script(root, *options):
    return subprocess.run(["chroot", root, "/opt/banyan/tests/gpu.sh", "--out=/tmp/out", *options], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, env=ENVIRONMENT)


def test_without_a_driver(root):
    tree = root / "opt/banyan"
    done = script(root)
    check(done.returncode == 3 and done.stderr.startswith("gpu.sh: ") and done.stderr.count("\n") == 1, "without a driver:", done)
    if not (tree / "lib/banyan/banyan-cuda.so").exists():
        check("built without nvcc" in done.stderr, done.stderr)
        return
    # Where the machine that tests has a driver, /proc shows it here, too
    check("there is no NVIDIA driver on this machine" in done.stderr or "libcuda.so.1 is not found" in done.stderr, done.stderr)
    licences = tree / "share/doc/banyan/licences"
    check("CUDA" in (licences / "cuda-runtime").read_text(errors="replace"), "the CUDA runtime's licence is not inside")
    if (tree / "lib/libnccl.so.2").exists():
        check("NVIDIA CORPORATION" in (licences / "nccl").read_text(errors="replace"), "NCCL's licence is not inside")
        loaded = subprocess.run(["chroot", root, "env", "LD_PRELOAD=/opt/banyan/lib/libnccl.so.2", "LD_BIND_NOW=1", "true"], capture_output=True,
                                text=True, env=ENVIRONMENT)
        check((loaded.returncode, loaded.stderr) == (0, ""), "NCCL does not load:", loaded)


def test_full_disks(root):
    small = root / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    for options, variables in ((["--out=/small"], {}), (["--out=/tmp/out"], {"TMPDIR": "/small"})):
        done = subprocess.run(["chroot", root, "/opt/banyan/tests/gpu.sh", "--emulated", *options], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, env={**ENVIRONMENT, **variables})
        check((done.returncode, done.stdout) == (3, "") and "gpu.sh: the disk of /small is full" in done.stderr, done)
        check(list(small.iterdir()) == [], "it left behind", list(small.iterdir()))
    subprocess.run(["umount", small], check=True)


def test(root):
    test_without_a_driver(root)
    test_full_disks(root)
    done = script(root, "--emulated", "--minutes=45")  # a busy machine; nothing here is a measurement
    check(done.returncode == 0, "it ended with", done.returncode, "\n", done.stdout, done.stderr)
    path, = (root / "tmp/out").glob("gpu-*.json")
    result = json.loads(path.read_text())
    check(result["complete"] and result["emulated"], result)
    check({part["name"] for part in result["parts"] if part["result"] == "passed"} == RUN, done.stdout)
    check(all(part["why"] == "the device is emulated" for part in result["parts"] if part["name"] not in RUN), done.stdout)
    check(path.with_suffix(".md").exists(), "there is no Markdown file")
    left = sorted(p.name for p in (root / "tmp").iterdir())
    check(left == ["out"], "it left behind", left)
    print(done.stdout)


def inside(root):
    """In namespaces of its own: nothing that it starts is left, and there is no network."""
    subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", root / "dev/shm"], check=True)
    bare_system.loopback_up()
    try:
        test(root)
    except Failed as failed:
        print(f"gpu_long: FAILED: {failed}")
        return 1
    print("gpu_long: passed")
    return 0


def main():
    if sys.argv[1] == "--inside":
        return inside(pathlib.Path(sys.argv[2]))
    number, source, build = sys.argv[1], *(pathlib.Path(a).resolve() for a in sys.argv[2:4])
    need({"debootstrap": "debootstrap", "patchelf": "patchelf"})
    folder = build / f"packages-test/gpu-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    root = folder / "root"
    folder.mkdir(parents=True)
    try:
        base = base_system("packages", release=(number, RELEASES[number]))
        made = subprocess.run([source / "deploy/package.sh", "tar", "--tests", f"--out={folder / 'out'}"], stdout=subprocess.DEVNULL)
        check(made.returncode == 0, "package.sh has failed")
        prepare(base, root, folder / "out")
        code = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", sys.executable, "-B", __file__,
                               "--inside", root]).returncode
    except Failed as failed:
        print(f"gpu_long: FAILED: {failed}")
        code = 1
    if code == 0:
        shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
