#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""openmetrics.py takes what is right and refuses what is not."""
import unittest

import openmetrics

HISTOGRAM = ('# HELP h_seconds H.\n# TYPE h_seconds histogram\nh_seconds_bucket{le="0.5"} 1\n'
             'h_seconds_bucket{le="+Inf"} 3\nh_seconds_sum 2.5\nh_seconds_count 3\n')


class Parser(unittest.TestCase):
    def test_right(self):
        text = ('# HELP a_total A.\n# TYPE a_total counter\na_total{l="x\\"y",m="2"} 1\na_total{l="z",m="2"} 2e+06\n'
                "# HELP b B.\n# TYPE b gauge\nb -0.5\n" + HISTOGRAM)
        families = openmetrics.parse(text, False)
        self.assertEqual(families["a_total"].value(l="z"), 2e6)
        self.assertEqual(families["b"].value(), -0.5)
        self.assertEqual(families["h_seconds"].value("h_seconds_count"), 3)
        families = openmetrics.parse("# HELP a A.\n# TYPE a counter\na_total 1\n# HELP b_bytes B.\n# TYPE b_bytes gauge\n"
                                     "# UNIT b_bytes bytes\nb_bytes 5\n# HELP c C.\n# TYPE c info\nc_info{v=\"1\"} 1\n"
                                     "# EOF\n", True)
        self.assertEqual(families["b_bytes"].unit, "bytes")

    def test_wrong_text(self):
        good = "# HELP a A.\n# TYPE a gauge\n"
        for text in ("", "a 1\n", "# TYPE a gauge\na 1\n", "# HELP a A.\na 1\n", good, good + "a 1", good + "b 1\n",
                     good + "a one\n", good + "a NaN\n", good + "a 1\na 1\n", good + "a{} 1\n", good + 'a{x="1",} 1\n',
                     good + 'a{x="1"x="2"} 1\n', good + 'a{x="1",x="2"} 1\n', good + 'a{x="1} 1\n', good + "a 1 \n",
                     good + "\na 1\n", good + "a 1\n# EOF\n", good + "a 1\n# HELP b B.\n", good + "a 1\n" + good + "a 2\n",
                     good + 'a{le="1"} 1\n', good + "# UNIT a seconds\na 1\n", good.replace("gauge", "other") + "a 1\n",
                     good.replace("gauge", "counter") + "a 1\n", good.replace("a", "a_total").replace("_totaluge", "auge")
                     + "a_total -1\n"):
            with self.subTest(text=text), self.assertRaises(openmetrics.Wrong):
                openmetrics.parse(text, False)

    def test_wrong_histograms(self):
        for was, is_ in (('h_seconds_bucket{le="+Inf"} 3\n', ""), ('{le="+Inf"} 3', '{le="+Inf"} 0'),
                         ("count 3", "count 4"), ("h_seconds_sum 2.5\n", ""), ("h_seconds_count 3\n", ""),
                         ('le="0.5"', 'lf="0.5"')):
            self.assertIn(was, HISTOGRAM)
            with self.subTest(was=was), self.assertRaises(openmetrics.Wrong):
                openmetrics.parse(HISTOGRAM.replace(was, is_), False)

    def test_wrong_openmetrics(self):
        good = "# HELP a A.\n# TYPE a counter\na_total 1\n"
        for text in (good, good + "# EOF", "# EOF\n" + good, good.replace("a_total", "a") + "# EOF\n",
                     good + "# HELP b B.\n# TYPE b gauge\n# UNIT b bytes\nb 1\n# EOF\n",
                     good + "# HELP b B.\n# TYPE b info\nb_info 2\n# EOF\n"):
            with self.subTest(text=text), self.assertRaises(openmetrics.Wrong):
                openmetrics.parse(text, True)


if __name__ == "__main__":
    unittest.main()
