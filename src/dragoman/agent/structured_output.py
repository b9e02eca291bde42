"""Structured output: an answer that is a value of a type, requested in the way that the provider guarantees
best.

A loop calls `prepare` on each request and `read` on each finished step. On a Problem, `remind(problem)` is
the last message of the next request, at most `attempts` times; then the run ends with `problem.error()`. A
call of `tool` is never run: its result is ACCEPTED, or the problem.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from itertools import count
from typing import Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar

import msgspec
import pydantic
from msgspec.structs import replace
from pydantic.errors import PydanticUserError

from dragoman import events as e
from dragoman.errors import ConfigError, InvalidInput, ProviderError
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.messages import Message, TextPart, ToolPart
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool
from dragoman.operations.arguments.broken_json import repair_json, strip_code_fence
from dragoman.operations.arguments.parameters import to_pydantic_hint
from dragoman.operations.arguments.validation import (
    invalid_input,
    make_parser,
    pydantic_problems,
    strip_titles,
)
from dragoman.operations.outcome import encode_result
from dragoman.wire.anthropic.capabilities import model_capabilities
from dragoman.wire.json_codec import encode_json
from dragoman.wire.strict_schema import has_open_objects, to_strict_schema

T = TypeVar("T")
OutputWay: TypeAlias = Literal["schema", "tool", "words"]
DEFAULT_NAME = "final_answer"
DEFAULT_ATTEMPTS = 2
ACCEPTED = "accepted"
MAX_TEXT_LENGTH = 1_000_000  # characters of an answer that are searched for JSON
_OPENAI_MODEL = re.compile(r"(?:.*/)?(?:gpt-(?!oss)|chatgpt|o\d)")
_FENCED = re.compile(r"```[A-Za-z0-9_-]*[ \t]*\n(.*?)\n?```", re.DOTALL)
_VALUE_FIELD = "value"  # the field that holds a value that is not an object
SCHEMA_METADATA = ("$schema", "$id", "$comment")  # schema metadata, which providers refuse
_DEFINITIONS = ("$defs", "definitions")


class Problem(msgspec.Struct, frozen=True):
    """Why an answer is invalid, as text for the model; `tool_call_id` names the call that it was in."""

    message: str
    tool_call_id: str | None = None

    def error(self, *, type: str = "its type", tries: int = 1, hint: str | None = None) -> ProviderError:
        """Return the error that a run ends with when no attempt is left; `tries` is the number of
        attempts.
        """
        attempts_text = "" if tries == 1 else f", asked {tries} times"
        error = ProviderError(
            f"the answer does not fit {type}{attempts_text}: {self.message}",
            category="unknown",
            hint=hint,
        )
        error.code = "output_invalid"
        return error


ATTEMPTS_HINT = "see the answer in result.messages; Output(type, attempts=...) sets the number of attempts"


class Output(Generic[T]):
    """An answer of a type: anything pydantic accepts, msgspec structs, or a JSON Schema as a mapping.

    `way` is how it is requested: by the JSON schema option of the provider, by a final tool call, or by
    instructions;
    None takes the first that the provider is sure to follow. Raises ConfigError for a type without a
    schema.
    """

    hint: ClassVar[str | None] = ATTEMPTS_HINT
    """What to do about an answer that does not fit after the last attempt."""

    def __init__(
        self,
        type: type[T],
        *,
        name: str = DEFAULT_NAME,
        description: str | None = None,
        attempts: int = DEFAULT_ATTEMPTS,
        way: OutputWay | None = None,
    ) -> None:
        self.attempts = attempts
        self.type = _type_name(type)
        self._way = way
        schema, self._convert = self._read_type(type)
        self._wrapped = schema.get("type") != "object"
        self.schema = _wrap_in_object(schema) if self._wrapped else schema
        text = description or schema.get("description") or "The final answer, in the form that is asked for."
        self.tool = Tool(name, f"{text}\nCall this once, at the end, to give the answer.", self.schema)

    def _read_type(self, type: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
        return schema_and_converter(type)

    def way(self, request: ModelRequest, family: str) -> OutputWay:
        """Return how this request is made to a provider of this family."""
        if self._way is not None:
            return self._way
        match family:
            case "anthropic":
                return (
                    "schema"
                    if model_capabilities(request.model).structured_output
                    and not has_open_objects(self.schema)
                    else "tool"
                )
            case "openai" | "responses":
                sure = not request.tools or _OPENAI_MODEL.match(request.model)
                return "schema" if sure else "tool"
            case "ollama" | "local":
                return "tool" if request.tools else "schema"
            case "scripted":
                return "schema"
            case _:
                return "words"

    def prepare(self, request: ModelRequest, family: str) -> ModelRequest:
        """Return the request that asks for the value."""
        match self.way(request, family):
            case "schema":
                option = {"response_format": self._response_format(family)}
                prepared = replace(request, options={**request.options, **option})
                return self._with_instructions(prepared) if family in ("ollama", "local") else prepared
            case "tool":
                others = [tool for tool in request.tools if tool != self.tool]
                if any(tool.name == self.tool.name for tool in others):
                    raise ConfigError(
                        f"the request has a tool {self.tool.name!r} of its own",
                        hint="name the output tool: Output(type, name=...)",
                    )
                choice = "required" if others else NamedToolChoice(self.tool.name)
                return replace(request, tools=(*others, self.tool), tool_choice=choice)
            case "words":
                return self._with_instructions(request)

    def beside(self, tools: Sequence[Tool]) -> Self:
        """Return the output with another name for its tool if one of these tools has its name."""
        taken = {tool.name for tool in tools if tool != self.tool}
        if self.tool.name not in taken:
            return self
        name = next(name for number in count(2) if (name := f"{self.tool.name[:60]}_{number}") not in taken)
        renamed = copy(self)
        renamed.tool = replace(self.tool, name=name)
        return renamed

    def read(self, text: str, tool_calls: Sequence[ToolPart] = ()) -> T | Problem:
        """Return the value in a step: from its call of `tool`, else from its text."""
        call = next((call for call in reversed(tool_calls) if call.name == self.tool.name), None)
        if call is None:
            return self._parse_text(text)
        if not isinstance(call.input, Mapping) or call.state == "output-error":
            return Problem(call.error_text or "the arguments are not a JSON object", call.tool_call_id)
        return self._validate(call.input, call.tool_call_id)

    def remind(self, problem: Problem) -> Message:
        """Return the message that tells the model about a problem."""
        text = (
            f"That is not the answer in the form that is asked for: {problem.message}\n"
            f"Give it again, whole: by a call of {self.tool.name} if you have that tool, else as JSON and "
            f"nothing else. It must be valid for this JSON Schema:\n{encode_json(self.schema)}"
        )
        return Message("reminder", "user", (TextPart(text),))

    def _response_format(self, family: str) -> dict[str, Any]:
        strict_form = to_strict_schema(self.schema) if family in ("openai", "responses") else None
        json_schema = {"name": self.tool.name, "schema": strict_form or self.schema}
        return {
            "type": "json_schema",
            "json_schema": {**json_schema, "strict": True} if strict_form else json_schema,
        }

    def _with_instructions(self, request: ModelRequest) -> ModelRequest:
        """Add the schema to the instructions: some servers constrain the output without telling the model."""
        words = (
            "Give the final answer as JSON and nothing else: no words before or after it, no code fence. "
            f"It must be valid for this JSON Schema:\n{encode_json(self.schema)}"
        )
        instructions = f"{request.instructions}\n\n{words}" if request.instructions else words
        return replace(request, instructions=instructions)

    def _parse_text(self, text: str) -> T | Problem:
        if not text.strip():
            return Problem("there is no answer")
        problem = Problem("the answer is not valid JSON")
        for value in _json_candidates(text):
            read = self._validate(value, None)
            if not isinstance(read, Problem):
                return read
            problem = read
        return problem

    def _validate(self, value: Any, tool_call_id: str | None) -> T | Problem:
        if self._wrapped and isinstance(value, Mapping) and list(value) == [_VALUE_FIELD]:
            value = value[_VALUE_FIELD]
        elif self._wrapped and tool_call_id is not None:
            return Problem(f"the arguments must have the one field {_VALUE_FIELD!r}", tool_call_id)
        try:
            converted: T = self._convert(value)
        except InvalidInput as error:
            return Problem(error.message, tool_call_id)
        return converted


def schema_and_converter(type: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Return the JSON Schema of a type, and the function that makes a value of it from JSON or raises
    InvalidInput.

    A JSON Schema stands for itself: its values are JSON.
    """
    if isinstance(type, Mapping):
        return {word: item for word, item in type.items() if word not in SCHEMA_METADATA}, make_parser(
            type, "schema"
        )
    hint = to_pydantic_hint(type) if sys.version_info < (3, 12) else type
    try:
        adapter = pydantic.TypeAdapter(hint)
        schema = dict(strip_titles(adapter.json_schema()))
    except (PydanticUserError, TypeError, NameError):
        return _struct_schema_and_converter(type)

    check = make_parser(schema, "schema")

    def convert(value: Any) -> Any:
        fitting = repair_value(value, schema)
        try:
            converted = adapter.validate_json(encode_json(fitting))
        except pydantic.ValidationError as error:
            raise invalid_input(pydantic_problems(error, value, schema=schema)) from None
        check(fitting)  # pydantic takes `true` for 1, "on" for true and "NaN" for a number
        return converted

    return schema, convert


def repair_value(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return the value corrected to fit the schema where that takes no guessing, else the value itself."""
    from dragoman.operations.arguments.argument_repair import repair_arguments  # late: imports the validator

    repaired = repair_arguments({_VALUE_FIELD: value}, _wrap_in_object(schema))
    return value if repaired is None else repaired.value[_VALUE_FIELD]


def _struct_schema_and_converter(type: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Return what `schema_and_converter` does, for the types that only msgspec supports. ConfigError."""
    try:
        (schema,), parts = msgspec.json.schema_components([type], ref_template="#/$defs/{name}")
    except (TypeError, NameError) as error:
        raise ConfigError(f"output: {type!r} has no JSON Schema ({error})") from None
    root = (
        dict(parts.pop(schema["$ref"].rpartition("/")[2]))
        if _is_only_reference(schema, parts)
        else dict(schema)
    )

    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, type)
        except msgspec.ValidationError as error:
            raise InvalidInput(str(error), problems=[]) from None

    return dict(strip_titles({**root, "$defs": parts} if parts else root)), convert


def _type_name(annotation: Any) -> str:
    """Return a type as it is written in code."""
    return (
        str(annotation.__name__) if isinstance(annotation, type) else str(annotation).replace("typing.", "")
    )


def _is_only_reference(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> bool:
    """Return whether the schema is a reference that nothing else uses."""
    return "$ref" in schema and encode_json(parts).count(f'"{schema["$ref"]}"') == 0


def _wrap_in_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Wrap a schema that is not an object in one, since providers require objects."""
    inner = {name: item for name, item in schema.items() if name not in _DEFINITIONS}
    tables = {name: schema[name] for name in _DEFINITIONS if name in schema}
    return {"type": "object", "properties": {_VALUE_FIELD: inner}, "required": [_VALUE_FIELD], **tables}


def _json_candidates(text: str) -> Iterator[Any]:
    """Yield the JSON values that a text may mean: all of it, fenced blocks, the spans from the first to the
    last brace and bracket.
    """
    bare = strip_code_fence(text.strip())[:MAX_TEXT_LENGTH]
    pieces = [bare, *(repaired[1] for repaired in _FENCED.finditer(bare))]
    for opening, closing in ("{}", "[]"):
        start, end = bare.find(opening), bare.rfind(closing)
        if 0 <= start < end:
            pieces.append(bare[start : end + 1])
    for piece in dict.fromkeys(pieces):
        try:
            yield decode_json(piece)
        except DECODE_ERRORS:
            repaired = repair_json(piece)
            if repaired is not None:
                yield repaired


class StructuredAnswer:
    """Requests the value, reads it, and requests it again after a problem. `value` is set when
    `is_complete`.
    """

    def __init__(self, output: Output[Any] | None) -> None:
        self.is_complete = False
        self.value: Any = None
        self.problem: Problem | None = None
        self._output = output
        self._failures = 0

    @property
    def tool_name(self) -> str | None:
        """The tool that takes the value; it is never run."""
        return self._output.tool.name if self._output is not None else None

    def prepare_request(self, request: ModelRequest, family: str) -> ModelRequest:
        """Return the request that asks for the value, with the previous problem if there was one."""
        if self._output is None:
            return request
        self._output = self._output.beside(request.tools)
        problem, self.problem = self.problem, None
        if problem is not None:
            request = replace(request, messages=(*request.messages, self._output.remind(problem)))
        return self._output.prepare(request, family)

    def read_step(self, text: str, calls: Sequence[ToolPart]) -> Sequence[e.Event]:
        """Read the value of a finished step and return the outputs of its calls.

        Raises ProviderError after the last attempt.
        """
        if self._output is None or (calls and all(call.name != self.tool_name for call in calls)):
            return ()
        value = self._output.read(text, calls)
        if not isinstance(value, Problem):
            self.value, self.is_complete = value, True
            open_calls = [c for c in calls if c.name == self.tool_name and c.state == "input-available"]
            return [e.ToolOutputAvailable(call.tool_call_id, ACCEPTED) for call in open_calls]
        self._failures += 1
        if self._failures > self._output.attempts:
            raise value.error(type=self._output.type, tries=self._failures, hint=self._output.hint)
        self.problem = value
        open_calls = [c for c in calls if c.name == self.tool_name and c.state == "input-available"]
        return [e.ToolOutputError(call.tool_call_id, value.message) for call in open_calls]

    def missing_json(self, text: str) -> str | None:
        """Return the value as JSON unless the text is that already: for readers of the message alone."""
        value_json = encode_result(self.value, files=False).decode()
        try:
            return None if msgspec.json.decode(text) == msgspec.json.decode(value_json) else value_json
        except DECODE_ERRORS:
            return value_json
