"""The vocabulary: what can happen in a run, as frozen structs.

The names and fields are the AI SDK's UI message chunks (docs/design.md §1). Fields that only the process
knows (`FinishStep.usage`, `Finish.steps`, `ErrorEvent.code`, ...) are never put on a wire as they are;
`wire/ui.py` and `wire/hub.py` decide what a client sees of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec

from dragoman.messages import DataFields, DataType, ProviderMetadata

FinishReason = Literal[
    "stop", "length", "content-filter", "tool-calls", "error", "max-steps", "aborted", "other"
]


MAX_TOKENS = 2**53 - 1  # the largest integer that JavaScript reads exactly
_COUNTS = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "reasoning_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "hour_cache_write_tokens",
    "web_searches",
)
_read_counts = attrgetter(*_COUNTS)


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Tokens of one model call or of several. Absent means unknown, never zero.

    `input_tokens` counts the whole prompt, cached parts included; `output_tokens` includes reasoning.
    `hour_cache_write_tokens` are those of `cache_write_tokens` that stay for an hour, `web_searches` are
    those of the provider, `other_models` is the part of all counts that is of models which the provider has
    asked for advice: they have prices of their own, and are not stored.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    estimated: bool = False
    hour_cache_write_tokens: int | None = None
    web_searches: int | None = None
    other_models: tuple[ModelUsage, ...] | None = None

    def __post_init__(self) -> None:
        """Clamp counts to `MAX_TOKENS`: none can be higher, and no database or client stores more.

        A count below zero is unknown.
        """
        counts = _read_counts(self)
        for count in counts:
            if count is not None and not 0 <= count <= MAX_TOKENS:
                self._clamp(counts)
                return

    def _clamp(self, counts: Sequence[int | None]) -> None:
        for name, count in zip(_COUNTS, counts, strict=True):
            if count is not None and not 0 <= count <= MAX_TOKENS:
                msgspec.structs.force_setattr(self, name, MAX_TOKENS if count > 0 else None)

    @property
    def cached(self) -> int:
        """The part of the input that was read from the cache or written into it."""
        return (self.cached_input_tokens or 0) + (self.cache_write_tokens or 0)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=_sum_known(self.input_tokens, other.input_tokens),
            output_tokens=_sum_known(self.output_tokens, other.output_tokens),
            total_tokens=_sum_known(self.total_tokens, other.total_tokens),
            reasoning_tokens=_sum_known(self.reasoning_tokens, other.reasoning_tokens),
            cached_input_tokens=_sum_known(self.cached_input_tokens, other.cached_input_tokens),
            cache_write_tokens=_sum_known(self.cache_write_tokens, other.cache_write_tokens),
            estimated=self.estimated or other.estimated,
            hour_cache_write_tokens=_sum_known(self.hour_cache_write_tokens, other.hour_cache_write_tokens),
            web_searches=_sum_known(self.web_searches, other.web_searches),
            other_models=((self.other_models or ()) + (other.other_models or ())) or None,
        )

    def __sub__(self, part: Usage) -> Usage:
        """Return the counts without those of a part; unknown ones stay unknown."""
        counts = {
            name: None if total is None else max(0, total - (count or 0))
            for name, total, count in zip(_COUNTS, _read_counts(self), _read_counts(part), strict=True)
        }
        return Usage(**counts, estimated=self.estimated)


class ModelUsage(msgspec.Struct, frozen=True, rename="camel"):
    """The tokens of another model than the one that answered."""

    model: str
    usage: Usage


def _sum_known(left: int | None, right: int | None) -> int | None:
    if left is None:
        return right
    return left if right is None else left + right


class BaseEvent(
    msgspec.Struct,
    frozen=True,
    tag_field="type",
    rename="camel",
    omit_defaults=True,
    kw_only=False,
):
    """The base of all events: frozen, tagged with `type`; camelCase and without nulls on the wire."""


class Start(BaseEvent, frozen=True, tag="start"):
    """The assistant message begins, or a stored one continues under its own id."""

    type: ClassVar[Literal["start"]] = "start"
    message_id: str | None = None
    message_metadata: Any = None


class StartStep(BaseEvent, frozen=True, tag="start-step"):
    """A model call begins."""

    type: ClassVar[Literal["start-step"]] = "start-step"


class TextStart(BaseEvent, frozen=True, tag="text-start"):
    """A text block opens; `id` is unique among the open text blocks."""

    type: ClassVar[Literal["text-start"]] = "text-start"
    id: str
    provider_metadata: ProviderMetadata | None = None


class TextDelta(BaseEvent, frozen=True, tag="text-delta"):
    """The open text block `id` grows."""

    type: ClassVar[Literal["text-delta"]] = "text-delta"
    id: str
    delta: str
    provider_metadata: ProviderMetadata | None = None


class TextEnd(BaseEvent, frozen=True, tag="text-end"):
    """The text block closes."""

    type: ClassVar[Literal["text-end"]] = "text-end"
    id: str
    provider_metadata: ProviderMetadata | None = None


class ReasoningStart(BaseEvent, frozen=True, tag="reasoning-start"):
    """A reasoning block opens."""

    type: ClassVar[Literal["reasoning-start"]] = "reasoning-start"
    id: str
    provider_metadata: ProviderMetadata | None = None


class ReasoningDelta(BaseEvent, frozen=True, tag="reasoning-delta"):
    """The open reasoning block `id` grows."""

    type: ClassVar[Literal["reasoning-delta"]] = "reasoning-delta"
    id: str
    delta: str
    provider_metadata: ProviderMetadata | None = None


class ReasoningEnd(BaseEvent, frozen=True, tag="reasoning-end"):
    """The reasoning block closes; signatures come in `provider_metadata`."""

    type: ClassVar[Literal["reasoning-end"]] = "reasoning-end"
    id: str
    provider_metadata: ProviderMetadata | None = None


class ToolInputStart(BaseEvent, frozen=True, tag="tool-input-start"):
    """The model begins a tool call."""

    type: ClassVar[Literal["tool-input-start"]] = "tool-input-start"
    tool_call_id: str
    tool_name: str
    provider_executed: bool | None = None
    dynamic: bool | None = None
    title: str | None = None
    provider_metadata: ProviderMetadata | None = None


class ToolInputDelta(BaseEvent, frozen=True, tag="tool-input-delta"):
    """A fragment of the JSON text of the call's arguments."""

    type: ClassVar[Literal["tool-input-delta"]] = "tool-input-delta"
    tool_call_id: str
    input_text_delta: str


class ToolInputAvailable(BaseEvent, frozen=True, tag="tool-input-available"):
    """The call's arguments are complete."""

    type: ClassVar[Literal["tool-input-available"]] = "tool-input-available"
    tool_call_id: str
    tool_name: str
    input: Any
    provider_executed: bool | None = None
    provider_metadata: ProviderMetadata | None = None
    dynamic: bool | None = None
    title: str | None = None


class ToolInputError(BaseEvent, frozen=True, tag="tool-input-error"):
    """The call cannot run: unknown tool or invalid JSON arguments. `input` is what the model wrote."""

    type: ClassVar[Literal["tool-input-error"]] = "tool-input-error"
    tool_call_id: str
    tool_name: str
    input: Any
    error_text: str
    provider_executed: bool | None = None
    provider_metadata: ProviderMetadata | None = None
    dynamic: bool | None = None
    title: str | None = None


class ToolApprovalRequest(BaseEvent, frozen=True, tag="tool-approval-request"):
    """The call waits for an approval."""

    type: ClassVar[Literal["tool-approval-request"]] = "tool-approval-request"
    approval_id: str
    tool_call_id: str


class ToolApprovalResponse(BaseEvent, frozen=True, tag="tool-approval-response"):
    """The approval was answered."""

    type: ClassVar[Literal["tool-approval-response"]] = "tool-approval-response"
    approval_id: str
    approved: bool
    reason: str | None = None


class ToolOutputAvailable(BaseEvent, frozen=True, tag="tool-output-available"):
    """The call's result. Others may follow a `preliminary` one; none follows the final one."""

    type: ClassVar[Literal["tool-output-available"]] = "tool-output-available"
    tool_call_id: str
    output: Any
    provider_executed: bool | None = None
    dynamic: bool | None = None
    preliminary: bool | None = None
    provider_metadata: ProviderMetadata | None = None


class ToolOutputError(BaseEvent, frozen=True, tag="tool-output-error"):
    """The call failed; the model receives `error_text`."""

    type: ClassVar[Literal["tool-output-error"]] = "tool-output-error"
    tool_call_id: str
    error_text: str
    provider_executed: bool | None = None
    dynamic: bool | None = None
    provider_metadata: ProviderMetadata | None = None


class ToolOutputDenied(BaseEvent, frozen=True, tag="tool-output-denied"):
    """The approval was refused; the call did not run."""

    type: ClassVar[Literal["tool-output-denied"]] = "tool-output-denied"
    tool_call_id: str


class SourceUrl(BaseEvent, frozen=True, tag="source-url"):
    """A web page that the answer cites."""

    type: ClassVar[Literal["source-url"]] = "source-url"
    source_id: str
    url: str
    title: str | None = None
    provider_metadata: ProviderMetadata | None = None


class SourceDocument(BaseEvent, frozen=True, tag="source-document"):
    """A document that the answer cites."""

    type: ClassVar[Literal["source-document"]] = "source-document"
    source_id: str
    media_type: str
    title: str
    filename: str | None = None
    provider_metadata: ProviderMetadata | None = None


class File(BaseEvent, frozen=True, tag="file"):
    """A file that the model generated; `url` may be a data: URL."""

    type: ClassVar[Literal["file"]] = "file"
    url: str
    media_type: str
    provider_metadata: ProviderMetadata | None = None


class Data(DataFields, frozen=True, omit_defaults=True):
    """An app's own data. `type` is `data-<name>`; it replaces the part of the same type and id.

    A `transient` event is not stored. Python's types cannot express `data-<name>`: a type checker reads a
    `DataType`. Distinguish your own types by `name`.
    """

    transient: bool | None = None

    if TYPE_CHECKING:

        @property  # type: ignore[misc] # it is written as text, and read as one of some words
        def type(self) -> DataType: ...


class MessageMetadata(BaseEvent, frozen=True, tag="message-metadata"):
    """Metadata that is merged deeply into the message's."""

    type: ClassVar[Literal["message-metadata"]] = "message-metadata"
    message_metadata: Any


class ResetStep(BaseEvent, frozen=True, tag="reset-step"):
    """Everything since the last start-step is withdrawn."""

    type: ClassVar[Literal["reset-step"]] = "reset-step"


class FinishStep(BaseEvent, frozen=True, tag="finish-step"):
    """The model call and its tool calls are done. Fields stay in the process.

    `duration` is in seconds; `key` is the name of the provider's key that was used. `provider_metadata` is
    for gateway clients of the same family: `{"anthropic": {"stopReason": ..., "stopSequence": ...,
    "id": ...}}`. `service_tier` is the one that served the request, in OpenAI's words.
    """

    type: ClassVar[Literal["finish-step"]] = "finish-step"
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    model: str | None = None
    provider: str | None = None
    duration: float | None = None
    provider_metadata: ProviderMetadata | None = None
    key: str | None = None
    service_tier: str | None = None


class ErrorEvent(BaseEvent, frozen=True, tag="error"):
    """The run failed; `code` and `transient` stay in the process."""

    type: ClassVar[Literal["error"]] = "error"
    error_text: str
    code: str | None = None
    transient: bool | None = None


class Abort(BaseEvent, frozen=True, tag="abort"):
    """The run was stopped."""

    type: ClassVar[Literal["abort"]] = "abort"
    reason: str | None = None


class Finish(BaseEvent, frozen=True, tag="finish"):
    """The run is over. `usage`, `cost` (US dollars) and `steps` stay in the process."""

    type: ClassVar[Literal["finish"]] = "finish"
    finish_reason: FinishReason | None = None
    message_metadata: Any = None
    usage: Usage | None = None
    cost: float | None = None
    steps: int | None = None


FixedEvent: TypeAlias = (
    Start
    | StartStep
    | TextStart
    | TextDelta
    | TextEnd
    | ReasoningStart
    | ReasoningDelta
    | ReasoningEnd
    | ToolInputStart
    | ToolInputDelta
    | ToolInputAvailable
    | ToolInputError
    | ToolApprovalRequest
    | ToolApprovalResponse
    | ToolOutputAvailable
    | ToolOutputError
    | ToolOutputDenied
    | SourceUrl
    | SourceDocument
    | File
    | MessageMetadata
    | ResetStep
    | FinishStep
    | ErrorEvent
    | Abort
    | Finish
)
Event: TypeAlias = FixedEvent | Data

TEXT_DELTAS = (TextDelta, ReasoningDelta)
DeltaHandler: TypeAlias = Callable[[Sequence[Event]], bool]
"""Takes a batch of one of `TEXT_DELTAS` at once, waiting for nothing; returns whether it took it.

It is called from the read of a socket; what it does not take goes through the tasks that wait for it.
"""

_encoder = msgspec.json.Encoder()
_fixed_decoder: msgspec.json.Decoder[FixedEvent] = msgspec.json.Decoder(FixedEvent)
_data_decoder = msgspec.json.Decoder(Data)


def encode(event: Event) -> bytes:
    """Return the event's complete JSON, including the fields that stay in the process."""
    return _encoder.encode(event)


def decode(raw: bytes | str) -> Event:
    """Return the event that `encode` wrote. Raises msgspec.ValidationError for anything else."""
    try:
        return _fixed_decoder.decode(raw)
    except msgspec.ValidationError:
        event = _data_decoder.decode(raw)
        if not event.type.startswith("data-"):
            raise
        return event


def event_type(event: Event) -> str:
    """Return the event's `type`, such as `text-delta`."""
    return event.type
