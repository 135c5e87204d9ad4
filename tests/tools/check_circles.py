#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when the largest circle of a room is larger than circles.txt allows, or smaller: then lower the
number.

    tests/tools/check_circles.py [--root DIR] [--bounds FILE] [--show ROOM] [--write]

An object is x.c with x.h in the same folder; it depends on the objects whose headers it includes. A circle is
a set of objects each of which depends on all the others, directly or not: none of them can be understood,
tested or removed alone. A room is a folder; "coordinator/**" stands for a folder with all that lies below it.

  --show ROOM  list the circles of the room, the largest first
  --write      write the numbers of now into the file

Exit status: 0 as the file says, 1 not so, 2 wrong use.
"""
import argparse
import os
import re
import sys

sys.dont_write_bytecode = True
import check_includes
import ratchet

HERE = os.path.dirname(os.path.abspath(__file__))
PRODUCT = ("common", "proto", "kernels", "reduce", "coordinator", "worker", "client")
LOCAL = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


def dependencies(root):
    """Object (its path without an ending) -> the objects that it includes."""
    graph = {}
    for name in check_includes.list_files(root):
        base, ending = os.path.splitext(name)
        if name.split("/")[0] not in PRODUCT or ending not in check_includes.SOURCE_ENDINGS:
            continue
        with open(os.path.join(root, name), encoding="utf-8", errors="replace") as file:
            found = [match.group(1) for match in map(LOCAL.match, file) if match]
        graph.setdefault(base, set()).update(os.path.splitext(target)[0] for target in found)
    return {base: {to for to in targets if to in graph and to != base} for base, targets in graph.items()}


def circles(graph):
    """The strongly connected sets of more than one object, the largest first (Tarjan 1972, without
    recursion)."""
    order, low, stack, on_stack, found = {}, {}, [], set(), []
    for start in sorted(graph):
        if start in order:
            continue
        path = [(start, iter(sorted(graph[start])))]
        order[start] = low[start] = len(order)
        stack.append(start)
        on_stack.add(start)
        while path:
            at, rest = path[-1]
            for to in rest:
                if to not in order:
                    order[to] = low[to] = len(order)
                    stack.append(to)
                    on_stack.add(to)
                    path.append((to, iter(sorted(graph[to]))))
                    break
                if to in on_stack:
                    low[at] = min(low[at], order[to])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[at])
                if low[at] == order[at]:
                    circle = set()
                    while at not in circle:
                        circle.add(stack.pop())
                    on_stack -= circle
                    if len(circle) > 1:
                        found.append(sorted(circle))
    return sorted(found, key=lambda circle: (-len(circle), circle))


def within(graph, room):
    """The part of the graph that lies in a room."""
    if room.endswith("/**"):
        inside = {o for o in graph if o.startswith(room[:-2])}
    else:
        inside = {o for o in graph if os.path.dirname(o) == room}
    return {o: graph[o] & inside for o in inside}


def rooms(graph):
    folders = {os.path.dirname(o) for o in graph}
    nested = {f"{f.split('/')[0]}/**" for f in folders if "/" in f}
    return sorted(folders | nested)


def largest(graph):
    """Room -> objects in its largest circle; 1: it has none."""
    return {room: max([1, *map(len, circles(within(graph, room)))]) for room in rooms(graph)}


def offences(now, bounds):
    for room, size in sorted(now.items()):
        bound = bounds.get(room, 1)
        if size > bound:
            yield (f"{room}: a circle of {size} objects, {bound} are allowed: "
                   f"tests/tools/check_circles.py --show '{room}' lists it")
        elif size < bound:
            yield f"{room}: the largest circle has {size} objects, no longer {bound}: lower it in circles.txt"
    for room in sorted(set(bounds) - set(now)):
        yield f"{room}: stands in circles.txt, and there is no such room"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", default=os.path.join(HERE, "..", ".."))
    parser.add_argument("--bounds", default=os.path.join(HERE, "circles.txt"))
    parser.add_argument("--show", metavar="ROOM")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    graph = dependencies(options.root)
    now = largest(graph)
    if options.show:
        if options.show not in now:
            parser.error(f"there is no room '{options.show}': it is one of {', '.join(now)}")
        for circle in circles(within(graph, options.show)):
            print(f"{len(circle)}: {' '.join(circle)}")
        return 0
    if options.write:
        ratchet.write(options.bounds, ((room, size) for room, size in sorted(now.items()) if size > 1), 24)
        return 0
    found = list(offences(now, ratchet.read(options.bounds)))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
