# SPDX-License-Identifier: Apache-2.0
"""reference/cli.md: commands and options, from the programs' own tables (PROGRAM --tables)."""
import json
import os
import subprocess

from wording import cell, code, fenced, prose, table, told

PROGRAMS = ("banyanctl", "banyan-coordinator", "banyan-worker", "banyan-llama")


def read_tables(bin_dir):
    """Their tables; they need the built programs."""
    for program in PROGRAMS:
        done = subprocess.run([os.path.join(bin_dir, program), "--tables"], check=True, capture_output=True, text=True, timeout=60)
        yield json.loads(done.stdout)


def options(rows):
    for option in rows:
        name = f"--{option['name']}" + (f" {option['arg']}" if option["arg"] else "")
        short = code("-" + option["letter"]) + ", " if option["letter"] else ""
        yield short + code(name), cell(option["help"])


def sentence(text):
    text = text.strip()
    return text[0].upper() + text[1:] + ("" if text.endswith((".", ":", "?")) else ".")


def commands(program, rows):
    yield from table(("command", ""), ((f"[`{row['name']}`](#{row['name'].replace(' ', '-')})", cell(row["summary"])) for row in rows))
    for row in rows:
        yield f"### {row['name']}"
        yield ""
        yield from fenced(f"{program} {row['name']} {row['synopsis']}".rstrip())
        yield from told(sentence(row["about"] or row["summary"]))
        yield from table(("option", ""), options(row["options"]))
        yield from fenced("\n".join(f"{program} {line}" for line in row["examples"]), "sh")


def page(root, bin_dir):
    yield "# Command line"
    yield ""
    yield from prose("What `--help` prints. Shells [complete](../../client/README.md#installing) all of it, `man banyanctl` "
                     "shows it, and [exit codes](exit-codes.md) have a page of their own.")
    yield ""
    for program in read_tables(bin_dir):
        yield f"## {program['program']}"
        yield ""
        yield from told(sentence(program["about"]))
        yield from table(("option", ""), options(program["options"]))
        if "commands" in program:
            yield from commands(program["program"], program["commands"])
        if "environment" in program:
            yield from table(("variable", ""), ((code(name), cell(text)) for name, text in program["environment"]))
