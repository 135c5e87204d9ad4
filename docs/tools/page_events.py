# SPDX-License-Identifier: Apache-2.0
"""reference/events.md: what `banyanctl events` shows, from proto/model/event.h."""
import os
import re

from wording import cell, code, prose, table

KIND = re.compile(r'X\((\w+), "([a-z-]+)", (\d+), (\d+),\s*"((?:[^"\\]|\\.)*)"\)')


def kinds(root):
    with open(os.path.join(root, "proto/model/event.h"), encoding="utf-8") as file:
        text = file.read().replace("\\\n", "\n")
    found = KIND.findall(text[text.index("PROTO_EVENT_KINDS(X)"):])
    if not found:
        raise SystemExit("page_events.py: proto/model/event.h has no table of kinds")
    return [(name, int(most), int(seconds), about) for _, name, most, seconds, about in found]


def page(root, _):
    yield "# Events"
    yield ""
    yield from prose("What has happened in a cluster. `banyanctl events --follow` prints them as they happen, the dashboard "
                    "shows them, and the coordinator writes each into its log. The text of an event says why.")
    yield from prose("A kind's first word is its group: `banyanctl events --kind worker` prints all of that group. *At most* is "
                    "how many events of the kind appear singly in that time; further ones become one event with a count.")
    groups = {}
    for name, most, seconds, about in kinds(root):
        per = f"{most} per {'second' if seconds == 1 else f'{seconds} s'}"
        groups.setdefault(name.split("-")[0], []).append((code(name), cell(about), per))
    for group, rows in groups.items():
        yield f"## {group}"
        yield ""
        yield from table(("kind", "what happened", "at most"), rows)
