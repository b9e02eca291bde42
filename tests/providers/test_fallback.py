"""Fallback chains: the next provider is asked when one fails before its first output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dragoman import events as e
from dragoman.accounts.model_call import ModelCall
from dragoman.accounts.payment import Payment
from dragoman.errors import BadRequest, NotFound, ProviderCategory, ProviderError
from dragoman.messages import Message, TextPart
from dragoman.model_request import ModelRequest
from dragoman.providers.routing import Routing
from dragoman.providers.scripted import Failure, ScriptedProvider, Step
from tests.model_calls import read_call

ASKED = ModelRequest(model="whatever", messages=[Message("u", "user", (TextPart("hi"),))])


class Picky(ScriptedProvider):
    """Refuses what it does not support, as Ollama does with the URL of an image."""

    def check(self, request: ModelRequest) -> Sequence[str]:
        raise BadRequest("no URL can be sent to it", field="messages[0]")

    def stream(self, request: ModelRequest) -> Any:
        async def refused() -> Any:
            self.check(request)
            yield ()

        return refused()


def says(text: str, name: str) -> ScriptedProvider:
    return ScriptedProvider([Step(text)], name=name)


def fails(name: str, category: ProviderCategory = "overloaded", text: str = "") -> ScriptedProvider:
    return ScriptedProvider([Step(text, error=Failure("busy", category))], name=name)


class Told:
    """What came of asking a chain."""

    def __init__(
        self, *providers: ScriptedProvider, options: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        names = [f"{provider.name}/m-{provider.name}" for provider in providers]
        routing = Routing({provider.name: provider for provider in providers}, aliases={"any": names})
        self.text = ""
        self.finish: e.FinishStep | None = None
        self.fell: list[tuple[str, str]] = []
        self.routes = routing.model_routes(
            "any", options=options, on_fallback=lambda one, other: self.fell.append((one, other))
        )

    async def ask(self, request: ModelRequest = ASKED) -> Told:
        async for batch in read_call(ModelCall.for_events(Payment(), request, routes=self.routes)):
            for event in batch:
                if isinstance(event, e.TextDelta):
                    self.text += event.delta
                elif isinstance(event, e.FinishStep):
                    self.finish = event
        return self


async def test_the_first_that_answers_is_the_only_one_that_is_asked() -> None:
    first, second = says("one", "a"), says("two", "b")
    outcome = await Told(first, second).ask()
    assert (outcome.text, outcome.fell, second.requests) == ("one", [], [])
    assert outcome.routes.first.name == "a/m-a"
    assert [request.model for request in first.requests] == ["m-a"]


async def test_a_failure_before_the_first_word_goes_on_to_the_next() -> None:
    outcome = await Told(fails("a"), fails("b", "auth"), says("three", "c")).ask()
    assert outcome.text == "three"
    assert outcome.finish is not None
    assert (outcome.finish.provider, outcome.finish.model) == ("c", "m-c")
    assert outcome.fell == [("a/m-a", "b/m-b"), ("b/m-b", "c/m-c")]


async def test_a_failure_after_the_first_text_is_reported() -> None:
    last = says("two", "b")
    outcome = Told(fails("a", text="Hel lo"), last)
    with pytest.raises(ProviderError, match="busy"):
        await outcome.ask()
    assert (outcome.text, outcome.fell, last.requests) == ("Hel lo", [], [])


async def test_what_the_next_would_not_do_better_is_reported_at_once() -> None:
    last = says("two", "b")
    outcome = Told(fails("a", "context_limit"), last)
    with pytest.raises(ProviderError) as failed:
        await outcome.ask()
    assert (failed.value.category, outcome.fell, last.requests) == ("context_limit", [], [])


async def test_the_failure_of_the_last_is_the_failure_of_all() -> None:
    outcome = Told(fails("a", "overloaded"), fails("b", "timeout"))
    with pytest.raises(ProviderError) as failed:
        await outcome.ask()
    assert (failed.value.category, outcome.fell) == ("timeout", [("a/m-a", "b/m-b")])


async def test_what_a_provider_cannot_be_told_goes_on_to_the_next() -> None:
    outcome = await Told(Picky([], name="a"), says("two", "b")).ask()
    assert (outcome.text, outcome.fell) == ("two", [("a/m-a", "b/m-b")])


async def test_a_request_that_no_provider_accepts_fails_with_the_last_refusal() -> None:
    with pytest.raises(BadRequest) as failed:
        await Told(Picky([], name="a")).ask()
    assert (failed.value.field, failed.value.message) == ("messages[0]", "no URL can be sent to it")


async def test_each_provider_gets_its_own_options_and_the_requests_before_them() -> None:
    second = says("two", "b")
    options: dict[str, dict[str, Any]] = {"a": {"top_k": 1}, "b": {"temperature": 0.0, "seed": 7}}
    model_request = ModelRequest(model="any", messages=ASKED.messages, options={"temperature": 1.0})
    await Told(fails("a"), second, options=options).ask(model_request)
    assert [request.options for request in second.requests] == [{"temperature": 1.0, "seed": 7}]


async def test_a_model_that_nobody_answers_for_is_not_found() -> None:
    with pytest.raises(NotFound):
        Routing({}).model_routes("x/m")
