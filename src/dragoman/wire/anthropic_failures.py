"""Failures as Anthropic tells them: an error's type says what its HTTP status would have been.

Source: wire notes on providers, §6.6. In a stream the status is that of the answer, 200, and says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.errors import ProviderError
from dragoman.wire import failures

_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


def failure(error: Any) -> ProviderError:
    """The ProviderError for the `error` object of an error event."""
    kind = error.get("type") if isinstance(error, Mapping) else None
    return failures.failure(error, status=_STATUSES.get(kind) if isinstance(kind, str) else None)
