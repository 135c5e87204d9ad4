# SPDX-License-Identifier: Apache-2.0
"""Shells at a terminal, whose user types a line and presses TAB, for completion_test.py."""
import os
import pty
import select
import signal
import subprocess
import time

PATIENCE_S = 60  # for a shell that hangs; nothing is measured


class Terminal:
    """A shell on a pseudoterminal. Its set-up defines the completion so that what it offers is noted in the
    file `offered`, and that `answered` exists afterwards; and the command `show`, which notes its arguments
    in `shown`."""

    def __init__(self, argv, setup, folder, env):
        self.notes = os.path.join(folder, "notes")
        os.mkdir(self.notes)
        work = os.path.join(folder, "work")
        self.heard = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(work)
            os.environ.update(env, NOTES=self.notes, TERM="vt100", HISTFILE="", LC_ALL="C.UTF-8")
            os.execvp(argv[0], argv)
        script = os.path.join(self.notes, "setup")
        with open(script, "w", encoding="utf-8") as file:
            file.write(setup)
        self.type(f"source {script}; show ready\r")
        self.wait("shown")

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def wait(self, name):
        """Until the shell has written that note, which it renames into place; its lines."""
        path = os.path.join(self.notes, name)
        end = time.monotonic() + PATIENCE_S
        while not os.path.exists(path):
            if select.select([self.fd], [], [], 0.02)[0]:
                self.heard += os.read(self.fd, 65536)
            if time.monotonic() > end:
                self.type("\x03")  # an open quote, or whatever it waits for
                raise AssertionError(f"the shell did not write '{name}'; it said:\n{self.heard[-4000:].decode(errors='replace')}")
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
        os.remove(path)
        return [line for line in lines if line]

    def complete(self, line):
        """What is offered, and the words of the line when TAB has done what it does."""
        offered = os.path.join(self.notes, "offered")
        if os.path.exists(offered):
            os.remove(offered)
        self.type(line + "\t")
        self.wait("answered")
        self.type("\x01show \r")
        words = self.wait("shown")
        found = []
        if os.path.exists(offered):
            with open(offered, encoding="utf-8") as file:
                found = [word for word in file.read().split("\n") if word]
        return found, words

    def set(self, name, value):
        self.type(f"export {name}={value}; show set\r")
        self.wait("shown")

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


SHOW = """
show() { printf '%s\\n' "$@" >"$NOTES/shown.tmp"; mv "$NOTES/shown.tmp" "$NOTES/shown"; }
"""

BASH = SHOW + """
source <(banyanctl completion bash)
spy() {
    _banyanctl "$@"
    printf '%s\\n' "${COMPREPLY[@]}" >"$NOTES/offered"
    printf '' >"$NOTES/answered"
}
complete -F spy banyanctl banyan-coordinator banyan-worker
"""

# Every match goes through compadd; with -O, -A or -D it only says which ones would match.
ZSH = SHOW + """
autoload -U compinit && compinit -u -D
source <(banyanctl completion zsh)
unsetopt auto_list
compadd() {
    local -a seen
    if [[ ${@[1,(i)(-|--)]} != *-(O|A|D)* ]]; then
        builtin compadd -A seen "$@"
        ((! ${#seen})) || print -rl -- "${seen[@]}" >>"$NOTES/offered"
    fi
    builtin compadd "$@"
}
functions -c _banyanctl asked
_banyanctl() {
    asked "$@"
    local code=$?
    : >"$NOTES/answered"
    return $code
}
"""


class Bash(Terminal):
    def __init__(self, folder, env):
        super().__init__(["bash", "--norc", "--noprofile", "-i"], BASH, folder, env)

    def offers(self, line):
        """Words as the program would see them, whole: bash has those behind the last = or colon."""
        before = line.split(" ")[-1]
        kept = max(before.rfind("="), before.rfind(":")) + 1
        return {before[:kept] + word.replace("\\", "") for word in self.complete(line)[0]}

    def becomes(self, line):
        return self.complete(line)[1]


class Zsh(Terminal):
    def __init__(self, folder, env):
        super().__init__(["zsh", "-f", "-i"], ZSH, folder, env)

    def offers(self, line):
        found = self.complete(line)[0]
        before = line.split(" ")[-1]
        kept = before[: before.rfind("=") + 1]
        return {word if word.startswith("--") else kept + word for word in (w.replace("\\", "") for w in found)}

    def becomes(self, line):
        return self.complete(line)[1]


class Fish:
    """fish says by itself what it would offer."""

    def __init__(self, folder, env):
        self.cwd = os.path.join(folder, "work")
        self.env = dict(os.environ, **env, HOME=folder, LC_ALL="C.UTF-8", TERM="vt100")

    def offers(self, line):
        script = "banyanctl completion fish | source; complete -C $argv[1]"
        done = subprocess.run(["fish", "--no-config", "-c", script, line], cwd=self.cwd, env=self.env, check=True,
                              capture_output=True, text=True, timeout=PATIENCE_S)
        if done.stderr:
            raise AssertionError(f"fish said: {done.stderr}")
        return {word.split("\t")[0].rstrip("/") for word in done.stdout.split("\n") if word}

    def set(self, name, value):
        self.env[name] = value

    def close(self):
        pass


SHELLS = {"bash": Bash, "zsh": Zsh, "fish": Fish}
