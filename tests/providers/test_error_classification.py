"""Classification of errors: the hub's, the standard library's and the SDKs'."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from dragoman.errors import (
    BadRequest,
    BudgetExhausted,
    CallTimeout,
    ConfigError,
    LimitReached,
    ProviderError,
    Unauthorized,
)
from dragoman.providers.error_classification import (
    classify_error,
    is_transient_error,
    read_error,
    rejects_all_files,
    rejects_files,
    suggested_retry_delay,
)
from dragoman.wire.provider_errors import find_error, provider_error

REQUEST = httpx2.Request("POST", "http://127.0.0.1/v1")
NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


def response(status: int, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, headers=headers, request=REQUEST)


def http(status: int, text: str = "", **headers: str) -> httpx2.HTTPStatusError:
    return httpx2.HTTPStatusError(
        text or f"status {status}", request=REQUEST, response=response(status, **headers)
    )


def refused(status: int, message: str, **fields: Any) -> openai.APIStatusError:
    return openai.APIStatusError(message, response=response(status), body={"message": message, **fields})


def overloaded(status: int) -> anthropic.APIStatusError:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    return anthropic.APIStatusError("Overloaded", response=response(status), body=body)


class ClientConnectorError(OSError):
    """As aiohttp has it."""


class ClientResponseError(Exception):
    """As aiohttp has it: a status and headers, and no response."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(f"{status}, message='No'")
        self.status = status
        self.headers = headers


@pytest.mark.parametrize(
    ("error", "category", "transient"),
    [
        (ProviderError("x", category="content_filter"), "content_filter", False),
        (ProviderError("x", category="api_error", transient=True), "api_error", True),
        (LimitReached("slow"), "rate_limit", True),
        (BudgetExhausted("spent"), "rate_limit", False),
        (BadRequest("wrong"), "bad_request", False),
        (Unauthorized("who"), "auth", False),
        (CallTimeout("late"), "timeout", True),
        (ConfigError("file"), "unknown", False),
        (TimeoutError(), "timeout", True),
        (ConnectionResetError("reset"), "network", True),
        (socket.gaierror("no such host"), "network", True),
        (asyncio.CancelledError(), "cancelled", False),
        (http(429), "rate_limit", True),
        (http(500), "api_error", True),
        (http(502), "api_error", True),
        (http(503), "overloaded", True),
        (http(529), "overloaded", True),
        (http(401), "auth", False),
        (http(404), "bad_request", False),
        (httpx2.ConnectTimeout("slow"), "timeout", True),
        (httpx2.ConnectError("no"), "network", True),
        (httpx2.RemoteProtocolError("gone"), "network", True),
        (openai.APITimeoutError(REQUEST), "timeout", True),
        (openai.APIConnectionError(request=REQUEST), "network", True),
        (refused(429, "slow down"), "rate_limit", True),
        (refused(429, "pay", code="insufficient_quota"), "rate_limit", False),
        (refused(400, "long", code="context_length_exceeded"), "context_limit", False),
        (refused(400, "no", code="content_filter"), "content_filter", False),
        (
            openai.APIError("It had an error", REQUEST, body={"type": "server_error"}),
            "api_error",
            True,
        ),
        (overloaded(529), "overloaded", True),
        (overloaded(200), "overloaded", True),
        (ClientConnectorError("no"), "network", True),
        (ClientResponseError(503, {}), "overloaded", True),
        (RuntimeError("prompt is too long: 210000 tokens > 200000 maximum"), "context_limit", False),
        (RuntimeError("502 Bad Gateway"), "api_error", True),
        (RuntimeError("Internal server error"), "api_error", True),
        (RuntimeError("connect ECONNREFUSED 127.0.0.1:80"), "network", True),
        (KeyError("invalid"), "unknown", False),
        (TypeError("missing 1 required argument"), "unknown", False),
    ],
    ids=lambda value: (
        f"{type(value).__name__}-{value}"[:40] if isinstance(value, BaseException) else str(value)
    ),
)
def test_an_error_has_its_class(error: BaseException, category: str, transient: bool) -> None:
    assert (classify_error(error), is_transient_error(error)) == (category, transient)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (http(429, **{"Retry-After": "7"}), 7.0),
        (http(429, **{"Retry-After-Ms": "1500"}), 1.5),
        (http(429, **{"Retry-After-Ms": "0", "Retry-After": "1"}), 1.0),
        (http(503, **{"Retry-After": "Tue, 14 Nov 2023 22:13:50 GMT"}), 30.0),
        (http(503, **{"Retry-After": "Tue, 14 Nov 2023 22:13:00 GMT"}), None),
        (http(503, **{"Retry-After": "soon"}), None),
        (http(400, **{"Retry-After": "7"}), None),
        (http(429), None),
        (ClientResponseError(429, {"RETRY-AFTER": "3"}), 3.0),
        (ProviderError("x", retry_after=2.5), 2.5),
        (LimitReached("slow", retry_after=4.0), 4.0),
        (ValueError("x"), None),
    ],
    ids=str,
)
def test_the_wait_is_what_the_provider_asked_for(error: BaseException, seconds: float | None) -> None:
    assert suggested_retry_delay(error, clock=lambda: NOW) == seconds


def test_a_server_that_says_whether_to_try_again_is_trusted() -> None:
    assert not is_transient_error(http(500, **{"x-should-retry": "false"}))
    assert is_transient_error(http(409, **{"x-should-retry": "true"}))


def test_what_an_error_was_raised_from_is_looked_at() -> None:
    outer = RuntimeError("the step failed")
    outer.__cause__ = http(429, **{"Retry-After": "2"})
    group = ExceptionGroup("several", [outer])

    assert classify_error(group) == "rate_limit"
    assert suggested_retry_delay(group) == 2.0


def test_the_message_of_an_error_is_reported_without_keys() -> None:
    error = read_error(refused(401, "Incorrect API key provided: sk-proj-abcdefghijklmnopqrstuvwxyz"))

    assert error.message == "Incorrect API key provided: ***"
    assert error.upstream_status == 401


FILE_REFUSALS = [
    "Invalid content type. image_url is only supported by certain models.",
    "Failed to deserialize the JSON body: messages[0]: unknown variant `image_url`, expected `text`",
    "'messages.0.content' must be a string",
    "llama is not a multimodal model",
    "At most 0 image(s) may be provided in one prompt.",
    "image input is not supported - hint: you may need to provide the mmproj",
    "Image input is not enabled for this model",
    "No endpoints found that support image input",
    "this model is missing data required for image input",
    "Unknown part type: image_url",
    "Your request contains images but this model can't process images.",
    "Invalid value: 'input_audio'. Supported values are: 'text' and 'image_url'.",
    "The model does not support audio input",
]
OTHER_REFUSALS = [
    "The server had an error",
    "model 'x' not found",
    "temperature is not supported with this model",
    "This model's maximum context length is 8192 tokens",
    "there is no tool read_image",
]


BROKEN_FILES = [
    "Could not process image",
    "messages.0.content.0.image.source.base64: Could not process image",
    "could not read the PDF",
]


@pytest.mark.parametrize("message", [*FILE_REFUSALS, *BROKEN_FILES])
def test_a_broken_file_says_nothing_of_what_its_model_reads(message: str) -> None:
    error = ProviderError(message, category="bad_request")
    assert (rejects_files(error), rejects_all_files(error)) == (True, message in FILE_REFUSALS)


@pytest.mark.parametrize("message", [*FILE_REFUSALS, *OTHER_REFUSALS])
def test_a_model_that_reads_no_files_is_known_by_its_refusal(message: str) -> None:
    assert rejects_files(ProviderError(message, category="bad_request")) == (message in FILE_REFUSALS)


@pytest.mark.parametrize("key", ["message", "error", "code", None])
def test_an_error_that_is_nested_deeply_is_one_without_a_message(key: str | None) -> None:
    value: Any = "here"
    for _ in range(5_000):
        value = [value] if key is None else {key: value}
    error = provider_error(find_error({"error": value}))
    assert (error.category, error.message) == (
        "api_error",
        "the provider reported an error without a message",
    )
    assert error.details is None
    assert find_error([value]) is (value["error"] if key == "error" else None)
