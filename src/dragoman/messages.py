"""Messages and their parts, in the shapes of the AI SDK's `UIMessage`.

Source: wire notes on the AI SDK, section "UIMessage and parts". Snake case in Python, camelCase as JSON.
`encode(message)` and `decode(raw)` are inverse; unknown part types are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from dragoman.errors import BadRequest
from dragoman.json_decoding import decode_typed
from dragoman.large_json import LARGE, SMALL, VALUE, encode_large, measure

Role = Literal["system", "user", "assistant"]
BlockState = Literal["streaming", "done"]
ToolState = Literal[
    "input-streaming",
    "input-available",
    "approval-requested",
    "approval-responded",
    "output-available",
    "output-error",
    "output-denied",
]
ToolType = Literal["dynamic-tool", "tool-*"]
"""`dynamic-tool` or `tool-<name>`, as far as a type can express it; `ToolPart.name` is the name of either."""
DataType = Literal["data-context", "data-question", "data-anthropic", "data-*"]
"""`data-<name>`, as far as a type can express it: the hub's own types, and any other."""
ProviderMetadata: TypeAlias = dict[str, dict[str, Any]]
OUTPUT_CALL: ProviderMetadata = {"dragoman": {"output": True}}
"""The metadata of a call that gives the value of an agent with an output: it is not a call of any tool."""
FINAL_STATES: frozenset[str] = frozenset({"output-available", "output-error", "output-denied"})


class BasePart(msgspec.Struct, frozen=True, tag_field="type", rename="camel", omit_defaults=True):
    """The base of all parts with a fixed type."""

    @property
    def type(self) -> str:
        """The part's type: `text`, `reasoning`, `file`, ..."""
        return str(self.__struct_config__.tag)


class TextPart(BasePart, frozen=True, tag="text"):
    """Text of a user or a model."""

    type: ClassVar[Literal["text"]] = "text"
    text: str
    state: BlockState | None = None
    provider_metadata: ProviderMetadata | None = None


class ReasoningPart(BasePart, frozen=True, tag="reasoning"):
    """The model's reasoning; signatures are in `provider_metadata`."""

    type: ClassVar[Literal["reasoning"]] = "reasoning"
    text: str
    state: BlockState | None = None
    provider_metadata: ProviderMetadata | None = None


class StepStartPart(BasePart, frozen=True, tag="step-start"):
    """The border between two model calls."""

    type: ClassVar[Literal["step-start"]] = "step-start"


class FilePart(BasePart, frozen=True, tag="file"):
    """A file by URL; `url` may be a data: URL."""

    type: ClassVar[Literal["file"]] = "file"
    media_type: str
    url: str
    filename: str | None = None
    provider_metadata: ProviderMetadata | None = None


class SourceUrlPart(BasePart, frozen=True, tag="source-url"):
    """A web page that the answer cites."""

    type: ClassVar[Literal["source-url"]] = "source-url"
    source_id: str
    url: str
    title: str | None = None
    provider_metadata: ProviderMetadata | None = None


class SourceDocumentPart(BasePart, frozen=True, tag="source-document"):
    """A document that the answer cites."""

    type: ClassVar[Literal["source-document"]] = "source-document"
    source_id: str
    media_type: str
    title: str
    filename: str | None = None
    provider_metadata: ProviderMetadata | None = None


class Approval(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An approval request for a tool call, and its answer once there is one."""

    id: str
    approved: bool | None = None
    reason: str | None = None


class ToolPartFields(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The fields of a `ToolPart`."""

    type: str
    tool_call_id: str
    state: ToolState
    tool_name: str | None = None
    title: str | None = None
    input: Any = UNSET
    raw_input: Any = UNSET
    output: Any = UNSET
    error_text: str | None = None
    preliminary: bool | None = None
    provider_executed: bool | None = None
    approval: Approval | None = None
    call_provider_metadata: ProviderMetadata | None = None
    result_provider_metadata: ProviderMetadata | None = None


class ToolPart(ToolPartFields, frozen=True, rename="camel", omit_defaults=True):
    """A tool call in one of its states. `type` is `tool-<name>`, or `dynamic-tool` with `tool_name`.

    `input` and `output` are UNSET until they exist; None is a value. `type` is any text of that form; a type
    checker reads it as a `ToolType`, so that `part.type == "text"` distinguishes parts.
    """

    if TYPE_CHECKING:

        @property  # type: ignore[misc] # it is written as text, and read as one of some words
        def type(self) -> ToolType: ...

    @property
    def name(self) -> str:
        """The tool's name, in either form of the part."""
        return self.tool_name or "" if self.type == "dynamic-tool" else self.type[len("tool-") :]

    @property
    def dynamic(self) -> bool | None:
        """True for a tool for which the front end has no type."""
        return True if self.type == "dynamic-tool" else None


class DataFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields that an app's own parts and events share."""

    type: str
    data: Any
    id: str | None = None

    @property
    def name(self) -> str:
        """The type without `data-`."""
        return self.type[len("data-") :]


class DataPart(DataFields, frozen=True, omit_defaults=True):
    """An app's own part; `type` is `data-<name>`, which a type checker reads as a `DataType`."""

    if TYPE_CHECKING:

        @property  # type: ignore[misc] # as above
        def type(self) -> DataType: ...


FixedPart: TypeAlias = (
    TextPart | ReasoningPart | StepStartPart | FilePart | SourceUrlPart | SourceDocumentPart
)
Part: TypeAlias = FixedPart | ToolPart | DataPart


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a conversation: a list of parts.

    `Message("m1", "user", (TextPart("Hello?"),)).text == "Hello?"`.
    """

    id: str
    role: Role
    parts: tuple[Part, ...] = msgspec.field(default=())
    metadata: Any = None

    @property
    def text(self) -> str:
        """The text parts: joined by newlines; in an answer concatenated, with an empty line between steps."""
        if self.role != "assistant":
            return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))
        steps = [""]
        for part in self.parts:
            if isinstance(part, StepStartPart):
                steps.append("")
            elif isinstance(part, TextPart):
                steps[-1] += part.text
        return "\n\n".join(step for step in steps if step)

    @property
    def reasoning(self) -> str:
        """The reasoning parts, joined by empty lines."""
        return "\n\n".join(part.text for part in self.parts if isinstance(part, ReasoningPart) and part.text)

    @property
    def tool_calls(self) -> tuple[ToolPart, ...]:
        """The tool calls in order, each with its state, and its output once there is one."""
        return tuple(part for part in self.parts if isinstance(part, ToolPart))

    @property
    def files(self) -> tuple[FilePart, ...]:
        """The images and files."""
        return tuple(part for part in self.parts if isinstance(part, FilePart))


class MessageHead(msgspec.Struct):
    """A message without its parts, as decoded from JSON."""

    id: str
    role: Role
    metadata: Any = None


_encoder = msgspec.json.Encoder()
_fixed_decoder: msgspec.json.Decoder[FixedPart] = msgspec.json.Decoder(FixedPart)
_tool_decoder = msgspec.json.Decoder(ToolPart)
_data_decoder = msgspec.json.Decoder(DataPart)


def encode(message: Message) -> bytes:
    """Encode the message as AI SDK `UIMessage` JSON. `parts` is always present: the SDK requires it."""
    return _encoder.encode(to_json(message))


def to_json(message: Message) -> dict[str, Any]:
    """Return the message as a JSON value whose parts are still structs, for bodies of several messages."""
    body: dict[str, Any] = {"id": message.id, "role": message.role, "parts": message.parts}
    if message.metadata is not None:
        body["metadata"] = message.metadata
    return body


def messages_size(messages: Iterable[Message]) -> int:
    """Return about how many bytes messages take; of many, some number above `offload.SMALL`.

    Messages and parts without content count too: each of them takes time.
    """
    size = 0
    for message in messages:
        size += VALUE * (1 + len(message.parts))
        for part in message.parts:
            if size > SMALL:
                return size
            size += part_size(part)
        if size > SMALL:
            break
    return size


def part_size(part: Part) -> int:
    """Return about how many bytes what is in a part takes; of much, some number above `offload.SMALL`."""
    match part:
        case TextPart():
            return len(part.text)
        case FilePart():
            return len(part.url)
        case ReasoningPart():
            return len(part.text) + measure(part.provider_metadata)
        case ToolPart():
            return measure(part.input) + measure(part.output)
        case DataPart():
            return measure(part.data)
        case _:
            return 0


def encode_part(part: Part) -> bytes:
    """Encode a part as JSON, in the store's format."""
    if isinstance(part, TextPart | ReasoningPart) and len(part.text) > LARGE:
        return encode_large(msgspec.to_builtins(part))
    return _encoder.encode(part)


def encode_messages(messages: Iterable[Message]) -> bytes:
    """Encode messages as a JSON list, part by part."""
    encoded = [
        {**to_json(message), "parts": [msgspec.Raw(encode_part(part)) for part in message.parts]}
        for message in messages
    ]
    return _encoder.encode(encoded)


def decode_part(raw: str) -> Part:
    """Return the part that `encode_part` wrote. Its JSON begins with the type."""
    if raw.startswith(('{"type":"tool-', '{"type":"dynamic-tool"')):
        decoder: msgspec.json.Decoder[Any] = _tool_decoder
    else:
        decoder = _data_decoder if raw.startswith('{"type":"data-') else _fixed_decoder
    part: Part = decoder.decode(raw) if len(raw) <= LARGE else decode_typed(raw.encode(), decoder)
    return part


def decode(raw: bytes | str) -> Message:
    """Decode `UIMessage` JSON. Raises BadRequest."""
    return parse_message(msgspec.json.decode(raw))


def parse_message(value: Any, *, field: str = "message") -> Message:
    """Return the message in a decoded `UIMessage`. Raises BadRequest with a path below `field`."""
    if not isinstance(value, Mapping):
        raise BadRequest(f"{field} must be an object, got {value!r:.80}", field=field)
    parts = value.get("parts")
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise BadRequest(f"{field}.parts must be a list", field=f"{field}.parts")
    parsed = tuple(parse_part(part, field=f"{field}.parts[{index}]") for index, part in enumerate(parts))
    head: MessageHead = _convert(value, MessageHead, field=field)
    return Message(id=head.id, role=head.role, parts=parsed, metadata=head.metadata)


def parse_part(value: Any, *, field: str = "part") -> Part:
    """Return the part in a decoded JSON object. Raises BadRequest for an invalid type or field."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(kind, str):
        raise BadRequest(f"{field} must be an object with a string `type`", field=field)
    shape: Any = FixedPart
    if kind.startswith("tool-") or kind == "dynamic-tool":
        shape = ToolPart
    elif kind.startswith("data-"):
        shape = DataPart
    part: Part = _convert(value, shape, field=field)
    return part


def _convert(value: Any, kind: Any, *, field: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{field}: {error}", field=field) from None
