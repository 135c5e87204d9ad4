#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a document names a command or an option that the programs do not have.

    tests/tools/check_commands.py BIN [--root DIR]        BIN: the folder of the built programs

Read are the .md files that git tracks, without measurements and the change log, and alerts, units and
manifests in deploy/:

  - a call of banyanctl, banyan-coordinator or banyan-worker, in a block of shell or in `code`: its command, and each option,
    must be in the tables behind --help (PROGRAM --tables);
  - `session verify`, in code without the program: the same, where the first word is that of a group of commands;
  - `--option` alone, in code: one of these programs has it, or a file that is no document (a script, a test) writes it.

Words in capitals stand for anything. Each offence is one line, file:line: rule. Exit status: 0 clean, 1
offences, 2 wrong use.
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys

sys.dont_write_bytecode = True
from check_includes import list_files

PROGRAMS = ("banyanctl", "banyan-coordinator", "banyan-worker")
CALL = re.compile(r"(?<![\w.-])(?:[\w./$\"{}-]*/)?(banyanctl|banyan-coordinator|banyan-worker)(?![\w.@-])\s+(.*)", re.S)
SHELL = {"sh", "bash", "console", "ini"}
END = re.compile(r"^(\|\|?|&&?|;|\d?>>?.*|<.*|#.*|\)|…)$")
UNREAD = re.compile(r"docs/measurements/|CHANGELOG\.md$|research/")
DEPLOYED = re.compile(r"deploy/.*\.(yaml|conf|service|in)$")
FOREIGN = {"--enable-feature", "--set", "--kv-transfer-config", "--gpu-memory-utilization",
           "--list-devices"}  # of Prometheus, Helm, vLLM, llama.cpp


class Program:
    def __init__(self, table):
        self.options = {o["name"]: o for o in table["options"]}
        self.letters = {o["letter"]: o for o in table["options"] if o["letter"]}
        self.commands = {c["name"]: {o["name"]: o for o in c["options"]} for c in table.get("commands", [])}
        self.command_letters = {c["name"]: {o["letter"]: o for o in c["options"] if o["letter"]} for c in table.get("commands", [])}
        self.groups = {name.split()[0] for name in self.commands if " " in name}

    def takes_value(self, name):
        """Whether any option of this name has an argument."""
        found = [table[name] for table in (self.options, *self.commands.values()) if name in table]
        return any(o["arg"] for o in found)


def read_programs(folder):
    for name in PROGRAMS:
        done = subprocess.run([os.path.join(folder, name), "--tables"], check=True, capture_output=True, text=True, timeout=60)
        yield name, Program(json.loads(done.stdout))


def words_of(text):
    """The words of one command, without what the shell does with it."""
    text = text.split("`")[0]
    try:
        words = shlex.split(text, comments=True)
    except ValueError:  # a quote that ends elsewhere
        words = text.split()
    for n, word in enumerate(words):
        if END.match(word):
            return words[:n]
        if word.endswith((";", ")")) and "(" not in word:
            return [*words[:n], word.rstrip(";)")]
    return words


def parse(program, words):
    """(words that are no options, [options' names])"""
    plain, named, skip = [], [], False
    for word in words:
        if skip:
            skip = False
        elif word.startswith("--") and len(word) > 2:
            name, equals, _ = word[2:].partition("=")
            named.append("--" + name)
            skip = not equals and program.takes_value(name)
        elif re.fullmatch(r"-[a-zA-Z0-9]", word):
            named.append(word)
            letters = [program.letters, *program.command_letters.values()]
            skip = any(word[1] in table and table[word[1]]["arg"] for table in letters)
        else:
            plain.append(word.strip("[]"))
    return plain, named


def is_open(word):
    """Whether a word stands for anything."""
    return not re.fullmatch(r"[a-z][a-z-]*", word)


def call_rules(name, program, words):
    """Yields the rules that a call breaks."""
    plain, named = parse(program, words)
    options, letters, where = dict(program.options), dict(program.letters), name
    if program.commands and plain and not is_open(plain[0]):
        command = " ".join(plain[:2]) if plain[0] in program.groups else plain[0]
        if plain[0] in program.groups and (len(plain) == 1 or is_open(plain[1])):
            return
        if command not in program.commands:
            yield f"{name} has no command '{command}'"
            return
        options.update(program.commands[command])
        letters.update(program.command_letters[command])
        where = f"{name} {command}"
    elif program.commands and not plain:
        for table in program.commands.values():
            options.update(table)
    for option in named:
        known = letters if len(option) == 2 else options
        if option.lstrip("-") not in known and not option[2:].isupper():
            yield f"{where} has no option {option}"


def written_options(root, files):
    """Options that a file which is no document writes, for other programs than ours."""
    found = set(FOREIGN)
    for name in files:
        if name.endswith((".md", ".svg", ".png", ".jsonl")) or name.startswith("tests/fuzz/corpus/"):
            continue
        try:
            with open(os.path.join(root, name), encoding="utf-8") as file:
                text = file.read()
                found.update(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*\w", text))
                if name.endswith(".c"):  # a table of options
                    found.update("--" + option for option in re.findall(r'\{"([a-z][a-z0-9-]+)", ', text))
        except (UnicodeDecodeError, IsADirectoryError):
            continue
    return found


def pieces_of(text):
    """Yields (line number, kind, text): commands of shell blocks with their continued lines, and code in
    prose."""
    fence, language, held, start = None, "", [], 0
    prose = []
    for number, line in enumerate(text.split("\n"), 1):
        mark = re.match(r"\s*(```+|~~~+)\s*(\w*)", line)
        if mark and (fence is None or line.strip().startswith(fence)):
            fence, language = (None, "") if fence else (mark[1], mark[2])
            continue
        if fence is None:
            prose.append((number, line))
            continue
        if language not in SHELL and not line.lstrip().startswith("$ "):
            continue
        start = number if not held else start
        held.append(line.lstrip().removeprefix("$ ").rstrip("\\"))
        if not line.endswith("\\"):
            yield start, "shell", " ".join(held)
            held = []
    joined = "\n".join(line for _, line in prose)
    numbers = [number for number, _ in prose]
    for match in re.finditer(r"(`+)(?!`)((?:(?!\n\s*\n).)*?)(?<!`)\1(?!`)", joined, re.S):
        yield numbers[joined.count("\n", 0, match.start())], "code", " ".join(match[2].split())


def check_page(text, programs, written):
    """Yields (line number, rule)."""
    ctl = programs["banyanctl"]
    for number, kind, piece in pieces_of(text):
        rest, called = piece, False
        while rest:
            call = CALL.search(rest)
            if not call:
                break
            called = True
            for rule in call_rules(call[1], programs[call[1]], words_of(call[2])):
                yield number, rule
            rest = call[2]
        if kind == "shell" or called:
            continue
        words = piece.split()
        if len(words) > 1 and words[0] in ctl.groups and not is_open(words[1].strip(",;")):
            for rule in call_rules("banyanctl", ctl, words_of(piece)):
                yield number, rule
        option = re.fullmatch(r"(--[a-z][a-z0-9-]*)(=\S+)?( \S+)*", piece)
        if option and option[1] not in written and not any(
                option[1][2:] in table for p in programs.values() for table in (p.options, *p.commands.values())):
            yield number, f"no program has the option {option[1]}"


def check_deployed(text, programs):
    """Yields (line number, rule) for calls of banyanctl in alerts, units and manifests."""
    for number, line in enumerate(text.split("\n"), 1):
        for match in re.finditer(r"(?<![\w/-])banyanctl ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", line):
            for rule in call_rules("banyanctl", programs["banyanctl"], [w for w in match.groups() if w]):
                yield number, rule


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("bin")
    parser.add_argument("--root", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    options = parser.parse_args(arguments)
    programs = dict(read_programs(options.bin))
    files = list_files(options.root)
    written = written_options(options.root, files)
    offences = 0
    for name in files:
        page = name.endswith(".md") and not UNREAD.match(name)
        if not page and not DEPLOYED.match(name):
            continue
        with open(os.path.join(options.root, name), encoding="utf-8") as file:
            text = file.read()
        for number, rule in check_page(text, programs, written) if page else check_deployed(text, programs):
            print(f"{name}:{number}: {rule}")
            offences += 1
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
