# SPDX-License-Identifier: Apache-2.0
"""Finds Banyan's programs and runs banyanctl."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from .errors import BanyanError, by_code
from .errors import Unavailable as _Unavailable

_HERE = Path(__file__).resolve().parent

# docs/reference/exit-codes.md, where the sentence names no canonical code.
_EXIT_CODES = {
    2: "INVALID_ARGUMENT", 3: "NOT_FOUND", 4: "INVALID_ARGUMENT", 5: "UNAVAILABLE", 6: "CANCELLED", 7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED", 9: "FAILED_PRECONDITION", 10: "DATA_LOSS", 12: "UNIMPLEMENTED",
}  # fmt: skip
_LOCAL_FILE = 11


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


def _error(exit_code: int, said: str) -> Exception:
    message = said.removeprefix("banyanctl: ").split("\n")[0].strip() or f"banyanctl ended with code {exit_code}"
    if exit_code == _LOCAL_FILE:
        return OSError(message)
    canonical = re.fullmatch(r"(.*) \(([A-Z_]+)(?:, ([A-Z_]+))?\)", message)
    if canonical:
        return by_code(canonical[2])(canonical[1], code=canonical[2], reason=canonical[3] or "")
    code = _EXIT_CODES.get(exit_code, "INTERNAL")
    return by_code(code)(message, code=code)


def ctl(*arguments: str) -> Any:
    """Runs a banyanctl command and returns its answer. An interrupt is passed on, so that it cleans up first."""
    process = subprocess.Popen(
        [find("banyanctl"), "--json", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace",
    )  # fmt: skip
    try:
        out, said = process.communicate()
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.communicate()
        raise
    if process.returncode:
        raise _error(process.returncode, said)
    try:
        return json.loads(out)
    except ValueError:
        raise BanyanError(f"banyanctl did not answer with JSON: {out[:200]!r}", code="INTERNAL") from None
