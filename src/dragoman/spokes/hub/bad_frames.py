"""Frames of a spoke that cannot be used: what replaces them, and how many a connection may send.

A bad frame fails the call that it answers. It does not end the connection, since that would end the calls of
everybody else, too.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from typing import Any

import msgspec

from dragoman.errors import DragomanError, WireError
from dragoman.json_decoding import DECODE_ERRORS, decode_json, is_deeper_than, prune_depth
from dragoman.operations.sanitize import sanitize_text
from dragoman.spokes.protocol import (
    ErrorFrame,
    OperationOffer,
    RefusedOperation,
    RegisterFrame,
    SpokeFailure,
)

log = logging.getLogger(__name__)

MAX_SCHEMA_DEPTH = 64
SEARCH_CHARS = 400  # characters at either end of a frame in which its type and id are searched
MAX_ID_CHARS = 128
REASON_CHARS = 300
TYPE_PATTERN = re.compile(r'"type"\s*:\s*"(\w{1,20})"')
ID_PATTERN = re.compile(r'"id"\s*:\s*"([^"\\]{1,128})"')
WINDOW_SECONDS = 60.0


class PartialRegister(RegisterFrame, frozen=True, kw_only=True, tag="register"):
    """A registration some of whose operations cannot be read."""

    unreadable: tuple[RefusedOperation, ...] = ()


class SubcallError(ErrorFrame, frozen=True, kw_only=True, tag="error"):
    """The reply to a subcall that cannot be read. Unlike other errors it is sent back to the spoke."""


def replacement(text: str, error: DragomanError) -> ErrorFrame | PartialRegister | None:
    """Return the frame that replaces an unusable one, found by its text or the ends of it.

    It is an error for the call that the frame answers, an error for a subcall, or the usable operations of a
    registration; None for a frame that names no call.
    """
    value = decode_loosely(text)
    type, id = identify(value, text)
    if id is None:
        return None
    code = error.code if error.code != WireError.code else "call_failed"
    reason = sanitize_text(error.message, REASON_CHARS)
    match type:
        case "result" | "error":
            message = f"the answer of the spoke cannot be used: {reason}"
            return ErrorFrame(id=id, error=SpokeFailure(code=code, message=message))
        case "subcall":
            return SubcallError(id=id, error=SpokeFailure(code="bad_request", message=reason))
        case "register" if isinstance(value, dict) and isinstance(value.get("operations"), list):
            return usable_registration(id, value)
        case _:
            return None


def decode_loosely(text: str) -> Any:
    """Return the JSON value, cut where it is nested too deeply; None if it is not JSON."""
    try:
        try:
            return decode_json(text)
        except RecursionError:
            return decode_json(prune_depth(text.encode(errors="replace"), 2 * MAX_SCHEMA_DEPTH))
    except DECODE_ERRORS:
        return None


def identify(value: Any, text: str) -> tuple[str | None, str | None]:
    """Return the type and the id of a frame, as far as they can be read."""
    if isinstance(value, dict):
        type, id = value.get("type"), value.get("id")
        usable = isinstance(id, str) and 0 < len(id) <= MAX_ID_CHARS
        return type if isinstance(type, str) else None, id if usable else None
    ends = text[:SEARCH_CHARS], text[-SEARCH_CHARS:]
    types = [found[1] for end in ends if (found := TYPE_PATTERN.search(end))]
    ids = [found[1] for end in ends if (found := ID_PATTERN.search(end))]
    return (types or [None])[0], (ids or [None])[0]


def both_ends(text: str) -> str:
    """Return the ends of a text that is too long to be decoded, in which its type and id are searched."""
    return f"{text[:SEARCH_CHARS]} … {text[-SEARCH_CHARS:]}"


def usable_registration(id: str, value: dict[str, Any]) -> PartialRegister:
    """Return the operations that can be read, and why the others cannot."""
    usable: list[OperationOffer] = []
    unreadable: list[RefusedOperation] = []
    for item in value["operations"]:
        try:
            if is_deeper_than(item, MAX_SCHEMA_DEPTH):
                raise msgspec.ValidationError(f"it is nested more than {MAX_SCHEMA_DEPTH} deep")
            usable.append(msgspec.convert(item, OperationOffer))
        except msgspec.ValidationError as error:
            failure = SpokeFailure(code="bad_request", message=f"the operation cannot be read: {error}")
            unreadable.append(RefusedOperation(operation=offer_name(item), error=failure))
    everything = value.get("all") is True
    return PartialRegister(id=id, operations=tuple(usable), all=everything, unreadable=tuple(unreadable))


def offer_name(item: Any) -> str:
    """Return the name of an unreadable operation as far as it has one."""
    if not isinstance(item, dict):
        return "?"
    return sanitize_text(f"{item.get('namespace', '?')}.{item.get('name', '?')}", 200)


class BadFrameLog:
    """Logs the bad frames of a connection. `add` raises WireError after more than `limit` in a minute."""

    def __init__(self, limit: int, *, sender: str = "a spoke") -> None:
        self._limit = limit
        self._sender = sender
        self._times: deque[float] = deque()

    def add(self, error: DragomanError) -> None:
        now = asyncio.get_running_loop().time()
        while self._times and self._times[0] <= now - WINDOW_SECONDS:
            self._times.popleft()
        self._times.append(now)
        log.warning("%s sent a frame that cannot be used: %s", self._sender, error.message)
        if len(self._times) > self._limit:
            raise WireError(
                f"more than {self._limit} frames in a minute could not be used; the last: {error.message}"
            )


class FramePacer:
    """Slows reading down to a rate of frames, so that a flooded connection costs little."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._tokens = per_second
        self._filled_at = asyncio.get_running_loop().time()

    async def wait(self) -> None:
        """Count a frame, and wait until the rate allows it."""
        now = asyncio.get_running_loop().time()
        gained = (now - self._filled_at) * self._per_second
        self._tokens, self._filled_at = min(self._per_second, self._tokens + gained) - 1, now
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._per_second)
