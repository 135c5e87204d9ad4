# SPDX-License-Identifier: Apache-2.0
"""reference/metrics.md: every family of /metrics, from the sources that make them.

A family is a string "banyan_…" or "process_…" with its help text, directly behind it or in a variable of that
file. Where a source has another form, this stops with its place, so that no family is left out in silence.
"""
import os
import re

from wording import cell, code, prose, table

FOLDERS = ("common", "proto", "coordinator", "worker")
STRING = r'"(?:[^"\\]|\\.)*"'
FAMILY = re.compile(rf'"((?:banyan|process)_[a-z0-9_]+)",\s*(?:\.help\s*=\s*)?((?:{STRING}\s*)+|\w+)')
NAMED = re.compile(r'"(?:banyan|process)_[a-z0-9_]+"')
KIND = re.compile(r"(?:COMMON_METRIC_)?(COUNTER|GAUGE|INFO|HISTOGRAM|counter|gauge)\b")
LABEL = re.compile(r'\.label2?\s*=\s*"(\w+)"')
# Labels that a source sets elsewhere than beside the name; tests/deploy/metrics_test.py compares all with the
# daemons.
LABELS = {"banyan_part_seconds": ["part"], "banyan_rpc_failures_total": ["code"], "banyan_step_failures_total": ["code"]}
for _name in ("used", "max", "refused_total"):
    LABELS[f"banyan_quota_{_name}"], LABELS[f"banyan_limit_{_name}"] = ["tenant", "quota"], ["limit"]
AFTER = re.compile(r'\s*,\s*(?:NULL|"(\w+)")\s*,')


def joined(text):
    return "".join(part[1:-1] for part in re.findall(STRING, text)).replace('\\"', '"')


def help_of(match, source, place):
    """The help text, which may be that of a variable."""
    if match[2].startswith('"'):
        return joined(match[2])
    said = re.search(rf"\b{match[2]}\[\]\s*=\s*((?:{STRING}\s*)+)", source)
    if not said:
        raise SystemExit(f"page_metrics.py: {place}: the help of {match[1]} is not found")
    return joined(said[1])


def kind_of(match, source):
    before = KIND.findall(source[max(0, match.start() - 120):match.start()])
    if match[1].endswith("_total"):
        return "counter"
    return before[-1].lower() if before else "histogram"


def labels_of(match, source):
    """Labels that stand behind the help of a family."""
    if match[1] in LABELS:
        return LABELS[match[1]]
    positional = AFTER.match(source, match.end())
    if positional and positional[1]:
        return [positional[1]]
    end = source.find(";", match.end())
    return [label for label in LABEL.findall(source[match.end():end]) if label]


def families(root):
    """{name: (daemon, kind, labels, help)}"""
    found = {}
    for folder in FOLDERS:
        for path, _, files in os.walk(os.path.join(root, folder)):
            for file in sorted(files):
                if not file.endswith(".c"):
                    continue
                place = os.path.relpath(os.path.join(path, file), root)
                with open(os.path.join(path, file), encoding="utf-8") as opened:
                    source = opened.read()
                matches = list(FAMILY.finditer(source))
                lost = len(NAMED.findall(source)) - len(matches)
                if lost:
                    raise SystemExit(f"page_metrics.py: {place}: {lost} families without a help text behind their names")
                daemon = {"coordinator": "coordinator", "worker": "worker"}.get(folder, "both")
                for match in matches:
                    entry = (daemon, kind_of(match, source), labels_of(match, source), help_of(match, source, place))
                    if match[1] in found and found[match[1]][0] != daemon:
                        entry = ("both", *found[match[1]][1:])
                    found.setdefault(match[1], entry)
                    found[match[1]] = entry if entry[0] == "both" else found[match[1]]
    return found


def page(root, _):
    yield "# Metrics"
    yield ""
    yield from prose("All families of `/metrics` (`--http HOST:PORT`). How to scrape them, and what to watch, is in "
                    "[deploy](../../deploy/README.md#metrics). Histograms are in seconds. A family appears when there is "
                    "something to report: those of quotas need a token, those of the audit log `--audit-log`.")
    found = families(root)
    for daemon, title in (("coordinator", "The coordinator"), ("worker", "Workers"), ("both", "Both daemons")):
        yield f"## {title}"
        yield ""
        yield from table(("family", "labels", "kind", ""), (
            (code(name), ", ".join(map(code, labels)) or "–", kind, cell(text))
            for name, (whose, kind, labels, text) in sorted(found.items()) if whose == daemon))
