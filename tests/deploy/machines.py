# SPDX-License-Identifier: Apache-2.0
"""Machines of one bridge: each a Debian 12 with its own files, network, processes and host name, and systemd
as its first process. They are namespaces of this kernel; nothing leaves them, and they end with the process
that made them.

    host (a network namespace of the test's own)
      bridge lan ── veth ── a 10.77.1.1     PID 1: systemd, /: overlay of one minimal Debian
                └── veth ── b 10.77.1.2
                └── veth ── c 10.77.1.3
"""
import ctypes
import os
import pathlib
import shlex
import signal
import subprocess
import time

from bare_system import ENVIRONMENT, check

PATIENCE_S = 180
LIBC = ctypes.CDLL(None, use_errno=True)
# Of what a whole system has, this is for hardware, terminals and time that machines of one kernel share.
MASKED = ("console-getty.service", "getty@.service", "getty.target", "systemd-timesyncd.service", "systemd-udevd.service",
          "systemd-udev-trigger.service", "systemd-resolved.service", "systemd-networkd.service", "apt-daily.timer",
          "apt-daily-upgrade.timer", "fstrim.timer", "e2scrub_all.timer", "e2scrub_reap.service", "man-db.timer",
          "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-fs-fuse-connections.mount")

# What PID 1 of the new namespaces does before it becomes systemd: as systemd-nspawn makes a container.
BOOT = r"""
set -e
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$FILES/upper,workdir=$FILES/work" "$FILES/root"
cd "$FILES/root"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666,gid=5,mode=620 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/zero c 1 5
mknod -m 666 dev/full c 1 7
mknod -m 666 dev/random c 1 8
mknod -m 666 dev/urandom c 1 9
mknod -m 666 dev/tty c 5 0
mknod -m 600 dev/console c 1 3
mount -t tmpfs -o mode=755 tmpfs run
hostname "$NAME"
pivot_root . .
umount -l .
mount --make-rshared / # as a machine's first mount is: what systemd mounts for a service is seen by the service
exec env -i container=banyan-test PATH="$PATH" /lib/systemd/systemd --log-target=journal
"""


def say(*what):
    print(time.strftime("%H:%M:%S"), *what, flush=True)


def host(*command):
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    check(done.returncode == 0, shlex.join(command), "ended with", done.returncode, done.stdout, done.stderr)
    return done.stdout


def control_groups():
    """A folder of the unified hierarchy that this process may divide; None: there is none."""
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, where, kind = line.split()[:3]
        if kind != "cgroup2":
            continue
        own = [r.split("::", 1)[1] for r in pathlib.Path("/proc/self/cgroup").read_text().splitlines() if r.startswith("0::")]
        folder = pathlib.Path(where + own[0] if own else where)
        try:
            folder.joinpath("banyan-test").mkdir(exist_ok=True)
            return folder / "banyan-test"
        except OSError:
            return None
    return None


def make_bridge():
    host("ip", "link", "set", "lo", "up")
    host("ip", "link", "add", "lan", "type", "bridge")
    host("ip", "link", "set", "lan", "up")


class Machine:
    """`lower`: folders of its first files, the uppermost first. Its changes lie in `files`/upper and outlast
    its power."""

    def __init__(self, name, number, lower, files, groups):
        self.name, self.number, self.lower = name, number, lower
        self.address, self.files = f"10.77.1.{number}", pathlib.Path(files)
        self.group = groups / f"{os.getpid()}-{name}"
        self.upper, self.shell, self.pid = self.files / "upper", None, 0
        for folder in ("upper/etc/systemd/system", "work", "root"):
            (self.files / folder).mkdir(parents=True)
        self.write("/etc/machine-id", f"{number:032x}\n")
        self.write("/etc/hostname", name + "\n")
        for unit in MASKED:
            (self.upper / "etc/systemd/system" / unit).symlink_to("/dev/null")

    def write(self, path, text, mode=0o644):
        """While it is off."""
        check(not self.pid, self.name, "is on")
        at = self.upper / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)
        at.chmod(mode)

    def at(self, path):
        """Its files as they are, while it is on."""
        return pathlib.Path(f"/proc/{self.pid}/root") / path.lstrip("/")

    def switch_on(self):
        check(not self.pid, self.name, "is on")
        self.group.mkdir(exist_ok=True)
        environment = {**ENVIRONMENT, "NAME": self.name, "FILES": str(self.files), "LOWER": ":".join(map(str, self.lower))}
        enter = f'echo $$ >{shlex.quote(str(self.group))}/cgroup.procs; exec unshare --mount --uts --ipc --net --pid --cgroup --fork --kill-child "$@"'
        with open(self.files / "console.log", "ab") as log:
            self.shell = subprocess.Popen(["sh", "-c", enter, "sh", "sh", "-c", BOOT], env=environment, stdin=subprocess.DEVNULL,
                                          stdout=log, stderr=log)
        end = time.monotonic() + PATIENCE_S
        while not self.pid:
            children = pathlib.Path(f"/proc/{self.shell.pid}/task/{self.shell.pid}/children")
            check(self.shell.poll() is None and time.monotonic() < end, self.name, "does not start:", self.console())
            found = children.read_text().split()
            if found and pathlib.Path(f"/proc/{found[0]}/comm").read_text().strip() == "systemd":
                self.pid = int(found[0])
            time.sleep(0.02)
        self.connect()
        self.wait_booted()

    def connect(self):
        host("ip", "link", "add", f"to-{self.name}", "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        host("ip", "link", "set", f"to-{self.name}", "master", "lan", "up")
        for command in ("link set lo up", f"addr add {self.address}/24 dev eth0", "link set eth0 up"):
            host("nsenter", f"--target={self.pid}", "--net", "ip", *command.split())

    def wait_booted(self):
        state = ""
        end = time.monotonic() + PATIENCE_S
        while state != "running":
            check(self.shell.poll() is None and time.monotonic() < end, self.name, "does not boot:", state, self.console(),
                  self.try_run("systemctl --no-pager --failed; systemctl --no-pager list-jobs; journalctl -b --no-pager -n 50").stdout)
            state = self.try_run("systemctl is-system-running").stdout.strip()
            time.sleep(0.1)

    def console(self):
        return (self.files / "console.log").read_text()[-4000:]

    def command(self, script):
        return ["nsenter", f"--target={self.pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "env", "-i",
                *(f"{k}={v}" for k, v in ENVIRONMENT.items() if k != "LC_ALL"), "LC_ALL=C.UTF-8", "bash", "-c", "cd\n" + script]

    def try_run(self, script, **more):
        return subprocess.run(self.command(script), capture_output=True, text=True, stdin=subprocess.DEVNULL, **more)

    def run(self, script):
        done = self.try_run(script)
        check(done.returncode == 0, f"{self.name}: {script}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def wait(self, script, what=None):
        """Until the script ends with 0."""
        end = time.monotonic() + PATIENCE_S
        while True:
            done = self.try_run(script)
            if done.returncode == 0:
                return done.stdout
            check(time.monotonic() < end, self.name, "after", PATIENCE_S, "s:", what or script, done.stdout, done.stderr)
            time.sleep(0.2)

    def wait_off(self):
        """After its own system has switched it off."""
        try:
            self.shell.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            check(False, self.name, "stays on")
        self.pid, self.shell = 0, None

    def cut_power(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.wait_off()


def remove_groups():
    """Of machines that are off."""
    folder = control_groups()
    for group, _, _ in os.walk(folder, topdown=False) if folder else ():
        try:
            os.rmdir(group)
        except OSError:
            pass # of another run
