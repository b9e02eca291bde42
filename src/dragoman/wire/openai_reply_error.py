"""Errors out to an OpenAI client: the body and status that its SDK knows how to raise.

Source: wire notes on providers, §4.7 and §10.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.errors import (
    BadRequest,
    BudgetExhausted,
    DragomanError,
    LimitReached,
    NotFound,
    ProviderError,
    Unauthorized,
)

_INVALID = "invalid_request_error"
_SERVER = "server_error"
_STATUSES: Mapping[str, int] = {
    "rate_limit": 429,
    "overloaded": 503,
    "auth": 401,
    "bad_request": 400,
    "context_limit": 400,
    "content_filter": 400,
    "timeout": 504,
}
_KINDS: Mapping[str, tuple[str, str | None]] = {  # by category: type and code
    "rate_limit": ("rate_limit_error", "rate_limit_exceeded"),
    "overloaded": (_SERVER, "overloaded"),
    "api_error": (_SERVER, "api_error"),
    "auth": ("authentication_error", "provider_auth"),
    "bad_request": (_INVALID, None),
    "context_limit": (_INVALID, "context_length_exceeded"),
    "content_filter": (_INVALID, "content_filter"),
    "timeout": (_SERVER, "timeout"),
}
_TYPES: Mapping[int, str] = {403: "permission_error", 429: "rate_limit_error"}
_QUOTA = "insufficient_quota"


def status_of(error: DragomanError) -> int:
    """The HTTP status: the provider's own if it gave one, else what its category or the error stands for."""
    if not isinstance(error, ProviderError):
        return error.status
    given = error.upstream_status
    if given is not None and 400 <= given <= 599:
        return given
    return _STATUSES.get(error.category, 502)


def error_body(error: DragomanError) -> dict[str, object]:
    """`{"error": {message, type, param, code}}`, strings or null; the provider's own words if it has them."""
    details = error.details if isinstance(error, ProviderError) else None
    if details is not None and _is_openais(details):
        return {"error": {"message": error.message, **{key: _word(details.get(key)) for key in _WORDS}}}
    kind, code = _kind(error)
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    param = error.field if isinstance(error, BadRequest) else None
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


_WORDS = ("type", "param", "code")


def _is_openais(details: Mapping[str, Any]) -> bool:
    return "type" in details and ("code" in details or "param" in details)


def _word(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _kind(error: DragomanError) -> tuple[str, str | None]:
    match error:
        case ProviderError(category="rate_limit", transient=False) | BudgetExhausted():
            return _QUOTA, _QUOTA
        case ProviderError():
            return _KINDS.get(error.category, (_SERVER, error.category))
        case LimitReached():
            return _KINDS["rate_limit"]
        case Unauthorized():
            return "authentication_error", "invalid_api_key"
        case NotFound():
            return _INVALID, "model_not_found"  # there is nothing else to be found behind this door
        case _:
            other = _SERVER if error.status >= 500 else _INVALID
            return _TYPES.get(error.status, other), error.code
