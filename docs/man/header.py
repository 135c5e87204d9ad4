# SPDX-License-Identifier: Apache-2.0
"""client/banyan.h, read as what its comments say: sections, functions, types and their fields."""
import re

from mdoc import guarded, prose

SECTION = re.compile(r"^// ---- (.*?) -+$")


def comment_text(lines):
    """Lines of mdoc: paragraphs, and a list of what is indented."""
    out, paragraph = [], []

    def flush():
        if paragraph:
            out.extend(prose(" ".join(paragraph)))
            paragraph.clear()

    listing = False
    for line in lines:
        inner = re.sub(r"^\s*// ?", "", line)
        if inner.startswith("  "):
            flush()
            out.extend([] if listing else [".Bl -bullet -compact"])
            out.append(".It")
            out.extend(prose(inner.strip()))
            listing = True
            continue
        if listing:
            out.append(".El")
            listing = False
        if inner:
            paragraph.append(inner)
        else:
            flush()
            out.append(".Pp")
    flush()
    return out + ([".El"] if listing else [])


def statements(lines, indent=0, end=";"):
    """(comment lines, code, comment behind it, whether an empty line follows) for each declaration. A comment
    that is indented deeper than a declaration goes on with the comment behind it."""
    before, code, behind, depth = [], [], [], 0
    found = []
    for line in lines:
        deep = len(line) - len(line.lstrip()) > indent
        text, mark, said = line.partition("//")
        if mark and not text.strip() and not code:
            if deep and found and not before:
                found[-1][2].append(said.strip())
            else:
                before.append(line)
            continue
        if not line.strip():
            if before and not code:
                found.append((before, "", [], True)) # a paragraph of its own
                before = []
            continue
        if depth > 0: # the body of a struct keeps its comments
            code.append(line)
        else:
            code.append(text if mark else line)
            behind += [said.strip()] if mark and "{" not in text else []
            before += [line[line.index("//"):]] if mark and "{" in text else []
        depth += text.count("{") - text.count("}")
        if depth == 0 and (text.rstrip().endswith(end) or text.startswith("#") or (indent and line is lines[-1])):
            found.append((before, "\n".join(code), behind, False))
            before, code, behind = [], [], []
    return found


def said(before, behind):
    text = comment_text(before)
    if behind:
        joined = " ".join(behind)
        if re.match(r"[a-z-]+[ .]", joined): # a word, not a name of the API
            joined = joined[0].upper() + joined[1:]
        text += prose(joined + ("" if joined.endswith((".", '"')) else "."))
    return text


def function(code):
    """(type, name, [parameters]) or None."""
    one = " ".join(code.replace("BANYAN_API", "").split())
    match = re.fullmatch(r"(.*?[ *])(banyan_\w+)\((.*)\);", one)
    if not match or one.startswith("typedef"):
        return None
    return match[1].strip(), match[2], [p.strip() for p in match[3].split(",")]


def fields(code):
    """Items for what stands between the braces."""
    body = code[code.index("{") + 1:code.rindex("}")].split("\n")
    end = "," if code.lstrip().startswith(("enum", "typedef enum")) else ";"
    for before, one, behind, _ in statements([line for line in body if line.strip()], 4, end):
        name = " ".join(one.split()).rstrip(";,")
        if not name:
            continue
        yield f'.It Va "{guarded(name)}"'
        yield from said(before, behind)


def type_items(before, code, behind):
    one = " ".join(code.split())
    if "{" not in one:
        yield f'.It Vt "{guarded(one.rstrip(";"))}"' if not one.startswith("#") else f'.It Dv "{guarded(one[8:])}"'
        yield from said(before, behind)
        return
    name = re.search(r"}\s*(\w*);", one)[1] or one.split("{")[0].strip() # the latter: an enum without a name
    yield f'.It Vt "{guarded(name)}"'
    yield from said(before, behind)
    yield ".Bl -tag -compact -width Ds"
    yield from fields(code)
    yield ".El"


def function_items(before, behind, prototype):
    _, name, parameters = prototype
    yield " ".join([".It Fn", name, *(f'"{guarded(p)}"' for p in parameters)])
    frees = name.endswith("_free") and behind
    yield from said(before, [f"frees {behind[0]}", *behind[1:]] if frees else behind)


def parts(text):
    lines = text.split("\n")
    begin = next(i for i, line in enumerate(lines) if line.startswith("#ifndef BANYAN_H"))
    intro = [line for line in lines[1:begin] if line.startswith("//")]
    start = next(i for i, line in enumerate(lines) if line.startswith("#define BANYAN_API")) + 1
    end = next(i for i, line in enumerate(lines[start:], start) if line.startswith("#ifdef __cplusplus"))
    prototypes, reference, errors, listing = [], [], [], False
    sections = [["general"]]
    for line in lines[start:end]:
        title = SECTION.match(line)
        if title:
            sections.append([title[1]])
        else:
            sections[-1].append(line)
    for title, *body in sections:
        reference.append(f".Ss {title[0].upper() + title[1:]}")
        listing = False
        for before, code, behind, _ in statements(body):
            if not code: # about what follows
                reference.extend(([".El"] if listing else []) + [".Pp"] * listing + comment_text(before))
                listing = False
                continue
            if code.startswith("typedef enum banyan_code"):
                errors = [".Bl -tag -width Ds", *fields(code), ".El"]
                continue
            if not listing:
                reference.append(".Bl -tag -width Ds")
                listing = True
            prototype = function(code)
            if prototype:
                prototypes.append(prototype)
                reference.extend(function_items(before, behind, prototype))
            else:
                reference.extend(type_items(before, code, behind))
        if listing:
            reference.append(".El")
    synopsis = []
    for kind, name, parameters in prototypes:
        synopsis += [f'.Ft "{kind}"', f".Fo {name}", *(f'.Fa "{guarded(p)}"' for p in parameters), ".Fc"]
    return {"PROTOTYPES": synopsis, "INTRODUCTION": comment_text(intro), "REFERENCE": reference, "ERRORS": errors}
