# SPDX-License-Identifier: Apache-2.0
"""Text as mdoc(7) needs it: ASCII, one sentence per line, and nothing that reads as a macro."""
import re


def escaped(text):
    """Within a line. `code` is bold; an option keeps its hyphens when it is copied."""
    text = text.replace("\\", "\\e")
    text = re.sub(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", lambda m: m[1].replace("-", "\\-"), text)
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fP", text)
    return "".join(c if ord(c) < 128 else f"\\[u{ord(c):04X}]" for c in text)


def prose(text):
    """Lines of a paragraph."""
    text = " ".join(text.split())
    lines = re.split(r"(?<=[^. ][.!?]) (?=[A-Z0-9'\"(`-])", text) if text else []
    return [("\\&" if line[0] in ".'" else "") + line for line in map(escaped, lines)]


def guarded(word):
    """As an argument of a macro: words that are macros themselves stay words."""
    word = escaped(word).replace('"', "\\(dq")
    return "\\&" + word if re.fullmatch(r"[A-Z][a-z]|[%.,:;()\[\]?!|].*", word) else word


def flag(letter):
    return ["Fl", guarded(letter)]


def arguments(text):
    """The name of an argument, or words and names: move|flag|ignore, auto|none|NODE."""
    if "|" not in text:
        return ["Ar", guarded(text)]
    words = []
    for part in text.split("|"):
        words += (["Ns", "|", "Ns"] if words else []) + ["Cm" if part == part.lower() else "Ar", guarded(part)]
    return words
