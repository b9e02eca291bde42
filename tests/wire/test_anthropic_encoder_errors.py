"""Errors for Anthropic clients: the SDK raises the matching class with the message."""

from __future__ import annotations

from typing import Any

import anthropic
import msgspec
import pytest

from dragoman import events as e
from dragoman.errors import (
    BadRequest,
    BudgetExhausted,
    Conflict,
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
from dragoman.wire.anthropic.encoder import AnthropicStreamEncoder, error_body, error_status
from tests.wire.anthropic_clients import ASKED, client


def raised(error: DragomanError) -> anthropic.APIStatusError:
    """The exception that the SDK raises."""
    body = msgspec.json.encode(error_body(error, request_id="req_1"))
    with pytest.raises(anthropic.APIStatusError) as caught:
        client(body, status=error_status(error)).messages.create(**ASKED)
    return caught.value


def provider(category: ProviderCategory, status: int | None = None) -> ProviderError:
    return ProviderError("no", category=category, upstream_status=status)


@pytest.mark.parametrize(
    ("error", "kind", "word"),
    [
        (BadRequest("no", field="model"), anthropic.BadRequestError, "invalid_request_error"),
        (Unauthorized("no"), anthropic.AuthenticationError, "authentication_error"),
        (Forbidden("no"), anthropic.PermissionDeniedError, "permission_error"),
        (NotFound("no"), anthropic.NotFoundError, "not_found_error"),
        (Conflict("no"), anthropic.ConflictError, "conflict_error"),
        (TooLarge("no"), anthropic.ContentTooLargeError, "request_too_large"),
        (LimitReached("no"), anthropic.RateLimitError, "rate_limit_error"),
        (BudgetExhausted("no"), anthropic.RateLimitError, "billing_error"),
        (Unavailable("no"), anthropic.ServiceUnavailableError, "api_error"),
        (provider("rate_limit"), anthropic.RateLimitError, "rate_limit_error"),
        (provider("overloaded"), anthropic.OverloadedError, "overloaded_error"),
        (provider("auth"), anthropic.AuthenticationError, "authentication_error"),
        (provider("bad_request"), anthropic.BadRequestError, "invalid_request_error"),
        (provider("context_limit"), anthropic.BadRequestError, "invalid_request_error"),
        (provider("content_filter"), anthropic.BadRequestError, "invalid_request_error"),
        (provider("timeout"), anthropic.GatewayTimeoutError, "timeout_error"),
        (provider("network"), anthropic.InternalServerError, "api_error"),
        (provider("unknown", 200), anthropic.InternalServerError, "api_error"),
        (provider("bad_request", 422), anthropic.UnprocessableEntityError, "invalid_request_error"),
        (provider("rate_limit", 402), anthropic.PaymentRequiredError, "billing_error"),
        (provider("api_error", 500), anthropic.InternalServerError, "api_error"),
        (provider("bad_request", 418), anthropic.APIStatusError, "invalid_request_error"),
    ],
)
def test_each_error_raises_its_class(
    error: DragomanError, kind: type[anthropic.APIStatusError], word: str
) -> None:
    seen = raised(error)
    assert isinstance(seen, kind)
    assert isinstance(seen.body, dict)
    assert seen.body["error"]["type"] == word
    assert seen.body["request_id"] == "req_1"


def test_a_message_names_the_field_and_what_to_do() -> None:
    error = BadRequest("must be a number", field="top_p", hint="leave it out")
    assert error_body(error, request_id=None) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "top_p: must be a number (leave it out)"},
        "request_id": None,
    }


def test_a_context_limit_error_has_the_text_that_clients_look_for() -> None:
    def message(text: str) -> Any:
        body: Any = error_body(ProviderError(text, category="context_limit"), request_id=None)
        return body["error"]["message"]

    assert message("This model's maximum context length is 8192 tokens.") == (
        "prompt is too long: This model's maximum context length is 8192 tokens."
    )
    assert message("prompt is too long: 9 tokens > 8 maximum") == "prompt is too long: 9 tokens > 8 maximum"


def test_an_anthropic_error_is_passed_on_unchanged_and_another_familys_is_converted() -> None:
    own = {"type": "overloaded_error", "message": "Overloaded", "details": {"error_code": "busy"}}
    error = provider("overloaded", 529)
    error.details = own
    assert error_body(error, request_id="r") == {"type": "error", "error": own, "request_id": "r"}
    error.details = {"type": "error", "error": own, "request_id": "theirs"}
    assert error_body(error, request_id="r") == {"type": "error", "error": own, "request_id": "r"}
    error.details = {"type": "rate_limit_error", "message": "slow down", "code": None, "param": None}
    assert error_body(error, request_id=None) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "no"},
        "request_id": None,
    }


def test_a_failure_in_the_stream_is_raised_after_the_events_before_it() -> None:
    stream = AnthropicStreamEncoder(id="msg_1", model="m", input_tokens=1)
    raw = stream.encode([e.TextStart("t"), e.TextDelta("t", "Half an ans")])
    raw += stream.encode_error(provider("overloaded"), request_id="req_1")
    assert (
        stream.encode_error(provider("network")),
        stream.encode([e.TextDelta("t", "w")]),
        stream.end(),
    ) == (
        b"",
        b"",
        b"",
    )
    texts: list[str] = []
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        client(raw, kind="text/event-stream").messages.stream(**ASKED) as answer,
    ):
        texts += answer.text_stream
    assert "".join(texts) == "Half an ans"
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "no"},
        "request_id": "req_1",
    }


def test_a_failure_before_the_first_event_is_an_error_frame() -> None:
    stream = AnthropicStreamEncoder(id="msg_1", model="m", input_tokens=1)
    assert stream.encode_error(provider("network")) == (
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"no"},'
        b'"request_id":null}\n\n'
    )
