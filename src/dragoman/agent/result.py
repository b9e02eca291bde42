"""The result of a run: how it ended, what it took, and the messages to go on from. Source: seed 003."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeAlias

import msgspec
from typing_extensions import TypeVar

from dragoman.agent.stop_conditions import signature
from dragoman.errors import ProviderCategory, ProviderError
from dragoman.events import Usage
from dragoman.messages import Message, StepStartPart, ToolPart

T = TypeVar("T", default=Any)
ErrorCategory: TypeAlias = Literal[ProviderCategory, "output_invalid"]
"""What kind of failure broke a run: of a model request, or an answer that never was what was asked for."""


class UsageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all steps. What no provider told is None, never a made-up zero.

    `input_tokens` is the whole prompt, what came from a cache or went into it included; `output_tokens`
    includes reasoning. `estimated`: an answer broke off, and what it took was counted here.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    estimated: bool = False


class Repeated(msgspec.Struct, frozen=True):
    """A call that was made several times: `math_add({"a":1})`."""

    signature: str
    count: int


class ToolCallSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The tool calls of a run: how many, how many different ones, and the one that was made most often."""

    total: int = 0
    unique: int = 0
    most_repeated: Repeated | None = None


class ErrorDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What broke a run. `retry_delay`: seconds to wait before trying again, as the provider asked.

    The category `output_invalid`: the answer never became a value of the type that was asked for.
    """

    message: str
    category: ErrorCategory
    transient: bool = False
    retry_delay: float | None = None
    hint: str | None = None


class BaseResult(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """What all results say. `cost` is in US dollars, None where no price is known; `duration` in seconds.

    `messages` are the conversation to go on from: give them to `spawn` again, with what is said next behind.
    `text` is the last that the model said, `output` the value where one of a type was asked for. `stopped_by`
    says what ended it when that was not the model. `notices` are what a caller should know.
    """

    text: str
    steps: int
    usage: UsageSummary
    cost: float | None
    duration: float
    session_id: str
    tool_calls: ToolCallSummary
    messages: tuple[Message, ...]
    output: T | None = None
    model: str | None = None
    stopped_by: str | None = None
    notices: tuple[str, ...] = ()


class Success(BaseResult[T], Generic[T], frozen=True, kw_only=True):
    """The model has answered, or a stop condition that was wished for was met."""

    exit_reason: Literal["success"] = "success"


class StepsExhausted(BaseResult[T], Generic[T], frozen=True, kw_only=True):
    """It took as many steps as it may, or made no progress."""

    exit_reason: Literal["steps_exhausted"] = "steps_exhausted"


class OutOfBudget(BaseResult[T], Generic[T], frozen=True, kw_only=True):
    """The next step would not fit into the budget of money, tokens or time."""

    exit_reason: Literal["budget_exhausted"] = "budget_exhausted"


class OutOfContext(BaseResult[T], Generic[T], frozen=True, kw_only=True):
    """The conversation, or the answer, is longer than the model takes."""

    exit_reason: Literal["context_limit"] = "context_limit"


class Aborted(BaseResult[T], Generic[T], frozen=True, kw_only=True):
    """Somebody stopped it, a hook did not let it go on, or its time was over."""

    exit_reason: Literal["aborted"] = "aborted"


class Crashed(BaseResult[T], Generic[T], frozen=True, kw_only=True):
    """Something failed; `error` says what."""

    exit_reason: Literal["crashed"] = "crashed"
    error: ErrorDetails


class Unknown(BaseResult[T], Generic[T], frozen=True, kw_only=True):
    """It ended for a reason that has no word here; `stopped_by` says which."""

    exit_reason: Literal["unknown"] = "unknown"


Result: TypeAlias = (
    Success[T] | StepsExhausted[T] | OutOfBudget[T] | OutOfContext[T] | Aborted[T] | Crashed[T] | Unknown[T]
)
"""How a run ended, told apart by `exit_reason`; `output` is a T, where a T was asked for and given."""
RESULT_TYPES: dict[str, type[Success | StepsExhausted | OutOfBudget | OutOfContext | Aborted | Unknown]] = {
    "success": Success,
    "steps_exhausted": StepsExhausted,
    "budget_exhausted": OutOfBudget,
    "context_limit": OutOfContext,
    "aborted": Aborted,
    "unknown": Unknown,
}


def summarise_usage(usage: Usage | None) -> UsageSummary:
    """The tokens in the words of results."""
    told = usage or Usage()
    return UsageSummary(
        input_tokens=told.input_tokens,
        output_tokens=told.output_tokens,
        total_tokens=told.total_tokens,
        cache_creation_input_tokens=told.cache_write_tokens,
        cache_read_input_tokens=told.cached_input_tokens,
        reasoning_tokens=told.reasoning_tokens,
        estimated=told.estimated,
    )


def summarise_calls(calls: Sequence[ToolPart]) -> ToolCallSummary:
    """The calls, counted."""
    if not calls:
        return ToolCallSummary()
    counted = Counter(signature(call) for call in calls)
    [(most, count)] = counted.most_common(1)
    return ToolCallSummary(total=len(calls), unique=len(counted), most_repeated=Repeated(most, count))


def error_details(error: ProviderError) -> ErrorDetails:
    """What a caller is told of a failure."""
    return ErrorDetails(
        message=error.message,
        category="output_invalid" if error.code == "output_invalid" else error.category,
        transient=error.transient,
        retry_delay=error.retry_after,
        hint=error.hint,
    )


def conversation_to_continue(history: Sequence[Message], answer: Message) -> tuple[Message, ...]:
    """The messages to go on from: without an answer that has nothing in it."""
    parts = answer.parts
    while parts and isinstance(parts[-1], StepStartPart):
        parts = parts[:-1]
    if not parts:
        return tuple(history)
    return (*history, msgspec.structs.replace(answer, parts=parts))
