#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""research/plot_paper.py draws well-formed SVG of what research/paper prints, and its CSV has every line."""

import csv
import io
import json
import subprocess
import sys
import unittest
import xml.etree.ElementTree

PLOT = sys.argv.pop(1)
NETWORK = "2x8, fast 369000000, slow 41000000 bytes/s"


def lines():
    for algo, factor in (("tree", 1), ("ring", 100), ("service-stream", 2)):
        for tokens in (1, 2048, 4096):
            yield {"bench": "paper", "algo": algo, "geometry": "16x128", "workers": 16, "tokens_per_worker": tokens, "median_us": factor * (tokens + 9),
                   "bytes_sent_per_rank": 10, "formula_bytes": 10, "paper_bytes": 11, "kv_peak_bytes": tokens, "network": NETWORK, "samples_us": [1]}


def plot(what, text):
    return subprocess.run([sys.executable, PLOT, what], input=text, capture_output=True, text=True, check=False)


class Plot(unittest.TestCase):
    def setUp(self):
        self.text = "".join(json.dumps(r) + "\n" for r in lines())

    def test_svg(self):
        for what in ("latency", "speedup", "bytes"):
            done = plot(what, self.text)
            self.assertEqual(done.returncode, 0, done.stderr)
            root = xml.etree.ElementTree.fromstring(done.stdout)
            width, height = float(root.get("width")), float(root.get("height"))
            marks = root.findall(".//{http://www.w3.org/2000/svg}circle")
            self.assertGreaterEqual(len(marks), 3)
            for mark in marks:
                self.assertTrue(0 <= float(mark.get("cx")) <= width and 0 <= float(mark.get("cy")) <= height)

    def test_csv_has_the_last_line_of_a_point(self):
        again = dict(next(lines()), median_us=77)
        rows = list(csv.DictReader(io.StringIO(plot("csv", self.text + json.dumps(again) + "\n").stdout)))
        self.assertEqual(len(rows), 9)
        self.assertEqual([r["median_us"] for r in rows if (r["algo"], r["tokens_per_worker"]) == ("tree", "1")], ["77"])
        self.assertNotIn("samples_us", rows[0])

    def test_devices_are_kept_apart(self):
        there = dict(next(lines()), device="cuda:0 (some GPU)", median_us=3)
        both = self.text + json.dumps(there) + "\n" + json.dumps(dict(next(lines()), device="cpu", median_us=77)) + "\n"
        rows = list(csv.DictReader(io.StringIO(plot("csv", both).stdout)))
        self.assertEqual([r["median_us"] for r in rows if (r["algo"], r["tokens_per_worker"]) == ("tree", "1")], ["3", "77"])
        self.assertEqual(plot("latency", both).returncode, 2)
        self.assertEqual(plot("latency", json.dumps(there) + "\n").returncode, 0)

    def test_mistakes(self):
        for text in ("", "x\n", '{"bench": "attention"}\n'):
            self.assertEqual(plot("latency", text).returncode, 2)


if __name__ == "__main__":
    unittest.main()
