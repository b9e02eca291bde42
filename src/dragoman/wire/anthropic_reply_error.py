"""Errors out to an Anthropic client: the body and status that its SDK knows how to raise.

Source: wire notes on providers, §6.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.errors import BadRequest, BudgetExhausted, DragomanError, ProviderError

_STATUSES: Mapping[str, int] = {  # by category
    "rate_limit": 429,
    "overloaded": 529,
    "auth": 401,
    "bad_request": 400,
    "context_limit": 400,
    "content_filter": 400,
    "timeout": 504,
}
_TYPES: Mapping[int, str] = {  # by status
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_THEIRS = frozenset({*_TYPES.values(), "api_error"})
_TOO_LONG = "prompt is too long"


def status_of(error: DragomanError) -> int:
    """The HTTP status: the provider's own if it gave one, else what its category or the error stands for."""
    if not isinstance(error, ProviderError):
        return error.status
    given = error.upstream_status
    if given is not None and 400 <= given <= 599:
        return given
    return _STATUSES.get(error.category, 502)


def error_body(error: DragomanError, *, request_id: str | None) -> dict[str, object]:
    """`{"type": "error", "error": {type, message}, "request_id"}`; Anthropic's own error as it came."""
    inner = _theirs(error.details) if isinstance(error, ProviderError) else None
    return {"type": "error", "error": inner or _ours(error), "request_id": request_id}


def _theirs(details: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The error if it has Anthropic's shape; OpenAI's has other fields beside a type that can be the same."""
    found = details or {}
    if found.get("type") == "error" and isinstance(found.get("error"), Mapping):
        found = found["error"]
    if found.get("type") not in _THEIRS or not isinstance(found.get("message"), str):
        return None
    return None if "code" in found or "param" in found else dict(found)


def _ours(error: DragomanError) -> dict[str, Any]:
    status = status_of(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    if isinstance(error, BudgetExhausted):
        kind = "billing_error"
    message = error.message
    if isinstance(error, ProviderError) and error.category == "context_limit" and _TOO_LONG not in message:
        message = f"{_TOO_LONG}: {message}"  # by these words clients know that they have to shorten it
    if isinstance(error, BadRequest) and error.field and error.field not in message:
        message = f"{error.field}: {message}"
    return {"type": kind, "message": f"{message} ({error.hint})" if error.hint else message}
