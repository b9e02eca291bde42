"""Errors for OpenAI clients: status and body."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import (
    BadRequest,
    BudgetExhausted,
    DragomanError,
    Forbidden,
    LimitReached,
    NotFound,
    ProviderCategory,
    ProviderError,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from dragoman.wire.openai.encoder import error_body, error_status


def body(message: str, type: str | None, code: str | None, param: str | None = None) -> dict[str, object]:
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


@pytest.mark.parametrize(
    ("error", "status", "spoken"),
    [
        (
            BadRequest("n must be 1", field="n", hint="ask again"),
            400,
            body("n must be 1 (ask again)", "invalid_request_error", "bad_request", "n"),
        ),
        (Unauthorized("no key"), 401, body("no key", "authentication_error", "invalid_api_key")),
        (Forbidden("not yours"), 403, body("not yours", "permission_error", "forbidden")),
        (NotFound("no model"), 404, body("no model", "invalid_request_error", "model_not_found")),
        (TooLarge("big"), 413, body("big", "invalid_request_error", "too_large")),
        (LimitReached("slow"), 429, body("slow", "rate_limit_error", "rate_limit_exceeded")),
        (BudgetExhausted("spent"), 429, body("spent", "insufficient_quota", "insufficient_quota")),
        (Unavailable("draining"), 503, body("draining", "server_error", "unavailable")),
        (DragomanError("broken"), 500, body("broken", "server_error", "internal")),
    ],
)
def test_a_hub_error_has_openais_type_and_code(
    error: DragomanError, status: int, spoken: dict[str, object]
) -> None:
    assert (error_status(error), error_body(error)) == (status, spoken)


@pytest.mark.parametrize(
    ("category", "transient", "status", "type", "code"),
    [
        ("rate_limit", True, 429, "rate_limit_error", "rate_limit_exceeded"),
        ("rate_limit", False, 429, "insufficient_quota", "insufficient_quota"),
        ("overloaded", True, 503, "server_error", "overloaded"),
        ("api_error", True, 502, "server_error", "api_error"),
        ("auth", False, 401, "authentication_error", "provider_auth"),
        ("bad_request", False, 400, "invalid_request_error", None),
        ("context_limit", False, 400, "invalid_request_error", "context_length_exceeded"),
        ("content_filter", False, 400, "invalid_request_error", "content_filter"),
        ("timeout", True, 504, "server_error", "timeout"),
        ("network", True, 502, "server_error", "network"),
        ("cancelled", False, 502, "server_error", "cancelled"),
        ("unknown", False, 502, "server_error", "unknown"),
    ],
)
def test_a_provider_error_has_the_status_and_type_of_its_category(
    category: ProviderCategory, transient: bool, status: int, type: str, code: str | None
) -> None:
    error = ProviderError("oh", category=category, transient=transient)
    assert (error_status(error), error_body(error)) == (status, body("oh", type, code))


@pytest.mark.parametrize(
    ("upstream_status", "status"), [(418, 418), (529, 529), (599, 599), (200, 502), (302, 502), (600, 502)]
)
def test_a_providers_own_error_status_is_passed_on(upstream_status: int, status: int) -> None:
    assert error_status(ProviderError("oh", upstream_status=upstream_status)) == status


@pytest.mark.parametrize(
    ("details", "spoken"),
    [
        (
            {"message": "raw", "type": "tokens", "param": None, "code": "rate_limit_exceeded"},
            body("oh", "tokens", "rate_limit_exceeded"),
        ),
        ({"message": "raw", "type": None, "code": 400, "metadata": {}}, body("oh", None, "400")),
        ({"message": "raw", "type": "x", "param": ["a"], "code": True}, body("oh", "x", None)),
        ({"message": "raw", "type": "overloaded_error"}, body("oh", "server_error", "overloaded")),
        ({"message": "raw", "code": 503}, body("oh", "server_error", "overloaded")),
    ],
)
def test_an_error_in_openais_format_keeps_its_fields(
    details: dict[str, Any], spoken: dict[str, object]
) -> None:
    error = ProviderError("oh", category="overloaded", transient=True)
    error.details = details
    assert error_body(error) == spoken
