# SPDX-License-Identifier: Apache-2.0
"""Writes a pyproject.toml's entry points as pip would: entry.py PYPROJECT DIST_INFO. So a tree on PYTHONPATH
is found like a package."""

import sys
from pathlib import Path

import tomllib

source, target = (Path(argument) for argument in sys.argv[1:3])
project = tomllib.loads(source.read_text())["project"]
(target / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
groups = project.get("entry-points", {})
text = "".join(f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items()) for group, entries in groups.items())
(target / "entry_points.txt").write_text(text)
