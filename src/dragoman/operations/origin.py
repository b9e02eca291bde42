"""Origin: the request to the hub that work is done for, known to whatever runs on its behalf.

Tasks and threads that a request begins inherit both, so a run's late log line still names its request.
"""

from __future__ import annotations

from contextvars import ContextVar

request_id: ContextVar[str | None] = ContextVar("dragoman_request_id", default=None)
"""The request's id, as log lines, spans and the client's `x-dragoman-request-id` have it."""

traceparent: ContextVar[str | None] = ContextVar("dragoman_traceparent", default=None)
"""The W3C `traceparent` that a request sent from here carries; None while nothing is traced."""
