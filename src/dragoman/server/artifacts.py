"""Artifact doors: big results, whole or piece by piece, as downloads that no browser runs."""

from __future__ import annotations

import re
from typing import NamedTuple

from dragoman.errors import BadRequest
from dragoman.operations.artifact import Artifact
from dragoman.operations.artifact import Artifacts as Kept
from dragoman.server.calls import require_any
from dragoman.server.exchange import Exchange
from dragoman.server.streaming import Presence

PIECE = 1_048_576  # bytes that are in memory at a time
DIGITS = 15
RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")
MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(; ?charset=[\w-]+)?", re.ASCII)
ENDINGS = {"application/json": "json", "text/plain": "txt", "text/html": "html", "image/png": "png"}
UNTRUSTED = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; sandbox",
    "cache-control": "private",
    "accept-ranges": "bytes",
}


class Piece(NamedTuple):
    """Bytes from `start` up to `end`, exclusively, and how that is answered."""

    start: int
    end: int
    status: int = 200


class Artifacts:
    """The doors under `/api/artifacts`: to each its own."""

    def __init__(self, artifacts: Kept) -> None:
        self._artifacts = artifacts

    async def get(self, exchange: Exchange) -> None:
        """What is known of it. NotFound, also for another's."""
        found = await self._find(exchange)
        body = {
            "id": found.id,
            "mediaType": found.media_type,
            "size": found.size,
            "createdAt": found.created_at,
            "operation": found.operation,
            "callId": found.call_id,
            "runId": found.run_id,
            "sessionId": found.session_id,
        }
        await exchange.answer(200, body)

    async def content(self, exchange: Exchange) -> None:
        """Its bytes: all, those of one `Range`, or those of `?offset` and `?limit`."""
        found = await self._find(exchange)
        etag = f'"{found.id}"'
        piece = piece_of(exchange, found, etag=etag)
        headers = {**UNTRUSTED, "etag": etag, **described(found)}
        if piece.status == 416:
            await exchange.answer(416, headers={**UNTRUSTED, "content-range": f"bytes */{found.size}"})
            return
        headers["content-length"] = str(piece.end - piece.start)
        if piece.status == 206:
            headers["content-range"] = f"bytes {piece.start}-{piece.end - 1}/{found.size}"
        if exchange.method == "HEAD":
            await exchange.begin(piece.status, headers)
            await exchange.send({"type": "http.response.body", "body": b""})
            return
        await self._send(exchange, piece, headers=headers)

    async def _send(self, exchange: Exchange, piece: Piece, *, headers: dict[str, str]) -> None:
        """Piece by piece, for as long as somebody is there."""
        id, owner, at = exchange.params["id"], exchange.identity.owner, piece.start
        async with Presence(exchange) as presence:
            while at < piece.end or not exchange.begun:
                body = await self._artifacts.read(
                    id, owner=owner, offset=at, limit=min(PIECE, piece.end - at)
                )
                at = at + len(body) if body else piece.end
                if not exchange.begun:  # an error of the first read has its own status
                    await exchange.begin(piece.status, headers)
                presence.over = at >= piece.end
                await exchange.send(
                    {"type": "http.response.body", "body": body, "more_body": not presence.over}
                )

    async def _find(self, exchange: Exchange) -> Artifact:
        require_any(exchange.identity)
        return await self._artifacts.get(exchange.params["id"], owner=exchange.identity.owner)


def described(artifact: Artifact) -> dict[str, str]:
    """What it is, in words that no foreign text can get into."""
    known = MEDIA_TYPE.fullmatch(artifact.media_type) is not None
    media_type = artifact.media_type if known else "application/octet-stream"
    name = re.sub(r"[^A-Za-z0-9_-]", "_", artifact.id)
    ending = ENDINGS.get(media_type.partition(";")[0], "bin")
    return {
        "content-type": media_type,
        "content-disposition": f'attachment; filename="{name}.{ending}"',
    }


def piece_of(exchange: Exchange, artifact: Artifact, *, etag: str) -> Piece:
    """Which bytes are wanted. BadRequest for an offset or a limit that is no number."""
    query, size = exchange.query, artifact.size
    if "offset" in query or "limit" in query:
        start = min(number(query, "offset", missing=0), size)
        return Piece(start, min(start + number(query, "limit", missing=size), size))
    wanted = RANGE.fullmatch(exchange.headers.get("range", "").replace(" ", ""))
    if wanted is None or wanted[0] == "bytes=-" or exchange.headers.get("if-range", etag) != etag:
        return Piece(0, size)  # several ranges, or none that we know: the whole, as HTTP allows
    return within(wanted[1], wanted[2], size=size)


def within(first: str, last: str, *, size: int) -> Piece:
    """The piece of a `Range`: both ends are inclusive there, and only a last one counts from the end."""
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < int(first):
            return Piece(0, size)
    return Piece(start, end, 206) if start < end else Piece(0, 0, 416)


def number(query: dict[str, str], name: str, *, missing: int) -> int:
    said = query.get(name)
    if said is None:
        return missing
    if not (said.isascii() and said.isdigit()) or len(said) > DIGITS:
        raise BadRequest(f"{name} must be a number of bytes, not {said!r}", field=name)
    return int(said)
