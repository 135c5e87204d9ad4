#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No room of the coordinator calls one above it: tests/tools/check_includes.py looks at what files include, this looks
at what the compiled objects need. An object of a room may need a symbol of its own room, of the rooms below, and of
what all rooms share (core.c, events.c, presence.c, turn.c), and of nothing else of the coordinator. Nor do
objects form a circle of more than CIRCLE.

    tests/coordinator/rooms_test.py OBJECT...     all of the coordinator's
"""
import functools
import os
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import check_circles

# Each may use those before it.
ROOMS = ["store", "tenants", "cluster", "session", "sync", "check", "place", "rows", "sessions", "steps"]
CIRCLE = 2  # objects that may need each other, directly or not
SHARED = {"core.c.o", "events.c.o", "presence.c.o", "turn.c.o"}
OBJECTS = sys.argv[1:]


@functools.lru_cache(maxsize=None)
def symbols(path, defined):
    """Names that an object defines for others, or needs from others."""
    kind = "--defined-only" if defined else "--undefined-only"
    out = subprocess.run(["nm", "-g", "--format=posix", kind, path], capture_output=True, check=True, text=True).stdout
    return {line.split()[0] for line in out.splitlines() if line.strip()}


def room_of(path):
    name = os.path.basename(os.path.dirname(path))
    return name if name in ROOMS else "shared" if os.path.basename(path) in SHARED else ""


def offences(needs, defines):
    """needs: room -> {object: names}; defines: name -> room ("" is beside the rooms)."""
    for place, room in enumerate(ROOMS):
        for name, wanted in needs[room].items():
            for symbol in sorted(wanted):
                at = defines.get(symbol)
                if at is None or at == "shared" or at in ROOMS[: place + 1]:
                    continue
                yield f"{room}/{name} needs {symbol} of {at or 'what stands above all rooms'}"


class Rooms(unittest.TestCase):
    def test_no_room_needs_one_above(self):
        defines, needs = {}, {room: {} for room in ROOMS}
        for path in OBJECTS:
            room = room_of(path)
            defines.update(dict.fromkeys(symbols(path, True), room))
            if room in ROOMS:
                needs[room][os.path.basename(path)] = symbols(path, False)
        for room in ROOMS:
            self.assertTrue(needs[room], room)
        self.assertGreater(len(defines), 200)
        self.assertEqual(list(offences(needs, defines)), [])

    def test_no_large_circle(self):
        """check_circles.py goes by includes, this by what objects need: a header may declare what another file defines."""
        defines = {symbol: path for path in OBJECTS for symbol in symbols(path, True)}
        graph = {path: {defines[s] for s in symbols(path, False) if s in defines} - {path} for path in OBJECTS}
        large = [circle for circle in check_circles.circles(graph) if len(circle) > CIRCLE]
        self.assertEqual(large, [])

    def test_an_upward_call_is_found(self):
        needs = {r: {} for r in ROOMS}
        needs["cluster"] = {"plan.c.o": {"item_run", "batch_new", "serve"}}
        defines = {"item_run": "steps", "batch_new": "store", "serve": ""}
        self.assertEqual(list(offences(needs, defines)), ["cluster/plan.c.o needs item_run of steps",
                                                          "cluster/plan.c.o needs serve of what stands above all rooms"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
