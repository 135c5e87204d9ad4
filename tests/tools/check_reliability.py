#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/operating/reliability.md says what the lists and the sources say: the bugs that are planted, and the
failpoints.

    tests/tools/check_reliability.py [ROOT]

Exit status: 0 it does, 1 it does not, with a line for each difference.
"""
import os
import re
import sys

FOLDERS = ("common", "proto", "kernels", "reduce", "coordinator", "worker", "client")


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def rows_below(text, head):
    """The first cells of the table whose first line begins with `head`."""
    table = text[text.index(head):].split("\n\n")[0].splitlines()[2:]
    return [line.split("|")[1].strip() for line in table]


def check_planted(root, text):
    planted = [name.replace("-", " ") for name in re.findall(r"^## (\S+)", read(root, "tests/mutation/planted.list"), re.M)]
    told = rows_below(text, "| bug | found by seed |")
    return ["a bug of planted.list is not in the table: %s" % name for name in planted if name not in told] + \
        ["a bug of the table is not in planted.list: %s" % name for name in told if name not in planted]


def find_points(root):
    """{name: whether it can fail}"""
    points = {}
    for folder in FOLDERS:
        for path, _, files in os.walk(os.path.join(root, folder)):
            for name in files:
                if name.endswith((".c", ".h")) and not name.startswith("failpoint."):
                    for fails, point in re.findall(r'COMMON_FAILPOINT(_FAILS)?\("([a-z_0-9]+)"\)', read(path, name)):
                        points[point] = bool(fails)
    return points


def check_points(root, text):
    points, wrong = find_points(root), []
    said = re.search(r"\((\d+) of them\), an error at each of (\d+) named places", text)
    if not said or (int(said[1]), int(said[2])) != (sum(points.values()), len(points)):
        wrong.append("the sources have %d failpoints, %d of which can fail; the text says %s" %
                     (len(points), sum(points.values()), said[0] if said else "nothing"))
    table = text[text.index("| between | points |"):].split("\n\n")[0]
    kinds = set(re.findall(r"`([a-z]+)_…`", table))
    for kind in sorted({point.split("_")[0] for point in points} ^ kinds):
        wrong.append("failpoints %s_… are in the %s alone" % (kind, "table" if kind in kinds else "sources"))
    return wrong


def main(args):
    root = args[0] if args else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    text = read(root, "docs/operating/reliability.md")
    wrong = check_planted(root, text) + check_points(root, text)
    for line in wrong:
        print("docs/operating/reliability.md: %s" % line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
