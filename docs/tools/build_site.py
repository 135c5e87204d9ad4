#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts together what MkDocs makes the site of, and checks the site.

    build_site.py stage OUT      copies every page (.md) of the tree into OUT/pages, at its place, with all files that pages link to,
                           and writes OUT/mkdocs.yml: the order of the pages is that of docs/README.md
    build_site.py check HTML     every link of the site leads to a page, and to a heading that it has

Pages are written for GitHub. `rendered` alters what MkDocs' Markdown reads otherwise; nothing else is
altered.
"""
import html.parser
import os
import re
import shutil
import sys
import urllib.parse

sys.dont_write_bytecode = True
ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "tools"))
from check_includes import list_files  # noqa: E402

LINK = re.compile(r"(\]\()([^)\s]+)(\))")
SECTIONS = (("Tutorial", "docs/tutorial/"), ("Concepts", "docs/concepts/"), ("Engines", "docs/"), ("Operating", "docs/operating/"),
            ("Reference", "docs/reference/"), ("Internals", "docs/internals/"), ("Measurements", "docs/measurements/"))
ELSEWHERE = {"docs/GPU.md": "docs/operating/", "docs/KNOWN_ISSUES.md": "docs/operating/"}
LIST = re.compile(r"([-*+]|\d+\.) ")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def cell(line):
    """A row of a table, in which `a\\|b` is written with a plain bar within code."""
    return re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), line)


def rendered(text):
    """The page as MkDocs' Markdown reads it: blocks begin after an empty line, and what belongs to an item of
    a list is four columns in."""
    out, fence, before = [], None, ""
    for line in text.split("\n"):
        mark = re.match(r"( *)(```+|~~~+)(\w*)", line)
        if fence is not None:
            inside, indent = fence
            if mark and line.strip() == inside:
                fence = None
                out.append("" if indent else line)
            else:
                out.append(("        " + line.removeprefix(indent)).rstrip() if indent else line)
            before = ""
            continue
        if mark:
            fence = mark[2], mark[1]
            out += [""] if before.strip() else []
            out += [""] if mark[1] else [mark[2] + mark[3]]
            continue
        starts = line.startswith("|") and not before.startswith("|") or LIST.match(line) and not LIST.match(before) and not before.startswith("  ")
        if starts and before.strip():
            out.append("")
        if re.match(r" {2,3}\S", line) and not before.strip():
            line = "    " + line.lstrip()
        out.append(cell(line) if line.startswith("|") else line)
        before = line
    return "\n".join(out)


def target_of(root, name, target, files):
    """The file that a link leads to, as a path in the tree; a folder's is its README.md. None: it leads
    elsewhere."""
    path = target.partition("#")[0]
    if re.match(r"[a-z]+:", target) or not path:
        return None
    full = os.path.normpath(os.path.join(os.path.dirname(name), path))
    if os.path.isdir(os.path.join(root, full)) and full + "/README.md" in files:
        return full + "/README.md"
    return full


def page(root, name, text, files):
    """(text, files that it needs). A link to a folder without a page becomes its text."""
    needs = set()

    def link(match):
        full = target_of(root, name, match[2], files)
        if full is None:
            return match[0]
        needs.add(full)
        if os.path.isdir(os.path.join(root, full)):
            return match[0] + "\0"
        heading = match[2].partition("#")[1:]
        return f"{match[1]}{os.path.relpath(full, os.path.dirname(name) or '.')}{''.join(heading)}{match[3]}"

    text = LINK.sub(link, text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)\0", r"\1", text)
    return rendered(text), {need for need in needs if not need.endswith(".md") and os.path.isfile(os.path.join(root, need))}


def title_of(text):
    found = re.search(r"^# (.+)$", text, re.M)
    return re.sub(r"[`*]|\[|\]\([^)]*\)", "", found[1]) if found else None


def nav_of(root, names):
    """Lines of YAML: sections, and their pages in the order in which docs/README.md links to them."""
    order = []
    for index in ("docs/README.md", "docs/measurements/README.md"):
        folder = os.path.dirname(index)
        order += [os.path.normpath(os.path.join(folder, target.partition("#")[0]))
                  for _, target, _ in LINK.findall(read(os.path.join(root, index)))]
    yield "nav:"
    yield "  - Banyan: README.md"
    yield "  - Documentation: docs/README.md"
    left = sorted(names - {"README.md", "docs/README.md"}, key=lambda name: (order.index(name) if name in order else len(order), name))
    for section, folder in SECTIONS:
        chosen = [name for name in left if ELSEWHERE.get(name, os.path.dirname(name) + "/") == folder]
        yield f"  - {section}:"
        yield from (f'      - "{title_of(read(os.path.join(root, name)))}": {name}' for name in chosen)
    yield "  - Folders of the source:"
    for name in sorted(names):
        if not name.startswith("docs/") and name != "README.md":
            yield f'      - "{os.path.dirname(name) or name.removesuffix(".md")}": {name}'


def stage(root, out):
    files = set(list_files(root))
    names = {name for name in files if name.endswith(".md") and title_of(read(os.path.join(root, name)))}
    pages = os.path.join(out, "pages")
    shutil.rmtree(pages, ignore_errors=True)
    needed = set()
    for name in names:
        text, needs = page(root, name, read(os.path.join(root, name)), files)
        needed |= needs
        path = os.path.join(pages, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    for name in needed:
        path = os.path.join(pages, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copyfile(os.path.join(root, name), path)
    shutil.copyfile(os.path.join(root, "docs/tools/site.css"), os.path.join(pages, "site.css"))
    with open(os.path.join(out, "mkdocs.yml"), "w", encoding="utf-8") as file:
        lines = [f"INHERIT: {os.path.join(root, 'mkdocs.yml')}", f"docs_dir: {pages}", f"site_dir: {os.path.join(out, 'html')}"]
        file.write("\n".join([*lines, *nav_of(root, names), ""]))
    print(f"{len(names)} pages, {len(needed)} other files")


class Page(html.parser.HTMLParser):
    """What a page links to, and what in it can be linked to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" or (name == "name" and tag == "a"):
                self.ids.add(value)
            elif name in ("href", "src") and value is not None:
                self.links.append(value)


def check(site):
    """Prints each link that leads nowhere; returns how many there are."""
    pages = {}
    for folder, _, files in os.walk(site):
        for name in files:
            if name.endswith(".html"):
                path = os.path.join(folder, name)
                pages[os.path.relpath(path, site)] = Page(read(path))
    dead = 0
    for name, found in sorted(pages.items()):
        if name == "404.html":  # its links are those of another place
            continue
        for link in sorted(set(found.links)):
            path, heading = urllib.parse.unquote(link).partition("#")[::2]
            if re.match(r"([a-z]+:|//)", link):
                continue
            full = os.path.normpath(os.path.join(os.path.dirname(name), path.partition("?")[0])) if path else name
            if os.path.isdir(os.path.join(site, full)):
                full = os.path.normpath(os.path.join(full, "index.html"))
            why = None
            if not os.path.exists(os.path.join(site, full)):
                why = "there is no such page"
            elif heading and full in pages and heading not in pages[full].ids:
                why = f"that page has no heading #{heading}"
            if why:
                dead += 1
                print(f"{name}: ({link}): {why}")
    print(f"{len(pages)} pages, {dead} dead links")
    return dead


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "stage":
        stage(ROOT, os.path.abspath(arguments[1]))
        return 0
    if len(arguments) == 2 and arguments[0] == "check":
        return 1 if check(arguments[1]) else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
