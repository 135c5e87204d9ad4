#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/slurm/banyan.sbatch under a real Slurm: two nodes, which are two slurmd of this machine, in
    namespaces of their own. slurm_long.py SOURCE BIN
Needs root and Debian's slurm-wlm and munge; code 77 where these are not there.
"""
import json
import os
import pathlib
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time

import bare_system
from bare_system import Failed, Session, check

ADDRESS = "10.99.0.1"
CONFIG = """\
ClusterName=test
SlurmctldHost={host}({address})
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
KillWait=30
ReturnToService=2
NodeName=n[0-1] NodeHostname={host} NodeAddr={address} Port=[16820-16821] CPUs=1 RealMemory=512
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def skip(why):
    print(f"slurm_long: skipped: {why}")
    sys.exit(77)


def until(truth, *what):
    end = time.monotonic() + bare_system.PATIENCE_S
    while True:
        value = truth()
        if value:
            return value
        check(time.monotonic() < end, *what, "is not so")
        time.sleep(0.1)


def say(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=bare_system.PATIENCE_S, **more)
    check(done.returncode == 0, *command, "ended with", done.returncode, done.stdout, done.stderr)
    return done.stdout


class Slurm:
    """Its daemons: they end with the namespace."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "state").mkdir()
        (folder / "munge").mkdir(mode=0o711)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        say("munged", "--force", f"--key-file={key}", f"--socket={folder}/munge/socket", f"--pid-file={folder}/munge/pid",
            f"--log-file={folder}/munge/log", f"--seed-file={folder}/munge/seed")
        config = folder / "slurm.conf"
        config.write_text(CONFIG.format(host=socket.gethostname(), address=ADDRESS, folder=folder))
        os.environ["SLURM_CONF"] = str(config)
        for name, command in (("slurmctld", ["slurmctld", "-D"]), ("n0", ["slurmd", "-D", "-N", "n0"]), ("n1", ["slurmd", "-D", "-N", "n1"])):
            with open(folder / f"{name}.log", "wb") as log:
                subprocess.Popen(command, stdout=log, stderr=log)
        until(lambda: subprocess.run(["sinfo", "-h", "-t", "idle", "-o", "%D"], capture_output=True, text=True).stdout.strip() == "2", "Slurm has two nodes")


class Job:
    """One of banyan.sbatch, with what is asked of its cluster from outside; files of /tmp are in a folder of
    its own."""

    def __init__(self, slurm, script, binaries, *command, **env):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=slurm.folder))
        self.jobs = self.folder / "jobs"
        env = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "BANYAN_JOBS": str(self.jobs),
               "BANYAN_WORKER_OPTIONS": "--threads=1 --device=cpu", **env}
        self.id = say("sbatch", "--parsable", "--time=10", "--mem=512", f"--output={self.folder}/out", script, *command, env=env, cwd=self.folder).strip()
        self.environment, self.ctl_path = None, f"{binaries}/banyanctl"

    def said(self):
        path = self.folder / "out"
        return path.read_text() if path.exists() else ""

    def state(self):
        shown = say("scontrol", "show", "job", self.id)
        return re.search(r"JobState=(\w+)", shown)[1], re.search(r"ExitCode=(\d+):", shown)[1]

    def serves(self):
        until(lambda: "clients: source " in self.said() or self.state()[0] not in ("PENDING", "RUNNING"), "the job serves")
        check("clients: source " in self.said(), "the job has ended:", self.said())
        file = pathlib.Path(re.search(r"clients: source (\S+)", self.said())[1])
        text = say("bash", "-c", f"source {file}; env")
        self.environment = dict(re.findall(r"^(BANYAN_\w+)=(.*)$", text, re.M))
        return file.parent

    def ended(self, *wanted):
        until(lambda: self.state()[0] not in ("PENDING", "RUNNING", "COMPLETING"), "the job has ended")
        check(self.state() in wanted, "the job ended as", self.state(), self.said())
        check(not list(self.jobs.iterdir()), "secrets are left:", list(self.jobs.iterdir()))
        # Slurm may have ended the processes of its tasks a moment later than it says so
        ours = ["pgrep", "-f", f"banyan-(coordinator|worker) .*{self.jobs}/"]
        until(lambda: subprocess.run(ours, stdout=subprocess.DEVNULL).returncode == 1, "no daemon is left")
        check(" ERROR " not in self.said(), self.said())

    # ---- as bare_system's Session needs a system ----
    def at(self, path):
        return self.folder / pathlib.Path(path).name

    def ctl(self, *arguments):
        words = [word.replace("/tmp/", f"{self.folder}/") for word in arguments]
        return say(self.ctl_path, *words, env={**os.environ, **self.environment})


def test(folder, script, binaries):
    slurm = Slurm(folder)
    # A cluster until it is cancelled
    job = Job(slurm, script, binaries)
    private = job.serves()
    check(stat.S_IMODE(private.stat().st_mode) == 0o700, "its folder may be read by others")
    check(not (private / "ca/ca.key").exists(), "the authority's key is still there")
    for name in ("cluster.secret", "token", "environment", "coordinator/tls.key", "w0/tls.key", "w1/tls.key"):
        check(stat.S_IMODE((private / name).stat().st_mode) == 0o600, name, "may be read by others")
    check(job.environment["BANYAN_ENDPOINT"].startswith(f"tls://{ADDRESS}:"), "the endpoint is no address of the node:", job.environment)
    check(job.environment["BANYAN_TLS_CA"] == str(private / "ca/ca.pem"), "clients are told of no authority:", job.environment)
    spoken = re.findall(r"[a-z+]+://[0-9.]+:\d+", job.said())
    check(spoken and all(e.startswith(("tls://", "nng+tls://")) for e in spoken), "not all is TLS:", spoken)
    plain = subprocess.run([job.ctl_path, "--timeout=5s", "workers"], capture_output=True, text=True,
                           env={**os.environ, **job.environment, "BANYAN_ENDPOINT": job.environment["BANYAN_ENDPOINT"].replace("tls:", "tcp:")})
    check(plain.returncode != 0, "the coordinator speaks in the clear:", plain.stdout)
    roles = [json.loads(say(job.ctl_path, "pki", "show", "-o", "json", private / who / "tls.pem"))[0]["roles"] for who in ("coordinator", "w1")]
    check(roles == [["coordinator"], ["worker"]], "certificates say the roles", roles)
    check(len(re.findall(r" serving name=.* memory=435\.0 MiB ", job.said())) == 2, "the memory is not 85 % of what the job has:", job.said())
    session = Session(job, "kept")
    session.step()
    session.verify()
    say("scancel", job.id)
    job.ended(("CANCELLED", "0"))
    # A command: the job is over when that is, and has its exit code
    job = Job(slurm, script, binaries, "sh", "-c", "banyanctl workers -o json | grep -c '\"active\"' && exit 7")
    job.ended(("FAILED", "7"))
    check("\n2\n" in job.said(), "the command sees no two workers:", job.said())
    # Sessions outlive the job where there is a store; the signal is that of the end of its time
    store = {"BANYAN_STORE": str(folder / "store")}
    job = Job(slurm, script, binaries, **store)
    job.serves()
    check(stat.S_IMODE((folder / "store/cluster.secret").stat().st_mode) == 0o600, "the secret may be read by others")
    session = Session(job, "kept")
    session.step()
    say("scancel", "--batch", "--signal=TERM", job.id)
    job.ended(("COMPLETED", "0"))
    job = Job(slurm, script, binaries, **store)
    job.serves()
    session.system = job
    session.verify()
    session.step()
    say("scancel", job.id)
    job.ended(("CANCELLED", "0"))
    # What is missing is said
    job = Job(slurm, script, folder)
    job.jobs.mkdir()
    job.ended(("FAILED", "1"))
    check("is not in PATH: set BANYAN_PREFIX" in job.said(), job.said())


def inside(folder, script, binaries):
    """In namespaces of its own: with an address that is not loopback, and a name for it."""
    bare_system.loopback_up()
    say("ip", "link", "add", "b0", "type", "veth", "peer", "name", "b1")
    for name in ("b0", "b1"):
        say("ip", "link", "set", name, "up")
    say("ip", "address", "add", f"{ADDRESS}/24", "dev", "b0")
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n{ADDRESS} {socket.gethostname()}\n")
    say("mount", "--bind", hosts, "/etc/hosts")
    try:
        test(folder, script, binaries)
    except Failed as failed:
        print(f"slurm_long: FAILED: {failed}")
        for log in [*folder.glob("*.log"), *folder.glob("*/out")]:
            print(f"---- {log}\n{log.read_text()[-3000:]}")
        return 1
    print("slurm_long: passed")
    return 0


def main():
    if sys.argv[1] == "--inside":
        return inside(*(pathlib.Path(a) for a in sys.argv[2:5]))
    source, binaries = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    if os.getuid() != 0:
        skip("a Slurm of its own is started by root")
    for tool in ("slurmctld", "slurmd", "munged", "ip"):
        if not shutil.which(tool):
            skip(f"{tool} is not here (in Debian: slurm-wlm, munge, iproute2); deploy/install-deps.sh --packages installs them")
    with tempfile.TemporaryDirectory(prefix="banyan-slurm-") as folder:
        os.chmod(folder, 0o755)
        return subprocess.run(["unshare", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child", "--net", sys.executable, "-B", __file__,
                               "--inside", folder, source / "deploy/slurm/banyan.sbatch", binaries]).returncode


if __name__ == "__main__":
    sys.exit(main())
