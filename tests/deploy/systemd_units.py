# SPDX-License-Identifier: Apache-2.0
"""What the units promise, on a machine with systemd: readiness, watchdog, reload, credentials, users,
sandbox, journal, what is started again and what is not, a loss of power, purge. One coordinator, two workers,
one session that outlives all of it.
"""
import json
import os
import re

from bare_system import Session, check
from guide_follow import On
from machines import say

COORDINATOR, WORKERS = "banyan-coordinator", ("banyan-worker@0", "banyan-worker@1")
EXPOSED = {COORDINATOR: 12, WORKERS[0]: 20} # tenths, as units_test.py has them


class Unit:
    def __init__(self, machine, name):
        self.machine, self.name = machine, name

    def get(self, what):
        return self.machine.run(f"systemctl show -P {what} {self.name}").strip()

    @property
    def pid(self):
        return int(self.get("MainPID"))

    def log(self, *more):
        return self.machine.run(" ".join(["journalctl", "--no-pager", "-b", "-o", "cat", "-u", self.name, *more]))

    def outlives(self, signal):
        """Ends the process so; systemd starts it again."""
        before = self.pid
        self.machine.run(f"kill -{signal} {before}")
        self.machine.wait(f'[ "$(systemctl show -P MainPID {self.name})" != {before} ] && [ "$(systemctl is-active {self.name})" = active ]',
                          f"{self.name} is started again after SIG{signal}")
        return before


def install(machine):
    machine.run("cd new && apt-get install -y ./banyan-coordinator_*.deb ./banyan-worker_*.deb ./banyan-client_*.deb ./libbanyan0_*.deb")
    check(machine.run("systemctl is-active banyan-coordinator").strip() == "active", "the package does not start the coordinator")
    check(machine.try_run("systemctl is-active 'banyan-worker@*'").stdout == "", "the package starts a worker")
    check(machine.run("banyanctl ping --count 1"), "no ping")


def settled(machine):
    machine.run("banyanctl wait workers 2 --timeout 3m && banyanctl wait whole --timeout 3m")


# ---- one after the other ----------------------------------------------------------------------------------
def test_ready(machine, units):
    """A start returns when the daemon serves: the first call after it is answered."""
    for _ in range(3):
        machine.run("systemctl restart banyan-coordinator && banyanctl --timeout 1ms status >/dev/null || banyanctl ping --count 1")
    check(units[0].get("Type") == "notify" and units[0].get("StatusText") == "serving", "the coordinator's state is", units[0].get("StatusText"))
    machine.run(f"systemctl enable --now {' '.join(WORKERS)}")
    settled(machine)
    for unit in units[1:]:
        check(unit.get("StatusText").startswith("serving"), unit.name, "says", unit.get("StatusText"))


def test_users(machine, units):
    """Users that are made at the start, and folders that are theirs alone, on every start."""
    for unit, folder in zip(units, ("banyan-coordinator", "banyan-worker/0", "banyan-worker/1")):
        uid = machine.at(f"/proc/{unit.pid}").stat().st_uid
        check(61184 <= uid <= 65519, unit.name, "runs as", uid)
        state = machine.at(f"/var/lib/private/{folder}").stat()
        check(state.st_uid == uid and state.st_mode & 0o777 == 0o700, folder, "belongs to", state.st_uid, oct(state.st_mode))
        names = [p.name for p in machine.at(f"/var/lib/private/{folder}").iterdir()]
        check(names, folder, "is empty")
    check(len({machine.at(f"/proc/{unit.pid}").stat().st_uid for unit in units}) == 3, "they share users")


def open_files(machine, pid, which):
    """The soft limit (0), the hard one (1)."""
    return int(machine.at(f"/proc/{pid}/limits").read_text().split("Max open files")[1].split()[which])


def test_sandbox(machine, units):
    for unit in units:
        at = machine.at(f"/proc/{unit.pid}")
        status = dict(re.findall(r"^(\w+):\s*(.*)$", at.joinpath("status").read_text(), re.M))
        for field in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            check(int(status[field], 16) == 0, unit.name, field, status[field])
        check((status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), unit.name, status["NoNewPrivs"], status["Seccomp"])
        for namespace in ("user", "mnt"):
            check(os.readlink(at / "ns" / namespace) != os.readlink(machine.at("/proc/1") / "ns" / namespace), unit.name, "shares", namespace)
        # What the process sees, through its own root
        inside = f"nsenter --target={unit.pid} --mount --setuid={status['Uid'].split()[0]} --setgid={status['Gid'].split()[0]}"
        for what in ("touch /etc/x", "touch /usr/x", "touch /var/lib/x", "ls /root", "cat /etc/banyan/cluster.secret", "cat /etc/shadow", "ls /dev/mem"):
            done = machine.try_run(f"{inside} sh -c '{what}'")
            check(done.returncode != 0, unit.name, "may", what)
        check(machine.try_run(f"{inside} sh -c 'mount' | grep ' / '").stdout.find("ro,") >= 0, unit.name, "has / writable")
    for name, most in EXPOSED.items():
        machine.run(f"systemd-analyze security --no-pager --threshold={most} {name}.service")
    most = min(1048576, open_files(machine, 1, 1)) # where systemd itself may not raise it
    for unit in units:
        check(open_files(machine, unit.pid, 0) == most, unit.name, "may open", open_files(machine, unit.pid, 0), "files")


def test_journal(machine, units):
    """Records have fields and priorities, which text lines have not."""
    fields = [json.loads(line) for line in machine.run("journalctl -b --no-pager -o json BANYAN_WORKER=a-0").splitlines()]
    check(fields, "no record has the field BANYAN_WORKER=a-0")
    check({f["_SYSTEMD_UNIT"] for f in fields} <= {f"{n}.service" for n in (COORDINATOR, *WORKERS)}, fields[0])
    check(any(f["_SYSTEMD_UNIT"] == "banyan-coordinator.service" for f in fields), "the coordinator says nothing of a-0")
    check({f["_TRANSPORT"] for f in fields} == {"journal"} and {f["PRIORITY"] for f in fields} <= set("3456"), fields[0])
    check(machine.run("journalctl -b --no-pager -q -p err -u 'banyan-*'") == "", "errors:", machine.run("journalctl -b --no-pager -q -p err -u 'banyan-*'"))


def test_reload(machine, units):
    for unit, file in ((units[0], "coordinator.conf"), (units[1], "worker.conf")):
        path = machine.at(f"/etc/banyan/{file}")
        text, pid = path.read_text(), unit.pid
        path.write_text(text + "log-level = debug\n")
        machine.run(f"systemctl reload {unit.name}")
        machine.wait(f"journalctl -b --no-pager -u {unit.name} | grep -q 'reloaded.*changed: log-level'")
        path.write_text(text + "log-level = loud\n")
        machine.run(f"systemctl reload {unit.name}")
        machine.wait(f"journalctl -b --no-pager -p err -u {unit.name} | grep -q 'nothing is changed.*{file}'")
        path.write_text(text)
        machine.run(f"systemctl reload {unit.name}")
        check((unit.pid, unit.get("ActiveState")) == (pid, "active"), unit.name, "after its reload:", unit.get("ActiveState"))


def test_token(machine, units):
    """Root's file, mode 600, is the token of daemons that are not root."""
    machine.run("umask 077; head -c 32 /dev/urandom | base64 >/etc/banyan/token; systemctl restart 'banyan-*'")
    refused = machine.try_run("banyanctl status")
    check(refused.returncode == 7, "without the token:", refused.returncode, refused.stderr)
    check("/etc/banyan" not in refused.stderr and "token" in refused.stderr, refused.stderr)
    machine.run("banyanctl context add here --endpoint tcp://127.0.0.1:7412 --token-file /etc/banyan/token && banyanctl context use here")
    settled(machine)


def test_secret(machine, units):
    """Without the secret nothing starts, and nothing is invented."""
    machine.run("mv /etc/banyan/cluster.secret /root/")
    done = machine.try_run("systemctl restart banyan-worker@1")
    check(done.returncode != 0, "a worker starts without a secret")
    check(not machine.at("/etc/banyan/cluster.secret").exists(), "a secret was made")
    status = machine.try_run("systemctl status --no-pager banyan-worker@1").stdout
    check("AssertPathExists=/etc/banyan/cluster.secret was not met" in status, "its state does not name the file:", status)
    machine.run("mv /root/cluster.secret /etc/banyan/ && systemctl restart banyan-worker@1")
    settled(machine)


def test_watchdog(machine, units):
    """A process that stands still is ended and started again."""
    before = [unit.pid for unit in units]
    machine.run(f"kill -STOP {before[0]} {before[1]}")
    for unit, pid in zip(units[:2], before):
        machine.wait(f'[ "$(systemctl show -P MainPID {unit.name})" != {pid} ] && [ "$(systemctl is-active {unit.name})" = active ]')
        machine.wait(f"journalctl -b --no-pager -u {unit.name} | grep -q 'Watchdog timeout'")
    settled(machine)


def test_crash(machine, units):
    for unit in units[:2]:
        unit.outlives("KILL")
    settled(machine)


def test_wrong_options(machine, units):
    """What a start again cannot help is not started again, and its log says why."""
    machine.at("/etc/default/banyan-worker-1").write_text("BANYAN_WORKER_OPTIONS='--coordinator nonsense'\n")
    check(machine.try_run("systemctl restart banyan-worker@1").returncode != 0, "it starts with wrong options")
    machine.wait("[ $(systemctl show -P ActiveState banyan-worker@1) = failed ]")
    check((units[2].get("ExecMainStatus"), units[2].get("NRestarts")) == ("2", "0"), units[2].get("ExecMainStatus"), units[2].get("NRestarts"))
    check("nonsense" in units[2].log("-n", "20"), units[2].log("-n", "20"))
    machine.at("/etc/default/banyan-worker-1").unlink()
    machine.run("systemctl reset-failed banyan-worker@1; systemctl restart banyan-worker@1")
    settled(machine)


def test_stop(machine, units):
    for unit in reversed(units):
        machine.run(f"systemctl stop {unit.name}")
        check((unit.get("Result"), unit.get("ExecMainStatus")) == ("success", "0"), unit.name, "ended with", unit.get("Result"), unit.get("ExecMainStatus"))
    machine.run(f"systemctl start {COORDINATOR} {' '.join(WORKERS)}")
    settled(machine)


def test_power(machine, units):
    """What was acknowledged is there after a loss of power of the whole machine; all start by themselves."""
    machine.cut_power()
    machine.switch_on()
    settled(machine)


def test_purge(machine, units):
    machine.run("apt-get remove -y banyan-coordinator banyan-worker banyan-client libbanyan0")
    check(machine.run("systemctl list-units --no-legend --plain 'banyan-*'") == "", "units are left")
    for kept in ("/var/lib/private/banyan-coordinator/coordinator.db", "/var/lib/private/banyan-worker/0", "/etc/banyan/cluster.secret"):
        check(machine.at(kept).exists(), kept, "is gone after remove")
    machine.run("apt-get purge -y banyan-coordinator banyan-worker")
    left = machine.run("find /etc /var/lib /usr /run -xdev -iname '*banyan*' -not -path '/var/lib/apt/*' -not -path '*/cgroup/*'")
    check(left == "/etc/banyan\n/etc/banyan/token\n" or left == "", "after purge there is", left)


TESTS = (test_ready, test_users, test_sandbox, test_journal, test_token, test_reload, test_secret, test_crash, test_wrong_options, test_watchdog,
         test_stop, test_power)


def examine(cluster, source):
    machine, = cluster.values()
    units = [Unit(machine, name) for name in (COORDINATOR, *WORKERS)]
    install(machine)
    session = None
    for test in TESTS:
        say(test.__name__)
        test(machine, units)
        session = session or Session(On(machine), "kept")
        session.step()
        session.verify()
    say(test_purge.__name__)
    test_purge(machine, units)
