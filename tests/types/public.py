"""What a type checker makes of the public names; `test_public_types.py` has it checked, nobody runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

from dragoman import (
    Aborted,
    Agent,
    Context,
    Crashed,
    ErrorDetails,
    Message,
    OpenAIProvider,
    OutOfBudget,
    OutOfContext,
    Overhead,
    Result,
    Run,
    RunLimits,
    StepChange,
    StepContext,
    StepsExhausted,
    Success,
    ToolCallSummary,
    Unknown,
    UsageSummary,
    any_of,
    cost,
    operation,
    steps,
    tool_called,
)
from dragoman.agent.stops import Condition, SoFar
from dragoman.events import Event


@operation(namespace="math", effect="read")
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


assert_type(add(1, 2), int)  # a marked function stays what it was


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
assert_type(agent.run_sync("hi"), Result)


async def use(context: Context) -> None:
    async with agent as entered:
        assert_type(entered, Agent)
        run = agent.spawn([{"role": "user", "content": "hi"}], system="Be brief.", context=context)
        assert_type(run, Run)
        async for event in run.events():
            assert_type(event, Event)
            assert_type(event.type, str)
        result = await run.result
        assert_type(result, Result)
        assert_type(result.usage, UsageSummary)
        assert_type(result.usage.input_tokens, int | None)
        assert_type(result.tool_calls, ToolCallSummary)
        assert_type(result.tool_calls.total, int)
        assert_type(result.cost, float | None)
        assert_type(result.steps, int)
        assert_type(result.messages, tuple[Message, ...])
        again: Sequence[Message] = result.messages
        agent.spawn([*again, {"role": "user", "content": "And then?"}])
        tell(result)


def tell(result: Result) -> str:
    """A result is a union: `error` is there exactly when it crashed, and every word is known."""
    if result.exit_reason == "crashed":
        assert_type(result, Crashed)
        assert_type(result.error, ErrorDetails)
        return result.error.message
    result.error  # type: ignore[union-attr]  # noqa: B018 - this is what must not be
    assert_type(result, Success | StepsExhausted | OutOfBudget | OutOfContext | Aborted | Unknown)
    match result.exit_reason:
        case "success" | "steps_exhausted" | "budget_exhausted" | "context_limit" | "aborted" | "unknown":
            return result.text


Agent("openai/gpt-5.1", colour="red")  # type: ignore[call-arg]
agent.spawn([], allowed_tools=5)  # type: ignore[arg-type]
