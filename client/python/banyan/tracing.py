# SPDX-License-Identifier: Apache-2.0
"""Finds the trace of a call: what its caller says, else OpenTelemetry's current span, if the program uses it."""

from __future__ import annotations

import sys


def current() -> str | None:
    """The W3C traceparent of OpenTelemetry's current span. None: there is none, or opentelemetry is not imported."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 3:02x}"
