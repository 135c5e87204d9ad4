#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No room calls one above it, by what the compiled objects need: check_includes.py looks at what files
include, and a header may declare what a file of another room defines. An object may need a symbol of an
object whose header it may include, and of nothing else of its folder. Nor do objects form a circle of more
than CIRCLE, or fewer: then lower it.

    tests/tools/rooms_test.py --build DIR --circle CIRCLE OBJECT...     all objects of one folder, or of a program
"""
import argparse
import os
import re
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
import check_circles
import check_includes

# A transport and the calls above it call each other by rpc/transport.h.
BOTH_WAYS = {"proto/stream": {"proto/rpc"}, "proto/nng": {"proto/rpc"}, "proto/rpc": {"proto"}}
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
OBJECT = re.compile(r"(?P<folder>.+)/CMakeFiles/[^/]+\.dir/(?P<name>.+)\.c\.o$")


def name_of(path, build):
    """worker/core/state, of build/worker/CMakeFiles/banyan_worker.dir/core/state.c.o; None: its source is
    generated."""
    match = OBJECT.match(os.path.relpath(path, build))
    name = match and f"{match['folder']}/{match['name']}"
    return name if match and os.path.exists(os.path.join(ROOT, name + ".c")) else None


def symbols(paths):
    """Object -> the names that it needs from others; name -> the object that defines it for others."""
    needs, defines = {path: set() for path in paths}, {}
    out = subprocess.run(["nm", "-A", "-g", "--format=posix", *paths], capture_output=True, check=True, text=True).stdout
    for line in out.splitlines():
        path, symbol, kind = line.split()[:3]
        path = path.rstrip(":")
        if kind in "Uwv":
            needs[path].add(symbol)
        else:
            defines[symbol] = path
    return needs, defines


def room_of(name, rules):
    """The innermost folder that has rules of its own."""
    room = os.path.dirname(name)
    while room not in rules:
        room = os.path.dirname(room)
    return room


def offences(graph, rules):
    """graph: object -> {object that it needs: a symbol}."""
    for name, targets in sorted(graph.items()):
        room = room_of(name, rules)
        may = rules[room] | {room} | BOTH_WAYS.get(room, set())
        for target, symbol in sorted(targets.items()):
            holders = {"/".join(target.split("/")[:n]) for n in range(1, target.count("/") + 1)} | {target + ".h"}
            if not holders & may:
                yield f"{name} needs {symbol} of {target}"


class Rooms(unittest.TestCase):
    graph, circle = {}, 1

    def test_no_room_needs_one_above(self):
        self.assertGreater(len(self.graph), 5)
        self.assertEqual(list(offences(self.graph, check_includes.ALLOWED)), [])

    def test_no_large_circle(self):
        found = check_circles.circles({name: set(targets) for name, targets in self.graph.items()})
        self.assertEqual(max([1, *map(len, found)]), self.circle, found[:1])

    def test_an_upward_call_is_found(self):
        rules = {"a": {"common"}, "a/low": {"common", "a/core.h"}, "a/high": {"common", "a/low"}}
        graph = {"a/low/x": {"a/high/y": "y_run", "a/low/z": "z", "a/core": "core_new"}, "a/high/y": {"a/low/x": "x_run"},
                 "a/main": {"a/high/y": "y_run"}}
        self.assertEqual(list(offences(graph, rules)), ["a/low/x needs y_run of a/high/y"])

    def test_names_of_objects(self):
        self.assertEqual(name_of("/b/worker/CMakeFiles/banyan_worker.dir/core/state.c.o", "/b"), "worker/core/state")
        self.assertEqual(name_of("/b/client/llama/CMakeFiles/ggml.dir/step.c.o", "/b"), "client/llama/step")
        self.assertIsNone(name_of("/b/client/CMakeFiles/banyanctl.dir/ctl_scripts.c.o", "/b"))
        self.assertIsNone(name_of("/b/proto/CMakeFiles/banyan_proto.dir/banyan.pb-c.c.o", "/b"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", required=True)
    parser.add_argument("--circle", type=int, required=True)
    parser.add_argument("objects", nargs="+")
    options = parser.parse_args()
    names = {path: name_of(path, options.build) for path in options.objects}
    needs, defines = symbols([path for path in options.objects if names[path]])
    Rooms.graph = {names[path]: {names[defines[s]]: s for s in sorted(wanted) if defines.get(s, path) != path}
                   for path, wanted in needs.items()}
    Rooms.circle = options.circle
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
