"""A model that plays a script of a test's own, and says afterwards whether all of it was asked for.

It is a simulator, not a model. A step is what the model says next: a text, a call as `(name, input)`, a list
of calls, a `Step` (or a mapping with its fields) for what has reasoning, usage, delays or a finish of its
own, an exception that is raised, or a function that sees the request and gives one of these.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self, TypeAlias, cast

import msgspec

from dragoman.errors import ConfigError, ProviderError
from dragoman.events import Event, Usage
from dragoman.providers.model import Model
from dragoman.providers.scripted import ScriptedCall, Step, play
from dragoman.request import ModelRequest

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
