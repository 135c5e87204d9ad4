#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what research/paper_sweep.sh printed as SVG, or gives it as CSV.

    research/plot_paper.py latency research/data/paper_emulated.jsonl > research/data/paper_latency.svg
    research/plot_paper.py speedup research/data/paper_emulated.jsonl > research/data/paper_speedup.svg
    research/plot_paper.py bytes research/data/paper_emulated.jsonl > research/data/paper_bytes.svg
    research/plot_paper.py csv research/data/paper_emulated.jsonl > paper.csv

latency: a step over the context, 2 nodes of 8 workers. speedup: the ring's time over the tree's, over workers, tokens and
rates of the slow link. bytes: what a rank sends and holds; lines are the algorithms' formulas, dashes the paper's, marks
measured. Of several lines for one point the last one counts; a plot is of one kind of device. Colours follow the reader's light or dark scheme.
"""

import argparse
import csv
import html
import json
import math
import re
import sys

ALGOS = ("tree", "gather", "allreduce1", "allreduce3", "ring", "ring-lean", "service-stream", "service-mpi")
LIGHT = dict(zip(ALGOS, ("#0b6e4f", "#7c5c00", "#1d4ed8", "#9d174d", "#c2410c", "#78716c", "#0e7490", "#6d28d9")))
DARK = dict(zip(ALGOS, ("#4fd1a5", "#e3c04b", "#7cb0ff", "#f472b6", "#fb923c", "#a8a29e", "#67e8f9", "#c4b5fd")))
PANEL_W, PANEL_H, GAP, LEFT, TOP, BOTTOM, RIGHT = 330, 280, 74, 70, 84, 56, 20
BASE = {"geometry": "16x128", "network": "2x8, fast 369000000, slow 41000000 bytes/s"}


def style():
    def rules(colours, ink, faint, paper, panel):
        return (f".paper{{fill:{paper}}}.panel{{fill:{panel}}}text{{fill:{ink}}}.faint{{fill:{faint}}}.grid{{stroke:{faint};stroke-opacity:.25}}"
                + "".join(f".{a} polyline,.{a} line{{stroke:{c}}}.{a} circle{{fill:{c}}}.{a} text{{fill:{c}}}" for a, c in colours.items()))
    return ("text{font:12px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}.title{font-size:15px;font-weight:600}"
            "line,polyline{fill:none;stroke-width:2}.grid{stroke-width:1}.dash{stroke-dasharray:2 5;stroke-width:1.5}"
            + rules(LIGHT, "#1f2328", "#59636e", "#ffffff", "#f6f8fa")
            + "@media(prefers-color-scheme:dark){" + rules(DARK, "#e6edf3", "#9198a1", "#0d1117", "#161b22") + "}")


def text(x, y, words, css="", anchor="start", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}"{extra}>{html.escape(str(words))}</text>'


def count(n):
    for size, unit in ((2**20, "Mi"), (2**10, "k")):
        if n >= size and n % size == 0:
            return f"{n // size:.0f}{unit}"
    return f"{n:g}"


def units(names, base):
    def show(value):
        i = 0
        while value >= base * 0.9999 and i + 1 < len(names):
            value, i = value / base, i + 1
        return f"{value:g} {names[i]}"
    return show


TIME, BYTES, TIMES = units(("µs", "ms", "s"), 1000), units(("B", "kB", "MB", "GB", "TB"), 1000), lambda v: f"{v:g} ×"


class Panel:
    """One log-log panel: series of (algorithm, points, kind), kind 'line', 'dash' or 'mark'."""

    def __init__(self, title, x_label, y_text, x_text=count):
        self.title, self.x_label, self.y_text, self.x_text, self.series = title, x_label, y_text, x_text, []

    def add(self, algo, points, kind="both"):
        if points:
            self.series.append((algo, sorted(points), kind))

    def draw(self, out, at):
        x0 = LEFT + at * (PANEL_W + GAP)
        xs = sorted({x for _, points, _ in self.series for x, _ in points})
        ys = [y for _, points, _ in self.series for _, y in points]
        low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys) * 1.01))
        span = math.log(xs[-1] / xs[0]) or 1
        x_of = lambda x: x0 + 18 + math.log(x / xs[0]) / span * (PANEL_W - 36)
        y_of = lambda y: TOP + PANEL_H * (1 - (math.log10(y) - low) / (high - low))
        out.append(f'<rect class="panel" x="{x0}" y="{TOP}" width="{PANEL_W}" height="{PANEL_H}" rx="4"/>')
        out.append(text(x0 + PANEL_W / 2, TOP - 10, self.title, "", "middle"))
        for power in range(low, high + 1):
            y = y_of(10**power)
            out.append(f'<line class="grid" x1="{x0}" x2="{x0 + PANEL_W}" y1="{y:.1f}" y2="{y:.1f}"/>')
            out.append(text(x0 - 6, y + 4, self.y_text(10**power), "faint", "end"))
        last = -1e9
        for x in xs:
            if x_of(x) - last > 30:
                last = x_of(x)
                out.append(text(last, TOP + PANEL_H + 18, self.x_text(x), "faint", "middle"))
        out.append(text(x0 + PANEL_W / 2, TOP + PANEL_H + 40, self.x_label, "faint", "middle"))
        for algo, points, kind in self.series:
            spots = [(x_of(x), y_of(y)) for x, y in points]
            out.append(f'<g class="{algo}">')
            if kind != "mark":
                line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
                out.append(f'<polyline class="{"dash" if kind == "dash" else "full"}" points="{line}"/>')
            if kind in ("mark", "both"):
                out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.4"/>' for x, y in spots]
            out.append("</g>")


def svg(title, panels, key):
    panels = [p for p in panels if p.series]
    width = max(LEFT + len(panels) * (PANEL_W + GAP) - GAP + RIGHT, 880 if key else 660)
    height = TOP + PANEL_H + BOTTOM
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
           f"<title>{html.escape(title)}</title><style>{style()}</style>", f'<rect class="paper" width="{width}" height="{height}"/>',
           text(LEFT, 24, title, "title")]
    x = LEFT
    shown = [a for a in ALGOS if any(a == s[0] for p in panels for s in p.series)]
    for algo in shown if len(shown) > 1 else []:
        out.append(f'<g class="{algo}"><line x1="{x}" x2="{x + 18}" y1="44" y2="44"/>{text(x + 23, 48, algo)}</g>')
        x += 40 + 6.6 * len(algo)
    if key:
        out.append(text(x + 8, 48, key, "faint"))
    for at, panel in enumerate(panels):
        panel.draw(out, at)
    return "\n".join(out + ["</svg>"]) + "\n"


def having(rows, **wanted):
    return [r for r in rows if all(r.get(k) == v for k, v in wanted.items())]


def slow_rate(row):
    found = re.search(r"slow (\d+)", row["network"])
    return int(found[1]) if found else 0


def latency(rows):
    panel = [Panel(f"{g}: {what}", "tokens in the context", TIME) for g, what in
             (("16x128", "16 heads × 128, as in the paper"), ("32/8x128", "32 query heads, 8 KV heads × 128"))]
    for p, geometry in zip(panel, ("16x128", "32/8x128")):
        for algo in ALGOS:
            here = having(rows, algo=algo, geometry=geometry, network=BASE["network"])
            p.add(algo, [(r["workers"] * r["tokens_per_worker"], r["median_us"]) for r in here if "model" not in r and algo != "ring-lean"])
    return svg("A decode step of one layer, 16 workers on 2 emulated nodes", panel, "")


def ratio(rows, x_of):
    trees = {x_of(r): r["median_us"] for r in having(rows, algo="tree")}
    return [(x_of(r), r["median_us"] / trees[x_of(r)]) for r in having(rows, algo="ring") if x_of(r) in trees]


def speedup(rows):
    rows = having(rows, geometry="16x128")
    base = having(rows, network=BASE["network"])
    workers = [r for r in rows if slow_rate(r) == 41000000 and r["tokens_per_worker"] == 4096 and r["network"].startswith("2x")]
    rates = [r for r in rows if r["workers"] == 16 and r["tokens_per_worker"] == 2048]
    panels = [Panel("over workers (4,096 tokens each, 2 nodes)", "workers", TIMES),
              Panel("over the context (16 workers)", "tokens a worker", TIMES),
              Panel("over the slow link (2,048 tokens each)", "MB/s between nodes", TIMES, lambda x: f"{x / 1e6:g}")]
    panels[0].add("ring", ratio(workers, lambda r: r["workers"]))
    panels[1].add("ring", ratio(base, lambda r: r["tokens_per_worker"]))
    panels[2].add("ring", ratio(rates, slow_rate))
    return svg("How many times faster the tree is than the ring", panels, "")


def volume(rows):
    rows = having(rows, **BASE)
    panels = [Panel("sent by a rank", "tokens a worker", BYTES), Panel("keys and values held by a rank, at most", "tokens a worker", BYTES)]
    for algo in ("tree", "allreduce1", "allreduce3", "ring", "ring-lean"):
        here = having(rows, algo=algo)
        panels[0].add(algo, [(r["tokens_per_worker"], r["formula_bytes"]) for r in here], "line")
        panels[0].add(algo, [(r["tokens_per_worker"], r["paper_bytes"]) for r in here if algo in ("tree", "ring")], "dash")
        panels[0].add(algo, [(r["tokens_per_worker"], r["bytes_sent_per_rank"]) for r in here], "mark")
        panels[1].add(algo, [(r["tokens_per_worker"], r["kv_peak_bytes"]) for r in here])
    return svg("Bytes, 16 workers", panels, "line: formula, dashes: the paper's, marks: measured")


def kind(row):
    return row.get("device", "cpu").split(":")[0]


def table(rows):
    keys = []
    for r in rows:
        keys += [k for k in r if k not in keys and k != "samples_us"]
    out = csv.DictWriter(sys.stdout, keys, extrasaction="ignore", lineterminator="\n")
    out.writeheader()
    out.writerows(rows)
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("latency", "speedup", "bytes", "csv"))
    parser.add_argument("files", nargs="*", type=argparse.FileType("r", encoding="utf-8"), default=[sys.stdin])
    options = parser.parse_args()
    rows = {}
    try:
        for file in options.files:
            for line in file:
                r = json.loads(line)
                if r["bench"] != "paper":
                    raise KeyError("bench")
                where = tuple(r.get(k) for k in ("algo", "geometry", "workers", "tokens_per_worker", "network", "model")) + (kind(r),)
                rows.pop(where, None)
                rows[where] = r
    except (ValueError, KeyError) as e:
        parser.error(f"not lines of research/paper --json: {e}")
    if not rows:
        parser.error("no results")
    kinds = sorted(set(map(kind, rows.values())))
    if options.what != "csv" and len(kinds) > 1:
        parser.error(f"lines of {' and '.join(kinds)}: plot them apart")
    sys.stdout.write({"latency": latency, "speedup": speedup, "bytes": volume, "csv": table}[options.what](list(rows.values())))


if __name__ == "__main__":
    main()
