"""Skim the history in a chat request: `useChat` clients send all messages, and only the last ones are read.

A session with images soon has more bytes than one request may have. The skimmer reads the body in chunks and
keeps the fields other than `messages`, and as many of the last messages as fit. So only the size of the new
message is limited, and memory is bounded. It tracks strings and depth only; the kept body is parsed
afterwards.
"""

from __future__ import annotations

import re
from collections import deque

from dragoman.errors import TooLarge

KEY = b"messages"
STRUCTURE = b'"[]{},'
STRING = re.compile(rb'(?:[^"\\]+|\\.)*', re.DOTALL)
MAX_MESSAGES = 10_000  # of the last ones
OUTSIDE = re.compile(rb'[^"\[\]{},]*')


class HistorySkimmer:
    """Takes the bytes of a chat request; `body()` returns them without the oldest messages.

    Raises TooLarge if the last message, or the rest of the body, has more than `limit` bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._before = bytearray()
        self._after = bytearray()
        self._messages: deque[bytearray] = deque()
        self._size = 0
        self._depth = 0
        self._in_string = False
        self._skips_escaped = False
        self._string = bytearray()
        self._in_messages = False
        self._is_oversized = False

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        at = 0
        while at < len(chunk):
            if self._in_string:
                end = self._string_end(chunk, at)
                self._keep(chunk[at:end])
            elif chunk[at] in STRUCTURE:
                end = at + 1
                self._take_structure(chunk[at:end])
            else:
                match = OUTSIDE.match(chunk, at)
                end = at if match is None else match.end()
                self._keep(chunk[at:end])
            at = end

    def body(self) -> bytes:
        """Return what was kept, once all bytes were fed."""
        if self._is_oversized:
            raise self._too_large("the last message has")
        return bytes(self._before) + b",".join(self._messages) + bytes(self._after)

    def _string_end(self, chunk: bytes, start: int) -> int:
        """Return the end of the string, with its quote, or of the chunk."""
        at = start + self._skips_escaped
        self._skips_escaped = False
        end = chunk.find(b'"', at)
        if end < 0 or chunk.find(b"\\", at, end) >= 0:
            match = STRING.match(chunk, at)
            end = at if match is None else match.end()
        if len(self._string) <= len(KEY):
            self._string += chunk[start : min(end, start + len(KEY) + 1)]
        if end >= len(chunk):
            return len(chunk)
        if chunk[end : end + 1] == b"\\":  # the last byte: what it escapes is in the next chunk
            self._skips_escaped = True
            return len(chunk)
        self._in_string = False
        return end + 1

    def _take_structure(self, byte: bytes) -> None:
        """Take a quote, a bracket or a comma outside of strings."""
        is_inner = self._in_messages and self._depth == 2
        match byte:
            case b'"':
                self._in_string = True
                self._string.clear()
            case b"{" | b"[":
                self._depth += 1
                if byte == b"[" and self._depth == 2 and not self._messages and self._string == KEY:
                    self._before += byte
                    self._in_messages = True
                    self._messages.append(bytearray())
                    return
            case b"]" | b"}":
                self._depth -= 1
                self._in_messages &= not is_inner
            case _:
                if is_inner:
                    self._begin_message()
                    return
        self._keep(byte)

    def _begin_message(self) -> None:
        if self._messages[-1]:
            self._messages.append(bytearray())
        self._is_oversized = False

    def _keep(self, data: bytes) -> None:
        if not self._in_messages:
            rest = self._after if self._messages else self._before
            rest += data
            if len(self._before) + len(self._after) > self._limit:
                raise self._too_large("the request without its messages has")
            return
        if self._is_oversized:
            return
        self._messages[-1] += data
        self._size += len(data)
        while (self._size > self._limit and len(self._messages) > 1) or len(self._messages) > MAX_MESSAGES:
            self._size -= len(self._messages.popleft())
        if self._size > self._limit:
            self._is_oversized, self._size = True, 0
            self._messages[-1].clear()

    def _too_large(self, what: str) -> TooLarge:
        return TooLarge(f"{what} more than {self._limit} bytes", hint="`limits.body` sets the limit")
