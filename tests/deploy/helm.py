# SPDX-License-Identifier: Apache-2.0
"""The part of Helm's template language that deploy/kubernetes/chart uses, so that tests need no helm.

It has values, quote, indent, sha256sum, and if … end on lines of their own. Anything else is an error."""
import hashlib
import json
import pathlib
import re

import yaml

ACTION = re.compile(r"\{\{(.*?)\}\}")
FUNCTIONS = {"quote": lambda v: json.dumps(str(v)), "sha256sum": lambda v: hashlib.sha256(v.encode()).hexdigest()}


def merged(values, more):
    return {**values, **{k: merged(values[k], v) if isinstance(v, dict) else v for k, v in more.items()}}


def evaluate(expression, scope):
    name, *pipes = [part.strip() for part in expression.split("|")]
    value = scope
    if not re.fullmatch(r"(\.\w+)+", name):
        raise ValueError(f"{{{{{expression}}}}} is not known here")
    for key in name[1:].split("."):
        value = value[key]  # KeyError: what is named has to be a value
    for pipe in pipes:
        word, *args = pipe.split()
        if word == "indent" and len(args) == 1:
            value = "\n".join(" " * int(args[0]) + line for line in value.split("\n"))
        elif not args:
            value = FUNCTIONS[word](value)
        else:
            raise ValueError(f"{pipe} is not known here")
    return value


def text_of(template, scope):
    lines, kept = [], [True]
    for line in template.splitlines():
        if found := re.fullmatch(r"\{\{- if (.*) \}\}", line):
            kept.append(kept[-1] and bool(evaluate(found[1], scope)))
        elif line == "{{- end }}":
            kept.pop()
        elif kept[-1]:
            lines.append(ACTION.sub(lambda m: str(evaluate(m[1], scope)), line))
    if kept != [True]:
        raise ValueError("an if has no end")
    return "\n".join(lines) + "\n"


def render(chart, values=None, namespace="banyan"):
    """All objects, with the namespace that helm install --namespace puts them in."""
    chart = pathlib.Path(chart)
    scope = {"Values": merged(yaml.safe_load((chart / "values.yaml").read_text()), values or {}), "Release": {"Namespace": namespace}}
    docs = []
    for path in sorted((chart / "templates").iterdir()):
        docs += [doc for doc in yaml.safe_load_all(text_of(path.read_text(), scope)) if doc]
    for doc in docs:
        if doc["kind"] != "PriorityClass":
            doc["metadata"]["namespace"] = namespace
    return docs
