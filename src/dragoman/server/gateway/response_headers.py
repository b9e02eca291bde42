"""The headers of gateway responses: request ids, the model that answered, what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.http.asgi_exchange import header_value

MAX_NAMES = 50  # of fields in a header: clients choose them
MAX_NAME_LENGTH = 100


def request_id_headers(request_id: str) -> dict[str, str]:
    """Return the headers in which the hub's and both families' clients look for a request's id."""
    return dict.fromkeys(("x-dragoman-request-id", "x-request-id", "request-id"), request_id)


def format_cost(cost: float) -> str:
    """Return a cost in US dollars as a header carries it."""
    return f"{cost:.9f}".rstrip("0").rstrip(".") or "0"


def format_names(names: Sequence[str]) -> str:
    """Return the names of fields as a header carries them, each once, and "..." for those beyond 50."""
    distinct = list(dict.fromkeys(names))
    shown = [name[:MAX_NAME_LENGTH] for name in distinct[:MAX_NAMES]]
    return header_value(",".join([*shown, *["..."][: len(distinct) > MAX_NAMES]]))
