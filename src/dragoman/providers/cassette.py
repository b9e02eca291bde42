"""Cassettes: files with one recorded request and its answer, without secrets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from dragoman import events as e
from dragoman.errors import ConfigError, ProviderCategory, ProviderError
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.model_request import ModelRequest
from dragoman.redaction import redact, redact_json
from dragoman.wire.json_codec import mapping_enc_hook

Batches: TypeAlias = Sequence[Sequence[e.Event]]


class RecordedError(msgspec.Struct, frozen=True, omit_defaults=True):
    """The error of a recorded answer."""

    message: str
    category: ProviderCategory
    transient: bool = False
    upstream_status: int | None = None
    retry_after: float | None = None
    hint: str | None = None

    @classmethod
    def from_error(cls, error: ProviderError) -> RecordedError:
        """Copy the fields of an error that are recorded."""
        return cls(
            error.message,
            error.category,
            error.transient,
            error.upstream_status,
            error.retry_after,
            error.hint,
        )

    def redacted(self, secrets: Collection[str]) -> RecordedError:
        """Return a copy with secrets redacted."""
        return msgspec.structs.replace(self, message=redact(self.message, secrets))

    def to_error(self) -> ProviderError:
        """Return the error to raise on replay."""
        return ProviderError(
            self.message,
            category=self.category,
            upstream_status=self.upstream_status,
            transient=self.transient,
            retry_after=self.retry_after,
            hint=self.hint,
        )


class Cassette(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One recording: `request` and `answer` are JSON values; `file_name` is set when it is read."""

    provider: str
    family: str
    request: Any
    answer: list[list[Any]]
    error: RecordedError | None = None
    file_name: str = ""

    def encode(self) -> bytes:
        """Encode as indented JSON, so that people can read and diff it."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def batches(self) -> Iterator[list[e.Event]]:
        """Yield the recorded batches of events."""
        for batch in self.answer:
            yield [e.decode(msgspec.json.encode(event)) for event in batch]


def read_cassettes(folder: Path) -> list[Cassette]:
    """Read the recordings of a folder, in order. Raises ConfigError if one is not readable."""
    cassettes: list[Cassette] = []
    for path in sorted(folder.glob("*.json")):
        try:
            cassette = msgspec.json.decode(path.read_bytes(), type=Cassette)
        except (OSError, *DECODE_ERRORS) as error:
            raise ConfigError(f"the recording {str(path)!r} cannot be read: {error}") from None
        cassettes.append(msgspec.structs.replace(cassette, file_name=path.name))
    return cassettes


def normalise_request(request: ModelRequest, secrets: Collection[str]) -> Any:
    """Return the request as JSON, without secrets and without ids and metadata, which differ in each run."""
    messages = [
        msgspec.structs.replace(message, id=f"message-{number}", metadata=None)
        for number, message in enumerate(request.messages, 1)
    ]
    normalised = msgspec.structs.replace(request, messages=messages)
    return redact_json(
        msgspec.json.decode(msgspec.json.encode(normalised, enc_hook=mapping_enc_hook)), secrets
    )


def redact_answer(batches: Batches, secrets: Collection[str]) -> list[list[e.Event]]:
    """Redact an answer. The deltas of a block with a secret become one, since it may span several."""
    redacted = {key: redact(text, secrets) for key, text in _block_texts(batches).items()}
    changed = {key: redacted[key] for key, text in _block_texts(batches).items() if redacted[key] != text}
    answer: list[list[e.Event]] = []
    for batch in batches:
        events = [_redact_event(event, changed, secrets=secrets) for event in batch]
        if remaining := [event for event in events if event is not None]:
            answer.append(remaining)
    return answer


def _block_texts(batches: Batches) -> dict[tuple[str, str], str]:
    """Return the complete text of each block and of each call's arguments."""
    texts: dict[tuple[str, str], str] = {}
    for batch in batches:
        for event in batch:
            delta = _delta_of(event)
            if delta is not None:
                key, text = delta
                texts[key] = texts.get(key, "") + text
    return texts


def _delta_of(event: e.Event) -> tuple[tuple[str, str], str] | None:
    match event:
        case e.TextDelta() | e.ReasoningDelta():
            return (e.event_type(event), event.id), event.delta
        case e.ToolInputDelta():
            return (e.event_type(event), event.tool_call_id), event.input_text_delta
        case _:
            return None


def _redact_event(
    event: e.Event, redacted_blocks: dict[tuple[str, str], str], *, secrets: Collection[str]
) -> e.Event | None:
    """Redact an event; None for a delta whose block was merged into its first delta."""
    delta = _delta_of(event)
    if delta is None:
        return e.decode(msgspec.json.encode(redact_json(msgspec.to_builtins(event), secrets)))
    key, _ = delta
    if key not in redacted_blocks:
        return event
    text, redacted_blocks[key] = redacted_blocks[key], ""
    if not text:
        return None
    name = "input_text_delta" if isinstance(event, e.ToolInputDelta) else "delta"
    return msgspec.structs.replace(event, **{name: text})
