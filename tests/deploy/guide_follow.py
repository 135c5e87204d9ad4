# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial/three-machines.md, run as it stands on three machines, while a client appends tokens from the
first session to the restore of the coordinator: each answer is compared with float64, and no acknowledged
token may be lost.
"""
import json
import subprocess
import threading
import time

import bare_system
import machines
from bare_system import Failed, Session, check
from guide_page import differs, steps_of
from machines import say


# ---- a client ---------------------------------------------------------------------------------------------
class On:
    """What bare_system.Session needs of a system."""

    def __init__(self, machine):
        self.machine = machine

    def at(self, path):
        return self.machine.at(path)

    def ctl(self, *words):
        return self.machine.run(" ".join(["banyanctl", *words]))


class Writer:
    """Appends token after token, each until it is acknowledged, and compares each answer. The client is
    banyanctl on `a`."""
    PASSING = (5, 6) # unavailable, timeout: sent again as it was
    CHUNK = 256

    def __init__(self, machine):
        self.machine, self.session, self.failed, self.again = machine, Session(On(machine), "kept"), None, 0
        self.ended, self.limit = threading.Event(), None
        self.thread = threading.Thread(target=self.loop, daemon=True)
        self.thread.start()

    @property
    def tokens(self):
        return len(self.session.keys) // bare_system.DIM

    def attend(self, *words):
        """In the place of Session's: a token that was not acknowledged is sent again, at its own position."""
        end = time.monotonic() + machines.PATIENCE_S
        while True:
            done = self.machine.try_run(f"banyanctl --timeout 5s attend --first={self.tokens} " + " ".join(words))
            if done.returncode == 0:
                return
            check(done.returncode in self.PASSING and time.monotonic() < end, "token", self.tokens, "is refused with", done.returncode, done.stderr)
            self.again += 1
            time.sleep(0.1)

    def loop(self):
        self.session.system = type("", (), {"at": staticmethod(self.machine.at), "ctl": staticmethod(lambda *words: self.attend(*words[1:]))})
        try:
            while not self.ended.is_set():
                if self.limit is None or self.tokens < self.limit:
                    self.session.step()
                self.ended.wait(0.25)
        except Failed as failed:
            self.failed = failed

    def check(self):
        if self.failed:
            raise self.failed

    def stay_in_chunk(self):
        """What is in a backup is served after a restore where its session got no new chunks since:
        docs/operating/backup.md."""
        self.limit = (self.tokens // self.CHUNK + 2) * self.CHUNK - 1
        while self.tokens % self.CHUNK == 0 or self.tokens < self.limit - self.CHUNK + 1:
            self.check()
            time.sleep(0.1)

    def stop(self):
        self.ended.set()
        self.thread.join()
        self.check()
        self.session.system = On(self.machine)
        self.session.verify()


# ---- what the page does not show --------------------------------------------------------------------------
def query(machine, expression):
    answer = machine.run(f"curl -fsS --data-urlencode query='{expression}' http://localhost:9090/api/v1/query")
    return json.loads(answer)["data"]["result"]


def check_dashboard(machine, source):
    """Each expression of the dashboard is understood by this Prometheus; and of which there is nothing
    yet."""
    board = json.loads(machine.at("/usr/share/banyan/grafana/banyan.json").read_text())
    expressions = [t["expr"] for p in board["panels"] for t in p.get("targets", [])]
    check(len(expressions) > 20, "expressions:", expressions)
    nothing = []
    for expression in expressions:
        for name, value in (("$__rate_interval", "1m"), ("$__interval", "15s"), ("$interval", "1m")):
            expression = expression.replace(name, value)
        if not query(machine, expression):
            nothing.append(expression)
    say("of the dashboard without data:", nothing)
    rules = json.loads(machine.run("curl -fsS http://localhost:9090/api/v1/rules"))["data"]["groups"]
    wanted = (source / "deploy/prometheus/alerts.yaml").read_text().count("- alert:")
    loaded = [rule for group in rules for rule in group["rules"]]
    check(len(loaded) == wanted and all(rule["health"] == "ok" for rule in loaded), "rules:", loaded)
    firing = query(machine, 'ALERTS{alertstate="firing"}')
    check(not firing, "firing:", firing)


def processes(cluster):
    return {f"{m.name} {unit}": m.run(f"systemctl show -P MainPID {unit}").strip()
            for m in cluster.values() for unit in (["banyan-coordinator"] if m.name == "a" else []) + ["banyan-worker@0"]}


class Beside:
    """By the page's headings: what is started, kept and looked at."""

    def __init__(self, cluster, source):
        self.cluster, self.source, self.writer, self.before = cluster, source, None, None

    def begin(self, heading):
        if heading == "Metrics, alerts and a dashboard":
            self.writer = Writer(self.cluster["a"])
        elif heading == "Upgrade":
            self.before = processes(self.cluster)
        elif heading == "Back up and restore":
            self.writer.stay_in_chunk()
        elif heading == "Remove":
            self.writer.stop()
            say("tokens acknowledged:", self.writer.tokens, "sent again:", self.writer.again)

    def end(self, heading):
        if self.writer:
            self.writer.check()
        if heading == "Metrics, alerts and a dashboard":
            check_dashboard(self.cluster["a"], self.source)
        elif heading == "Upgrade":
            now = processes(self.cluster)
            check(all(now[what] != pid for what, pid in self.before.items()), "not all were started again:", self.before, now)
            for machine in self.cluster.values():
                installed = machine.run("dpkg-query -W -f '${Version}\\n' 'banyan-worker'")
                check(installed.strip().endswith(".1"), machine.name, "has", installed)
        elif heading == "Remove":
            left = self.cluster["c"].run("find / -xdev -iname '*banyan*' -not -path '/root/*' -not -path '/proc/*' -not -path '/var/log/*'")
            left = [name for name in left.split() if not name.startswith(("/run", "/tmp"))]
            check(not left, "after purge there is", left)

    def off(self, machine):
        alert = f'ALERTS{{alertname="BanyanWorkerLost",worker="{machine.name}-0"}}'
        end = time.monotonic() + machines.PATIENCE_S
        while not query(self.cluster["a"], alert):
            check(time.monotonic() < end, "no alert of", machine.name)
            time.sleep(1)


# ---- the page ---------------------------------------------------------------------------------------------
def follow(cluster, source):
    steps = [s for s in steps_of((source / "docs/tutorial/three-machines.md").read_text()) if s.machine != "build"]
    beside, heading, lost = Beside(cluster, source), "", None
    for step, after in zip(steps, steps[1:] + [None]):
        if step.heading != heading:
            beside.end(heading)
            heading = step.heading
            say("##", heading)
            beside.begin(heading)
        if step.kind == "hand":
            continue # each machine has these files already
        machine = cluster[step.machine]
        if step.kind == "off":
            machine.wait_off()
            lost = machine
        elif step.kind == "on":
            machine.switch_on()
        else:
            done = subprocess.run(machine.command("set -e\n" + step.script), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  stdin=subprocess.DEVNULL)
            say(f"{machine.name} line {step.line} ended with {done.returncode}:\n{step.script}{'-' * 20}\n{done.stdout}")
            check(done.returncode == 0 or (after and after.kind == "off"), f"three-machines.md:{step.line}: ended with {done.returncode}\n{step.script}{done.stdout}")
            if step.output is not None:
                line = differs(step.output, done.stdout)
                check(line is None, f"three-machines.md:{step.line}: of what it shows this is not so: {line}\n{done.stdout}")
            if lost and machine is not lost:
                beside.off(lost)
                lost = None
    beside.end(heading)
