"""HTTP handlers of shared links: create, list and revoke them, and show the sessions behind them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec

from dragoman.errors import BadRequest, NotFound, RateLimited
from dragoman.http.asgi_exchange import Exchange
from dragoman.messages import FilePart, Message, Part, TextPart, ToolPart, messages_size
from dragoman.offload import offload
from dragoman.redaction import redact
from dragoman.server.sessions.session_lookup import find_own_session
from dragoman.store.sessions.sessions import Session
from dragoman.store.sessions.shares import Share, new_share
from dragoman.store.store import Store
from dragoman.wire.session_export.html import (
    IMAGE,
    SECURITY_POLICY,
    html_end,
    html_start,
    json_text,
    message_to_html,
)

MAX_BODY = 65_536
MAX_SECONDS = 10 * 365 * 86_400
MAX_PER_MINUTE = 600  # pages of links that one process shows
HEADERS = {
    "content-security-policy": SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-robots-tag": "noindex, nofollow",
    "referrer-policy": "no-referrer",
    "cache-control": "private, no-store",
}


class ShareBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Whether a link shows tool calls, and after how many seconds it ends; None: never."""

    tools: bool = False
    expires_in: float | None = None


class ShareHandlers:
    """Handlers of `/api/sessions/{id}/share`, for the session's owner, and of `/share/{token}`, for all."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._minute, self._count = 0, 0

    async def create(self, exchange: Exchange) -> None:
        """Create a link to the session as it is now."""
        session = await self._find_session(exchange)
        try:
            body = msgspec.convert(await exchange.read_json(MAX_BODY), ShareBody)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the body is invalid: {error}") from None
        seconds = body.expires_in
        if seconds is not None and not 1 <= seconds <= MAX_SECONDS:
            raise BadRequest(f"expiresIn must be 1 to {MAX_SECONDS} seconds", field="expiresIn")
        now = time.time()
        expires_at = None if seconds is None else now + seconds
        share = new_share(session.id, owner=session.owner, now=now, expires_at=expires_at, tools=body.tools)
        token = await self._store.shares.create(share)
        await exchange.respond(201, {**to_json(share), "path": f"/share/{token}"})

    async def list(self, exchange: Exchange) -> None:
        """List the session's links, without their tokens."""
        session = await self._find_session(exchange)
        shares = await self._store.shares.list(session.id)
        await exchange.respond(200, {"shares": [to_json(share) for share in shares]})

    async def revoke(self, exchange: Exchange) -> None:
        """Revoke a link."""
        session = await self._find_session(exchange)
        id = exchange.path_params["share"]
        if not await self._store.shares.delete(session.id, id):
            raise NotFound(f"There is no link {id!r} of this session.")
        await exchange.respond(204)

    async def show(self, exchange: Exchange) -> None:
        """Show the session that a link leads to, as a page or with `?format=json` as JSON. No key."""
        self._count_request()
        found = await self._store.shares.find(exchange.path_params["token"])
        if found is None:
            raise NotFound("There is no such link, or it was revoked or has expired.")
        share, title = found
        is_json = exchange.query.get("format") == "json"
        media_type = "application/json" if is_json else "text/html; charset=utf-8"
        await exchange.start_response(200, {**HEADERS, "content-type": media_type})
        chunks = self._json(share, title) if is_json else self._html(share, title)
        async for chunk in chunks:
            await exchange.send_chunk(chunk)
        await exchange.send({"type": "http.response.body", "body": b""})

    async def _html(self, share: Share, title: str | None) -> AsyncIterator[bytes]:
        yield html_start(redact(title or "A conversation")).encode()
        async for page in self._store.messages.pages(share_id=share.id):
            for message in page:
                shown = shown_message(message, tools=share.tools)
                yield await offload(messages_size([shown]), partial(redacted_html, shown))
        yield html_end().encode()

    async def _json(self, share: Share, title: str | None) -> AsyncIterator[bytes]:
        yield b'{"title":%b,"messages":[' % msgspec.json.encode(redact(title or "") or None)
        comma = b""
        async for page in self._store.messages.pages(share_id=share.id):
            for message in page:
                shown = shown_message(message, tools=share.tools)
                yield comma + await offload(messages_size([shown]), partial(redacted_json, shown))
                comma = b","
        yield b"]}"

    def _count_request(self) -> None:
        """Raise RateLimited when this process shows more links than it should in a minute."""
        minute = int(time.time() // 60)
        if minute != self._minute:
            self._minute, self._count = minute, 0
        self._count += 1
        if self._count > MAX_PER_MINUTE:
            raise RateLimited("too many requests for shared links; try again in a minute", retry_after=60.0)

    async def _find_session(self, exchange: Exchange) -> Session:
        id = exchange.path_params["id"]
        return await find_own_session(self._store.sessions, id, caller=exchange.identity)


def shown_message(message: Message, *, tools: bool) -> Message:
    """Return what a link shows of a message: texts, files and, with `tools`, tool calls."""
    kinds = (TextPart, FilePart, ToolPart) if tools else (TextPart, FilePart)
    return Message(message.id, message.role, tuple(part for part in message.parts if isinstance(part, kinds)))


def redacted_html(message: Message) -> bytes:
    return message_to_html(message, redact=redact).encode()


def redacted_json(message: Message) -> bytes:
    return msgspec.json.encode(
        {"role": message.role, "parts": [part_to_json(each) for each in message.parts]}
    )


def part_to_json(part: Part) -> dict[str, Any]:
    """Return a part as JSON, its texts redacted. Inputs and outputs of tools are JSON as text."""
    match part:
        case TextPart(text=text):
            return {"type": "text", "text": redact(text)}
        case FilePart(url=url):
            file = {"type": "file", "mediaType": part.media_type, "filename": redact(part.filename or "")}
            return {**file, "url": url} if IMAGE.fullmatch(url) else file
        case ToolPart():
            values = {"input": part.input, "output": part.output}
            texts = {
                name: redact(json_text(each)) for name, each in values.items() if each is not msgspec.UNSET
            }
            return {"type": "tool", "name": part.name, "state": part.state, **texts}
        case _:
            return {"type": part.type}


def to_json(share: Share) -> dict[str, Any]:
    return {
        "id": share.id,
        "createdAt": share.created_at,
        "expiresAt": share.expires_at,
        "tools": share.tools,
    }
