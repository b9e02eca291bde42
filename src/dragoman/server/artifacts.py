"""HTTP handlers of artifacts: large results as downloads, whole or in ranges, that no browser executes."""

from __future__ import annotations

import re
from typing import NamedTuple

from dragoman.errors import BadRequest
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.disconnect import DisconnectWatch
from dragoman.json_decoding import parse_digits
from dragoman.operations.authorization import RUN_DATA_SCOPES, require_scope
from dragoman.operations.results.artifact import Artifact, ArtifactStore
from dragoman.session_ids import session_id_for

CHUNK_SIZE = 1_048_576  # bytes in memory at a time
RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")
MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(; ?charset=[\w-]+)?", re.ASCII)
FILE_EXTENSIONS = {"application/json": "json", "text/plain": "txt", "text/html": "html", "image/png": "png"}
DOWNLOAD_HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; sandbox",
    "cache-control": "private",
    "accept-ranges": "bytes",
}


class ByteRange(NamedTuple):
    """The bytes from `start` up to, not including, `end`, and the status of the response."""

    start: int
    end: int
    status: int = 200


class ArtifactHandlers:
    """Handlers of `/api/artifacts`. A caller reads only the artifacts of its owner."""

    def __init__(self, artifacts: ArtifactStore) -> None:
        self._artifacts = artifacts

    async def get(self, exchange: Exchange) -> None:
        """Return the artifact's metadata. NotFound, also for an artifact of another owner."""
        found = await self._find(exchange)
        body = {
            "id": found.id,
            "mediaType": found.media_type,
            "size": found.size,
            "createdAt": found.created_at,
            "operation": found.operation,
            "callId": found.call_id,
            "runId": found.run_id,
            "sessionId": session_id_for(exchange.identity.owner, found.session_id),
        }
        await exchange.respond(200, body)

    async def content(self, exchange: Exchange) -> None:
        """Send the content: all of it, one `Range`, or the part that `?offset` and `?limit` select."""
        found = await self._find(exchange)
        etag = f'"{found.id}"'
        piece = requested_range(exchange, found, etag=etag)
        headers = {**DOWNLOAD_HEADERS, "etag": etag, **content_headers(found)}
        if piece.status == 416:
            await exchange.respond(
                416, headers={**DOWNLOAD_HEADERS, "content-range": f"bytes */{found.size}"}
            )
            return
        headers["content-length"] = str(piece.end - piece.start)
        if piece.status == 206:
            headers["content-range"] = f"bytes {piece.start}-{piece.end - 1}/{found.size}"
        if exchange.method == "HEAD":
            await exchange.start_response(piece.status, headers)
            await exchange.send({"type": "http.response.body", "body": b""})
            return
        await self._send(exchange, piece, headers=headers)

    async def _send(self, exchange: Exchange, byte_range: ByteRange, *, headers: dict[str, str]) -> None:
        """Send the range in chunks until the client disconnects."""
        id, owner, at = exchange.path_params["id"], exchange.identity.owner, byte_range.start
        with DisconnectWatch(exchange) as watch:
            while at < byte_range.end or not exchange.response_started:
                body = await self._artifacts.read(
                    id, owner=owner, offset=at, limit=min(CHUNK_SIZE, byte_range.end - at)
                )
                at = at + len(body) if body else byte_range.end
                if not exchange.response_started:  # an error of the first read has its own status
                    await exchange.start_response(byte_range.status, headers)
                watch.response_complete = at >= byte_range.end
                await exchange.send(
                    {"type": "http.response.body", "body": body, "more_body": not watch.response_complete}
                )

    async def _find(self, exchange: Exchange) -> Artifact:
        require_scope(exchange.identity, *RUN_DATA_SCOPES)
        return await self._artifacts.get(exchange.path_params["id"], owner=exchange.identity.owner)


def content_headers(artifact: Artifact) -> dict[str, str]:
    """Return headers of type and file name that hold no text from outside."""
    is_valid = MEDIA_TYPE.fullmatch(artifact.media_type) is not None
    media_type = artifact.media_type if is_valid else "application/octet-stream"
    name = re.sub(r"[^A-Za-z0-9_-]", "_", artifact.id)
    ending = FILE_EXTENSIONS.get(media_type.partition(";")[0], "bin")
    return {
        "content-type": media_type,
        "content-disposition": f'attachment; filename="{name}.{ending}"',
    }


def requested_range(exchange: Exchange, artifact: Artifact, *, etag: str) -> ByteRange:
    """Return the requested bytes. BadRequest for an offset or a limit that is not a number."""
    query, size = exchange.query, artifact.size
    if "offset" in query or "limit" in query:
        start = min(read_number(query, "offset", default=0), size)
        return ByteRange(start, min(start + read_number(query, "limit", default=size), size))
    wanted = RANGE.fullmatch(exchange.headers.get("range", "").replace(" ", ""))
    if wanted is None or wanted[0] == "bytes=-" or exchange.headers.get("if-range", etag) != etag:
        return ByteRange(0, size)  # several or unsupported ranges: the whole content, as HTTP allows
    return parse_range(wanted[1], wanted[2], size=size)


def parse_range(first: str, last: str, *, size: int) -> ByteRange:
    """Parse a `Range`: both ends are inclusive; a last one alone counts from the end."""
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < int(first):
            return ByteRange(0, size)
    return ByteRange(start, end, 206) if start < end else ByteRange(0, 0, 416)


def read_number(query: dict[str, str], name: str, *, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    number = parse_digits(text)
    if number is None:
        raise BadRequest(f"{name} must be a number of bytes, not {text!r:.40}", field=name)
    return number
