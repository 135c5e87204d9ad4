# SPDX-License-Identifier: Apache-2.0
"""reference/errors.md: canonical codes and reasons from client/banyan.h, banyanctl's exit codes from
exit-codes.md."""
import os
import re

from wording import cell, code, prose, table

CODES = "|".join(("CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED RESOURCE_EXHAUSTED "
                  "FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED").split())
CODE = re.compile(r"^\s*BANYAN_([A-Z_]+) =\s*(\d+),(?:\s*//(.*))?$", re.M)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def exits(root):
    """{canonical code: exit code of banyanctl}"""
    section = read(root, "docs/reference/exit-codes.md").split("\n## banyanctl\n")[1].split("\n## ")[0]
    found = {}
    for number, cells in re.findall(r"^\| (\d+) \|(.*)\|$", section, re.M):
        for name in re.findall(r"[A-Z_]{2,}", cells.split(" | ")[1]):
            found[name] = number
    return found


def codes(root):
    header = read(root, "client/banyan.h")
    header = header[header.index("typedef enum banyan_code"):header.index("} banyan_code;")]
    for name, number, said in CODE.findall(re.sub(r"=\n\s*", "= ", header)):
        yield name, number, said.strip()


def rows_of(lines):
    """Of the comment above a reason: [codes, meaning, what to do], for each code that it is about."""
    rows = []
    for line in lines:
        start = re.match(rf"(any|{CODES})(?=[,:])", line)
        if start:
            rows.append([])
        rows[-1].append(line)
    for row in rows:
        parts = re.fullmatch(r"([^:]*): (.*?)\.? Then: (.*?)\.?", " ".join(row))
        if not parts:
            raise SystemExit(f"client/banyan.h: a reason is described as 'CODE: meaning. Then: what to do.', not as {' '.join(row)!r}")
        yield parts.groups()


def reasons(root):
    """(name, number, codes, meaning, what to do); they are those of proto/model/reason.h."""
    header = read(root, "client/banyan.h")
    header = header[header.index("typedef enum banyan_reason"):header.index("} banyan_reason;")]
    found, comment = {}, []
    for line in header.split("\n")[1:]:
        said, name = re.match(r"\s*// ?(.*)", line), re.match(r"\s*BANYAN_REASON_(\w+) = (\d+),", line)
        if said:
            comment.append(said[1])
        elif name and name[2] != "0":
            found[name[1]] = name[2]
            for row in rows_of(comment):
                yield name[1], name[2], *row
            comment = []
    wire = dict(re.findall(r"X\((\w+), (\d+)\)", read(root, "proto/model/reason.h")))
    if wire != found:
        raise SystemExit(f"client/banyan.h and proto/model/reason.h differ in {sorted(set(wire.items()) ^ set(found.items()))}")


def page(root, _):
    exit_of = exits(root)
    yield "# Errors"
    yield ""
    yield from prose("Every failure has a canonical code, a sentence for people, and for programs a reason with token ranges "
                     "and workers. In C they are in `banyan_error` ([C API](c-api.md#banyan_error)), in Python in "
                     "`BanyanError` ([Python API](python-api.md#banyanerror)), and `banyanctl` prints the sentence and the "
                     "code on stderr and exits with a code for each class ([all exit codes](exit-codes.md#banyanctl)).")
    yield ""
    yield "## Codes"
    yield ""
    yield from table(("code", "number", "`banyanctl` exits with", "meaning"),
                     ((code(name), number, exit_of.get(name, "–"), cell(said) or "success") for name, number, said in codes(root)))
    yield "## Reasons"
    yield ""
    yield from prose("Why a call has failed, more exactly than its code says: programs compare the reason, never the sentence. "
                     "It is `BANYAN_REASON_NONE` in C and \"\" in Python if the code is enough, and for a reason of a service that "
                     "is newer than the library. Between programs it travels as its number ([wire.md](wire.md#reasons)).")
    yield ""
    yield from table(("reason", "number", "code", "meaning", "what to do"),
                     ((code(name), number, cell(codes_), cell(meaning), cell(todo)) for name, number, codes_, meaning, todo in reasons(root)))
