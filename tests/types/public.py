"""Assertions on the public types, checked by test_public_types.py and never run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, assert_type

from dragoman import (
    Aborted,
    Agent,
    Condition,
    Context,
    Crashed,
    Data,
    DataPart,
    ErrorDetails,
    Event,
    Finish,
    FinishReason,
    Message,
    OpenAIProvider,
    OutOfBudget,
    OutOfContext,
    Output,
    Overhead,
    Part,
    ReasoningPart,
    Result,
    Run,
    RunLimits,
    SoFar,
    StepChange,
    StepContext,
    StepsExhausted,
    Success,
    TextDelta,
    TextPart,
    ToolCallSummary,
    ToolInputAvailable,
    ToolOutputAvailable,
    ToolPart,
    Unknown,
    UsageSummary,
    any_of,
    cost,
    operation,
    steps,
    tool_called,
)


@operation(namespace="math", effect="read")
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


assert_type(add(1, 2), int)  # a marked function stays what it was


@operation
def ping() -> str:
    """Answer."""
    return "pong"


@operation()
async def echo(text: str) -> str:
    """Repeat."""
    return text


@operation(effect="read")
def now() -> float:
    """Tell the time."""
    return 0.0


assert_type(ping(), str)
assert_type(now(), float)
operation(5)  # type: ignore[call-overload]


async def change(step: StepContext) -> StepChange | None:
    assert_type(step.number, int)
    return StepChange(tools=["math_add"]) if step.number > 1 else None


def enough(so_far: SoFar) -> bool:
    return so_far.seconds > 10


agent = Agent(
    OpenAIProvider(base_url="http://127.0.0.1:9/v1", api_key="k").model("any"),
    instructions="Be brief.",
    operations=[add],
    mcp=["server.py", ["npx", "server"], "http://127.0.0.1:9/sse"],
    limits=RunLimits(max_steps=5, max_budget_usd=0.5),
    stop_when=[steps(5) | tool_called("math_add"), cost(0.1), enough],
    on_prepare_step=change,
)
assert_type(agent.overhead(), Overhead)
assert_type(any_of(steps(5), enough), Condition)
assert_type(agent, Agent[None])
assert_type(agent.run_sync("hi"), Result[None])


async def use(context: Context) -> None:
    async with agent as entered:
        assert_type(entered, Agent[None])
        run = agent.spawn([{"role": "user", "content": "hi"}], system="Be brief.", context=context)
        assert_type(run, Run[None])
        async for event in run.events():
            assert_type(event, Event)
            word: str = event.type
            follow(event, word)
        result = await run.result
        assert_type(result, Result[None])
        assert_type(result.output, None)
        assert_type(result.usage, UsageSummary)
        assert_type(result.usage.input_tokens, int | None)
        assert_type(result.tool_calls, ToolCallSummary)
        assert_type(result.tool_calls.total, int)
        assert_type(result.cost, float | None)
        assert_type(result.steps, int)
        assert_type(await echo("hi"), str)
        assert_type(result.messages, tuple[Message, ...])
        again: Sequence[Message] = result.messages
        agent.spawn([*again, {"role": "user", "content": "And then?"}])
        tell(result)


def follow(event: Event, word: str) -> object:
    """The word of an event says what it is, without an import."""
    if event.type == "text-delta":
        assert_type(event, TextDelta)
        return event.delta
    if event.type == "data-context":
        assert_type(event, Data)
        return event.data
    match event.type:
        case "tool-input-available":
            assert_type(event, ToolInputAvailable)
        case "tool-output-available":
            assert_type(event, ToolOutputAvailable)
        case "finish":
            assert_type(event, Finish)
            assert_type(event.finish_reason, FinishReason | None)
        case _:
            event.delta  # type: ignore[union-attr]  # noqa: B018 - nobody has said that there is one
    return word if isinstance(event, Data) and event.name == "weather" else Data("data-weather", {"sun": 1})


def read(message: Message) -> object:
    """So does the word of a part."""
    assert_type(message.text, str)
    assert_type(message.tool_calls, tuple[ToolPart, ...])
    for part in message.parts:
        assert_type(part, Part)
        if part.type == "text":
            assert_type(part, TextPart)
            return part.text
        match part.type:
            case "reasoning":
                assert_type(part, ReasoningPart)
            case "dynamic-tool" | "tool-*":
                assert_type(part, ToolPart)
            case "data-context":
                assert_type(part, DataPart)
            case _:
                pass
    return ToolPart("tool-math_add", "c1", "input-available", input={"a": 2})


ToolPart("tool-math_add", "c1", "nearly")  # type: ignore[arg-type]
Data("data-weather", {}, days=3)  # type: ignore[call-arg]


class City:
    """What an answer may be."""


cities = Agent("openai/gpt-5.1", output=City, name="cities")
assert_type(cities, Agent[City])
assert_type(Agent("openai/gpt-5.1", output=list[int]), Agent[list[int]])
assert_type(Agent("openai/gpt-5.1", output=Output(City, attempts=1)), Agent[City])
assert_type(Agent("openai/gpt-5.1", output=Literal["yes", "no"], operations=[add]), Agent[Any])
assert_type(cities.run_sync("Where?"), Result[City])


async def find(agent: Agent[City], anyone: Agent) -> City | None:
    """A type that is asked for is that of the output."""
    async with agent as entered:
        assert_type(entered, Agent[City])
        run = entered.spawn("Where?")
        assert_type(run, Run[City])
        result = await run.result
    assert_type(result, Result[City])
    assert_type(result.output, City | None)
    if isinstance(result, Success):
        assert_type(result, Success[City])
        return result.output
    if result.exit_reason == "crashed":
        assert_type(result, Crashed[City])
        if result.error.category == "output_invalid":
            tell(result)
    assert_type((await anyone.spawn("Who?").result).output, Any | None)
    return await find(cities, cities)


def tell(result: Result) -> str:
    """A result is a union: `error` is None unless it crashed, and every exit reason is known."""
    assert_type(result.error, ErrorDetails | None)
    if result.error is not None:
        assert_type(result.error.message, str)
    if result.exit_reason == "crashed":
        assert_type(result, Crashed)
        assert_type(result.error, ErrorDetails)
        return result.error.message
    assert_type(result.error, None)
    assert_type(
        result,
        Success[Any]
        | StepsExhausted[Any]
        | OutOfBudget[Any]
        | OutOfContext[Any]
        | Aborted[Any]
        | Unknown[Any],
    )
    match result.exit_reason:
        case "success" | "steps_exhausted" | "budget_exhausted" | "context_limit" | "aborted" | "unknown":
            return result.text


Agent("openai/gpt-5.1", colour="red")  # type: ignore[call-overload]
agent.spawn([], allowed_tools=5)  # type: ignore[arg-type]
