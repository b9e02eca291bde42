"""A provider that plays a script: for tests, documents and demos. It is a simulator, not a model.

A script is YAML or JSON: `steps`, a list of answers. Each has `text`, `reasoning`, `tools`
(`[{name, input}]`), `finish`, `usage` and `delay` (seconds between deltas), or `error` instead.
`play: once` (default) takes the steps in order, whoever asks, and `close()` fails when some were not
asked for. `play: turns` takes the step by its place in the turn under way, for ever: for demos.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from dragoman import events as e
from dragoman.errors import ConfigError, ProviderCategory, ProviderError
from dragoman.messages import Message, StepStartPart, ToolPart
from dragoman.request import ModelRequest


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
