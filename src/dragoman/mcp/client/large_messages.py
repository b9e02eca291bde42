"""Large messages of Streamable HTTP, decoded and encoded beside the event loop.

The SDK decodes and encodes messages in the event loop. So the contents of a large message are kept here, and
the SDK gets a reference to them instead, in both directions.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from mcp.types import JSONRPCError, JSONRPCResponse

from dragoman.json_decoding import mend_json
from dragoman.large_json import SMALL, encode_large
from dragoman.mcp.client.jsonrpc import PARSE_ERROR, UnreadableMessage, parse_messages

REFERENCE = "dragoman/body"
MAX_BODIES = 64  # the oldest above it are dropped: those of messages that the SDK has ignored
MAX_ERROR_TEXT = 10_000  # characters of the message of an error; nothing shows more
SEVERAL = "its response is several messages in one"
MAX_INLINE = 1_000  # characters of an argument that the SDK gets in a large request: headers may repeat it
EVENT_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
_REFERENCE_PATTERN = re.compile(rb'"%s"\s*:\s*"([0-9a-f]{32})"' % REFERENCE.encode())


class MessageBodies:
    """The contents of the large messages of one connection. Each is taken once. Thread-safe."""

    def __init__(self) -> None:
        self._bodies: dict[str, Any] = {}

    def put(self, body: Any) -> dict[str, Any]:
        """Store the contents of a message; return the reference to them."""
        key = secrets.token_hex(16)
        self._bodies[key] = body
        if len(self._bodies) > MAX_BODIES:
            self._bodies.pop(next(iter(self._bodies)), None)
        return {REFERENCE: key}

    def take(self, value: Any) -> Any:
        """Return the contents that a reference names, and any other value unchanged."""
        key = value.get(REFERENCE) if isinstance(value, dict) and len(value) == 1 else None
        return self._bodies.pop(key, value) if isinstance(key, str) else value

    def refer(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments in which a reference replaces the large ones, until `fill_in`. Thread-safe."""
        inline = {name: value for name, value in arguments.items() if is_short(value)}
        rest = {name: value for name, value in arguments.items() if name not in inline}
        return {**inline, **self.put(encode_large(rest)[1:-1])} if rest else inline

    def fill_in(self, raw: bytes) -> bytes | None:
        """Return the JSON of a request with the arguments that it refers to; None if it refers to none."""
        found = _REFERENCE_PATTERN.search(raw)
        body = None if found is None else self._bodies.pop(found[1].decode(), None)
        if found is None or not isinstance(body, bytes):
            return None
        return b"".join([raw[: found.start()], body, raw[found.end() :]])

    def shorten(self, raw: bytes) -> bytes:
        """Return the JSON of a message with a reference to its contents; of an unreadable one, an error."""
        messages = list(parse_messages(raw))
        if len(messages) != 1 or isinstance(messages[0], UnreadableMessage):
            first = messages[0] if messages else None
            reason = first.reason if isinstance(first, UnreadableMessage) else SEVERAL
            error = {"code": PARSE_ERROR, "message": reason}
            return msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})
        message = messages[0].message
        if isinstance(message, JSONRPCResponse):
            message.result = self.put(message.result)
        elif isinstance(message, JSONRPCError):
            message.error.message = message.error.message[:MAX_ERROR_TEXT]
            message.error.data = None
        else:
            message.params = self.put(message.params)
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode()

    def shorten_events(self, text: bytes) -> bytes:
        """Return whole server-sent events, with references in large ones."""
        return b"".join(
            self._shorten_event(event) if len(event) > SMALL else mend_lines(event)
            for event in split_events(text)
        )

    def _shorten_event(self, event: bytes) -> bytes:
        """Return an event with a reference to its contents; one that is not a message stays as it is."""
        data: list[bytes] = []
        others: list[bytes] = []
        for line in split_lines(event.replace(b"\r\n", b"\n").replace(b"\r", b"\n")):
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
            elif name:
                others.append(line)
            if name == b"event" and value.strip() != b"message":
                return event
        lines = [*others, b"data: %b" % self.shorten(b"\n".join(data))]
        return b"%b\n\n" % b"\n".join(lines)


def is_short(value: Any) -> bool:
    """Return whether the SDK may get an argument as it is."""
    return len(value) <= MAX_INLINE if isinstance(value, str) else isinstance(value, int | float | None)


def split_events(text: bytes) -> Iterator[bytes]:
    """Yield the events of a text, each with the blank line that ends it."""
    start = 0
    next_ends = dict.fromkeys(EVENT_ENDS, -1)  # the position after the next end of each kind
    while start < len(text):
        for end, next_end in next_ends.items():
            if next_end <= start:
                position = text.find(end, start)
                next_ends[end] = position + len(end) if position >= 0 else len(text)
        first = min(next_ends.values())
        yield text[start:first]
        start = first


def split_lines(text: bytes) -> Iterator[bytes]:
    """Yield the lines of a text. Unlike `splitlines`, other threads can run between two lines."""
    start = 0
    while (end := text.find(b"\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


def mend_lines(text: bytes) -> bytes:
    """Return the lines of an event stream without lone surrogates."""
    if b"\\u" not in text and b"\xed" not in text:  # neither an escape of one nor its bytes
        return text
    return b"".join(map(mend_line, text.splitlines(keepends=True)))


def mend_line(line: bytes) -> bytes:
    """Return a line without lone surrogates."""
    return mend_json(line) or line
