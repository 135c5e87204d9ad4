# SPDX-License-Identifier: Apache-2.0
"""reference/python-api.md: the public names of the Python package, with their docstrings. The sources are
parsed, not run."""
import ast
import inspect
import os
import re

from wording import coded, fenced, paragraph, prose

PACKAGES = {"banyan": "client/python/banyan", "banyan.transformers": "client/python/banyan/transformers"}


class Module:
    """A file of the package, and what it defines and imports from its neighbours."""

    def __init__(self, path):
        self.folder = os.path.dirname(path)
        with open(path, encoding="utf-8") as file:
            self.tree = ast.parse(file.read())
        self.imported = {alias.asname or alias.name: (node.module, alias.name) for node in self.tree.body
                         if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module for alias in node.names}
        self.made = {node.name: node for node in self.tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))}


def public(root, folder):
    """(docstring of the package, [(name, node)] of its __all__, in the order of the files that define
    them)"""
    init = Module(os.path.join(root, folder, "__init__.py"))
    names, homes = [], {}
    for node in init.tree.body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
            names = ast.literal_eval(node.value)
        elif isinstance(node, ast.ImportFrom) and node.level == 1:
            homes.update({alias.asname or alias.name: (node.module, alias.name) for alias in node.names})
    modules, found = {}, []
    for name, (home, original) in homes.items():
        if name not in names or name.startswith("_"):
            continue
        path = os.path.join(root, folder, *home.split(".")) + ".py"
        module = modules.setdefault(path, Module(path))
        if original not in module.made:
            raise SystemExit(f"page_python.py: {path} does not define {original}")
        found.append((name, module.made[original], module))
    missing = set(names) - {name for name, _, _ in found} - {name for name in names if name.startswith("_")}
    if missing:
        raise SystemExit(f"page_python.py: {folder}: not found: {', '.join(sorted(missing))}")
    return ast.get_docstring(init.tree) or "", found


def doc(text):
    """A docstring: paragraphs, examples, and its lists (Args:, Attributes:)."""
    block, kind = [], None
    out = []

    def flush():
        nonlocal block, kind
        if kind == "code":
            out.extend(fenced("\n".join(block), "python"))
        elif kind == "list":
            items = []
            for line in block:
                if re.match(r"\s{4}\S", line):
                    items.append(line.strip())
                elif items:
                    items[-1] += " " + line.strip()
            for item in items:
                name, _, what = item.partition(": ")
                marked = ", ".join(f"`{part}`" for part in name.split(", "))
                out.extend(prose(f"{marked}: {coded(what)}" if what else coded(item), "- ", "  "))
            out.append("")
        elif block:
            out.extend([*paragraph(" ".join(block)), ""])
        block, kind = [], None

    for line in inspect.cleandoc(text).split("\n"):
        if re.fullmatch(r"(Args|Attributes|Returns|Raises|Yields):", line):
            flush()
            out.extend([f"{line}", ""])
            kind = "list"
        elif line.startswith((">>>", "... ")) and kind != "code":
            flush()
            kind, block = "code", [line]
        elif not line.strip():
            flush()
        else:
            block.append(line)
    flush()
    return out


def signature(node, name, owner=""):
    arguments = ast.unparse(node.args)
    arguments = re.sub(r"^(self|cls)(, |$)", "", arguments)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    start = ("async " if isinstance(node, ast.AsyncFunctionDef) else "") + f"{owner}{name}("
    line = f"{start}{arguments}){returns}"
    if len(line) <= 98:
        return line
    parts, depth, piece = [], 0, ""
    for c in arguments:
        depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(c, 0)
        if c == "," and not depth:
            parts.append(piece.strip())
            piece = ""
        else:
            piece += c
    return "\n".join([start, *(f"    {part}," for part in [*parts, piece.strip()]), f"){returns}"])


def decorated(node, name):
    return any(ast.unparse(d).split("(")[0].split(".")[-1] == name for d in node.decorator_list)


def lineage(node, module):
    """The class and those of its bases that the package defines, the nearest first."""
    yield node
    for base in node.bases:
        name = ast.unparse(base)
        if name in module.made:
            yield from lineage(module.made[name], module)
        elif name in module.imported:
            home, original = module.imported[name]
            path = os.path.join(module.folder, *home.split(".")) + ".py"
            if os.path.exists(path) and original in (other := Module(path)).made:
                yield from lineage(other.made[original], other)


def members(name, classes):
    """Public methods and properties, in order; of overloads the last, and the class itself before its
    bases."""
    last, seen = {}, set()
    for node in classes:
        own = {}
        collect(node, own)
        last.update({child: nodes for child, nodes in own.items() if child not in seen})
        seen |= {child.name for child in node.body if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for child in (children[-1] for children in last.values()):
        yield f"#### {name}.{child.name}"
        yield ""
        if decorated(child, "property"):
            yield from fenced(f"{name[0].lower()}{name[1:]}.{child.name}: {ast.unparse(child.returns)}", "python")
        else:
            yield from fenced(signature(child, child.name), "python")
        yield from doc(ast.get_docstring(child))


def collect(node, last):
    """{name: [definitions]} of the public methods of one class that have a docstring."""
    for child in node.body:
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and not child.name.startswith("_") and ast.get_docstring(child):
            last.setdefault(child.name, []).append(child)


def klass(name, node, module):
    bases = [ast.unparse(base) for base in node.bases if not ast.unparse(base).startswith("Generic")]
    is_error = bool(bases) and bases[0].endswith("Error")
    is_value = decorated(node, "dataclass")
    classes = [node] if is_error or is_value else list(lineage(node, module))
    init = next((c for one in classes for c in one.body if isinstance(c, ast.FunctionDef) and c.name == "__init__"), None)
    if is_value:
        shown = [ast.unparse(c) for c in node.body if isinstance(c, ast.AnnAssign) and not c.target.id.startswith("_")]
        yield from fenced(f"class {name}:\n" + "\n".join(f"    {line}" for line in shown), "python")
    elif is_error:
        yield from prose(f"A {' and a '.join(f'`{base}`' for base in bases)}.")
        yield ""
    elif init:
        yield from fenced(signature(init, name), "python")
    yield from doc(ast.get_docstring(node) or "")
    yield from members(name, classes)


def page(root, _):
    yield "# Python API"
    yield ""
    yield from prose("The public names of the package, with their docstrings. Installing, and a first program, are in "
                     "[client/python](../../client/python/README.md).")
    yield ""
    for package, folder in PACKAGES.items():
        about, names = public(root, folder)
        yield f"## {package}"
        yield ""
        yield from doc(about)
        for name, node, module in names:
            yield f"### {name}"
            yield ""
            if isinstance(node, ast.ClassDef):
                yield from klass(name, node, module)
            else:
                yield from fenced(signature(node, name), "python")
                yield from doc(ast.get_docstring(node) or "")
