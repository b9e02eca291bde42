"""When a failed request is tried again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.errors import ConfigError, ProviderCategory, ProviderError
from dragoman.providers.retry import RetryPolicy, classify_response, retry_after, with_retries
from dragoman.redaction import MAX_LINE, redact

NOW = 1_800_000_000.0
KEY = "sk-proj-abcDEF0123456789_xyz"


def refused(status: int, body: Any = b"", /, **headers: str) -> ProviderError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return classify_response(status, named, body=raw, clock=lambda: NOW)


MESSAGES = {
    "OpenAI": {"error": {"message": "No.", "type": "t", "param": None, "code": None}},
    "OpenRouter": {"error": {"message": "No.", "code": 400}, "user_id": "u"},
    "Ollama": {"error": "No."},
    "Mistral": {"object": "error", "message": "No.", "type": "t", "code": 1, "raw_status_code": 400},
    "FastAPI": {"detail": "No."},
    "Doubleword": {"code": 400, "message": "No.", "type": "Bad Request"},
    "Google": [{"error": {"code": 400, "message": "No.", "status": "INVALID_ARGUMENT"}}],
    "Anthropic": {"type": "error", "error": {"type": "invalid_request_error", "message": "No."}},
    "a string": "No.",
}


@pytest.mark.parametrize("provider", MESSAGES)
def test_the_message_is_found_in_every_providers_error_body(provider: str) -> None:
    error = refused(400, MESSAGES[provider])
    assert (error.message, error.category, error.upstream_status) == ("No.", "bad_request", 400)
    assert (error.transient, error.retry_after) == (False, None)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"detail": [{"loc": ["body", "model"], "msg": "Field required", "type": "missing"}]},
            "body.model: Field required",
        ),
        (
            b"<html><head><title>502 Bad Gateway &amp; more</title></head><body>x</body></html>",
            "502 Bad Gateway & more",
        ),
        (b"<title>Bad &#" + b"9" * 5_000 + b"; gateway</title>", "Bad \N{REPLACEMENT CHARACTER} gateway"),
        (b"<h1>Sorry</h1>\n<p>come   back</p>", "Sorry come back"),
        (b"upstream\x00 connect\n error\x1b[31m", "upstream connect error[31m"),
        (b"", "the provider answered 502 (Bad Gateway) without an error message"),
        (b"{}", "the provider answered 502 (Bad Gateway) without an error message"),
        (b"null", "the provider answered 502 (Bad Gateway) without an error message"),
        (b'data: {"error": {"message": "No."}}\n\n', "No."),
        (b'id:1\nevent:error\n:HTTP_STATUS/400\ndata:{"code":"X","message":"No."}\n\n', "No."),
        (b'event: error\r\ndata: {"type":"error","error":{"message":"No."}}\r\n\r\n', "No."),
        (b"data: not JSON", "data: not JSON"),
        (b"[" * 5000, "[" * (MAX_LINE - 1) + "…"),
        (
            b'{"error":' * 900 + b"1" + b"}" * 900,
            "the provider answered 502 (Bad Gateway) without an error message",
        ),
        ({"error": {"message": "\0"}}, "the provider answered 502 (Bad Gateway) without an error message"),
        (b"\xff\xfe broken", "�� broken"),
    ],
)
def test_every_body_gives_one_readable_line(body: Any, message: str) -> None:
    assert refused(502, body).message == message


def test_a_status_without_a_name_has_a_message_too() -> None:
    assert refused(599).message == "the provider answered 599 (a nonstandard status) without an error message"


@pytest.mark.parametrize(
    ("status", "category", "transient"),
    [
        (307, "api_error", False),
        (400, "bad_request", False),
        (401, "auth", False),
        (403, "auth", False),
        (404, "bad_request", False),
        (408, "timeout", True),
        (409, "api_error", True),
        (422, "bad_request", False),
        (425, "api_error", True),
        (429, "rate_limit", True),
        (500, "api_error", True),
        (502, "api_error", True),
        (503, "overloaded", True),
        (504, "timeout", True),
        *((status, "api_error", True) for status in (520, 521, 522, 523)),
        (524, "timeout", True),
        (529, "overloaded", True),
    ],
)
def test_the_status_says_what_it_is_and_whether_to_try_again(
    status: int, category: ProviderCategory, transient: bool
) -> None:
    error = refused(status, {"error": {"message": "No."}})
    assert (error.category, error.transient, error.upstream_status) == (category, transient, status)


TOO_LONG = [
    (400, {"error": {"message": "no", "code": "context_length_exceeded"}}),
    (400, {"error": {"message": "Your input exceeds the context window of this model."}}),
    (400, {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}),
    (413, {"error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}),
    (400, {"error": {"message": "This model's maximum context length is 8192 tokens. However, ..."}}),
    (400, {"error": {"type": "exceed_context_size_error", "message": "no", "n_ctx": 4096}}),
    (400, {"error": "the prompt is longer than the context length currently available to the model"}),
    (400, {"error": "prompt too long; exceeded max context length by 7 tokens"}),
    (400, {"error": {"message": "no", "type": "too_many_prompt_tokens", "code": 400}}),
    (400, {"message": "maximum prompt length is 131072", "type": "x"}),
    (400, [{"error": {"code": 400, "message": "The input token count (9) exceeds the maximum"}}]),
    (429, {"error": {"message": "Request too large for gpt-x on tokens per min: Limit 10, Requested 20"}}),
    (502, {"error": {"message": "Provider returned error", "metadata": {"raw": "maximum context length"}}}),
    (400, b"Error: maximum context length is 4096"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body"), TOO_LONG)
def test_a_request_that_is_too_long_is_not_tried_again(status: int, body: Any) -> None:
    error = refused(status, body, retry_after="3")
    assert (error.category, error.transient, error.retry_after) == ("context_limit", False, None)


@pytest.mark.parametrize("status", [400, 402, 403, 429])
@pytest.mark.parametrize(
    "error",
    [
        {"message": "You exceeded your current quota.", "code": "insufficient_quota"},
        {"message": "Your credit balance is too low", "type": "billing_error"},
    ],
)
def test_an_empty_account_is_not_tried_again(status: int, error: dict[str, str]) -> None:
    found = refused(status, {"error": error})
    assert (found.category, found.transient) == ("rate_limit", False)


def test_a_content_filter_is_not_tried_again() -> None:
    found = refused(400, {"error": {"code": "content_filter", "message": "The response was filtered"}})
    assert (found.category, found.transient) == ("content_filter", False)


@pytest.mark.parametrize(("status", "should_retry"), [(400, "true"), (503, "false"), (503, "x")])
def test_the_provider_has_the_last_word_on_trying_again(status: int, should_retry: str) -> None:
    transient = should_retry != "false"
    error = refused(status, b"no", x_should_retry=should_retry, retry_after="2")
    assert error.transient is transient
    assert error.retry_after == (2 if transient else None)


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "9" * 20}, 1e9),
        ({"retry-after": "9" * 300}, 1e9),
        ({"retry-after-ms": "9" * 20}, 1e6),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30),
        ({"retry-after": formatdate(NOW + 30)}, 30),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, None),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "0", "retry-after": "1"}, 1),
        ({"retry-after-ms": "2500", "retry-after": "1"}, 2.5),
        ({"retry-after-ms": "x", "retry-after": "1"}, 1),
        ({"retry-after-ms": "1500\x1f"}, 1.5),
    ],
)
def test_the_wait_that_a_provider_asks_for(headers: dict[str, str], wait: float | None) -> None:
    assert retry_after(headers, NOW) == wait


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_header_gives_a_wait_or_none(after: str, milliseconds: str) -> None:
    wait = retry_after({"retry-after": after, "retry-after-ms": milliseconds}, NOW)
    assert wait is None or 0 < wait < float("inf")


KEYS = st.sampled_from(["error", "message", "code", "detail", "metadata", "loc"])
BODIES = st.recursive(
    st.none() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
).map(lambda value: json.dumps(value).encode())


@given(st.integers(300, 599), st.binary(max_size=200) | BODIES)
def test_any_body_gives_an_error_with_a_short_printable_message(status: int, body: bytes) -> None:
    message = classify_response(status, {}, body=body).message
    assert 0 < len(message) <= MAX_LINE
    assert message.isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"Incorrect API key provided: {KEY}. See docs.", "Incorrect API key provided: *** See docs."),
        ("Incorrect API key provided: sk-ab***************wxyz.", "Incorrect API key provided: ***"),
        ("Invalid api_key='0123abcd'", "Invalid api_key='***'"),
        ("header Authorization: Bearer 0123456789abcdef", "header Authorization: Bearer ***"),
        ("token eyJhbGciOiJIUzI1.eyJzdWIi.x-y is old", "token *** is old"),
        ("the task-force model is at risk-level 3", "the task-force model is at risk-level 3"),
        ("own-key-of-mine and own-key", "*** and own-key"),
    ],
)
def test_keys_are_masked(text: str, shown: str) -> None:
    assert redact(text, ["own-key-of-mine", ""]) == shown


@given(
    before=st.integers(0, MAX_LINE + 20),
    key=st.sampled_from([KEY, "my own/secret"]),
    kind=st.sampled_from(["json", "text", "html"]),
)
def test_a_key_that_the_provider_echoes_is_never_shown(before: int, key: str, kind: str) -> None:
    text = f"{'word ' * (before // 5)}no {key[:4]}\0{key[4:]} {key}"
    body = {"json": json.dumps({"error": {"message": text}}), "text": text, "html": f"<p>{text}</p>"}[kind]
    message = classify_response(401, {}, body=body.encode(), secrets=["my own/secret"]).message
    assert key[4:12] not in message


def failing(*errors: ProviderError) -> tuple[Callable[[int], Any], list[int]]:
    """An attempt that raises these one after the other, then succeeds; and the numbers that it was given."""
    numbers: list[int] = []

    async def attempt(number: int) -> str:
        numbers.append(number)
        if number < len(errors):
            raise errors[number]
        return "done"

    return attempt, numbers


def run(attempt: Callable[[int], Any], *, policy: RetryPolicy = RetryPolicy()) -> tuple[str, list[float]]:  # noqa: B008
    """What comes of it, and the waits, with the longest jitter."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def main() -> str:
        try:
            return await with_retries(attempt, policy=policy, sleep=sleep, random=lambda: 1.0)
        except ProviderError as error:
            return error.message

    return asyncio.run(main()), waits


BUSY = ProviderError("busy", transient=True)


def test_a_transient_failure_is_tried_again_ever_more_slowly() -> None:
    attempt, numbers = failing(BUSY, BUSY, BUSY)
    assert run(attempt) == ("done", [0.5, 1.0, 2.0])
    assert numbers == [0, 1, 2, 3]


def test_after_the_last_attempt_the_error_is_raised() -> None:
    attempt, numbers = failing(*[BUSY] * 9)
    assert run(attempt) == ("busy", [0.5, 1.0, 2.0])
    assert numbers == [0, 1, 2, 3]
    assert run(failing(BUSY)[0], policy=RetryPolicy(retries=0)) == ("busy", [])


def test_waits_grow_to_a_cap() -> None:
    attempt, _ = failing(*[BUSY] * 7)
    assert run(attempt, policy=RetryPolicy(retries=7))[1] == [0.5, 1, 2, 4, 8, 8, 8]


def test_a_lasting_failure_is_raised_at_once() -> None:
    attempt, numbers = failing(ProviderError("no such model", category="bad_request"))
    assert run(attempt) == ("no such model", [])
    assert numbers == [0]


def test_the_wait_that_was_asked_for_is_the_least() -> None:
    attempt, _ = failing(ProviderError("later", transient=True, retry_after=20))
    assert run(attempt) == ("done", [20.5])
    failure = ProviderError("later", transient=True, retry_after=20)
    assert RetryPolicy().delay(0, failure, random=lambda: 0.0) == 20


def test_a_wait_that_is_too_long_is_not_waited_for() -> None:
    attempt, _ = failing(ProviderError("tomorrow", transient=True, retry_after=61))
    assert run(attempt) == ("tomorrow", [])


def test_other_errors_and_cancellation_pass_through() -> None:
    async def wrong(number: int) -> str:
        raise ValueError(number)

    async def cancelled(_: int) -> str:
        raise asyncio.CancelledError

    with pytest.raises(ValueError, match="0"):
        run(wrong)
    with pytest.raises(asyncio.CancelledError):
        run(cancelled)


@given(st.integers(0, 2), st.floats(0, 1, exclude_max=True))
def test_jitter_spreads_over_the_whole_wait(attempt: int, chance: float) -> None:
    assert RetryPolicy().delay(attempt, BUSY, random=lambda: chance) == chance * (0.5 * 2**attempt)


def test_a_policy_says_how_long_the_first_pause_is_how_they_grow_and_whether_chance_has_a_say() -> None:
    policy = RetryPolicy(retries=5, base=2, cap=5, jitter=False)
    assert [policy.delay(number, BUSY, random=lambda: 0.0) for number in range(6)] == [2, 4, 5, 5, 5, None]
    assert RetryPolicy(retries=10**9).delay(10**6, BUSY, random=lambda: 1.0) == 8
    assert RetryPolicy.of(2) == RetryPolicy(retries=2)
    assert RetryPolicy.of(policy) is policy


@pytest.mark.parametrize("name", ["retries", "base", "cap", "max_wait"])
def test_a_policy_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} of a RetryPolicy must not be below 0"):
        replace(RetryPolicy(), **{name: -1})
