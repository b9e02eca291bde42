"""Stop conditions: end an answer before the model does; `steps(5) | cost(0.1)` composes."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman.agent.meta_tool_calls import batch_entries
from dragoman.agent.tool_names import matches_id
from dragoman.errors import BadRequest, ConfigError
from dragoman.events import FinishReason, Usage
from dragoman.messages import ToolPart

ExitReason = Literal[
    "success", "steps_exhausted", "budget_exhausted", "context_limit", "aborted", "crashed", "unknown"
]


class StepTaken(msgspec.Struct, frozen=True, kw_only=True):
    """A finished model call with the tool calls that it asked for. `cost` is in US dollars.

    `called` names what the calls called, also through `hub_call`: ids of operations (`math.add`), and names
    of other tools. Unknown values are None.
    """

    number: int
    model: str
    text: str = ""
    calls: tuple[ToolPart, ...] = ()
    usage: Usage | None = None
    cost: float | None = None
    duration: float = 0.0
    finish_reason: FinishReason | None = None
    called: tuple[str, ...] = ()


class SoFar(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a run: its `steps`, and the `seconds` since it started.

    `taken`, `usage` and `cost` cover the whole message if the run continues one, for stop conditions and for
    `on_prepare_step`.
    """

    steps: Sequence[StepTaken]
    taken: int
    seconds: float
    usage: Usage
    cost: float | None

    @property
    def text(self) -> str:
        """The text of the last step."""
        return self.steps[-1].text if self.steps else ""

    @property
    def calls(self) -> list[ToolPart]:
        """All tool calls, in order."""
        return [call for step in self.steps for call in step.calls]


class Halt(msgspec.Struct, frozen=True):
    """Why a run stops: the exit reason of its result, and the condition as text."""

    exit: ExitReason
    why: str


CONDITION_HINT = "such as steps(3), tool_called('math_add'), or a function that takes a SoFar"
Predicate: TypeAlias = Callable[[SoFar], bool]
StopCondition: TypeAlias = "Condition | Predicate"


class Condition(msgspec.Struct, frozen=True):
    """A stop condition; true when called with the progress of a run. `|` and `&` combine conditions."""

    check: Callable[[SoFar], Halt | None]
    tools: tuple[str, ...] = ()
    """The names of tools that the condition asks for."""

    def __call__(self, so_far: SoFar) -> bool:
        return self.check(so_far) is not None

    def __or__(self, other: StopCondition) -> Condition:
        return any_of(self, other)

    def __and__(self, other: StopCondition) -> Condition:
        return all_of(self, other)


def steps(count: int) -> Condition:
    """Stop after `count` steps: `steps_exhausted`."""
    return make_condition(f"steps({count})", lambda done: done.taken >= count, exit="steps_exhausted")


def tool_called(name: str) -> Condition:
    """Stop after a step that called this tool, directly or through `hub_call`.

    `math_add`, `math.add`, `add` and the pattern `math.*` all name it, as in `allowed_tools`. An agent raises
    ConfigError for a name that matches none of its tools: when it is made, or, with MCP servers, when these
    are connected.
    """

    def was_called(done: SoFar) -> bool:
        return any(matches_id(name, each) for step in done.steps for each in step.called)

    return replace(make_condition(f"tool_called({name!r})", was_called), tools=(name,))


def text_matches(pattern: str) -> Condition:
    """Stop after a step whose text matches this regular expression anywhere. Raises BadRequest for an invalid
    one.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise BadRequest(f"text_matches({pattern!r}) is not a valid regular expression: {error}") from None

    def has_match(done: SoFar) -> bool:
        return bool(done.steps) and compiled.search(done.text) is not None

    return make_condition(f"text_matches({pattern!r})", has_match)


def tokens(count: int) -> Condition:
    """Stop when the message has used `count` tokens, input and output: `budget_exhausted`."""
    return make_condition(
        f"tokens({count})", lambda done: total_tokens(done.usage) >= count, exit="budget_exhausted"
    )


def cost(usd: float) -> Condition:
    """Stop when the message has cost `usd` US dollars, as far as prices are known: `budget_exhausted`."""
    return make_condition(f"cost({usd:g})", lambda done: (done.cost or 0.0) >= usd, exit="budget_exhausted")


def seconds(count: float) -> Condition:
    """Stop after the first step that ends later than this: `budget_exhausted`. A step is not interrupted."""
    return make_condition(f"seconds({count:g})", lambda done: done.seconds >= count, exit="budget_exhausted")


def no_progress(times: int) -> Condition:
    """Stop when the same call with the same input has failed `times` times: `steps_exhausted`."""
    return make_condition(
        f"no_progress({times})", lambda done: most_failures(done.calls) >= times, exit="steps_exhausted"
    )


def any_of(*stops: StopCondition) -> Condition:
    """Stop when one of these is met; the first one is reported."""
    conditions = [as_condition(stop) for stop in stops]

    def find(so_far: SoFar) -> Halt | None:
        return next((halt for one in conditions if (halt := one.check(so_far)) is not None), None)

    return Condition(find, tools_of(conditions))


def all_of(*stops: StopCondition) -> Condition:
    """Stop when all of these are met; the worst of their exit reasons is reported."""
    conditions = [as_condition(stop) for stop in stops]

    def find(so_far: SoFar) -> Halt | None:
        halts = [one.check(so_far) for one in conditions]
        met = [halt for halt in halts if halt is not None]
        if not met or len(met) < len(conditions):
            return None
        worst: ExitReason = next((halt.exit for halt in met if halt.exit != "success"), "success")
        return Halt(worst, " and ".join(halt.why for halt in met))

    return Condition(find, tools_of(conditions))


def tools_of(conditions: Sequence[Condition]) -> tuple[str, ...]:
    """Return the names of tools that these conditions ask for."""
    return tuple(dict.fromkeys(name for one in conditions for name in one.tools))


def as_condition(stop: StopCondition) -> Condition:
    """Return a predicate as a condition; it is checked after steps only, and ends in `success`.

    Raises ConfigError for what cannot be one: its answer would be true, whatever it is.
    """
    if isinstance(stop, Condition):
        return stop
    name = getattr(stop, "__name__", "its stop condition")
    if not callable(stop):
        raise ConfigError(
            f"a stop condition must be a condition or a function, not {stop!r:.80}", hint=CONDITION_HINT
        )
    if inspect.iscoroutinefunction(stop) or inspect.iscoroutinefunction(type(stop).__call__):
        raise ConfigError(f"the stop condition {name} must not be async", hint=CONDITION_HINT)

    def is_met(so_far: SoFar) -> bool:
        answer: object = bool(so_far.steps) and stop(so_far)
        if inspect.iscoroutine(answer):
            answer.close()
        if isinstance(answer, Condition) or inspect.isawaitable(answer):
            raise ConfigError(
                f"the stop condition {name} returned {answer!r:.80}, not a bool", hint=CONDITION_HINT
            )
        return bool(answer)

    return make_condition(name, is_met)


def combined_condition(stop_when: StopCondition | Sequence[StopCondition] | None) -> Condition | None:
    """Return an agent's `stop_when` as one condition: any of them."""
    if stop_when is None or isinstance(stop_when, Condition):
        return stop_when
    return any_of(*stop_when) if isinstance(stop_when, Sequence) else as_condition(stop_when)


def make_condition(description: str, test: Predicate, *, exit: ExitReason = "success") -> Condition:
    """Return a condition with a description."""
    return Condition(lambda so_far: Halt(exit, description) if test(so_far) else None)


def total_tokens(usage: Usage) -> int:
    """Return the input and output tokens."""
    return usage.total_tokens or (usage.input_tokens or 0) + (usage.output_tokens or 0)


def most_failures(calls: Sequence[ToolPart]) -> int:
    """Return how often the most frequent failure occurred."""
    counted = Counter(each for call in calls for each in failed_signatures(call))
    return max(counted.values(), default=0)


def called_tools(call: ToolPart) -> Sequence[str]:
    """Return what a call called: its tool, and for `hub_call` the operations of its batch."""
    return [call.name, *(entry.tool for entry in batch_entries(call.name, call.input))]


def failed_signatures(call: ToolPart) -> Sequence[str]:
    """Return the signatures of what failed: the call, or entries of its batch."""
    if call.state == "output-error":
        return [signature(call)]
    if call.state != "output-available" or not isinstance(call.output, list):
        return []
    pairs = zip(batch_entries(call.name, call.input), call.output, strict=False)
    failed = [entry for entry, out in pairs if isinstance(out, dict) and out.get("success") is False]
    return [f"{entry.tool}({canonical_json(entry.input)})" for entry in failed]


def signature(call: ToolPart) -> str:
    """Return a call's tool and input; the same for the same call, whatever the order of its keys."""
    arguments = call.input if call.input is not msgspec.UNSET else call.raw_input
    return f"{call.name}({'' if arguments is msgspec.UNSET else canonical_json(arguments)})"


def canonical_json(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
