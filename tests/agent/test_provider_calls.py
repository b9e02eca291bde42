"""Tool calls that a provider executes itself are passed on and not executed again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from dragoman import Agent, Model, ModelRequest
from dragoman import events as e
from dragoman.messages import ToolPart
from tests.waiting import LIMIT

TEXT: list[e.Event] = [e.TextStart("t"), e.TextDelta("t", "Let me see."), e.TextEnd("t")]
ANSWER: list[e.Event] = [e.TextStart("u"), e.TextDelta("u", "It is sunny."), e.TextEnd("u")]
SEARCH: list[e.Event] = [
    e.ToolInputStart("s1", "web_search", provider_executed=True, dynamic=True),
    e.ToolInputAvailable("s1", "web_search", {"query": "Rome"}, provider_executed=True, dynamic=True),
    e.ToolOutputAvailable("s1", "sun", provider_executed=True, dynamic=True),
]


class Searching:
    """A provider that searches by itself; it says these things, one a request."""

    family = "searching"
    name = "searching"

    def __init__(self, *answers: Sequence[e.Event]) -> None:
        self.answers = list(answers)
        self.request_count = 0

    def check(self, request: ModelRequest) -> Sequence[str]:
        return ()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[e.Event], None]:
        self.request_count += 1
        yield self.answers.pop(0)


def ended(*events: list[e.Event], reason: e.FinishReason = "stop") -> list[e.Event]:
    return [*(event for some in events for event in some), e.FinishStep(reason)]


async def test_an_answer_behind_such_calls_ends_the_run_and_is_its_text() -> None:
    provider = Searching(ended(TEXT, SEARCH, ANSWER), ended(ANSWER))
    result = await Agent(Model(provider, "any")).spawn("How is Rome?").result
    assert (result.exit_reason, result.steps, provider.request_count) == ("success", 1, 1)
    assert (result.text, result.tool_calls.total) == ("It is sunny.", 1)


@pytest.mark.parametrize(("reason", "word"), [("stop", "success"), ("max-steps", "steps_exhausted")])
async def test_such_calls_without_an_answer_behind_them_end_it_too(reason: e.FinishReason, word: str) -> None:
    provider = Searching(ended(TEXT, SEARCH, reason=reason))
    result = await Agent(Model(provider, "any")).spawn("How is Rome?").result
    assert (result.exit_reason, result.text, provider.request_count) == (word, "Let me see.", 1)


async def test_a_provider_may_pause_before_the_result_of_its_own_call() -> None:
    provider = Searching(ended(TEXT, SEARCH[:2], reason="other"), ended(ANSWER))
    async with asyncio.timeout(LIMIT):
        result = await Agent(Model(provider, "any")).spawn("How is Rome?").result
    assert (result.exit_reason, result.text, provider.request_count) == ("success", "It is sunny.", 2)


async def test_a_provider_that_pauses_is_asked_again_and_may_use_an_id_twice() -> None:
    provider = Searching(ended(TEXT, SEARCH, reason="other"), ended(SEARCH, ANSWER))
    result = await Agent(Model(provider, "any")).spawn("How is Rome?").result
    assert (result.exit_reason, result.text, provider.request_count) == ("success", "It is sunny.", 2)
    calls = [part for part in result.messages[-1].parts if isinstance(part, ToolPart)]
    assert [(call.tool_call_id, call.output) for call in calls] == [("s1", "sun"), ("s1-2", "sun")]
