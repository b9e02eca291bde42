"""`artifacts.read` and `artifacts.search`: read a stored result in pieces, and search it for a text."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, TypedDict

from pydantic import Field

from dragoman.errors import BadRequest, NotFound
from dragoman.operations.context import Context
from dragoman.operations.definitions.decorator import from_function
from dragoman.operations.operation import Operation
from dragoman.operations.results.artifact import Artifact, ArtifactStore
from dragoman.tools.files.folder_search import find_lines

DEFAULT_PIECE_BYTES = 16_384  # bytes of an artifact in one answer
MAX_PIECE_BYTES = 65_536
MAX_SEARCHED_BYTES = 64_000_000  # bytes that are searched
DEFAULT_MATCHES = 20
MAX_MATCHES = 100

ArtifactId = Annotated[str, Field(min_length=1, max_length=100)]


class ArtifactPiece(TypedDict):
    """A piece of an artifact. `size` is the whole artifact's in bytes; `next_offset` is null at its end."""

    id: str
    media_type: str
    text: str
    offset: int
    size: int
    next_offset: int | None


class ArtifactLine(TypedDict):
    """A line that contains the text, or a part of a long one: line number from 1, byte offset, text."""

    line: int
    offset: int
    text: str


class ArtifactLines(TypedDict):
    """The matching lines; not `complete` if there are more."""

    id: str
    found: list[ArtifactLine]
    complete: bool


def operations(artifacts: ArtifactStore) -> list[Operation]:
    """Return `artifacts.read` and `artifacts.search`; each owner reads its own."""
    return [read_operation(artifacts), search_operation(artifacts)]


def read_operation(artifacts: ArtifactStore) -> Operation:
    """Return `artifacts.read`."""

    async def read(
        id: ArtifactId,
        *,
        offset: Annotated[int, Field(ge=0)] = 0,
        limit: Annotated[int, Field(ge=16, le=MAX_PIECE_BYTES)] = DEFAULT_PIECE_BYTES,
        context: Context,
    ) -> ArtifactPiece:
        """Read a piece of a result that was too big to be shown whole.

        Args:
            id: The artifact, as the result named it.
            offset: The byte to start at; next_offset of the previous piece.
            limit: How many bytes to read at most.
        """
        owner = context.identity.owner
        artifact = await get_artifact(artifacts, id, owner=owner)
        if offset and offset >= artifact.size:
            raise BadRequest(
                f"The offset {offset} is beyond the end: {id!r} has {artifact.size} bytes.", field="offset"
            )
        raw = await artifacts.read(id, owner=owner, offset=offset, limit=limit)
        return make_piece(artifact, raw, offset=offset)

    return from_function(read, "artifacts", effect="read", timeout=30)


def search_operation(artifacts: ArtifactStore) -> Operation:
    """Return `artifacts.search`."""

    async def search(
        id: ArtifactId,
        pattern: Annotated[str, Field(min_length=1, max_length=200)],
        *,
        exact: bool = False,
        limit: Annotated[int, Field(ge=1, le=MAX_MATCHES)] = DEFAULT_MATCHES,
        context: Context,
    ) -> ArtifactLines:
        """Find the lines of a stored result that contain a text; artifacts.read reads on from their offset.

        Args:
            id: The artifact, as the result named it.
            pattern: The text to find, word for word.
            exact: Whether the search is case-sensitive.
            limit: How many lines to return at most.
        """
        owner = context.identity.owner
        artifact = await get_artifact(artifacts, id, owner=owner)
        body = await artifacts.read(id, owner=owner, limit=MAX_SEARCHED_BYTES)
        matches = await context.offload(
            lambda: list(islice(find_lines(body, pattern, exact=exact), limit + 1))
        )
        lines = [
            ArtifactLine(line=match.line, offset=match.offset, text=match.text) for match in matches[:limit]
        ]
        return ArtifactLines(
            id=id, found=lines, complete=len(matches) <= limit and artifact.size <= MAX_SEARCHED_BYTES
        )

    return from_function(search, "artifacts", effect="read", timeout=30)


async def get_artifact(artifacts: ArtifactStore, id: str, *, owner: str) -> Artifact:
    try:
        return await artifacts.get(id, owner=owner)
    except NotFound:
        raise NotFound(
            f"There is no artifact {id!r}.",
            hint="The result that was too big names its artifact; call again.",
        ) from None


def make_piece(artifact: Artifact, raw: bytes, *, offset: int) -> ArtifactPiece:
    """Return a piece as text, cut between whole characters. Raises BadRequest if it is not text."""
    start = next((index for index, byte in enumerate(raw[:4]) if byte & 0xC0 != 0x80), 0) if offset else 0
    body = raw[start:]
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        is_cut = error.reason == "unexpected end of data" and offset + len(raw) < artifact.size
        if not is_cut:
            raise BadRequest(f"{artifact.id!r} ({artifact.media_type}) is not text at this offset.") from None
        text = body[: error.start].decode()
    first_byte = offset + start
    end = first_byte + len(text.encode())
    return ArtifactPiece(
        id=artifact.id,
        media_type=artifact.media_type,
        text=text,
        offset=first_byte,
        size=artifact.size,
        next_offset=end if end < artifact.size else None,
    )
