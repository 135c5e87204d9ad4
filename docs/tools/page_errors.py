# SPDX-License-Identifier: Apache-2.0
"""reference/errors.md: canonical codes from client/banyan.h, banyanctl's exit codes, and the reasons from
wire.md."""
import os
import re

from wording import cell, code, prose, table

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
    yield from prose("`reason` is one of these, or empty if the code is enough.")
    yield ""
    wire = read(root, "docs/reference/wire.md").split("\n### Reasons\n")[1]
    rows = [line for line in wire.split("\n\n")[1].split("\n") if line.startswith("|")]
    for row in rows:  # links within wire.md lead there from here, too
        yield re.sub(r"\]\((?=#)", "](wire.md", row.replace("[above](", "[how]("))
    yield ""
