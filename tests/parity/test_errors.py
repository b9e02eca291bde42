"""Errors: classes, transience, retry delay."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman import (
    Agent,
    Hooks,
    OpenAIProvider,
    RetryPolicy,
    RunEnd,
    classify_error,
    is_transient_error,
    suggested_retry_delay,
)
from tests.parity.upstream import Answer, openai_model, refusal, text, upstream


class Refused(Exception):
    """What a library of somebody else's raises: it carries the response."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status}")
        self.status_code = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.mark.parametrize(
    ("error", "category", "transient"),
    [
        (Refused(500), "api_error", True),
        (Refused(502), "api_error", True),
        (Refused(503), "overloaded", True),
        (Refused(529), "overloaded", True),
        (Refused(429), "rate_limit", True),
        (Refused(401), "auth", False),
        (Refused(400), "bad_request", False),
        (RuntimeError("Internal Server Error"), "api_error", True),
        (RuntimeError("502 Bad Gateway"), "api_error", True),
        (TimeoutError(), "timeout", True),
        (ConnectionRefusedError("refused"), "network", True),
        (asyncio.CancelledError(), "cancelled", False),
        (ValueError("no idea"), "unknown", False),
    ],
)
def test_an_error_has_a_class_and_is_transient_or_not(
    error: BaseException, category: str, transient: bool
) -> None:
    assert (classify_error(error), is_transient_error(error)) == (category, transient)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry_After": "2"}, 2.0),
        ({"Retry_After_Ms": "1500"}, 1.5),
        ({"retry_after": "1", "retry_after_ms": "1500"}, 1.5),
        ({"retry_after": "0"}, None),
        ({"retry_after": "soon"}, None),
        ({}, None),
    ],
)
def test_the_wait_that_a_provider_asks_for_is_read_from_its_headers(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert suggested_retry_delay(Refused(503, **headers)) == seconds


@pytest.mark.parametrize(
    ("status", "headers", "category", "delay"),
    [
        (500, {"retry_after": "2"}, "api_error", 2.0),
        (529, {"retry_after_ms": "1500"}, "overloaded", 1.5),
        (429, {"retry_after": "30"}, "rate_limit", 30.0),
        (503, {}, "overloaded", None),
    ],
)
async def test_a_crash_tells_its_class_and_the_wait_to_whoever_tries_again(
    status: int, headers: dict[str, str], category: str, delay: float | None
) -> None:
    heard: list[RunEnd] = []
    hooks = Hooks().on("run_end", heard.append)
    async with openai_model(refusal(status, {"error": {"message": "not now"}}, **headers)) as (up, model):
        result = await Agent(model, hooks=hooks).spawn("Hello?").result
    assert result.exit_reason == "crashed"
    error = result.error
    assert (error.message, error.category, error.transient) == ("not now", category, True)
    assert error.retry_delay == delay
    assert [(end.reason, end.error) for end in heard] == [("error", "not now")]
    assert len(up.received) == 1


BUSY = refusal(503, {"error": {"message": "busy"}}, retry_after_ms="1")


@pytest.mark.parametrize("where", ["agent", "provider"])
async def test_what_may_pass_is_tried_again_as_often_as_was_said(where: str) -> None:
    counts = {where: 2}
    async with upstream(BUSY, BUSY, text("Hi.")) as up:
        url = f"{up.url}/v1"
        async with OpenAIProvider(base_url=url, retries=counts.get("provider", 0)) as provider:
            agent = Agent(provider.model("any"), retries=counts.get("agent", 0))
            result = await agent.spawn("Hello?").result
    assert (result.text, result.steps, len(up.received)) == ("Hi.", 1, 3)


@pytest.mark.parametrize("where", ["agent", "provider"])
async def test_pauses_are_said_by_a_policy(where: str) -> None:
    policies = {where: RetryPolicy(retries=2, base=0, max_wait=1)}
    later = refusal(429, {"error": {"message": "in two seconds"}}, retry_after="2")
    async with upstream(BUSY, later) as up:
        url = f"{up.url}/v1"
        async with OpenAIProvider(base_url=url, retries=policies.get("provider", 0)) as provider:
            agent = Agent(provider.model("any"), retries=policies.get("agent", 0))
            result: Any = await agent.spawn("Hello?").result
    assert (result.error.message, result.error.retry_delay, len(up.received)) == ("in two seconds", 2, 2)


@pytest.mark.parametrize(
    "answer",
    [
        refusal(401, {"error": {"message": "who are you"}}),
        refusal(503, {"error": {"message": "come back tomorrow"}}, retry_after="86400"),
    ],
)
async def test_what_will_not_pass_is_not_tried_again(answer: Answer) -> None:
    async with openai_model(answer) as (up, model):
        result = await Agent(model, retries=5).spawn("Hello?").result
    assert (result.exit_reason, len(up.received)) == ("crashed", 1)


async def test_a_server_that_is_not_there_is_an_error_of_the_network() -> None:
    async with OpenAIProvider(base_url="http://127.0.0.1:9/v1", api_key="sk-0123456789") as provider:
        result: Any = await Agent(provider.model("any")).spawn("Hello?").result
    assert (result.error.category, result.error.transient) == ("network", True)
    assert "127.0.0.1:9" in result.error.message


async def test_a_key_of_one_letter_does_not_blot_out_what_a_server_says() -> None:
    async with (
        upstream(refusal(404, {"error": {"message": "no model 'x-large' exists"}})) as up,
        OpenAIProvider(base_url=f"{up.url}/v1", api_key="x") as provider,
    ):
        result: Any = await Agent(provider.model("x-large")).spawn("Hello?").result
    assert result.error.message == "no model 'x-large' exists"
