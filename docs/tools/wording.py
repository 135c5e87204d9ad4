# SPDX-License-Identifier: Apache-2.0
"""Plain text as Markdown: paragraphs of 100 columns, cells of tables, code."""
import re
import textwrap

WIDTH = 100


def escaped(text):
    """Text that Markdown would read as marks stays text; what is in `backquotes` is left as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([*\[\]<>])", r"\\\1", parts[i])
        parts[i] = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", parts[i])
    return "".join(parts)


def coded(text):
    """The same, with what is plainly code in backquotes: options, functions, constants with an underscore."""
    text = re.sub(r"(?<!\w)'(banyan[^'\n]*[^'\s])'(?!\w)", r"`\1`", text)  # a command that a message names
    parts = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(parts), 2):
        pieces = re.split(r"((?<![\w-])--[a-z][\w-]*\w(?:=\w+)?|\bbanyan_\w+(?:\.\w+)*|\b[A-Z]+_[A-Z_0-9]+\b|(?<=[ (])\[[^\]]*\](?:\[[^\]]*\])*)",
                          parts[i])
        parts[i] = "".join(f"`{piece}`" if n % 2 else escaped(piece) for n, piece in enumerate(pieces))
    return "".join(parts)


def paragraph(text, first="", rest=""):
    """Lines of plain text, of at most WIDTH columns."""
    return prose(coded(text), first, rest)


def prose(text, first="", rest=""):
    """Lines of Markdown, of at most WIDTH columns."""
    words = re.findall(r"(?:`[^`]*`|[^\s`])+", " ".join(text.split()))
    lines, line = [], first
    for n, word in enumerate(words):
        if n and len(line) + 1 + len(word) > WIDTH and not re.match(r"([-+*#>]|\d+\.)$", word):
            lines.append(line)
            line = rest + word
        else:
            line += (" " if n else "") + word
    return [*lines, line] if words else []


def cell(text):
    """Text for one cell of a table."""
    return coded(" ".join(text.split())).replace("|", "\\|")


def code(text):
    """Code for one cell of a table, or in a line."""
    return f"`{text}`".replace("|", "\\|")


def table(head, rows):
    """A table, or nothing where there are no rows."""
    rows = list(rows)
    if not rows:
        return []
    line = "| {} |".format
    return [line(" | ".join(head)), "|" + "---|" * len(head), *(line(" | ".join(row)) for row in rows), ""]


def fenced(text, language=""):
    return [f"```{language}", *textwrap.dedent(text).strip("\n").split("\n"), "```", ""]


def told(text):
    """A help text: paragraphs, and a list of the lines that begin with two blanks ("  name: what it is")."""
    lines, words = [], []

    def flush():
        if words:
            lines.extend([*paragraph(" ".join(words)), ""])
            words.clear()

    for line in text.split("\n"):
        name, colon, what = line.strip().partition(": ")
        if line.startswith("  ") and line.strip():
            flush()
            if lines and lines[-1] == "" and len(lines) > 1 and lines[-2].startswith(("- ", "  ")):
                lines.pop()
            lines.extend([*(paragraph(f"`{name}`: {what}", "- ", "  ") if colon else paragraph(line.strip(), "- ", "  ")), ""])
        elif line.strip():
            words.append(line)
        else:
            flush()
    flush()
    return lines
