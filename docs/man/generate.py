#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the manual pages, in mdoc(7), from what cannot differ from the programs: their tables of options
(PROGRAM --tables), docs/reference/exit-codes.md, and the comments of client/banyan.h. The rest stands in the
templates beside this file, where a line .\\" @NAME@ is replaced.

    generate.py SOURCE VERSION OUT TABLES...    SOURCE: the repository; TABLES: files, one of each program
"""
import json
import os
import re
import sys

import header
from mdoc import arguments, flag, guarded, prose

PAGES = {"banyanctl": 1, "banyan-llama": 1, "banyan-coordinator": 8, "banyan-worker": 8, "banyan": 3}


def option_items(options):
    for option in options:
        head = [".It", *(flag(option["letter"]) + [","] if option["letter"] else []), "Fl", guarded("-" + option["name"])]
        if option["arg"]:
            head += ["Ns", "=", "Ns", *arguments(option["arg"])]
        yield " ".join(head)
        yield from prose(option["help"])


def option_list(options):
    return [".Bl -tag -width Ds", *option_items(options), ".El"] if options else []


def synopsis(text):
    """SESSION LENGTH [NAME] --yes, as mdoc's words."""
    words = []
    for word in text.split():
        inside = word.strip("[]")
        if word[0] == "[":
            words.append("Oo")
        for n, part in enumerate(inside.split("|") if inside.startswith("--") else [inside]):
            words += ["|"] if n else []
            name, _, arg = part.partition("=")
            if name.startswith("--"):
                words += ["Fl", guarded(name[1:]), *(["Ns", "=", "Ns", *arguments(arg)] if arg else [])]
            else:
                words += arguments(part)
        if word[-1] == "]":
            words.append("Oc")
    return words


def named_list(pairs):
    """Of a command's own help: lines that begin with two blanks, "  name: what it is"."""
    items = [line for name, what in pairs for line in (f".It {guarded(name)}", *prose(what))]
    return [".Bl -tag -width Ds -compact", *items, ".El"] if items else []


def variable_list(pairs):
    yield ".Bl -tag -width Ds"
    for names, what in pairs:
        yield ".It Ev " + names.replace(", ", " , ")
        yield from prose(what)
    yield ".El"


def command_sections(tables):
    for command in tables["commands"]:
        yield f".Ss {command['name']}"
        everywhere = ["Oo Ar options Oc"] if tables["program"] == "banyanctl" else []
        yield " ".join([f".Nm {tables['program']} Cm {command['name']}", *everywhere, *synopsis(command["synopsis"])]).rstrip()
        yield ".Pp"
        about = command["about"] or command["summary"]
        lines = about.split("\n")
        words = "\n".join(line for line in lines if not line.startswith("  "))
        yield from prose(words[0].upper() + words[1:] + ("" if words.endswith((".", ":")) else "."))
        yield from named_list(line.strip().partition(": ")[::2] for line in lines if line.startswith("  "))
        yield from option_list(command["options"])
        yield from (".Pp", "Examples:", ".Bd -literal -offset indent")
        yield from (guarded(f"{tables['program']} {line}") for line in command["examples"])
        yield ".Ed"


def exit_items(codes, heading, worker_or_coordinator):
    """The rows of the table under that heading; of both daemons' table, those of one of them."""
    other = {"worker": "coordinator", "coordinator": "worker"}.get(worker_or_coordinator)
    section = codes.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    yield ".Bl -tag -width Ds"
    for row in re.findall(r"^\| (\d+|other) \|(.*)\|$", section, re.M):
        cells = [cell.strip() for cell in row[1].split(" | ")]
        meaning = cells[0]
        if other:
            if re.match(f"{other} only: ", meaning, re.I):
                continue
            parts = re.split(r"(?:^|(?<=\. ))(?:(coordinator|worker)(?: only)?: )", meaning, flags=re.I)
            named = dict(zip([name.lower() for name in parts[1::2]], parts[2::2]))
            meaning = named.get(worker_or_coordinator, parts[0])
        advice = cells[2] if len(cells) > 2 else ""
        yield f".It {row[0]}"
        yield from prose(sentence(meaning))
        if advice:
            yield from prose(f"What to do: {sentence(advice)}" if not advice[0].isupper() else sentence(advice))
    yield ".El"


def sentence(text):
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text.strip())
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def parts_of(program, source, tables):
    """What the template's lines are replaced by."""
    if program == "banyan":
        with open(os.path.join(source, "client/banyan.h"), encoding="utf-8") as file:
            return header.parts(file.read())
    with open(os.path.join(source, "docs/reference/exit-codes.md"), encoding="utf-8") as file:
        codes = file.read()
    table = tables[program]
    daemon = program.partition("-")[2] if PAGES[program] == 8 else ""
    parts = {"ABOUT": prose(table["about"]), "OPTIONS": option_list(table["options"]),
             "EXIT": exit_items(codes, "banyan-coordinator, banyan-worker" if daemon else program, daemon)}
    if "commands" in table:
        parts["COMMANDS"] = command_sections(table)
    if "environment" in table:
        parts["ENVIRONMENT"] = variable_list(table["environment"])
    return parts


def page(template, version, parts):
    lines = []
    for line in template.rstrip("\n").split("\n"):
        place = re.fullmatch(r'\.\\" @([A-Z]+)@', line)
        if place:
            lines += parts.pop(place[1])
        else:
            lines.append(line.replace("@VERSION@", version))
    if parts:
        raise SystemExit(f"generate.py: nothing in the template for {', '.join(parts)}")
    return "\n".join(lines) + "\n"


def main(source, version, out, *files):
    tables = {}
    for name in files:
        with open(name, encoding="utf-8") as file:
            table = json.load(file)
        tables[table["program"]] = table
    for program, section in PAGES.items():
        name = f"{program}.{section}"
        with open(os.path.join(source, "docs/man", f"{name}.in"), encoding="utf-8") as file:
            text = page(file.read(), version, dict(parts_of(program, source, tables)))
        with open(os.path.join(out, name), "w", encoding="ascii") as file:
            file.write(text)
    links = os.path.join(out, "man3") # `man banyan_attend` shows banyan(3)
    os.makedirs(links, exist_ok=True)
    for name in re.findall(r"^\.Fo (\w+)$", text, re.M):
        with open(os.path.join(links, f"{name}.3"), "w", encoding="ascii") as file:
            file.write(".so man3/banyan.3\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
