#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a file includes what the include table forbids (docs/internals/architecture.md), or lacks its
SPDX line.

    tests/tools/check_includes.py [--root DIR]

Looks at the files that git tracks or, where there is no git, at all files outside of build/. Each offence is
one line, file:line: rule. Exit status: 0 clean, 1 offences, 2 wrong use.
"""
import argparse
import os
import re
import subprocess
import sys

COMMON = ("base", "memory", "hash", "tensor", "log", "loop", "secure", "metrics", "tracing", "http", "trail", "cli")
WORKER = ("memory", "processors", "store", "session", "files", "disk", "core", "control", "steps", "rows", "daemon")
PROTO = ("model", "rights", "sums", "wire", "stream")
CLIENT = ("core", "session", "rows", "steps", "admin")


def storeys(folder, base, names):
    """Rooms of a folder, the lowest first: each may include those before it, and what its folder may."""
    return {f"{folder}/{name}": base | {f"{folder}/{below}" for below in names[:place]}
            for place, name in enumerate(names)}


# What all rooms of the coordinator may include.
CORE = {"common", "proto", "reduce/plan.h", "coordinator/core.h", "coordinator/events.h", "coordinator/presence.h",
        "coordinator/turn.h"}


def rooms(*names):
    """The coordinator's rooms: each may include those before it, but the store alone stands on nothing of the
    coordinator, and the cluster has no use for tenants."""
    allowed = {}
    for place, name in enumerate(names):
        allowed[f"coordinator/{name}"] = CORE | {f"coordinator/{below}" for below in names[:place]}
    allowed["coordinator/store"] = {"common"}
    allowed["coordinator/cluster"] -= {"coordinator/tenants"}
    return allowed


# Folder -> what it may include beside itself and the system: folders, or single files. A folder within a
# folder that stands here has rules of its own.
ALLOWED = {
    "common": set(),
    **storeys("common", set(), COMMON),
    "proto": {"common"},
    **storeys("proto", {"common", "proto/banyan.pb-c.h"}, PROTO),
    # The transports have the calls above them by three headers.
    "proto/stream": {"common", "proto/banyan.pb-c.h", "proto/model", "proto/rights", "proto/wire", "proto/rpc/rpc.h",
                     "proto/rpc/transport.h", "proto/rpc/endpoint.h"},
    "proto/nng": {"common", "proto/banyan.pb-c.h", "proto/model", "proto/rights", "proto/wire", "proto/stream", "proto/rpc/rpc.h",
                  "proto/rpc/transport.h", "proto/rpc/endpoint.h"},
    "proto/rpc": {"common", "proto/banyan.pb-c.h", *(f"proto/{room}" for room in PROTO)},
    "kernels": {"common"},
    "reduce": {"common", "proto", "kernels/partial.h"},
    "reduce/nccl": {"common", "proto", "reduce", "kernels/partial.h", "kernels/device.h", "kernels/scalar.h",
                    "kernels/cuda/args.h", "kernels/cuda/lane.cuh"},
    "coordinator": {"common", "proto", "reduce/plan.h"},
    # The coordinator's rooms, the lowest first: none uses one above it (coordinator/core.h).
    **rooms("store", "tenants", "cluster", "session", "sync", "check", "place", "rows", "prefix", "sessions", "steps"),
    # Beside the rooms: it records calls and events, and asks for nothing.
    "coordinator/trail": CORE | {"coordinator/store", "coordinator/tenants"},
    "worker": set(),
    **storeys("worker", {"common", "proto", "kernels", "reduce"}, WORKER),
    "client": {"common", "proto"},
    # Its products. What is in none of these rooms (banyan.h) includes the system alone.
    "client/lib": {"common", "proto", "client/banyan.h"},
    **storeys("client/lib", {"common", "proto", "client/banyan.h"}, CLIENT),
    "client/snapshot": {"common", "proto", "client/banyan.h", "client/lib"},
    "client/ctl": {"common", "proto", "client/banyan.h", "client/lib", "client/snapshot"},
    "client/llama": {"client/banyan.h"},
}
ANYTHING = {"tests", "bench", "examples", "research"}  # may include anything; nothing includes them
FOLDERS = set(ALLOWED) | ANYTHING
NO_PROTOBUF = {"common", "kernels", "reduce"}  # a kernel or an engine sees no protobuf type

SOURCE_ENDINGS = (".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".cuh", ".inc")
SPDX_ENDINGS = SOURCE_ENDINGS + (".py", ".sh", ".cmake", ".proto", ".js", ".css")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
SPDX = "SPDX-License-Identifier: Apache-2.0"


def list_files(root):
    """Paths relative to root."""
    try:
        listing = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=False)
    except FileNotFoundError:  # no git on this machine
        listing = None
    if listing and listing.returncode == 0:
        names = listing.stdout.decode().split("\0")
        return sorted(n for n in names if n and os.path.isfile(os.path.join(root, n)))
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [s for s in subfolders if s not in ("build", ".git", "__pycache__")]
        found += [os.path.relpath(os.path.join(folder, n), root) for n in names]
    return sorted(found)


def check_include(root, name, quote, target):
    """The rule that this include breaks, or None."""
    folder = name.split("/")[0]
    first, _, rest = target.partition("/")
    if target.endswith((".c", ".cc", ".cpp", ".cu")):
        return f'includes the source file "{target}": nobody includes .c files'
    if target.startswith("protobuf-c/") or target.endswith(".pb-c.h"):
        if folder in NO_PROTOBUF:
            return f'"{target}": {folder} sees no protobuf type'
    ours = first in FOLDERS and rest
    if quote == "<" and not ours:
        return None  # a system header
    if not ours:
        return f'"{target}": includes are "folder/file.h" from the root'
    if not target.endswith(".pb-c.h") and not os.path.isfile(os.path.join(root, target)):
        return f'"{target}" does not exist'
    if folder in ANYTHING:
        return None
    while name and name not in ALLOWED:  # the innermost folder that has rules of its own
        name = os.path.dirname(name)
    if not name:
        return f'"{target}": {folder} is no folder of the include table'
    folder = name
    holders = {"/".join(target.split("/")[:n]) for n in range(1, target.count("/") + 2)}
    if folder in holders or holders & ALLOWED[folder]:
        return None
    return f'"{target}": {folder} may include only {", ".join(sorted(ALLOWED[folder])) or "system headers"}'


def check_file(root, name):
    """Yields (line number, rule) for each offence."""
    with open(os.path.join(root, name), encoding="utf-8", errors="replace") as file:
        lines = file.read().split("\n")
    script = lines[0].startswith("#!")
    if script or name.endswith(SPDX_ENDINGS) or os.path.basename(name) == "CMakeLists.txt":
        at = 1 if script else 0
        if len(lines) <= at or SPDX not in lines[at]:
            yield at + 1, f'the line "{SPDX}" is missing'
    if name.endswith(SOURCE_ENDINGS):
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            rule = match and check_include(root, name, match.group(1), match.group(2))
            if rule:
                yield number, rule


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    root = parser.parse_args(arguments).root
    offences = 0
    for name in list_files(root):
        for number, rule in check_file(root, name):
            print(f"{name}:{number}: {rule}")
            offences += 1
    if offences:
        print(f"check_includes: {offences} offence{'s' if offences > 1 else ''}", file=sys.stderr)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
