# SPDX-License-Identifier: Apache-2.0
"""Which session a request asks for. Pure: strings and numbers in, a Wish out.

| the request has | its session |
|---|---|
| kv_transfer_params {"banyan_session": name} | name |
| else session_id, or the header X-Session-ID | name |
| else cache_salt alone | one for the salt |
| nothing of these | none that lasts |

A cache_salt beside a name separates: the same name with another salt is another session. Salts are secrets,
so their hash stands in the session's name. What is too long or not printable is hashed, too. A tenant of the
cluster is its token's: names never reach into another tenant's sessions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

NAME_MAX = 96  # of the 128 that the service allows: a rank is appended where there are several


class Wish(NamedTuple):
    """What a request asks for.

    Attributes:
        name: of the session; None: one that ends with the request.
        ttl_s: idle time after which it is deleted, 0: never; None: as the environment says.
        refused: why the request's parameters make no sense; "": they do.
    """

    name: str | None = None
    ttl_s: float | None = None
    refused: str = ""


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _plain(name: str) -> str:
    """The name as it is, or its hash where the service would not take it."""
    if name.isascii() and name.isprintable() and len(name) <= NAME_MAX and "@" not in name and not name.startswith("#"):
        return name
    return "#" + _hashed(name)


def _salted(name: str | None, salt: str | None) -> str | None:
    if not salt:
        return name
    mark = _hashed(salt)
    if name is None:
        return f"#salt-{mark}"
    whole = f"{name}#{mark}"
    return whole if len(whole) <= NAME_MAX else f"#{_hashed(whole)}#{mark}"


def wish(params: Mapping[str, Any] | None, session_id: str | None, salt: str | None) -> Wish:
    """params: kv_transfer_params; session_id: of the request or its header; salt: cache_salt."""
    said = params or {}
    name = said.get("banyan_session")
    if name is not None and (not isinstance(name, str) or not name):
        return Wish(refused=f"banyan_session is {name!r}: a name is expected")
    ttl, pin = said.get("banyan_ttl"), said.get("banyan_pin", False)
    if ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl < 1e9):
        return Wish(refused=f"banyan_ttl is {ttl!r}: seconds, above 0, are expected")
    if not isinstance(pin, bool):
        return Wish(refused=f"banyan_pin is {pin!r}: true or false is expected")
    if pin and ttl is not None:
        return Wish(refused="banyan_pin and banyan_ttl: a pinned session has no time to live")
    name = name or session_id or None
    whole = _salted(None if name is None else _plain(name), salt)
    if whole is None and (pin or ttl is not None):
        return Wish(refused="banyan_pin and banyan_ttl are for sessions with a name: add banyan_session")
    return Wish(whole, 0.0 if pin else None if ttl is None else float(ttl))


def of_rank(name: str, rank: int, ranks: int) -> str:
    """The session of one rank of a tensor-parallel engine: each holds its heads."""
    return name if ranks == 1 else f"{name}@{rank}/{ranks}"
