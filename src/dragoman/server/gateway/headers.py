"""The headers of gateway responses: request ids, the model that answered, what it cost."""

from __future__ import annotations


def request_id_headers(request_id: str) -> dict[str, str]:
    """Return the headers in which the hub's and both families' clients look for a request's id."""
    return dict.fromkeys(("x-dragoman-request-id", "x-request-id", "request-id"), request_id)


def format_cost(cost: float) -> str:
    """Return a cost in US dollars as a header carries it."""
    return f"{cost:.9f}".rstrip("0").rstrip(".") or "0"
