# SPDX-License-Identifier: Apache-2.0
"""reference/c-api.md: client/banyan.h, section by section, in its order and in its words."""
import os
import re
import sys

from wording import cell, code, fenced, paragraph, prose, table

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "man"))
from header import SECTION, function, statements  # the same reading as that of the manual page


def comment(lines):
    """A comment's paragraphs, and a list of what is indented in it."""
    out, words, listing = [], [], False

    def flush():
        if words:
            out.extend([*paragraph(" ".join(words)), ""])
            words.clear()

    for line in lines:
        inner = re.sub(r"^\s*// ?", "", line)
        if inner.startswith("  "):
            flush()
            if listing:
                out.pop()
            out.extend([*paragraph(inner.strip(), "- ", "  "), ""])
        elif inner:
            words.append(inner)
        else:
            flush()
        listing = inner.startswith("  ")
    flush()
    return out


def behind(text):
    """A comment behind a declaration, as a sentence."""
    text = " ".join(text)
    if re.match(r"[a-z-]+[ .]", text):
        text = text[0].upper() + text[1:]
    return [*paragraph(text + ("" if text.endswith((".", '"')) else ".")), ""] if text else []


def name_of(declaration):
    """The name in a field's declaration, or in an enumerator's."""
    declaration = re.sub(r"\s*=.*", "", declaration)
    array = re.fullmatch(r".*\(\*(\w+)\)\[\d*\]", declaration)
    return array[1] if array else declaration


def fields(body, end):
    for before, one, after, _ in statements([line for line in body.split("\n") if line.strip()], 4, end):
        declaration = " ".join(one.split()).rstrip(";,")
        if declaration:
            said = " ".join([*(re.sub(r"^\s*// ?", "", line) for line in before), *after])
            yield code(declaration), cell(said)


def typed(before, declaration, after):
    one = " ".join(declaration.split())
    if one.startswith("#"):
        name = one.split()[1]
    else:
        name = (re.search(r"}\s*(\w+);", one) or re.search(r"\(\*(\w+)\)\(", one) or re.search(r"(\w+);$", one)
                or re.match(r"enum (\w*)", one))[1]
    yield f"### {name or 'constants'}"
    yield ""
    yield from comment(before)
    closing = re.search(r"}[^;]*;\s*//(.*)$", declaration)
    yield from behind(after or ([closing[1].strip()] if closing else []))
    if "{" not in one:
        yield from fenced(one, "c")
        return
    kind = "enum" if one.startswith(("enum", "typedef enum")) else "struct"
    body = declaration[declaration.index("{") + 1:declaration.rindex("}")]
    yield from table((f"`{kind}`", ""), fields(body, "," if kind == "enum" else ";"))


def prototype(declaration):
    one = " ".join(declaration.replace("BANYAN_API", "").split())
    kind, name, parameters = function(declaration)
    if len(one) <= 98:
        return one
    lines, line = [], f"{kind}{'' if kind.endswith('*') else ' '}{name}("
    indent = " " * len(line)
    for n, parameter in enumerate(parameters):
        piece = parameter + (");" if n == len(parameters) - 1 else ",")
        if len(line) + len(piece) + 1 > 98:
            lines.append(line.rstrip())
            line = indent
        line += ("" if line.endswith(("(", " ")) else " ") + piece
    return "\n".join([*lines, line])


def page(root, _):
    with open(os.path.join(root, "client/banyan.h"), encoding="utf-8") as file:
        lines = file.read().split("\n")
    begin = next(i for i, line in enumerate(lines) if line.startswith("#ifndef BANYAN_H"))
    start = next(i for i, line in enumerate(lines) if line.startswith("#define BANYAN_API")) + 1
    end = next(i for i, line in enumerate(lines[start:], start) if line.startswith("#ifdef __cplusplus"))
    yield "# C API"
    yield ""
    yield from prose("All of `banyan.h`, in its order. A complete program, and how to link it, is in "
                     "[client/README.md](../../client/README.md#a-complete-program); `man banyan_attend` shows the same text.")
    yield ""
    yield from comment([line for line in lines[1:begin] if line.startswith("//")])
    sections = [["General"]]
    for line in lines[start:end]:
        title = SECTION.match(line)
        if title:
            sections.append([title[1][0].upper() + title[1][1:]])
        else:
            sections[-1].append(line)
    for title, *body in sections:
        yield f"## {title}"
        yield ""
        for before, declaration, after, _empty in statements(body):
            if not declaration:
                yield from comment(before)
            elif function(declaration):
                yield f"### {function(declaration)[1]}"
                yield ""
                yield from fenced(prototype(declaration), "c")
                yield from comment(before)
                yield from behind(after)
            else:
                yield from typed(before, declaration, after)
