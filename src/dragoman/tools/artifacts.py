"""Kept results to read: `artifacts.read` gives one piece by piece, `artifacts.search` finds a text in it."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, TypedDict

from pydantic import Field

from dragoman.errors import BadRequest, NotFound
from dragoman.operations.artifact import Artifact, Artifacts
from dragoman.operations.context import Context
from dragoman.operations.function import from_function
from dragoman.operations.operation import Operation
from dragoman.tools.files.hunt import find

PIECE = 16_384  # bytes of an artifact in one answer
LARGEST_PIECE = 65_536
LARGEST = 64_000_000  # that is searched
FOUND = 20
MOST_FOUND = 100

Id = Annotated[str, Field(min_length=1, max_length=100)]


class Piece(TypedDict):
    """A piece of an artifact; `size` is of the whole in bytes, `next_offset` null at its end."""

    id: str
    media_type: str
    text: str
    offset: int
    size: int
    next_offset: int | None


class Line(TypedDict):
    """A line that holds the text, or a stretch of a long one: its number from 1, the byte, what it says."""

    line: int
    offset: int
    text: str


class Lines(TypedDict):
    """What was found; not `complete` when there is more."""

    id: str
    found: list[Line]
    complete: bool


def operations(artifacts: Artifacts) -> list[Operation]:
    """`artifacts.read` and `artifacts.search`: each owner's own."""
    return [reading(artifacts), searching(artifacts)]


def reading(artifacts: Artifacts) -> Operation:
    """`artifacts.read`."""

    async def read(
        id: Id,
        *,
        offset: Annotated[int, Field(ge=0)] = 0,
        limit: Annotated[int, Field(ge=16, le=LARGEST_PIECE)] = PIECE,
        context: Context,
    ) -> Piece:
        """Read a piece of a result that was too big to be told whole.

        Args:
            id: The artifact, as the result named it.
            offset: The byte to begin at; next_offset of the piece before.
            limit: How many bytes to read at most.
        """
        owner = context.identity.owner
        known = await look_up(artifacts, id, owner=owner)
        if offset and offset >= known.size:
            raise BadRequest(
                f"offset {offset} is beyond the end: {id!r} has {known.size} bytes", field="offset"
            )
        raw = await artifacts.read(id, owner=owner, offset=offset, limit=limit)
        return cut(known, raw, offset=offset)

    return from_function(read, "artifacts", effect="read", timeout=30)


def searching(artifacts: Artifacts) -> Operation:
    """`artifacts.search`."""

    async def search(
        id: Id,
        pattern: Annotated[str, Field(min_length=1, max_length=200)],
        *,
        exact: bool = False,
        limit: Annotated[int, Field(ge=1, le=MOST_FOUND)] = FOUND,
        context: Context,
    ) -> Lines:
        """Find the lines of a kept result that hold a text; artifacts.read reads on from their offset.

        Args:
            id: The artifact, as the result named it.
            pattern: The text to find, word for word.
            exact: Whether upper and lower case differ.
            limit: How many lines to give at most.
        """
        owner = context.identity.owner
        known = await look_up(artifacts, id, owner=owner)
        body = await artifacts.read(id, owner=owner, limit=LARGEST)
        matches = await context.offload(lambda: list(islice(find(body, pattern, exact=exact), limit + 1)))
        found = [Line(line=each.line, offset=each.offset, text=each.text) for each in matches[:limit]]
        return Lines(id=id, found=found, complete=len(matches) <= limit and known.size <= LARGEST)

    return from_function(search, "artifacts", effect="read", timeout=30)


async def look_up(artifacts: Artifacts, id: str, *, owner: str) -> Artifact:
    try:
        return await artifacts.get(id, owner=owner)
    except NotFound:
        raise NotFound(
            f"there is no artifact {id!r}", hint="the result that was too big names its artifact; call again"
        ) from None


def cut(known: Artifact, raw: bytes, *, offset: int) -> Piece:
    """The text of a piece, between whole characters; BadRequest when it is none."""
    start = next((index for index, byte in enumerate(raw[:4]) if byte & 0xC0 != 0x80), 0) if offset else 0
    body = raw[start:]
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        is_cut = error.reason == "unexpected end of data" and offset + len(raw) < known.size
        if not is_cut:
            raise BadRequest(f"{known.id!r} ({known.media_type}) is no text at this place") from None
        text = body[: error.start].decode()
    begin = offset + start
    end = begin + len(text.encode())
    return Piece(
        id=known.id,
        media_type=known.media_type,
        text=text,
        offset=begin,
        size=known.size,
        next_offset=end if end < known.size else None,
    )
