#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a page that users read has more bad words or long lines than words.txt allows, or fewer.

    tests/tools/check_words.py [--root DIR] [--bounds FILE] [--show FILE] [--write]

A bad word is one that these pages have used in place of plain English: the list is WORDS below, with what to write
instead. Code, in blocks and in `backquotes`, and the targets of links are not read. Where a word is right,
<!-- word: knows --> on its line or on the line before allows it.

A long line is prose beyond 100 columns that has a space to break it at. Tables, blocks of code, pictures, and what is
one link or one piece of `code` are not measured.

  --show FILE  list what is found in the file, line by line
  --write      write the numbers of now into words.txt

Exit status: 0 as words.txt says, 1 not so, 2 wrong use.
"""
import argparse
import os
import re
import sys

sys.dont_write_bytecode = True
import ratchet
from check_includes import list_files

HERE = os.path.dirname(os.path.abspath(__file__))
WIDTH = 100
PAGES = re.compile(r"(README|CONTRIBUTING|SECURITY|CHANGELOG)\.md|docs/(?!measurements/)([^/]+/)*[^/]+\.md"
                   r"|(examples|deploy|deploy/kubernetes|deploy/slurm|client|client/python|coordinator|worker)/README\.md")

# name: (pattern, what to write). A space in a pattern is any white space, so that a phrase may cross a line.
WORDS = {
    "nobody": (r"nobody", "'no one', or name what is not done"),
    "somebody": (r"somebody", "'someone', or name who"),
    "whoever": (r"who(m)?ever", "'anyone who', or name who"),
    "for who": (r"(to|for|from|by|of|with|at|than) who(?! (you|they|we|it)\b)", "'anyone who', or name who"),
    "told": (r"told|telling|tells(?! (you|apart))", "a program sends, reports or says; it is given or receives"),
    "wants": (r"wants", "'needs' or 'requires'"),
    "knows": (r"knows", "'has', 'stores' or 'recognises'"),
    "believes": (r"believe[sd]?", "'trusts' or 'accepts'"),
    "notices": (r"notice[sd]", "'detects'"),
    "heard of": (r"(hear|hears|heard|hearing) of", "'has received'"),
    "anew": (r"anew", "'again', or 'from the start'"),
    "come again": (r"(come|comes|came|coming) again", "'returns', or 'reconnects'"),
    "that is to": (r"(that|which|who|what) (is|are|was|were) to(?! (you|the|an?)\b)", "'must' or 'will'"),
    "let go": (r"(let|lets|letting) ((it|them|rows|copies|chunks) )?go\b", "'release' or 'drop'"),
    "struck off": (r"(strike|strikes|struck|striking) off", "'removed'"),
    "of before": (r"(of|from) before(?! (the|it|an?|this|that|these)\b)", "'earlier', or say before what"),
    "no more": (r"(works|serves|holds|counts|reads|needs) no more(?!\s+\w)", "'no longer'"),
    "what there is": (r"what there is", "name it"),
    "says nothing": (r"(say|says|said) nothing", "'is silent', 'is empty'"),
    "as ever": (r"as ever", "'as usual', or say how"),
    "in the midst": (r"in the midst of", "'during'"),
    "for ever": (r"for ever", "'forever', or until when"),
}
PATTERNS = {name: re.compile(r"\b(?:%s)\b" % pattern.replace(" ", r"\s+"), re.I | re.M)
            for name, (pattern, _) in WORDS.items()}
ALLOWED = re.compile(r"<!-- word: ([\w ]+) -->")
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
LINK = re.compile(r"\]\([^)\s]*\)")
COMMENT = re.compile(r"<!--.*?-->")
MARK = re.compile(r"\s*(?:(?:[-*+]|\d+\.|>|#+)\s+)*")


def prose_of(text):
    """The lines with code, link targets and comments blanked; a line of a block of code becomes empty."""
    fence, lines = None, []
    for line in text.split("\n"):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (fence is None or mark[1].startswith(fence)):
            fence = None if fence else mark[1]
            lines.append("")
            continue
        for pattern in (CODE, LINK, COMMENT):
            line = pattern.sub(lambda match: "\0" * len(match[0]), line) if fence is None else ""
        lines.append(line)
    return lines


def bad_words(text, prose):
    """Yields (line number, rule)."""
    allowed = {(number + more, name) for number, line in enumerate(text.split("\n"), 1)
               for name in ALLOWED.findall(line) for more in (0, 1)}
    joined = "\n".join(prose)
    for name, pattern in PATTERNS.items():
        for match in pattern.finditer(joined):
            number = joined.count("\n", 0, match.start()) + 1
            if not re.search(r"\n\s*\n", match[0]) and (number, name) not in allowed:
                yield number, f"'{' '.join(match[0].split())}': write {WORDS[name][1]}"


def long_lines(text, prose):
    """Yields (line number, rule)."""
    for number, (line, blank) in enumerate(zip(text.split("\n"), prose), 1):
        exempt = re.match(r"\s*(\||!\[)", blank) or " " not in MARK.sub("", blank, count=1).rstrip()
        if len(line) > WIDTH and blank and not exempt:
            yield number, f"{len(line)} columns, more than {WIDTH}"


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8") as file:
        text = file.read()
    prose = prose_of(text)
    return sorted([*bad_words(text, prose), *long_lines(text, prose)])


def pages(root):
    """File -> what is found in it."""
    return {name: read(root, name) for name in sorted(list_files(root)) if PAGES.fullmatch(name)}


def offences(now, bounds):
    for name, found in now.items():
        bound = bounds.get(name, 0)
        if len(found) > bound and not bound:
            for number, rule in found:
                yield f"{name}:{number}: {rule}"
        elif len(found) > bound:
            yield f"{name}: {len(found)} bad words and long lines, {bound} are allowed: tests/tools/check_words.py --show {name}"
        elif len(found) < bound:
            yield f"{name}: {len(found)} bad words and long lines, no longer {bound}: lower it in words.txt"
    for name in sorted(set(bounds) - set(now)):
        yield f"{name}: stands in words.txt, and there is no such page"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", default=os.path.join(HERE, "..", ".."))
    parser.add_argument("--bounds", default=os.path.join(HERE, "words.txt"))
    parser.add_argument("--show", metavar="FILE")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    now = pages(options.root)
    if options.show:
        if options.show not in now:
            parser.error(f"'{options.show}' is none of the pages: {', '.join(now)}")
        for number, rule in now[options.show]:
            print(f"{options.show}:{number}: {rule}")
        return 0
    if options.write:
        ratchet.write(options.bounds, ((name, len(found)) for name, found in now.items() if found), 26)
        return 0
    found = list(offences(now, ratchet.read(options.bounds)))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
