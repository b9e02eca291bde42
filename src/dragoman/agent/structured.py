"""Structured output: an answer that is a value of a type, asked for in whichever way a provider is sure of.

How a loop uses it, once a step: `prepare` the request; when the step is over, `read` its text and calls. On a
Problem tell the model: `remind(problem)` is the last message of the next request, at most `attempts` times;
then end with `problem.error()`. A call of `tool` is never run: its result is ACCEPTED, or the problem.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
import pydantic
from msgspec.structs import replace
from pydantic.errors import PydanticUserError

from dragoman import events as e
from dragoman.errors import ConfigError, InvalidInput, ProviderError
from dragoman.messages import Message, TextPart, ToolPart
from dragoman.operations.arguments.parameters import modern
from dragoman.operations.arguments.repair import repair, unfenced
from dragoman.operations.arguments.schema import checker, invalid, model_problems, tidy
from dragoman.operations.outcome import to_json
from dragoman.request import ModelRequest, Named, Tool
from dragoman.wire.anthropic.models import model_of
from dragoman.wire.openai.history import encode_value
from dragoman.wire.strict_schema import is_open, strict

T = TypeVar("T")
Way: TypeAlias = Literal["schema", "tool", "words"]
NAME = "final_answer"
ATTEMPTS = 2
ACCEPTED = "accepted"
LONGEST = 1_000_000  # characters of an answer that is looked through for JSON
_OPENAIS_OWN = re.compile(r"(?:.*/)?(?:gpt-(?!oss)|chatgpt|o\d)")
_FENCED = re.compile(r"```[A-Za-z0-9_-]*[ \t]*\n(.*?)\n?```", re.DOTALL)
_VALUE = "value"  # the field that holds what is no object
_OWN = ("$schema", "$id", "$comment")  # what a schema says of itself, which no provider wants
_TABLES = ("$defs", "definitions")


class Problem(msgspec.Struct, frozen=True):
    """Why an answer is none, in words for the model; `tool_call_id` names the call that it came in."""

    message: str
    tool_call_id: str | None = None

    def error(self, *, type: str = "its type", tries: int = 1) -> ProviderError:
        """The problem as what a run ends with when no attempt is left; `tries` is how often it was asked."""
        often = "" if tries == 1 else f", asked {tries} times"
        error = ProviderError(
            f"the answer does not fit {type}{often}: {self.message}",
            category="unknown",
            hint="see what the model said in result.messages; Output(type, attempts=...) asks more often",
        )
        error.code = "output_invalid"
        return error


class Output(Generic[T]):
    """An answer of a type: whatever pydantic takes, msgspec's structs, or a JSON Schema as a mapping.

    `way` is how it is asked for: by the provider's own JSON schema, by a last tool call, or in words; None
    takes the first of these that the provider is sure to keep to. ConfigError for a type without a schema.
    """

    def __init__(
        self,
        type: type[T],
        *,
        name: str = NAME,
        description: str | None = None,
        attempts: int = ATTEMPTS,
        way: Way | None = None,
    ) -> None:
        self.attempts = attempts
        self.type = _named(type)
        self._way = way
        schema, self._convert = reader(type)
        self._wrapped = schema.get("type") != "object"
        self.schema = _wrap(schema) if self._wrapped else schema
        said = description or schema.get("description") or "The final answer, in the form that is asked for."
        self.tool = Tool(name, f"{said}\nCall this once, at the end, to give the answer.", self.schema)

    def way(self, request: ModelRequest, family: str) -> Way:
        """How this request is answered by a provider of this family."""
        if self._way is not None:
            return self._way
        match family:
            case "anthropic":
                return "schema" if model_of(request.model).schemas and not is_open(self.schema) else "tool"
            case "openai":
                sure = not request.tools or _OPENAIS_OWN.match(request.model)
                return "schema" if sure else "tool"
            case "ollama" | "local":
                return "tool" if request.tools else "schema"
            case "scripted":
                return "schema"
            case _:
                return "words"

    def prepare(self, request: ModelRequest, family: str) -> ModelRequest:
        """The request that asks for the value."""
        match self.way(request, family):
            case "schema":
                held = {"response_format": self._format(family)}
                asked = replace(request, options={**request.options, **held})
                return self._told(asked) if family in ("ollama", "local") else asked
            case "tool":
                others = [tool for tool in request.tools if tool.name != self.tool.name]
                choice = "required" if others else Named(self.tool.name)
                return replace(request, tools=(*others, self.tool), tool_choice=choice)
            case "words":
                return self._told(request)

    def read(self, text: str, tool_calls: Sequence[ToolPart] = ()) -> T | Problem:
        """The value in what a step said: in its call of `tool`, else in its text."""
        call = next((call for call in reversed(tool_calls) if call.name == self.tool.name), None)
        if call is None:
            return self._parsed(text)
        if not isinstance(call.input, Mapping) or call.state == "output-error":
            return Problem(call.error_text or "the arguments are no JSON object", call.tool_call_id)
        return self._valid(call.input, call.tool_call_id)

    def remind(self, problem: Problem) -> Message:
        """What to tell the model of a problem."""
        text = (
            f"That is not the answer in the form that is asked for: {problem.message}\n"
            f"Give it again, whole: by a call of {self.tool.name} if you have that tool, else as JSON and "
            f"nothing else. It must be valid for this JSON Schema:\n{encode_value(self.schema)}"
        )
        return Message("reminder", "user", (TextPart(text),))

    def _format(self, family: str) -> dict[str, Any]:
        exact = strict(self.schema) if family == "openai" else None
        held = {"name": self.tool.name, "schema": exact or self.schema}
        return {"type": "json_schema", "json_schema": {**held, "strict": True} if exact else held}

    def _told(self, request: ModelRequest) -> ModelRequest:
        """With the schema in the instructions: some servers hold a model to a form without telling it."""
        words = (
            "Give the final answer as JSON and nothing else: no words before or after it, no code fence. "
            f"It must be valid for this JSON Schema:\n{encode_value(self.schema)}"
        )
        said = f"{request.instructions}\n\n{words}" if request.instructions else words
        return replace(request, instructions=said)

    def _parsed(self, text: str) -> T | Problem:
        if not text.strip():
            return Problem("there is no answer")
        problem = Problem("the answer is no JSON")
        for value in _values(text):
            read = self._valid(value, None)
            if not isinstance(read, Problem):
                return read
            problem = read
        return problem

    def _valid(self, value: Any, tool_call_id: str | None) -> T | Problem:
        if self._wrapped and isinstance(value, Mapping) and list(value) == [_VALUE]:
            value = value[_VALUE]
        elif self._wrapped and tool_call_id is not None:
            return Problem(f"the arguments must have the one field {_VALUE!r}", tool_call_id)
        try:
            found: T = self._convert(value)
        except InvalidInput as error:
            return Problem(error.message, tool_call_id)
        return found


def reader(type: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """The JSON Schema of a type, and what makes a value of it from JSON; that raises InvalidInput.

    A JSON Schema stands for itself: its values are JSON.
    """
    if isinstance(type, Mapping):
        return {word: held for word, held in type.items() if word not in _OWN}, checker(type, "schema")
    hint = modern(type) if sys.version_info < (3, 12) else type
    try:
        adapter = pydantic.TypeAdapter(hint)
        schema = dict(tidy(adapter.json_schema()))
    except (PydanticUserError, TypeError, NameError):
        return _struct_reader(type)

    def convert(value: Any) -> Any:
        try:
            return adapter.validate_json(msgspec.json.encode(value))
        except pydantic.ValidationError as error:
            raise invalid(model_problems(error, value)) from None

    return schema, convert


def _struct_reader(type: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """The same by msgspec."""
    try:
        (schema,), parts = msgspec.json.schema_components([type], ref_template="#/$defs/{name}")
    except (TypeError, NameError) as error:
        raise ConfigError(f"output: {type!r} has no JSON Schema ({error})") from None
    found = dict(parts.pop(schema["$ref"].rpartition("/")[2])) if _alone(schema, parts) else dict(schema)

    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, type)
        except msgspec.ValidationError as error:
            raise InvalidInput(str(error), problems=[]) from None

    return dict(tidy({**found, "$defs": parts} if parts else found)), convert


def _named(kind: Any) -> str:
    """A type as one would write it."""
    return str(kind.__name__) if isinstance(kind, type) else str(kind).replace("typing.", "")


def _alone(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> bool:
    """Whether the schema is a reference that nothing else refers to."""
    return "$ref" in schema and encode_value(parts).count(f'"{schema["$ref"]}"') == 0


def _wrap(schema: Mapping[str, Any]) -> dict[str, Any]:
    """An object around what is none, since providers want one."""
    inner = {name: held for name, held in schema.items() if name not in _TABLES}
    tables = {name: schema[name] for name in _TABLES if name in schema}
    return {"type": "object", "properties": {_VALUE: inner}, "required": [_VALUE], **tables}


def _values(text: str) -> Iterator[Any]:
    """The JSON values that a text may mean: all of it, what is fenced in it, or from its first bracket on."""
    bare = unfenced(text.strip())[:LONGEST]
    pieces = [bare, *(found[1] for found in _FENCED.finditer(bare))]
    start, end = bare.find("{"), bare.rfind("}")
    if 0 <= start < end:
        pieces.append(bare[start : end + 1])
    for piece in dict.fromkeys(pieces):
        try:
            yield msgspec.json.decode(piece.encode("utf-8", "surrogatepass"))
        except (msgspec.DecodeError, RecursionError):
            found = repair(piece)
            if found is not None:
                yield found


# ---- Concluding: an answer that is to be a value of a type, asked for until it is one.


class Conclusion:
    """Asks for the value, reads it, asks again. `value` is there when `done`."""

    def __init__(self, output: Output[Any] | None) -> None:
        self.done = False
        self.value: Any = None
        self.problem: Problem | None = None
        self._output = output
        self._failed = 0

    @property
    def tool(self) -> str | None:
        """The tool that takes the value; it is never run."""
        return self._output.tool.name if self._output is not None else None

    def prepare(self, request: ModelRequest, family: str) -> ModelRequest:
        """The request that asks for the value, and says what was wrong with the one before."""
        if self._output is None:
            return request
        problem, self.problem = self.problem, None
        if problem is not None:
            request = replace(request, messages=(*request.messages, self._output.remind(problem)))
        return self._output.prepare(request, family)

    def read(self, text: str, calls: Sequence[ToolPart]) -> Sequence[e.Event]:
        """Take the value from a step that gives it; what its call is answered. ProviderError after too many
        attempts.
        """
        if self._output is None or (calls and all(call.name != self.tool for call in calls)):
            return ()
        found = self._output.read(text, calls)
        if not isinstance(found, Problem):
            self.value, self.done = found, True
            open_calls = [c for c in calls if c.name == self.tool and c.state == "input-available"]
            return [e.ToolOutputAvailable(call.tool_call_id, ACCEPTED) for call in open_calls]
        self._failed += 1
        if self._failed > self._output.attempts:
            raise found.error(type=self._output.type, tries=self._failed)
        self.problem = found
        open_calls = [c for c in calls if c.name == self.tool and c.state == "input-available"]
        return [e.ToolOutputError(call.tool_call_id, found.message) for call in open_calls]

    def untold(self, text: str) -> str | None:
        """The value as JSON, unless this text is that: for whoever reads the message alone."""
        said = to_json(self.value).decode()
        try:
            return None if msgspec.json.decode(text) == msgspec.json.decode(said) else said
        except (msgspec.DecodeError, RecursionError):
            return said
