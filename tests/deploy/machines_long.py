#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our packages on machines whose first process is systemd (machines.py).
    machines_long.py guide|systemd SOURCE BUILD
guide: three of them, and docs/tutorial/three-machines.md (guide_follow.py). systemd: one, and what the units
promise (systemd_units.py). Needs root, debootstrap, Debian's packages, what package.sh needs, and control
groups that may be divided; code 77 where these are not there.
"""
import pathlib
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import bare_system
import guide_follow
import machines
import systemd_units
from bare_system import Failed, System, base_system, check, need, repack, skip
from guide_page import steps_of
from machines import Machine, say

NAMES = {"guide": ("a", "b", "c"), "systemd": ("a",)}
TEST = {"guide": guide_follow.follow, "systemd": systemd_units.examine}
PACKAGES = ("systemd-sysv", "dbus", "openssh-server", "openssh-client", "iproute2", "python3", "curl") # of a usual Debian


def prepare(base, root, packages):
    """The files that all machines begin with: nothing of ours is installed, and what it depends on is
    fetched."""
    subprocess.run(["cp", "-a", base, root], check=True)
    system = System(root, "/usr")
    debs = [p for p in packages.glob("*.deb") if "-dbgsym" not in p.name]
    for folder in (root / "root/new", root / "root/next"):
        folder.mkdir()
    for deb in debs:
        shutil.copy(deb, root / "root/new")
    repack(debs, root / "root/next/made")
    for deb in (root / "root/next/made").glob("*.deb"):
        deb.rename(root / "root/next" / deb.name)
    (root / "root/next/made").rmdir()
    resolver = root / "etc/resolv.conf"
    resolver.unlink(missing_ok=True)
    shutil.copy("/etc/resolv.conf", resolver)
    (root / "etc/dpkg/dpkg.cfg.d/fast").write_text("force-unsafe-io\n")
    system.run("apt-get", "-q", "update")
    system.run("sh", "-c", "apt-get -q -y --download-only install /root/new/*.deb prometheus")
    resolver.unlink()
    # As an administrator has made it: names, and root's key
    hosts = "".join(f"10.77.1.{n}\t{name}\n" for n, name in enumerate(NAMES["guide"], 1))
    (root / "etc/hosts").write_text("127.0.0.1\tlocalhost\n" + hosts)
    system.run("sh", "-c", "mkdir -p -m 700 /root/.ssh && ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519")
    shutil.copy(root / "root/.ssh/id_ed25519.pub", root / "root/.ssh/authorized_keys")
    key = " ".join((root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2])
    (root / "root/.ssh/known_hosts").write_text("".join(f"{name} {key}\n" for name in NAMES["guide"]))



def inside(what, source, folder):
    """In namespaces of its own."""
    source, folder = pathlib.Path(source), pathlib.Path(folder)
    groups = machines.control_groups()
    check(groups, "there is no control group to divide")
    machines.make_bridge()
    cluster = {name: Machine(name, number, [folder / "root"], folder / name, groups) for number, name in enumerate(NAMES[what], 1)}
    try:
        for machine in cluster.values():
            machine.switch_on()
            say(machine.name, "is on")
        TEST[what](cluster, source)
    except Failed as failed:
        print(f"machines_long: {what}: FAILED: {failed}")
        for machine in cluster.values():
            if machine.pid:
                print(f"---- {machine.name}\n{machine.try_run('journalctl --no-pager -b -n 120').stdout[-12000:]}")
        return 1
    finally:
        for machine in cluster.values():
            machine.cut_power()
    print(f"machines_long: {what}: passed")
    return 0


def main():
    if sys.argv[1] == "--inside":
        return inside(*sys.argv[2:5])
    what, source, build = sys.argv[1], *(pathlib.Path(a).resolve() for a in sys.argv[2:4])
    need({"debootstrap": "debootstrap", "nsenter": "util-linux", "ip": "iproute2", **bare_system.FOR_DEB})
    if not machines.control_groups():
        skip("no control group (version 2) can be made here, as systemd needs one")
    folder = build / "machines-test" / what
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        base = base_system("machines", *PACKAGES)
        for step in steps_of((source / "docs/tutorial/three-machines.md").read_text()):
            if step.machine == "build":
                say(step.script)
                check(subprocess.run(["bash", "-e", "-c", step.script], cwd=source).returncode == 0, f"three-machines.md:{step.line} has failed")
        prepare(base, folder / "root", source / "build/packages")
        code = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--mount-proc", sys.executable, "-B", __file__,
                               "--inside", what, source, folder]).returncode
    except Failed as failed:
        print(f"machines_long: {what}: FAILED: {failed}")
        code = 1
    machines.remove_groups()
    if code == 0:
        shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
