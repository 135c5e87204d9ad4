# SPDX-License-Identifier: Apache-2.0
"""The shared library and its declarations: banyan.h, read as it is, and libbanyan, opened without a compiler."""

from __future__ import annotations

import os
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import cffi

_HERE = Path(__file__).resolve().parent

_INSTALL = "Install the wheel, or set BANYAN_LIBRARY to libbanyan.so.0"


def _header() -> Path:
    """banyan.h: in a wheel beside the library, in a source tree two folders up."""
    for path in (_HERE / "_lib" / "banyan.h", _HERE.parent.parent / "banyan.h"):
        if path.is_file():
            return path
    raise ImportError("banyan: banyan.h is missing from the package: install it again")


def _version() -> str:
    """The package's version: in a source tree that of the project, else that of the wheel."""
    project = _HERE.parent.parent.parent / "CMakeLists.txt"
    if _header().parent != _HERE / "_lib" and project.is_file():
        found = re.search(r"^project\(banyan VERSION ([0-9.]+)", project.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found.group(1)
    return metadata.version("banyan")


# libbanyan's version must be this one: structures are laid out as banyan.h of the same version says.
VERSION = _version()


def declarations(header: str) -> str:
    """The C declarations of banyan.h without what only a compiler needs: comments, directives, visibility."""
    text = re.sub(r"//[^\n]*", "", header)
    text = re.sub(r"^\s*#[^\n]*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r'^extern "C" \{\n|^\}\n(?=\s*\Z)', "", text, flags=re.MULTILINE)
    return text.replace("BANYAN_API", "")


def _library() -> str:
    """Which libbanyan: BANYAN_LIBRARY, else the one in the wheel, else the system's."""
    named = os.environ.get("BANYAN_LIBRARY")
    if named:
        return named
    packaged = _HERE / "_lib" / "libbanyan.so.0"
    return str(packaged) if packaged.is_file() else "libbanyan.so.0"


def _open() -> tuple[Any, Any]:
    ffi = cffi.FFI()
    ffi.cdef(declarations(_header().read_text(encoding="utf-8")))
    name = _library()
    try:
        lib = ffi.dlopen(name)
    except OSError as error:
        what_to_do = "BANYAN_LIBRARY names it: unset that, or let it name libbanyan.so.0" if "BANYAN_LIBRARY" in os.environ else _INSTALL
        raise ImportError(f"banyan: cannot open {name}: {error}. {what_to_do}") from None
    found = ffi.string(lib.banyan_version()).decode()
    if found != VERSION:
        raise ImportError(f"banyan: {name} is version {found}, this package is {VERSION}: install both from the same release")
    # cffi looks a name up under a lock that it also holds while it parses a type. The garbage collector may run there and end a
    # session, which must not wait for that lock: so all names are looked up now.
    for known in dir(lib):
        getattr(lib, known)
    return ffi, lib


ffi, lib = _open()
