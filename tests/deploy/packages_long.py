#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packages as an operator uses them, in a minimal Debian 12 of their own.
    packages_long.py deb|tar SOURCE BUILD
deb: install, a cluster, a step, upgrade while it runs, restart on the data, remove, purge.
tar: unpacked beside glibc's libraries and nothing else; a cluster, a step, moved, again.
Needs root, debootstrap, Debian's packages, and what package.sh needs; code 77 where these are not there.
"""
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import time

import bare_system
from bare_system import Failed, Session, System, base_system, check, need, repack

# A service manager that writes down what it is asked: the packages' scripts, not systemd, are what is tested.
SYSTEMCTL = """#!/bin/sh
echo "$@" >>/tmp/systemctl.log
case "$*" in
*list-units*) echo 'banyan-worker@0.service loaded active running'; echo 'banyan-worker@1.service loaded active running' ;;
*is-enabled*) echo disabled ;;
esac
"""


# ---- deb ----
def prepare_deb(base, root, packages):
    """With the network: what they depend on is fetched, nothing is installed. The rest of the test has no
    network."""
    subprocess.run(["cp", "-a", base, root], check=True)
    debs = [p for p in packages.glob("*.deb") if "-dbgsym" not in p.name]
    names = {p.name.split("_")[0] for p in debs}
    check(names >= {"banyan-coordinator", "banyan-worker", "banyan-client", "banyan-llama", "libbanyan0", "libbanyan-dev", "python3-banyan", "banyan-mpi"}, names)
    lintian = subprocess.run(["lintian", "--allow-root", "--fail-on=error,warning", *packages.glob("*.changes")], capture_output=True, text=True)
    check(lintian.returncode == 0, "lintian says:", lintian.stdout, lintian.stderr)
    (root / "packages").mkdir()
    for deb in debs:
        shutil.copy(deb, root / "packages")
    repack(debs, root / "packages/next")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    (root / "etc/dpkg/dpkg.cfg.d/fast").write_text("force-unsafe-io\n")
    system = System(root, "/usr")
    system.run("apt-get", "-q", "update")
    system.run("sh", "-c", "apt-get -q -y --no-install-recommends --download-only install /packages/*.deb")


def names_in(system):
    found = system.run("find", "/", "-xdev", "-iname", "*banyan*", "-not", "-path", "/packages*", "-not", "-path", "/proc/*")
    return set(found.split())


def install(system):
    check(not names_in(system), "before the packages there was", names_in(system))
    system.run("sh", "-c", "apt-get -q -y --no-install-recommends install /packages/*.deb")
    secret = system.at("/etc/banyan/cluster.secret")
    check(stat.S_IMODE(secret.stat().st_mode) == 0o600 and re.fullmatch(r"[0-9a-f]{64}\n", secret.read_text()), "the secret is wrong")
    wanted = system.at("/etc/systemd/system/multi-user.target.wants")
    check([p.name for p in wanted.glob("banyan*")] == ["banyan-coordinator.service"], "started at boot:", list(wanted.glob("*")))
    return secret.read_text()


def serve(system):
    system.make_state()
    system.start_coordinator()
    for instance in (0, 1):
        system.start_worker(instance)
    session = Session(system, "kept")
    session.step()
    session.verify()
    found = system.run("python3", "-c", "import banyan; print(banyan.Client().open('kept').info().length)")
    check(int(found) == len(session.keys) // bare_system.DIM, "Python sees", found)
    check(re.fullmatch(r"banyan-llama \d+\.\d+\.\d+\n", system.run("banyan-llama", "--version")), "banyan-llama does not run")
    return session


def upgrade(system, session, secret):
    """The scripts restart the coordinator and the workers that run, one after another; here that is done by
    hand."""
    options = system.at("/etc/default/banyan-worker")
    options.write_text("# the operator's\n")
    (system.root / "run/systemd/system").mkdir(parents=True)
    fake = system.at("/usr/local/sbin/systemctl")
    fake.write_text(SYSTEMCTL)
    fake.chmod(0o755)
    system.run("sh", "-c", "dpkg --install /packages/next/*.deb")
    asked = system.at("/tmp/systemctl.log").read_text()
    restarts = re.findall(r"restart (banyan\S+)", asked)
    check(sorted(restarts) == ["banyan-coordinator.service", "banyan-worker@0.service", "banyan-worker@1.service"], "restarted:", restarts, asked)
    check(options.read_text() == "# the operator's\n", "the operator's options are gone")
    check(system.at("/etc/banyan/cluster.secret").read_text() == secret, "the secret is another one")
    session.step()  # over programs whose files are replaced
    for name in ("w0", "w1", "coordinator"):
        system.stop(name)
        if name == "coordinator":
            system.start_coordinator()
        else:
            system.start_worker(int(name[1:]))
        settle(system)
        session.step()
    system.stop_all()  # and all at once: everything comes out of the files
    system.start_coordinator()
    for instance in (0, 1):
        system.start_worker(instance)
    settle(system)
    session.verify()
    session.step()
    system.stop_all()


def settle(system):
    """Waits until both workers serve, and no copy of a chunk is missing."""
    end = time.monotonic() + bare_system.PATIENCE_S
    while True:
        status = json.loads(system.ctl("status", "-o", "json"))
        if [int(status[field]) for field in ("workers_active", "thin_chunks", "moves")] == [2, 0, 0]:
            return
        check(time.monotonic() < end, "the cluster does not settle:", status)
        time.sleep(0.1)


def remove_and_purge(system):
    packages = sorted(p.name.split("_")[0] for p in system.at("/packages").glob("*.deb"))
    system.run("dpkg", "--remove", *packages)
    for gone in ("usr/bin/banyan-coordinator", "usr/bin/banyan-worker", "usr/bin/banyanctl"):
        check(not (system.root / gone).exists(), gone, "is there after remove")
    for kept in ("var/lib/private/banyan-coordinator/coordinator.db", "var/lib/private/banyan-worker/0", "etc/banyan/cluster.secret",
                 "etc/default/banyan-worker"):
        check((system.root / kept).exists(), kept, "is gone after remove")
    system.run("dpkg", "--purge", *packages)
    check(not names_in(system), "after purge there is", names_in(system))


def test_deb(root):
    system = System(root, "/usr")
    secret = install(system)
    session = serve(system)
    upgrade(system, session, secret)
    remove_and_purge(system)


# ---- tar ----
def prepare_tar(base, root, packages):
    """Glibc's files are all that is there."""
    of_libc = (base / f"var/lib/dpkg/info/libc6:{subprocess.check_output(['dpkg', '--print-architecture'], text=True).strip()}.list").read_text()
    for name in of_libc.split("\n"):
        path = base / name.lstrip("/")
        if name.startswith("/lib") and path.exists() and not path.is_dir():
            target = root / name.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)
    for folder in ("tmp", "proc", "opt", "root", "etc/banyan"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    archive, = packages.glob("*.tar.xz")
    subprocess.run(["tar", "-C", root / "opt", "-xf", archive], check=True)
    tree, = (root / "opt").iterdir()
    tree.rename(root / "opt/banyan")


def test_tar(root):
    check(not (root / "bin/sh").exists() and not (root / "usr").exists(), "the system is not bare")
    system = System(root, "/opt/banyan")
    system.make_state()
    system.start_coordinator()
    for instance in (0, 1):
        system.start_worker(instance)
    session = Session(system, "kept")
    session.step()
    session.verify()
    system.stop_all()
    system.at("/opt/banyan").rename(system.at("/srv"))
    system.prefix = "/srv"
    system.start_coordinator()
    for instance in (0, 1):
        system.start_worker(instance)
    session.step()
    system.stop_all()


# ---- both ----
PREPARE = {"deb": prepare_deb, "tar": prepare_tar}
TEST = {"deb": test_deb, "tar": test_tar}


def inside(what, root):
    """In namespaces of its own: nothing that it starts is left, and its ports are its own."""
    subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    bare_system.loopback_up()
    try:
        TEST[what](root)
    except Failed as failed:
        print(f"packages_long: FAILED: {failed}")
        for log in sorted((root / "tmp").glob("*.log")):
            print(f"---- {log.name}\n{log.read_text()[-4000:]}")
        return 1
    print(f"packages_long: {what}: passed")
    return 0


def main():
    if sys.argv[1] == "--inside":
        return inside(sys.argv[2], pathlib.Path(sys.argv[3]))
    what, source, build = sys.argv[1], *(pathlib.Path(a).resolve() for a in sys.argv[2:4])
    need({"debootstrap": "debootstrap", **({**bare_system.FOR_DEB, "lintian": "lintian"} if what == "deb" else {"patchelf": "patchelf"})})
    folder = build / "packages-test" / what
    shutil.rmtree(folder, ignore_errors=True)
    root = folder / "root"
    folder.mkdir(parents=True)
    try:
        base = base_system("packages")
        made = subprocess.run([source / "deploy/package.sh", what, "--cuda=off", f"--out={folder / 'out'}"], stdout=subprocess.DEVNULL)
        check(made.returncode == 0, "package.sh has failed")
        PREPARE[what](base, root, folder / "out")
        code = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", sys.executable, "-B", __file__,
                               "--inside", what, root]).returncode
    except Failed as failed:
        print(f"packages_long: FAILED: {failed}")
        code = 1
    if code == 0:
        shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
