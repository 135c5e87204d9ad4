# SPDX-License-Identifier: Apache-2.0
"""What would be silently wrong is refused, with a sentence that names the reason."""

from __future__ import annotations


class Refused(RuntimeError):
    """This model, or this use of it, is not what the service computes. Nothing was answered wrongly."""


class NotThisModels(Refused):
    """The session is another model's, or another process writes to it."""
