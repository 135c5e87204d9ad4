# SPDX-License-Identifier: Apache-2.0
"""Finds Banyan's programs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .errors import Unavailable as _Unavailable

_HERE = Path(__file__).resolve().parent


def find(name: str) -> str:
    """Finds a program in BANYAN_BIN, in the wheel, or in PATH."""
    named = os.environ.get("BANYAN_BIN")
    for folder in [Path(named)] if named else [_HERE / "_bin"]:
        if (folder / name).is_file():
            return str(folder / name)
    found = None if named else shutil.which(name)
    if found is None:
        where = f" in {named}, the folder of BANYAN_BIN: unset it" if named else ": install the wheel"
        raise _Unavailable(f"{name} was not found{where}, or set BANYAN_BIN to the folder that contains it")
    return found
