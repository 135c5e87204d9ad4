# SPDX-License-Identifier: Apache-2.0
"""A page of commands as a list of steps. In its Markdown:

    ```sh machine=a          commands that are run on machine a; each block by itself, by bash -e
    ```output                what a reader sees of the block before: see `differs`
    ```sh by=hand            commands that the test does in another way, which `Steps` names
    <!-- machine=c on -->    c is switched on; `off`: until it has switched itself off
"""
import re

BLOCK = re.compile(r"^```(\S*)(.*)\n((?:.*\n)*?)```$|^<!-- machine=(\w+) (on|off) -->$|^#+ (.*)$", re.M)


class Step:
    def __init__(self, kind, line, heading, machine="", script="", output=None):
        self.kind, self.line, self.heading, self.machine, self.script, self.output = kind, line, heading, machine, script, output


def steps_of(text):
    """Raises ValueError where the page has a block that no reader would run."""
    steps, heading = [], ""
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        language, info, body, machine, power, title = found.groups()
        if title is not None:
            heading = title
        elif power:
            steps.append(Step(power, line, heading, machine))
        elif language == "output":
            if not steps or steps[-1].kind != "run" or steps[-1].output is not None:
                raise ValueError(f"line {line}: output of no command")
            steps[-1].output = body
        elif language == "sh" and (named := re.fullmatch(r" machine=(\w+)", info)):
            steps.append(Step("run", line, heading, named[1], body))
        elif language == "sh" and info == " by=hand":
            steps.append(Step("hand", line, heading, "", body))
        elif language == "sh" or info.strip():
            raise ValueError(f"line {line}: on which machine?")
    return steps


# What differs from one run to the next: times, sizes, rates, ids, versions, dates. A whole number by itself
# does not.
VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\d(T[\d:.]+Z?)?|0x[0-9a-f]{8,}|[0-9a-f]{16,}|\d+\.\d+\.\d+(~git[0-9.a-f]+(\+dirty)?(\.1)?)?|\d+:\d\d(:\d\d)?"
    r"|[+-]?\d+\.\d+(e[+-]?\d+)?( ?(ns|µs|us|ms|s|min|h|B|KiB|MiB|GiB|TiB|%)(/s)?)?|\d+ ?(ns|µs|us|ms|s|min|h|B|KiB|MiB|GiB|TiB|%)(/s)?(?![\w-])|\d+/s")


def shape(line):
    """The line with what is volatile as '#', and one space between words."""
    return " ".join(VOLATILE.sub("#", line).split())


def differs(shown, real):
    """The first line of what a page shows that does not stand in what was printed, in this order; None: all
    do. '…' stands for anything within a line; a line '…' for any lines: without it nothing may stand
    between."""
    lines, at, gap = [shape(r) for r in real.splitlines()], 0, False
    for line in shown.splitlines():
        if line.strip() == "…":
            gap = True
            continue
        wanted = re.compile(".*".join(re.escape(shape(part)) for part in line.split("…")).replace(r"\ .*", r"\s?.*").replace(r".*\ ", r".*\s?"))
        while at < len(lines) and not wanted.fullmatch(lines[at]):
            if not gap:
                return line
            at += 1
        if at == len(lines):
            return line
        at, gap = at + 1, False
    return None if gap or at == len(lines) else f"(the end, before: {lines[at]})"
