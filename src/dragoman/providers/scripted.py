"""A provider that plays a script: for tests, documents and demos. It is a simulator, not a model.

A script is YAML or JSON: `steps`, a list of answers. Each has `text`, `reasoning`, `tools`
(`[{name, input}]`), `finish`, `usage` and `delay` (seconds between deltas), or `error` instead.
`play: once` (default) takes the steps in order, whoever asks, and `close()` fails when some were not
asked for. `play: turns` takes the step by its place in the turn under way, for ever: for demos.
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
from dragoman.messages import Message, StepStartPart, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.providers.model import Model


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call that the script makes; `input` as a string is sent as it is, valid JSON or not."""

    name: str
    input: Any = msgspec.field(default_factory=dict)
    id: str | None = None


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error that the script raises, after the text if there is some."""

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
    """The steps and how they are taken."""

    steps: list[Step]
    play: Literal["once", "turns"] = "once"


def read_script(path: Path) -> Script:
    """The script in a YAML or JSON file; ConfigError when it is none."""
    try:
        if path.suffix == ".json":
            return msgspec.json.decode(path.read_bytes(), type=Script)
        return msgspec.convert(yaml.safe_load(path.read_text()), Script)
    except (OSError, yaml.YAMLError, msgspec.DecodeError) as error:
        raise ConfigError(f"the script {str(path)!r} cannot be used: {error}") from None


class ScriptedProvider:
    """Plays a script. `requests` keeps the requests, so that a test can look at them."""

    family = "scripted"

    def __init__(self, script: Script | Sequence[Step], *, name: str = "scripted") -> None:
        self.name = name
        self.script = script if isinstance(script, Script) else Script(list(script))
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[e.Event], None]:
        """The next step's events, a batch a delta."""
        step, key = self._next_step(request), len(self.requests)
        self.requests.append(request)
        async with aclosing(play(step, request, key=key, name=self.name)) as answer:
            async for batch in answer:
                yield batch

    @property
    def resting(self) -> bool:
        """See `Provider.resting`."""
        return False

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`: a script takes anything."""
        return ()

    async def close(self) -> None:
        """Fails when the script was not used up."""
        left = len(self.script.steps) - len(self.requests)
        if self.script.play == "once" and left > 0:
            raise ProviderError(f"the script has {left} steps that nobody asked for", category="bad_request")

    def _next_step(self, request: ModelRequest) -> Step:
        at = len(self.requests) if self.script.play == "once" else _turn_step(request.messages)
        if at >= len(self.script.steps):
            raise ProviderError(
                f"the script has only {len(self.script.steps)} steps, this is request {at + 1}",
                category="bad_request",
            )
        return self.script.steps[at]


async def play(
    step: Step, request: ModelRequest, *, key: int, name: str
) -> AsyncGenerator[Sequence[e.Event], None]:
    """The step's events, a batch a delta. `key` makes the ids of its calls."""
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
    """How many answers the turn under way has.

    In the hub these are the steps of the last message. Clients of the gateway send each answer as a message,
    which goes on with its calls' results; beside these some of them (Claude Code) put reminders of their own.
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
    """The tool calls of a message's last step."""
    last = max((at for at, part in enumerate(message.parts) if isinstance(part, StepStartPart)), default=0)
    return [part for part in message.parts[last:] if isinstance(part, ToolPart)]


def _blocks(step: Step, request: ModelRequest, *, key: int) -> Iterator[Sequence[e.Event]]:
    if step.reasoning:
        yield [e.ReasoningStart("reasoning-1")]
        yield from ([e.ReasoningDelta("reasoning-1", piece)] for piece in _pieces(step.reasoning, request))
        yield [e.ReasoningEnd("reasoning-1")]
    if step.text:
        yield [e.TextStart("text-1")]
        yield from ([e.TextDelta("text-1", piece)] for piece in _pieces(step.text, request))
        yield [e.TextEnd("text-1")]
    for index, call in enumerate(step.tools):
        yield from _call_events(call, call.id or f"call_{key}_{index}")


def _pieces(text: str | list[str], request: ModelRequest) -> Iterator[str]:
    pieces = text if isinstance(text, list) else re.findall(r"\s*\S+\s*", text)
    for piece in pieces:
        yield piece.replace("{outputs}", _tool_outputs(request.messages)) if "{outputs}" in piece else piece


def _tool_outputs(messages: Sequence[Message]) -> str:
    """What the tools of the last step gave."""
    answer = next((message for message in reversed(messages) if message.role == "assistant"), None)
    calls = _calls(answer) if answer is not None else ()
    told = [msgspec.json.encode(call.output).decode() for call in calls if call.state == "output-available"]
    return ", ".join(told)


def _call_events(call: ScriptedCall, key: str) -> Iterator[Sequence[e.Event]]:
    text = call.input if isinstance(call.input, str) else msgspec.json.encode(call.input).decode()
    yield [e.ToolInputStart(key, call.name)]
    half = len(text) // 2
    yield from ([e.ToolInputDelta(key, piece)] for piece in (text[:half], text[half:]) if piece)
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        yield [e.ToolInputError(key, call.name, text, f"the arguments are no JSON: {error}")]
        return
    if isinstance(value, Mapping):
        yield [e.ToolInputAvailable(key, call.name, value)]
    else:
        yield [e.ToolInputError(key, call.name, value, "the arguments must be a JSON object")]


# ---- A model that plays a script of a test's own, and says afterwards whether all of it was asked for.
# It is a simulator, not a model. A step is what the model says next: a text, a call as `(name, input)`, a
# list
# of calls, a `Step` (or a mapping with its fields) for what has reasoning, usage, delays or a finish of its
# own, an exception that is raised, or a function that sees the request and gives one of these.

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
    """The provider behind a `ScriptedModel`. `requests` are the requests that it got."""

    family = "scripted"

    def __init__(self, steps: Sequence[ScriptedStep], *, name: str) -> None:
        self.name = name
        self.steps = tuple(steps)
        self.requests: list[ModelRequest] = []

    @property
    def resting(self) -> bool:
        """See `Provider.resting`."""
        return False

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`: a script takes anything."""
        return ()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Event], None]:
        """The next step's events. ProviderError when there is none."""
        key = len(self.requests)
        self.requests.append(request)
        if key >= len(self.steps):
            raise ProviderError(
                f"the script has {len(self.steps)} steps, and this is request {key + 1}",
                category="bad_request",
                hint="give the ScriptedModel another step, or see why the agent asks once more",
            )
        async with aclosing(play(self._step(request, key), request, key=key, name=self.name)) as answer:
            async for batch in answer:
                yield batch

    async def close(self) -> None:
        """Nothing: whether the script was used up is asked by `assert_complete`."""

    def _step(self, request: ModelRequest, key: int) -> Step:
        step = self.steps[key]
        said: Any = step(request) if callable(step) else step
        found = read_step(cast("StepForm", said), number=key + 1)
        if isinstance(found, BaseException):
            raise found
        return found


class ScriptedModel(Model):
    """A model for tests. `async with` fails at its end when the script was not used up.

    ConfigError, at once, for a step that is none; what a function gives is read when it is called.

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
        """What it was asked, in order."""
        return self._player.requests

    def assert_complete(self) -> None:
        """AssertionError when steps are left, or when more was asked than the script has."""
        steps, asked = len(self._player.steps), len(self._player.requests)
        if asked < steps:
            left = ", ".join(_preview(step) for step in self._player.steps[asked:])
            raise AssertionError(f"{steps - asked} of {steps} steps were not asked for: {left}")
        if asked > steps:
            raise AssertionError(f"the model was asked {asked} times, and the script has {steps} steps")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.assert_complete()


def read_step(value: StepForm, *, number: int) -> Step | BaseException:
    """A step as it may be written in short, or what it fails with; ConfigError when it is neither."""
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
                return Step(tools=[_read_call(each) for each in value])
            case _:
                pass
    except msgspec.ValidationError as error:
        raise ConfigError(f"step {number} of the script cannot be used: {error}", hint=STEP_FORMS) from None
    raise ConfigError(f"step {number} of the script is no step: {value!r:.100}", hint=STEP_FORMS)


def _read_call(value: Any) -> ScriptedCall:
    match value:
        case ScriptedCall():
            return value
        case (str() as name, Mapping() as input):
            return ScriptedCall(name, input)
        case _:
            hint = "a call is (name, {its input}), several are a list of them"
            raise msgspec.ValidationError(f"{hint}, and {value!r:.80} is none")


def _read_usage(value: Any) -> Any:
    """Tokens by their names in Python or on the wire. ConfigError for a name that there is not."""
    if not isinstance(value, Mapping):
        return value
    fields, wire = Usage.__struct_fields__, [str(name) for name in Usage.__struct_encode_fields__]
    spelled = dict(zip(fields, wire, strict=True))
    found = {spelled.get(str(name), str(name)): count for name, count in value.items()}
    if unknown := sorted(set(found) - set(wire)):
        raise ConfigError(f"a step's usage has no {unknown[0]!r}", hint=f"it has {', '.join(fields)}")
    return found


def _preview(step: ScriptedStep) -> str:
    text = getattr(step, "__name__", None) or repr(step)
    return text if len(text) <= 60 else f"{text[:59]}…"
