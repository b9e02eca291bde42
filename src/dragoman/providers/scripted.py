"""Scripted answers instead of a model, for tests, docs and demos.

A script is YAML or JSON: `steps`, a list of answers. Each has `text`, `reasoning`, `tools`
(`[{name, input}]`), `finish`, `usage` and `delay` (seconds between deltas), or `error` instead.
`play: once` (default) uses the steps in order, and `close()` fails if some were not used. `play: turns`
repeats the script in each turn, for demos.

`ScriptedProvider` plays a script file; `ScriptedModel` takes its steps as Python values and checks at the end
that all were used.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, cast

import msgspec
import yaml

from dragoman import events as e
from dragoman.errors import ConfigError, ProviderCategory, ProviderError
from dragoman.events import Event, Usage
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.messages import Message, StepStartPart, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.providers.model import Model

MAX_REQUESTS = 1_000  # stored by a provider whose script has no end


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call; an `input` that is a string is sent unchanged, valid JSON or not."""

    name: str
    input: Any = msgspec.field(default_factory=dict)
    id: str | None = None


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error to raise, after the step's text if it has any."""

    message: str
    category: ProviderCategory = "api_error"
    transient: bool = False
    retry_after: float | None = None


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer of the model."""

    text: str | list[str] = ""
    reasoning: str | list[str] = ""
    tools: list[ScriptedCall] = msgspec.field(default_factory=list)
    finish: e.FinishReason | None = None
    usage: e.Usage | None = None
    delay: float = 0.0
    error: Failure | None = None


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The steps, and how they are used."""

    steps: list[Step]
    play: Literal["once", "turns"] = "once"


def read_script(path: Path) -> Script:
    """Read a script from a YAML or JSON file. Raises ConfigError if it is not valid."""
    try:
        if path.suffix == ".json":
            return msgspec.json.decode(path.read_bytes(), type=Script)
        return msgspec.convert(yaml.safe_load(path.read_text()), Script)
    except (OSError, yaml.YAMLError, *DECODE_ERRORS) as error:
        raise ConfigError(f"the script {str(path)!r} is not valid: {error}") from None


class ScriptedProvider:
    """Plays a script. `requests` has the requests, so that a test can inspect them.

    With `play: turns`, which has no end, these are the newest MAX_REQUESTS.
    """

    family = "scripted"

    def __init__(self, script: Script | Sequence[Step], *, name: str = "scripted") -> None:
        self.name = name
        self.script = script if isinstance(script, Script) else Script(list(script))
        self.requests: list[ModelRequest] = []
        self._count = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[e.Event], None]:
        """Yield the next step's events, one batch per delta."""
        step, key = self._next_step(request), self._count
        self._count += 1
        self.requests.append(request)
        if self.script.play == "turns":
            del self.requests[:-MAX_REQUESTS]
        async with aclosing(play(step, request, key=key, name=self.name)) as answer:
            async for batch in answer:
                yield batch

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`. A script accepts everything."""
        return ()

    async def close(self) -> None:
        """Raise ProviderError if steps of a `play: once` script were not used."""
        unused = len(self.script.steps) - len(self.requests)
        if self.script.play == "once" and unused > 0:
            raise ProviderError(f"{unused} steps of the script were not used", category="bad_request")

    def _next_step(self, request: ModelRequest) -> Step:
        index = len(self.requests) if self.script.play == "once" else _turn_step(request.messages)
        if index >= len(self.script.steps):
            raise ProviderError(
                f"the script has only {len(self.script.steps)} steps, this is request {index + 1}",
                category="bad_request",
            )
        return self.script.steps[index]


async def play(
    step: Step, request: ModelRequest, *, key: int, name: str
) -> AsyncGenerator[Sequence[e.Event], None]:
    """Yield a step's events, one batch per delta. `key` makes the ids of its calls unique."""
    for batch in _blocks(step, request, key=key):
        if step.delay:
            await asyncio.sleep(step.delay)
        yield batch
    if step.error:
        failure = step.error
        raise ProviderError(
            failure.message,
            category=failure.category,
            transient=failure.transient,
            retry_after=failure.retry_after,
        )
    reason = step.finish or ("tool-calls" if step.tools else "stop")
    yield [e.FinishStep(reason, usage=step.usage, model=request.model, provider=name)]


def _turn_step(messages: Sequence[Message]) -> int:
    """Return how many answers the current turn has, which is the index of the next step.

    In the hub these are the steps of the last message. Clients of the gateway send each answer as a message,
    followed by its calls' results; some of them (Claude Code) add reminders.
    """
    last = messages[-1] if messages else None
    if last is not None and last.role == "assistant" and (steps := _count_steps(last)):
        return steps
    answers = 0
    for message in reversed(messages):
        if message.role == "assistant" and (_count_steps(message) or not _calls(message)):
            break
        answers += message.role == "assistant"
    return answers


def _count_steps(message: Message) -> int:
    return sum(isinstance(part, StepStartPart) for part in message.parts)


def _calls(message: Message) -> list[ToolPart]:
    """Return the tool calls of a message's last step."""
    last = max(
        (index for index, part in enumerate(message.parts) if isinstance(part, StepStartPart)), default=0
    )
    return [part for part in message.parts[last:] if isinstance(part, ToolPart)]


def _blocks(step: Step, request: ModelRequest, *, key: int) -> Iterator[Sequence[e.Event]]:
    if step.reasoning:
        yield [e.ReasoningStart("reasoning-1")]
        yield from ([e.ReasoningDelta("reasoning-1", delta)] for delta in _deltas(step.reasoning, request))
        yield [e.ReasoningEnd("reasoning-1")]
    if step.text:
        yield [e.TextStart("text-1")]
        yield from ([e.TextDelta("text-1", delta)] for delta in _deltas(step.text, request))
        yield [e.TextEnd("text-1")]
    for index, call in enumerate(step.tools):
        yield from _call_events(call, call.id or f"call_{key}_{index}")


def _deltas(text: str | list[str], request: ModelRequest) -> Iterator[str]:
    deltas = text if isinstance(text, list) else re.findall(r"\s*\S+\s*", text)
    for delta in deltas:
        yield delta.replace("{outputs}", _tool_outputs(request.messages)) if "{outputs}" in delta else delta


def _tool_outputs(messages: Sequence[Message]) -> str:
    """Return the outputs of the last step's calls as JSON, comma-separated."""
    answer = next((message for message in reversed(messages) if message.role == "assistant"), None)
    calls = _calls(answer) if answer is not None else ()
    outputs = [
        msgspec.json.encode(call.output).decode() for call in calls if call.state == "output-available"
    ]
    return ", ".join(outputs)


def _call_events(call: ScriptedCall, key: str) -> Iterator[Sequence[e.Event]]:
    text = call.input if isinstance(call.input, str) else msgspec.json.encode(call.input).decode()
    yield [e.ToolInputStart(key, call.name)]
    half = len(text) // 2
    yield from ([e.ToolInputDelta(key, delta)] for delta in (text[:half], text[half:]) if delta)
    try:
        value = decode_json(text)
    except DECODE_ERRORS as error:
        yield [e.ToolInputError(key, call.name, text, f"the arguments are not valid JSON: {error}")]
        return
    if isinstance(value, Mapping):
        yield [e.ToolInputAvailable(key, call.name, value)]
    else:
        yield [e.ToolInputError(key, call.name, value, "the arguments must be a JSON object")]


# ---- ScriptedModel -----------------------------------------------------------------------------------------

# A step is a text; a call as `(name, input)`; a list of calls; a `Step` (or a mapping with its fields) for
# reasoning, usage, delays or a finish reason; an exception to raise; or a function from the request to one of
# these.

StepForm: TypeAlias = (
    str
    | tuple[str, Mapping[str, Any]]
    | Sequence[tuple[str, Mapping[str, Any]]]
    | Step
    | Mapping[str, Any]
    | BaseException
)
STEP_FORMS = (
    "a text, (name, {input}), a list of these, a Step or a mapping of its fields, an exception, or a function"
)
ScriptedStep: TypeAlias = StepForm | Callable[[ModelRequest], StepForm]


class ScriptedModelProvider:
    """The provider of a `ScriptedModel`. `requests` has all requests."""

    family = "scripted"

    def __init__(self, steps: Sequence[ScriptedStep], *, name: str) -> None:
        self.name = name
        self.steps = tuple(steps)
        self.requests: list[ModelRequest] = []

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`: a script accepts everything."""
        return ()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Event], None]:
        """Yield the next step's events. Raises ProviderError when the script is used up."""
        key = len(self.requests)
        self.requests.append(request)
        if key >= len(self.steps):
            raise ProviderError(
                f"the script has {len(self.steps)} steps, and this is request {key + 1}",
                category="bad_request",
                hint="add a step to the ScriptedModel, or find out why the agent sends another request",
            )
        async with aclosing(play(self._step(request, key), request, key=key, name=self.name)) as answer:
            async for batch in answer:
                yield batch

    def _step(self, request: ModelRequest, key: int) -> Step:
        step = self.steps[key]
        form: Any = step(request) if callable(step) else step
        outcome = read_step(cast("StepForm", form), number=key + 1)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class ScriptedModel(Model):
    """A model for tests. `async with` raises AssertionError at its end if steps were not used.

    Raises ConfigError for an invalid step; a function's step is checked when the function is called.

        async with ScriptedModel([("math_add", {"a": 2, "b": 2}), "It is 4."]) as model:
            result = await Agent(model, operations=[add]).spawn("What is 2 + 2?").result
    """

    def __init__(self, steps: Sequence[ScriptedStep], *, name: str = "scripted", **options: Any) -> None:
        if isinstance(steps, str | Mapping):
            raise ConfigError(f"a script is a list of steps, got {steps!r:.80}", hint="ScriptedModel([...])")
        for number, step in enumerate(steps, 1):
            if not callable(step):
                read_step(step, number=number)
        self._player = ScriptedModelProvider(steps, name=name)
        super().__init__(self._player, "script", options)

    @property
    def requests(self) -> Sequence[ModelRequest]:
        """All requests, in order."""
        return self._player.requests

    def assert_complete(self) -> None:
        """Raise AssertionError unless there were exactly as many requests as steps."""
        steps, requests = len(self._player.steps), len(self._player.requests)
        if requests < steps:
            unused = ", ".join(_preview(step) for step in self._player.steps[requests:])
            raise AssertionError(f"{steps - requests} of {steps} steps were not used: {unused}")
        if requests > steps:
            raise AssertionError(f"the model got {requests} requests, and the script has {steps} steps")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.assert_complete()


def read_step(value: StepForm, *, number: int) -> Step | BaseException:
    """Convert the short form of a step; return an exception unchanged. Raises ConfigError if not valid."""
    try:
        match value:
            case BaseException():
                return value
            case Step():
                return msgspec.convert(msgspec.structs.asdict(value), Step)
            case str():
                return Step(text=value)
            case Mapping():
                return msgspec.convert({**value, "usage": _read_usage(value.get("usage"))}, Step)
            case (str(), _):
                return Step(tools=[_read_call(value)])
            case [_, *_]:
                return Step(tools=[_read_call(call) for call in value])
            case _:
                pass
    except msgspec.ValidationError as error:
        raise ConfigError(f"step {number} of the script is not valid: {error}", hint=STEP_FORMS) from None
    raise ConfigError(f"step {number} of the script is not a step: {value!r:.100}", hint=STEP_FORMS)


def _read_call(value: Any) -> ScriptedCall:
    match value:
        case ScriptedCall():
            return value
        case (str() as name, Mapping() as input):
            return ScriptedCall(name, input)
        case _:
            hint = "a call is (name, {its input}), several are a list of them"
            raise msgspec.ValidationError(f"{hint}; {value!r:.80} is not a call")


def _read_usage(value: Any) -> Any:
    """Rename token counts to their wire names. Raises ConfigError for an unknown name."""
    if not isinstance(value, Mapping):
        return value
    fields, wire = Usage.__struct_fields__, [str(name) for name in Usage.__struct_encode_fields__]
    wire_names = dict(zip(fields, wire, strict=True))
    counts = {wire_names.get(str(name), str(name)): count for name, count in value.items()}
    if unknown := sorted(set(counts) - set(wire)):
        raise ConfigError(
            f"a step's usage has no field {unknown[0]!r}", hint=f"its fields are {', '.join(fields)}"
        )
    return counts


def _preview(step: ScriptedStep) -> str:
    text = getattr(step, "__name__", None) or repr(step)
    return text if len(text) <= 60 else f"{text[:59]}…"
