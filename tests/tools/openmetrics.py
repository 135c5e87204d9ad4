# SPDX-License-Identifier: Apache-2.0
"""A strict parser of what /metrics serves: Prometheus' text format 0.0.4 as our daemons write it, and
OpenMetrics 1.0.0.

parse(text, openmetrics) returns {name: Family}, or raises Wrong with the line that is. It asks for more than
Prometheus does: a family's HELP and TYPE before its samples, all samples of a family together, no sample
twice, buckets that rise to +Inf and agree with the count, no NaN and no negative counter, units that end
their names, exemplars in OpenMetrics alone, of buckets alone, within the limits of its specification and of
their bucket.
"""
import dataclasses
import math
import re

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*$")
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([^ ]+)$")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|Inf)$")
EXEMPLAR = re.compile(r"\{(.*)\} ([^ ]+)(?: ([0-9]+(?:\.[0-9]+)?))?$")
KINDS = {False: {"counter", "gauge", "histogram"}, True: {"counter", "gauge", "histogram", "info"}}


class Wrong(Exception):
    pass


@dataclasses.dataclass
class Family:
    kind: str
    help: str
    unit: str = ""
    samples: dict = dataclasses.field(default_factory=dict)  # (name, frozenset of labels) -> number
    exemplars: dict = dataclasses.field(default_factory=dict)  # (name, frozenset of labels) -> (labels, number, when)

    def value(self, name=None, **labels):
        """Of the one sample with this name (or any) and these labels."""
        found = [n for (sample, have), n in self.samples.items()
                 if (name is None or sample == name) and set(labels.items()) <= set(have)]
        if len(found) != 1:
            raise KeyError(f"{len(found)} samples of {name or 'it'} with {labels}")
        return found[0]


def check(good, line, why):
    if not good:
        raise Wrong(f"{why}: {line!r}")


def labels_of(text, line):
    labels, at = {}, 0
    while text is not None and at < len(text):
        match = LABEL.match(text, at)
        check(match and match.group(1) not in labels, line, "labels")
        labels[match.group(1)] = match.group(2)
        at = match.end()
    check(text is None or (text and not text.endswith(",")), line, "empty labels, or a comma at their end")
    return labels


def read_exemplar(text, line):
    match = EXEMPLAR.match(text)
    check(match and NUMBER.match(match.group(2)) and match.group(3), line, "exemplar")
    labels = labels_of(match.group(1), line)
    check(labels and sum(len(name) + len(value) for name, value in labels.items()) <= 128, line, "labels of an exemplar")
    return labels, float(match.group(2)), float(match.group(3))


def names_of(family, kind, openmetrics):
    if kind == "histogram":
        return {family + "_bucket", family + "_sum", family + "_count"}
    if openmetrics and kind == "counter":
        return {family + "_total"}
    return {family + "_info"} if kind == "info" else {family}


def check_histogram(name, family):
    series = {}
    for (sample, labels), number in family.samples.items():
        rest = frozenset(l for l in labels if l[0] != "le")
        bounds, totals = series.setdefault(rest, ([], {}))
        if sample == name + "_bucket":
            bounds.append((float(dict(labels)["le"]), number))
        else:
            totals[sample] = number
    for rest, (bounds, totals) in series.items():
        check(bounds and bounds[-1][0] == math.inf, name, "no +Inf")
        check(all(a[0] < b[0] and a[1] <= b[1] for a, b in zip(bounds, bounds[1:])), name, "buckets do not rise")
        for (sample, labels), (_, number, _) in family.exemplars.items():
            if frozenset(l for l in labels if l[0] != "le") == rest:
                at = [bound for bound, _ in bounds].index(float(dict(labels)["le"]))
                check((at == 0 or number > bounds[at - 1][0]) and number <= bounds[at][0], name, "an exemplar of another bucket")
                check(bounds[at][1] > (bounds[at - 1][1] if at else 0), name, "an exemplar of an empty bucket")
        check(totals.get(name + "_count") == bounds[-1][1], name, "the count is not the last bucket's")
        check(totals.get(name + "_sum", -1) >= 0, name, "no sum")


def finish(name, family, openmetrics):
    check(family.samples, name, "a family without samples")
    if family.kind == "counter" and not openmetrics:
        check(name.endswith("_total"), name, "a counter that does not end in _total")
    if family.kind == "histogram":
        check_histogram(name, family)
    if family.kind == "info" or name.endswith("_info"):
        check(set(family.samples.values()) == {1}, name, "an info that is not 1")


def parse(text, openmetrics):
    check(text.endswith("\n"), text[-20:], "no end of line")
    lines = text[:-1].split("\n")
    if openmetrics:
        check(lines.pop() == "# EOF", lines[-1:], "no # EOF at the end")
    families, name, helped = {}, None, None
    for line in lines:
        word = line.split(" ", 3)
        if word[:2] == ["#", "HELP"]:
            check(len(word) == 4 and NAME.match(word[2]) and word[2] not in families, line, "HELP")
            if name:
                finish(name, families[name], openmetrics)
            name, helped = None, (word[2], word[3])
        elif word[:2] == ["#", "TYPE"]:
            check(helped and word[2] == helped[0] and word[3] in KINDS[openmetrics], line, "TYPE")
            name = word[2]
            families[name] = Family(word[3], helped[1])
            helped = None
        elif word[:2] == ["#", "UNIT"]:
            check(openmetrics and name == word[2] and not families[name].samples, line, "UNIT")
            check(name.endswith("_" + word[3]), line, "a unit that its name does not end in")
            families[name].unit = word[3]
        else:
            line, _, exemplar = line.partition(" # ")
            match = SAMPLE.match(line)
            check(match and name, line, "neither a sample nor a line about a family")
            sample, text_labels, number = match.groups()
            family = families[name]
            check(sample in names_of(name, family.kind, openmetrics), line, f"no sample of {name}")
            check(NUMBER.match(number), line, "number")
            labels = labels_of(text_labels, line)
            check(("le" in labels) == sample.endswith("_bucket"), line, "le")
            key = (sample, frozenset(labels.items()))
            check(key not in family.samples, line, "twice")
            family.samples[key] = float(number.replace("Inf", "inf"))
            if exemplar:
                check(openmetrics and sample.endswith("_bucket"), line, "an exemplar where none may be")
                family.exemplars[key] = read_exemplar(exemplar, line)
            check(family.kind == "gauge" or family.samples[key] >= 0, line, "a negative counter")
    check(name and not helped, lines[-1:], "it ends in the middle of a family")
    finish(name, families[name], openmetrics)
    return families
