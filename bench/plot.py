#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what bench/attention --json printed as SVG: one panel a group, contexts along x, a line a KV type.

    build/release/bench/attention --json --rows 1 > attention.jsonl
    bench/plot.py --rows 1 attention.jsonl > docs/measurements/attention_decode.svg
    bench/plot.py --rows 64 --y fma_ratio attention.jsonl > docs/measurements/attention_prefill.svg

Solid lines are ours (the fastest kernel in the file, or --kernel), dashed ones the fastest peer of each point.
Colours follow the reader's light or dark scheme.
"""

import argparse
import html
import json
import sys

KV = ("f32", "f16", "bf16", "int8", "fp8")
LABELS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "int8": "int8", "fp8": "fp8"}
LIGHT = {"f32": "#0b6e4f", "f16": "#c2410c", "bf16": "#1d4ed8", "int8": "#9d174d", "fp8": "#7c5c00"}
DARK = {"f32": "#4fd1a5", "f16": "#fb923c", "bf16": "#7cb0ff", "int8": "#f472b6", "fp8": "#e3c04b"}
MARKS = {"f32": "circle", "f16": "square", "bf16": "diamond", "int8": "up", "fp8": "down"}
FLOORS = {"ratio": ("of a plain read of the same bytes", "plain read"),
          "fma_ratio": ("of the float32 FMA peak", "float32 FMA peak"),
          "roof_ratio": ("of the lesser of plain read and FMA peak", "the machine's limit")}
PANEL_W, PANEL_H, GAP, LEFT, TOP, BOTTOM, RIGHT = 250, 230, 26, 62, 92, 52, 18


def style():
    def rules(colours, ink, faint, paper, panel):
        return (f".paper{{fill:{paper}}}.panel{{fill:{panel}}}text{{fill:{ink}}}.faint{{fill:{faint}}}"
                f".grid{{stroke:{faint};stroke-opacity:.25}}.floor{{stroke:{ink}}}.key{{stroke:{ink};fill:{paper}}}"
                + "".join(f".{kv} *{{stroke:{c}}}.{kv} .full{{fill:{c}}}" for kv, c in colours.items())
                + f".hollow{{fill:{panel}}}")
    return ("text{font:12px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}.title{font-size:15px;font-weight:600}"
            "line,polyline{fill:none}.ours{stroke-width:2}.peer{stroke-width:1.5;stroke-dasharray:4 4}"
            ".floor{stroke-width:1.5;stroke-dasharray:1 3;stroke-linecap:round}"
            + rules(LIGHT, "#1f2328", "#59636e", "#ffffff", "#f6f8fa")
            + "@media(prefers-color-scheme:dark){" + rules(DARK, "#e6edf3", "#9198a1", "#0d1117", "#161b22") + "}")


def mark(kind, x, y, css, r=3.6):
    if kind == "circle":
        return f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
    corners = {"square": ((-1, -1), (1, -1), (1, 1), (-1, 1)), "diamond": ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
               "up": ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)), "down": ((0, 1.3), (1.2, -0.9), (-1.2, -0.9))}[kind]
    points = " ".join(f"{x + r * a:.1f},{y + r * b:.1f}" for a, b in corners)
    return f'<polygon class="{css}" points="{points}"/>'


def text(x, y, words, css="", anchor="start", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}"{extra}>{html.escape(str(words))}</text>'


def tokens(n):
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)


def read_lines(files, rows, kernel):
    """{(group, kv, is a peer): {context: object}}, the fastest of each point."""
    best = {}
    for file in files:
        for line in file:
            r = json.loads(line)
            if r["bench"] != "attention" or r["rows"] != rows or (kernel and r.get("kernel", kernel) != kernel):
                continue
            points = best.setdefault((r["group"], r["kv"], "peer" in r), {})
            if r["context"] not in points or r["bytes_per_s"] > points[r["context"]]["bytes_per_s"]:
                points[r["context"]] = r
    return best


def draw_panel(out, best, group, at, contexts, top, y_of):
    x0 = LEFT + at * (PANEL_W + GAP)
    x_of = lambda context: x0 + 16 + contexts.index(context) * (PANEL_W - 32) / max(1, len(contexts) - 1)
    out.append(f'<rect class="panel" x="{x0}" y="{TOP}" width="{PANEL_W}" height="{PANEL_H}" rx="4"/>')
    step = 0.25 if top <= 1.6 else 0.5 if top <= 3 else 1
    for i in range(int(top / step) + 1):
        y = y_of(i * step)
        out.append(f'<line class="grid" x1="{x0}" x2="{x0 + PANEL_W}" y1="{y:.1f}" y2="{y:.1f}"/>')
        if at == 0:
            out.append(text(x0 - 8, y + 4, f"{i * step:.2f}", "faint", "end"))
    for context in contexts:
        out.append(text(x_of(context), TOP + PANEL_H + 18, tokens(context), "faint", "middle"))
    title = "1 query head a KV head" if group == 1 else f"{group} query heads a KV head"
    out.append(text(x0 + PANEL_W / 2, TOP - 10, title, "", "middle"))
    out.append(f'<line class="floor" x1="{x0}" x2="{x0 + PANEL_W}" y1="{y_of(1):.1f}" y2="{y_of(1):.1f}"/>')
    for is_peer in (True, False):
        for kv in KV:
            points = sorted(best.get((group, kv, is_peer), {}).items())
            spots = [(x_of(context), y_of(value)) for context, value in points]
            if not spots:
                continue
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
            out.append(f'<g class="{kv}"><polyline class="{"peer" if is_peer else "ours"}" points="{line}"/>')
            out += [mark(MARKS[kv], x, y, "hollow" if is_peer else "full") for x, y in spots] + ["</g>"]


def draw(best, y, title):
    groups = sorted({group for group, _, _ in best})
    contexts = sorted({context for points in best.values() for context in points})
    best = {key: {context: r[y] for context, r in points.items()} for key, points in best.items()}
    top = max([1.0] + [value for points in best.values() for value in points.values()]) * 1.08
    y_of = lambda value: TOP + PANEL_H * (1 - value / top)
    width = LEFT + len(groups) * (PANEL_W + GAP) - GAP + RIGHT
    width, height = max(width, 700), TOP + PANEL_H + BOTTOM
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
           f"<title>{html.escape(title)}</title><style>{style()}</style>",
           f'<rect class="paper" width="{width}" height="{height}"/>', text(LEFT, 26, title, "title")]
    for at, group in enumerate(groups):
        draw_panel(out, best, group, at, contexts, top, y_of)
    middle = TOP + PANEL_H / 2
    out.append(text(16, middle, FLOORS[y][0], "faint", "middle", f' transform="rotate(-90 16 {middle:.0f})"'))
    out.append(text(width / 2, height - 14, "keys in the context", "faint", "middle"))
    x = LEFT
    for kv in [kv for kv in KV if any(key[1] == kv for key in best)]:
        out.append(f'<g class="{kv}"><line class="ours" x1="{x}" x2="{x + 24}" y1="48" y2="48"/>{mark(MARKS[kv], x + 12, 48, "full")}</g>')
        out.append(text(x + 30, 52, LABELS[kv]))
        x += 46 + 7 * len(LABELS[kv])
    if any(is_peer for _, _, is_peer in best):
        out.append(f'<line class="key peer" x1="{x}" x2="{x + 24}" y1="48" y2="48"/>' + text(x + 30, 52, "fastest peer"))
        x += 118
    out.append(f'<line class="floor" x1="{x}" x2="{x + 24}" y1="48" y2="48"/>' + text(x + 30, 52, FLOORS[y][1]))
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=argparse.FileType("r", encoding="utf-8"), default=[sys.stdin])
    parser.add_argument("--rows", type=int, default=1, help="query rows (default 1)")
    parser.add_argument("--y", choices=sorted(FLOORS), default="ratio", help="what to draw (default ratio)")
    parser.add_argument("--kernel", help="one kernel of several in the file")
    parser.add_argument("--title")
    options = parser.parse_args()
    try:
        best = read_lines(options.files, options.rows, options.kernel)
    except (ValueError, KeyError) as e:
        parser.error(f"not lines of bench/attention --json: {e}")
    if not best:
        parser.error(f"no results with {options.rows} rows")
    title = options.title or f"Local attention, {options.rows} query row{'s' if options.rows > 1 else ''}"
    sys.stdout.write(draw(best, options.y, title))


if __name__ == "__main__":
    main()
