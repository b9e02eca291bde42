"""The scripted model: valid steps, and unused ones."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import events as e
from dragoman.errors import ConfigError, ProviderError
from dragoman.messages import Message, TextPart
from dragoman.model_request import ModelRequest
from dragoman.providers.scripted import (
    MAX_REQUESTS,
    Failure,
    Script,
    ScriptedModel,
    ScriptedProvider,
    Step,
)


def request(text: str = "Hi") -> ModelRequest:
    return ModelRequest(model="script", messages=[Message("u", "user", (TextPart(text),))])


async def ask(model: ScriptedModel, text: str = "Hi") -> list[e.Event]:
    return [event async for batch in model.provider.stream(request(text)) for event in batch]


async def drain(model: ScriptedModel, collected: list[e.Event]) -> None:
    async for batch in model.provider.stream(request()):
        collected += batch


def text_of(collected: list[e.Event]) -> str:
    return "".join(event.delta for event in collected if isinstance(event, e.TextDelta))


def calls(collected: list[e.Event]) -> list[tuple[str, object]]:
    return [(event.tool_name, event.input) for event in collected if isinstance(event, e.ToolInputAvailable)]


async def test_a_text_is_an_answer_and_a_pair_is_a_call() -> None:
    async with ScriptedModel([("add", {"a": 1}), [("add", {}), ("sub", {})], "Done."]) as model:
        assert calls(await ask(model)) == [("add", {"a": 1})]
        assert calls(await ask(model)) == [("add", {}), ("sub", {})]
        assert text_of(await ask(model)) == "Done."


async def test_a_step_has_usage_and_a_finish_of_its_own() -> None:
    usage = e.Usage(input_tokens=3, output_tokens=2)
    async with ScriptedModel([Step(text="Hi", usage=usage, finish="length"), {"text": "Ho"}]) as model:
        *_, finish = await ask(model)
        assert finish == e.FinishStep("length", usage, "script", "scripted")
        assert text_of(await ask(model)) == "Ho"


@pytest.mark.parametrize("name", ["input_tokens", "inputTokens"])
async def test_the_usage_of_a_mapping_is_read_by_either_of_its_names(name: str) -> None:
    *_, finish = await ask(ScriptedModel([{"text": "Hi", "usage": {name: 3}}]))
    assert isinstance(finish, e.FinishStep)
    assert finish.usage == e.Usage(input_tokens=3)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ({"text": "Hi", "usage": {"inputs": 3}}, "no field 'inputs'"),
        ({"txt": "Hi"}, "step 2 .* unknown field `txt`"),
        (Step(text=3), "step 2 .*got `int` - at `\\$.text`"),  # type: ignore[arg-type]
        (Step(text="Hi", finish="over"), "step 2 .*'over'"),  # type: ignore[arg-type]
        (5, "step 2 of the script is not a step: 5"),
        (("add", 5), "step 2 .* a call is"),
        (("add", {}, 5), "step 2 .* a call is"),
        ([("add", {}), "sub"], "step 2 .* 'sub' is not a call"),
    ],
)
def test_a_step_that_is_none_is_refused_before_anything_is_asked(step: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ScriptedModel(["Hi", step])


def test_a_script_is_a_list() -> None:
    with pytest.raises(ConfigError, match="a list of steps"):
        ScriptedModel("Hi")


async def test_what_a_function_gives_is_read_when_it_is_asked() -> None:
    model = ScriptedModel([lambda _: 5])  # type: ignore[list-item, return-value]
    with pytest.raises(ConfigError, match="step 1 of the script is not a step: 5"):
        await ask(model)


async def test_an_exception_is_raised_as_it_is() -> None:
    error = ProviderError("slow down", category="rate_limit", transient=True, retry_after=2.0)
    model = ScriptedModel([error])

    with pytest.raises(ProviderError) as raised:
        await ask(model)

    assert raised.value is error


async def test_a_failure_comes_behind_what_was_said_before_it() -> None:
    failure = Failure("overloaded", category="overloaded", transient=True, retry_after=1.5)
    model = ScriptedModel([Step(text="Half", error=failure)])
    collected: list[e.Event] = []

    with pytest.raises(ProviderError) as raised:
        await drain(model, collected)

    assert (raised.value.category, raised.value.retry_after) == ("overloaded", 1.5)
    assert text_of(collected) == "Half"


async def test_a_function_sees_the_request() -> None:
    def echo(model_request: ModelRequest) -> str:
        (part,) = model_request.messages[-1].parts
        assert isinstance(part, TextPart)
        return part.text.upper()

    async with ScriptedModel([echo]) as model:
        assert text_of(await ask(model, "loud")) == "LOUD"
        assert [model_request.model for model_request in model.requests] == ["script"]


async def test_steps_that_are_left_fail_the_test() -> None:
    with pytest.raises(AssertionError, match="2 of 3 steps were not used: 'b', 'c'"):
        async with ScriptedModel(["a", "b", "c"]) as model:
            await ask(model)


async def test_asking_too_often_fails_the_test_too() -> None:
    model = ScriptedModel(["a"])
    await ask(model)

    with pytest.raises(ProviderError, match="the script has 1 steps, and this is request 2"):
        await ask(model)

    with pytest.raises(AssertionError, match="got 2 requests, and the script has 1 steps"):
        model.assert_complete()


async def test_an_error_of_the_test_itself_is_not_hidden() -> None:
    with pytest.raises(KeyError):
        async with ScriptedModel(["never asked for"]):
            raise KeyError


async def test_a_script_without_an_end_does_not_store_all_requests_of_a_hub() -> None:
    provider = ScriptedProvider(Script([Step(text="Hi.")], play="turns"))
    for number in range(MAX_REQUESTS + 2):
        async for _ in provider.stream(request(str(number))):
            pass
    assert len(provider.requests) == MAX_REQUESTS
    assert provider.requests[-1].messages[0].parts == (TextPart(str(MAX_REQUESTS + 1)),)
