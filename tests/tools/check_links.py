#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a document names what does not exist: a link to a missing file or heading, or a missing source
file.

    tests/tools/check_links.py [--root DIR]

Looks at the .md files that git tracks or, where there is no git, at all outside of build/. Checked are
relative links ([text](path#heading)), and names of our files as words: `folder/file.c` in backquotes, and in
drawings. A name without a folder must exist in some folder. Names with a placeholder (NAME, GROUP) and fenced
commands are left alone. Where a drawing has a line for a room (`worker/core/   state, compute pace`), each
.c and .h file of that folder is named there, without its ending, in that line or in those below it; a folder
with sources inside it is named, too, or has a line of its own.

In all other files a page docs/….md must exist, and with `docs/….md, "Heading"` the heading, or a paragraph
that begins with it in bold. Where a guide or an example names Banyan's version (banyan-X.Y.Z, an image's tag,
what programs print, find_package(banyan X.Y)), it is that of CMakeLists.txt. A comment of client/banyan.h
names only what the header declares. Every page below docs/ is linked from docs/README.md,
except that measurements/README.md lists the measurements.

Each offence is one line, file:line: rule. Exit status: 0 clean, 1 offences, 2 wrong use.
"""
import argparse
import functools
import os
import re
import sys

sys.dont_write_bytecode = True
from check_includes import list_files

LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"(?<![\w./*$-])((?:[\w-]+/)*[\w-]+\.(?:c|h|cc|cu|cuh|py|sh|proto|cmake|md))(?![\w/*(])")
CODE = re.compile(r"`([^`]+)`")
PAGE = re.compile(r"(?<![\w./-])(docs/(?:[\w-]+/)*[\w-]+\.md)(?:, \"([^\"]+)\")?")
BINARY = (".png", ".svg", ".safetensors", ".jsonl", ".db", ".bin")
ROOM = re.compile(r"([a-z_]+(?:/[a-z_]+)*)/ {2,}(.+)")
VERSION = re.compile(r"(?:banyan-|Banyan |/banyan +newTag: |version +(?:coordinator|worker [\w-]+): )(\d+\.\d+\.\d+)(?!~)")
PACKAGE = re.compile(r"find_package\(banyan (\d+\.\d+)")
PLACEHOLDER = re.compile(r"NAME|GROUP")
# Of others: libraries' headers, and what the reader makes.
FOREIGN = {"mpi.h", "nccl.h", "hello.c"}


def anchor(heading):
    """The name that a heading gets when it is rendered."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def lines_of(path):
    """Yields (number, line, fenced)."""
    fenced = False
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.startswith("```"):
                fenced = not fenced
                continue
            yield number, line.rstrip("\n"), fenced


@functools.lru_cache(maxsize=None)
def anchors_of(path):
    return {anchor(line.lstrip("#")) for _, line, fenced in lines_of(path) if not fenced and re.match(r"#{1,6} ", line)}


@functools.lru_cache(maxsize=None)
def openings_of(path):
    """The bold words with which paragraphs begin, as anchors."""
    found = (re.match(r"(?:[-*] |\d+\. )?\*\*([^*]+)\*\*", line) for _, line, fenced in lines_of(path) if not fenced)
    return {anchor(match[1]) for match in found if match}


def link_rule(root, name, target):
    """The rule that this link breaks, or None."""
    if re.match(r"[a-z]+:", target):
        return None
    path, _, heading = target.partition("#")
    full = os.path.normpath(os.path.join(root, os.path.dirname(name), path) if path else os.path.join(root, name))
    if not os.path.exists(full):
        return f"({target}): {path} does not exist"
    if heading and full.endswith(".md") and heading not in anchors_of(full):
        return f"({target}): no heading gives #{heading}"
    return None


def file_rule(name, target, files, ends):
    """The rule that this name of a file breaks, or None."""
    if target in FOREIGN or PLACEHOLDER.search(target):
        return None
    here = os.path.normpath(os.path.join(os.path.dirname(name), target))
    if here in files or target in files or target in ends:
        return None
    return f"{target} does not exist"


def ends_of(files):
    """Each path without its first folders: what a reader can find by its name."""
    return {"/".join(parts[i:]) for parts in (f.split("/") for f in files) for i in range(len(parts))}


def check_file(root, name, files, ends):
    """Yields (line number, rule) for each offence."""
    for number, line, fenced in lines_of(os.path.join(root, name)):
        if not fenced:
            for target in LINK.findall(line):
                rule = link_rule(root, name, target)
                if rule:
                    yield number, rule
        # In fences only drawings are read: what is there besides is commands and programs.
        texts = [line] if fenced and re.search("[│├└─▶]", line) else [] if fenced else CODE.findall(line)
        for text in texts:
            for target in FILE.findall(text):
                rule = file_rule(name, target, files, ends)
                if rule:
                    yield number, rule


def rooms_of(path):
    """Yields (line number, folder, words) for each room that a drawing of this page has a line for."""
    room = None
    for number, line, fenced in lines_of(path):
        match = ROOM.match(line) if fenced else None
        if room and (match or not fenced or line[:1] not in (" ", "")):
            yield room
            room = None
        if match:
            room = number, match[1], set(re.findall(r"\w+", match[2]))
        elif room:
            room[2].update(re.findall(r"\w+", line))
    if room:
        yield room


def check_rooms(root, name, files):
    """Yields (line number, rule) for each room of which the drawing lacks files."""
    units, inner = {}, {}
    for file in files:
        folder, _, unit = file.rpartition("/")
        if unit.endswith((".c", ".h")):
            units.setdefault(folder, set()).add(unit.rpartition(".")[0])
            inner.setdefault(os.path.dirname(folder), set()).add(folder)
    everywhere = set()  # the line "every room" says what all use
    for _, line, fenced in lines_of(os.path.join(root, name)):
        if fenced and line.startswith("every room "):
            everywhere.update(line.split()[2:])
    rooms = list(rooms_of(os.path.join(root, name)))
    drawn = {folder for _, folder, _ in rooms}
    for number, folder, words in rooms:
        lacking = units.get(folder, set()) - words - everywhere
        lacking |= {path + "/" for path in inner.get(folder, set()) - drawn if os.path.basename(path) not in words}
        if lacking:
            yield number, f"{folder}/ has {', '.join(sorted(lacking))} as well"


def check_source(root, name):
    """Yields (line number, rule) for each page of docs/ that a comment, a message or a script names, and that
    is not there."""
    try:
        with open(os.path.join(root, name), encoding="utf-8") as file:
            text = file.read()
    except (UnicodeDecodeError, IsADirectoryError):
        return
    for match in PAGE.finditer(text):
        page, heading = os.path.join(root, match[1]), match[2]
        rule = None
        if PLACEHOLDER.search(match[1]):
            continue
        if not os.path.exists(page):
            rule = f"{match[1]} does not exist"
        elif heading and anchor(heading) not in anchors_of(page) and anchor(heading) not in openings_of(page):
            rule = f'{match[1]} has no heading "{heading}"'
        if rule:
            yield text.count("\n", 0, match.start()) + 1, rule


def check_header(root, name):
    """Yields (line number, rule) for each name in a comment of the public header that it does not declare."""
    declared, named = set(), []
    for number, line, _ in lines_of(os.path.join(root, name)):
        code, _, comment = line.partition("//")
        declared.update(re.findall(r"\w+", code))
        named += ((number, word) for word in re.findall(r"\bbanyan_\w+", comment))
    for number, word in named:
        if word not in declared:
            yield number, f"{word} is not declared here"


def version_of(root):
    """The project's version, "" where the tree has none."""
    try:
        with open(os.path.join(root, "CMakeLists.txt"), encoding="utf-8") as file:
            found = re.search(r"^project\(banyan VERSION ([0-9.]+)", file.read(), re.MULTILINE)
    except FileNotFoundError:
        return ""
    return found[1] if found else ""


def check_version(root, name, version):
    """Yields (line number, rule) for each place that names another version as this one."""
    before = ""
    for number, line, _ in lines_of(os.path.join(root, name)):
        for named in VERSION.findall(before + line) + PACKAGE.findall(line):
            if not (version + ".").startswith(named + "."):
                yield number, f"names version {named}, the project's is {version}"
        before = line if line.endswith("/banyan") else ""


def check_index(root, files):
    """Yields (name, rule) for each page that a reader does not find: what is not linked from its index."""
    for index, pages in (("docs/README.md", re.compile(r"docs/(?!measurements/)(?:[\w-]+/)*[\w-]+\.md")),
                         ("docs/measurements/README.md", re.compile(r"docs/measurements/[\w-]+\.md"))):
        if index not in files:
            continue
        folder = os.path.dirname(index)
        linked = {os.path.normpath(os.path.join(folder, target.partition("#")[0]))
                  for _, line, _ in lines_of(os.path.join(root, index)) for target in LINK.findall(line)}
        for name in sorted(files):
            if pages.fullmatch(name) and name != index and name not in linked:
                yield name, f"is not linked from {index}"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    root = parser.parse_args(arguments).root
    files = set(list_files(root))
    ends = ends_of(files)
    version = version_of(root)
    offences = 0
    for name in sorted(files):
        if not os.path.isfile(os.path.join(root, name)) or name.endswith(BINARY) or re.match(r"tests/tools/test_\w+\.py$", name):
            continue
        found = check_file(root, name, files, ends) if name.endswith(".md") else check_source(root, name)
        found = list(found)
        if name == "client/banyan.h":
            found += check_header(root, name)
        if name.endswith(".md"):
            found += check_rooms(root, name, files)
        if version and name.endswith((".md", "kustomization.yaml")) and name != "CHANGELOG.md":
            found += check_version(root, name, version)
        for number, rule in found:
            print(f"{name}:{number}: {rule}")
            offences += 1
    for name, rule in check_index(root, files):
        print(f"{name}: {rule}")
        offences += 1
    if offences:
        print(f"check_links: {offences} offence{'s' if offences > 1 else ''}", file=sys.stderr)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
