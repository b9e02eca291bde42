"""Results: how a run ended, what it used, and the messages to continue from. Source: seed 003."""

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
"""The kind of failure that ended a run: of a model request, or an answer of the wrong type."""


class UsageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all steps. What no provider reported is None, never zero.

    `input_tokens` is the whole prompt, cached parts included; `output_tokens` includes reasoning.
    `estimated`: an answer was cut short and its tokens were counted here.
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
    """The tool calls of a run: total, distinct, and the most frequent one."""

    total: int = 0
    unique: int = 0
    most_repeated: Repeated | None = None


class ErrorDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run failed. `retry_delay` is the seconds to wait that the provider asked for.

    The category `output_invalid` means that the answer never became a value of the requested type.
    """

    message: str
    category: ErrorCategory
    transient: bool = False
    retry_delay: float | None = None
    hint: str | None = None


class BaseResult(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """The fields of all results. `cost` is in US dollars, None without a price; `duration` in seconds.

    `messages` is the conversation to continue: pass it to `spawn` with the next user message appended.
    `text` is the last text of the model, `output` the value if one was requested. `stopped_by` names what
    ended the run if the model did not. `notices` are hints for the caller.
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


class ResultWithoutError(BaseResult[T], Generic[T], frozen=True, kw_only=True):
    """What all results except `Crashed` share: their `error` is None."""

    error: None = None


class Success(ResultWithoutError[T], Generic[T], frozen=True, kw_only=True):
    """The model has answered, or a stop condition such as `tool_called` was met."""

    exit_reason: Literal["success"] = "success"


class StepsExhausted(ResultWithoutError[T], Generic[T], frozen=True, kw_only=True):
    """The run reached its limit of steps, or made no progress."""

    exit_reason: Literal["steps_exhausted"] = "steps_exhausted"


class OutOfBudget(ResultWithoutError[T], Generic[T], frozen=True, kw_only=True):
    """The next step does not fit into the budget of money, tokens or time."""

    exit_reason: Literal["budget_exhausted"] = "budget_exhausted"


class OutOfContext(ResultWithoutError[T], Generic[T], frozen=True, kw_only=True):
    """The conversation, or the answer, is longer than the model accepts."""

    exit_reason: Literal["context_limit"] = "context_limit"


class Aborted(ResultWithoutError[T], Generic[T], frozen=True, kw_only=True):
    """The run was aborted, blocked by a hook, or timed out."""

    exit_reason: Literal["aborted"] = "aborted"


class Crashed(BaseResult[T], Generic[T], frozen=True, kw_only=True):
    """The run failed; `error` says why."""

    exit_reason: Literal["crashed"] = "crashed"
    error: ErrorDetails


class Unknown(ResultWithoutError[T], Generic[T], frozen=True, kw_only=True):
    """The run ended for another reason; `stopped_by` says which."""

    exit_reason: Literal["unknown"] = "unknown"


Result: TypeAlias = (
    Success[T] | StepsExhausted[T] | OutOfBudget[T] | OutOfContext[T] | Aborted[T] | Crashed[T] | Unknown[T]
)
"""How a run ended, discriminated by `exit_reason`; `output` is a T if one was requested and returned."""
RESULT_TYPES: dict[str, type[Success | StepsExhausted | OutOfBudget | OutOfContext | Aborted | Unknown]] = {
    "success": Success,
    "steps_exhausted": StepsExhausted,
    "budget_exhausted": OutOfBudget,
    "context_limit": OutOfContext,
    "aborted": Aborted,
    "unknown": Unknown,
}


def summarise_usage(usage: Usage | None) -> UsageSummary:
    """Return the tokens as the summary in a result."""
    totals = usage or Usage()
    return UsageSummary(
        input_tokens=totals.input_tokens,
        output_tokens=totals.output_tokens,
        total_tokens=totals.total_tokens,
        cache_creation_input_tokens=totals.cache_write_tokens,
        cache_read_input_tokens=totals.cached_input_tokens,
        reasoning_tokens=totals.reasoning_tokens,
        estimated=totals.estimated,
    )


def summarise_calls(calls: Sequence[ToolPart]) -> ToolCallSummary:
    """Count the calls."""
    if not calls:
        return ToolCallSummary()
    counted = Counter(signature(call) for call in calls)
    [(most, count)] = counted.most_common(1)
    return ToolCallSummary(total=len(calls), unique=len(counted), most_repeated=Repeated(most, count))


def error_details(error: ProviderError) -> ErrorDetails:
    """Return the details of a failure for the caller."""
    return ErrorDetails(
        message=error.message,
        category="output_invalid" if error.code == "output_invalid" else error.category,
        transient=error.transient,
        retry_delay=error.retry_after,
        hint=error.hint,
    )


def conversation_to_continue(history: Sequence[Message], answer: Message) -> tuple[Message, ...]:
    """Return the messages to continue from, without an empty answer."""
    parts = answer.parts
    while parts and isinstance(parts[-1], StepStartPart):
        parts = parts[:-1]
    if not parts:
        return tuple(history)
    return (*history, msgspec.structs.replace(answer, parts=parts))
