#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a text that users read has more bad words, or long lines or comments, than words.txt allows, or fewer.

    tests/tools/check_words.py [--root DIR] [--bounds FILE] [--show NAME] [--write]

A bad word is one that stands in place of plain English: the list is WORDS below, with what to write instead. It is
looked for in

  pages     README, guides and the like. Code, in blocks and in `backquotes`, and the targets of links are not read.
            <!-- word: knows --> on its line or on the line before allows a word.
  texts     help, errors, logs, events, docstrings, alerts, units, manual pages, the dashboard: string literals with a
            space in C, JavaScript and Python (docstrings too), and files that are all text. Here TEXT_WORDS count as well.
            "word: knows" in a comment on the literal's first line allows a word.

A long line is prose beyond 100 columns that has a space to break it at. Tables, blocks of code, pictures, and what is
one link or one piece of `code` are not measured. A long comment is one in C, C++ or CUDA beyond 110 columns: words.txt
counts them for each folder, whose name ends in '/'.

  --show NAME  list what is found in the file or folder, line by line
  --write      write the numbers of now into words.txt

Exit status: 0 as words.txt says, 1 not so, 2 wrong use.
"""
import argparse
import ast
import os
import re
import sys

sys.dont_write_bytecode = True
import ratchet
from check_includes import list_files

HERE = os.path.dirname(os.path.abspath(__file__))
WIDTH = 100
COMMENT_WIDTH = 110
PAGES = re.compile(r"(README|CONTRIBUTING|SECURITY|CHANGELOG)\.md|docs/(?!measurements/)([^/]+/)*[^/]+\.md"
                   r"|(examples|deploy|deploy/kubernetes|deploy/slurm|client|client/python|coordinator|worker)/README\.md")

PARTS = "bench|client|common|coordinator|examples|kernels|proto|reduce|worker"
C_TEXTS = re.compile(rf"({PARTS})/.*\.[ch]")
PYTHON_TEXTS = re.compile(r"(client/python/banyan|deploy|docs/man|examples)/.*\.py")
SCRIPT_TEXTS = re.compile(r"coordinator/dashboard/page/.*\.js")
SHELL_TEXTS = re.compile(r"deploy/.*\.(sh|sbatch)|tests/(run|gpu)\.sh")
ALL_TEXT = re.compile(r"docs/man/.*\.in|deploy/(prometheus/alerts\.yaml|systemd/.*|package/.*README|debian/(control|.*\.default))"
                      r"|coordinator/dashboard/page/.*\.html")
LEFT_ALONE = re.compile(r"client/python/banyan/transformers/.*")  # in pieces at the moment
COMMENTED = re.compile(r".*\.(c|h|cc|cpp|cu|cuh)")

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
# In short texts only, where a sentence has no room to explain itself.
TEXT_WORDS = {
    "is no": (r"(?<!there\s)is no (?!longer|more|reason|such|way|room|one\b|limit)", "'is not a'"),
    "any more": (r"any more", "'any longer', 'no longer'"),
    "of late": (r"of late", "'recently'"),
    "goes with": (r"(goes|go) with --", "'needs'"),
    "under way": (r"under way", "'in progress'"),
}


def compiled(words):
    return {name: re.compile(r"\b(?:%s)\b" % pattern.replace(" ", r"\s+"), re.I | re.M)
            for name, (pattern, _) in words.items()}


PATTERNS = compiled(WORDS)
TEXT_PATTERNS = compiled({**WORDS, **TEXT_WORDS})
LITERAL = re.compile(r"//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\\n])'|"
                     r'"(?:\\.|[^"\\\n])*"(?:[\s\\]*(?:\bPRI\w+[\s\\]*)?"(?:\\.|[^"\\\n])*")*', re.S)
SCRIPT_LITERAL = re.compile(r"//[^\n]*|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`", re.S)
TEXT_ALLOWED = re.compile(r"\bword: ([\w ]+)")
COMMENT_LINE = re.compile(r"(^|\s)(//|/\*|\*\s)")
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


# ---- texts ------------------------------------------------------------------------------------------


def literals(text, pattern):
    """Yields (line number, the words of a string literal); pieces that follow each other are one."""
    for match in pattern.finditer(text):
        if match[0][0] in "\"'`":
            words = re.sub(r'"[\s\\]*(?:PRI\w+[\s\\]*)?"', "", match[0][1:-1])
            yield text.count("\n", 0, match.start()) + 1, re.sub(r"\\n", " ", words)


def strings(text):
    """The same for Python."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def texts_of(name, text):
    """Yields (line number, words) of what users read in a file."""
    if C_TEXTS.fullmatch(name):
        yield from literals(text, LITERAL)
    elif SCRIPT_TEXTS.fullmatch(name):
        yield from literals(text, SCRIPT_LITERAL)
    elif PYTHON_TEXTS.fullmatch(name) and not LEFT_ALONE.fullmatch(name):
        yield from strings(text)
    elif SHELL_TEXTS.fullmatch(name):
        yield from ((number, line) for number, line in enumerate(text.split("\n"), 1) if not line.lstrip().startswith("#"))
    elif ALL_TEXT.fullmatch(name):
        yield from enumerate(text.split("\n"), 1)


def bad_texts(name, text):
    """Yields (line number, rule)."""
    lines = text.split("\n")
    for number, words in texts_of(name, text):
        words = CODE.sub(" ", words)
        if " " not in words.strip():
            continue
        allowed = TEXT_ALLOWED.findall(lines[number - 1])
        for word, pattern in TEXT_PATTERNS.items():
            for match in pattern.finditer(words):
                if word not in allowed:
                    yield number, f"'{' '.join(match[0].split())}': write {({**WORDS, **TEXT_WORDS})[word][1]}"


def long_comments(text):
    """Yields (line number, rule)."""
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > COMMENT_WIDTH and COMMENT_LINE.search(line):
            yield number, f"a comment of {len(line)} columns, more than {COMMENT_WIDTH}"


# ---- the tree ---------------------------------------------------------------------------------------


def page(text):
    prose = prose_of(text)
    return sorted([*bad_words(text, prose), *long_lines(text, prose)])


def tree(root):
    """Name of a file, or of a folder with '/' -> what is found: (file, line number, rule)."""
    now = {}
    for name in sorted(list_files(root)):
        is_page, is_code = PAGES.fullmatch(name), COMMENTED.fullmatch(name)
        kinds = (C_TEXTS, PYTHON_TEXTS, SCRIPT_TEXTS, SHELL_TEXTS, ALL_TEXT)
        if not (is_page or is_code or any(kind.fullmatch(name) for kind in kinds)):
            continue
        with open(os.path.join(root, name), encoding="utf-8") as file:
            text = file.read()
        now[name] = [(name, *found) for found in (page(text) if is_page else sorted(bad_texts(name, text)))]
        if is_code:
            now.setdefault(os.path.dirname(name) + "/", []).extend((name, *found) for found in long_comments(text))
    return now


def offences(now, bounds):
    for name, found in now.items():
        bound = bounds.get(name, 0)
        what = "long comments" if name.endswith("/") else "bad words and long lines"
        if len(found) > bound and not bound:
            for file, number, rule in found:
                yield f"{file}:{number}: {rule}"
        elif len(found) > bound:
            yield f"{name}: {len(found)} {what}, {bound} are allowed: tests/tools/check_words.py --show {name}"
        elif len(found) < bound:
            yield f"{name}: {len(found)} {what}, no longer {bound}: lower it in words.txt"
    for name in sorted(set(bounds) - set(now)):
        yield f"{name}: stands in words.txt, and there is no such page, text or folder"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", default=os.path.join(HERE, "..", ".."))
    parser.add_argument("--bounds", default=os.path.join(HERE, "words.txt"))
    parser.add_argument("--show", metavar="NAME")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    now = tree(options.root)
    if options.show:
        if options.show not in now:
            parser.error(f"'{options.show}' is not a page, a text or a folder with '/' at its end")
        for file, number, rule in now[options.show]:
            print(f"{file}:{number}: {rule}")
        return 0
    if options.write:
        ratchet.write(options.bounds, ((name, len(found)) for name, found in sorted(now.items()) if found), 26)
        return 0
    found = list(offences(now, ratchet.read(options.bounds)))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
