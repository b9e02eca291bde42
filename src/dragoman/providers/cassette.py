"""A cassette: one request to a provider and its answer, as they are kept in a file, without secrets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from dragoman import events as e
from dragoman.errors import ConfigError, ProviderCategory, ProviderError
from dragoman.model_request import ModelRequest
from dragoman.providers.retry import redact
from dragoman.wire.json_codec import mapping_enc_hook

Batches: TypeAlias = Sequence[Sequence[e.Event]]


class RecordedError(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the answer failed."""

    message: str
    category: ProviderCategory
    transient: bool = False
    upstream_status: int | None = None
    retry_after: float | None = None
    hint: str | None = None

    @classmethod
    def from_error(cls, error: ProviderError) -> RecordedError:
        """What is kept of an error."""
        return cls(
            error.message,
            error.category,
            error.transient,
            error.upstream_status,
            error.retry_after,
            error.hint,
        )

    def redacted(self, secrets: Collection[str]) -> RecordedError:
        """The same, masked."""
        return msgspec.structs.replace(self, message=redact(self.message, secrets))

    def to_error(self) -> ProviderError:
        """The error again."""
        return ProviderError(
            self.message,
            category=self.category,
            upstream_status=self.upstream_status,
            transient=self.transient,
            retry_after=self.retry_after,
            hint=self.hint,
        )


class Cassette(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`request` and `answer` as JSON values; `file_name` is the file's name."""

    provider: str
    family: str
    request: Any
    answer: list[list[Any]]
    error: RecordedError | None = None
    file_name: str = ""

    def encode(self) -> bytes:
        """The file: JSON for people to read and compare."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def batches(self) -> Iterator[list[e.Event]]:
        """The events, as they came."""
        for batch in self.answer:
            yield [e.decode(msgspec.json.encode(event)) for event in batch]


def read_cassettes(folder: Path) -> list[Cassette]:
    """The recordings in a folder, in their order; ConfigError when one cannot be read."""
    found: list[Cassette] = []
    for path in sorted(folder.glob("*.json")):
        try:
            cassette = msgspec.json.decode(path.read_bytes(), type=Cassette)
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"the recording {str(path)!r} cannot be read: {error}") from None
        found.append(msgspec.structs.replace(cassette, file_name=path.name))
    return found


def normalise_request(request: ModelRequest, secrets: Collection[str]) -> Any:
    """What is asked, without what differs from run to run, and without secrets."""
    messages = [
        msgspec.structs.replace(message, id=f"message-{number}", metadata=None)
        for number, message in enumerate(request.messages, 1)
    ]
    whole = msgspec.structs.replace(request, messages=messages)
    return redact_json(msgspec.json.decode(msgspec.json.encode(whole, enc_hook=mapping_enc_hook)), secrets)


def redact_answer(batches: Batches, secrets: Collection[str]) -> list[list[e.Event]]:
    """An answer without secrets, also those that came in pieces: such a block comes as one piece then."""
    clean = {key: redact(text, secrets) for key, text in _block_texts(batches).items()}
    dirty = {key: clean[key] for key, text in _block_texts(batches).items() if clean[key] != text}
    kept = ([_redact_event(event, dirty, secrets=secrets) for event in batch] for batch in batches)
    return [left for batch in kept if (left := [event for event in batch if event is not None])]


def redact_json(value: Any, secrets: Collection[str]) -> Any:
    """A JSON value whose strings, keys of objects too, are masked."""
    match value:
        case str():
            return redact(value, secrets)
        case Mapping():
            return {redact(str(name), secrets): redact_json(item, secrets) for name, item in value.items()}
        case list() | tuple():
            return [redact_json(item, secrets) for item in value]
        case _:
            return value


def _block_texts(batches: Batches) -> dict[tuple[str, str], str]:
    """What each block and each call's arguments are in whole."""
    texts: dict[tuple[str, str], str] = {}
    for batch in batches:
        for event in batch:
            piece = _delta_of(event)
            if piece is not None:
                key, text = piece
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
    """The event, masked; None for a piece of a block whose first piece has said all of it."""
    piece = _delta_of(event)
    if piece is None:
        return e.decode(msgspec.json.encode(redact_json(msgspec.to_builtins(event), secrets)))
    key, _ = piece
    if key not in redacted_blocks:
        return event
    text, redacted_blocks[key] = redacted_blocks[key], ""
    if not text:
        return None
    name = "input_text_delta" if isinstance(event, e.ToolInputDelta) else "delta"
    return msgspec.structs.replace(event, **{name: text})
