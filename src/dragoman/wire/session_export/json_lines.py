"""Sessions as JSON lines: the first line has the settings, each further line one message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from dragoman.messages import Message, encode

FORMAT = "dragoman-session"
VERSION = 1


class ExportedSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The settings of a session in a file."""

    title: str | None = None
    agent: str | None = None
    model: str | None = None
    max_steps: int | None = None
    labels: tuple[str, ...] = ()
    created_at: float | None = None


class ExportedSession(msgspec.Struct, frozen=True):
    """What a file holds. `digest` is the SHA-256 of its bytes; the messages can be read once."""

    settings: ExportedSettings
    digest: str
    messages: Iterator[Message]


def session_line(settings: ExportedSettings) -> bytes:
    """Return the first line."""
    fields: dict[str, Any] = {"format": FORMAT, "version": VERSION, **msgspec.to_builtins(settings)}
    return msgspec.json.encode(fields) + b"\n"


def message_line(message: Message) -> bytes:
    """Return the line of a message, as the AI SDK's `UIMessage`."""
    return encode(message) + b"\n"
