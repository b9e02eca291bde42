"""Finding a text in bytes: where it stands, on which line, and what stands around it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

BEFORE = 80  # bytes shown around what is found
AROUND = 240


class Match(msgspec.Struct, frozen=True):
    """A line that holds the text: its number from 1, the byte at which it is found, what stands there."""

    line: int
    offset: int
    text: str


def find(body: bytes, wanted: str, *, exact: bool = False) -> Iterator[Match]:
    """The lines that hold a text; of a long line a stretch, and as many of them as it holds.

    Unless `exact`, A to Z are taken for a to z.
    """
    pattern = re.compile(re.escape(wanted.encode()), 0 if exact else re.IGNORECASE)
    line, counted, at = 1, 0, 0
    while found := pattern.search(body, at):
        line += body.count(b"\n", counted, found.start())
        counted = found.start()
        begin = max(body.rfind(b"\n", max(0, counted - BEFORE), counted) + 1, counted - BEFORE, 0)
        stop = found.end() + AROUND
        end = body.find(b"\n", found.end(), stop)
        at = end + 1 if end >= 0 else min(stop, len(body))
        yield Match(line, counted, excerpt(body[begin : at if end < 0 else end]))
        if at >= len(body):
            return


def excerpt(raw: bytes) -> str:
    """The text of a stretch, without the parts of characters at its ends."""
    start = next((index for index, byte in enumerate(raw[:4]) if byte & 0xC0 != 0x80), 0)
    return raw[start:].decode(errors="ignore").rstrip("\r")


def is_text(body: bytes) -> bool:
    """Whether the beginning of a file looks like text."""
    return b"\0" not in body[:8_192]
