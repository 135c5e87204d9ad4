# SPDX-License-Identifier: Apache-2.0
"""Some families of the walk (walk.py), and that docs/MODELS.md says what they gave and names them all."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import walk
import zoo

CHOSEN = 7  # of all families, the same in every run: the whole walk is `run.sh walk`


def rows():
    """Of each family that the page names its line, without numbers."""
    return {line.split("`")[1]: line for line in walk.outcomes(walk.page()[1]) if line.startswith("| `")}


def test_every_family_is_on_the_page():
    """With another version of Transformers: run.sh walk writes it again."""
    assert sorted(rows()) == sorted(zoo.families() + zoo.ropes())


def test_some_families():
    known = rows()
    served = [family for family, row in known.items() if "| N |" in row]
    chosen = random.Random(31).sample([f for f in served if "**" not in known[f]], CHOSEN - 2)
    chosen += random.Random(31).sample([f for f in known if f not in served and "**" not in known[f]], 2)
    with walk.walking() as each:
        for family in chosen:
            found = each.family(family)
            assert not found.wrong, found
            assert known[family] in walk.outcomes(walk.tables([found]))
