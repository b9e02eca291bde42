"""HTTP handlers of sessions as files: export one as JSON lines, Markdown or HTML, import one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from dragoman.agent.approvals import WITHDRAWN, decline_requests
from dragoman.errors import BadRequest
from dragoman.http.exchange import Exchange
from dragoman.ids import new_id
from dragoman.messages import Message, messages_size
from dragoman.offload import offload
from dragoman.runs.registry import RunRegistry
from dragoman.server.sessions.session_lookup import find_session
from dragoman.server.sessions.session_markdown import message_to_markdown
from dragoman.server.sessions.sessions import unique_labels
from dragoman.session_ids import (
    MAX_ID_LENGTH,
    client_session_id,
    hub_session_id,
    is_session_id,
    session_id_for,
)
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.wire.session_export.html import SECURITY_POLICY, html_end, html_start, message_to_html
from dragoman.wire.session_export.importer import parse_export
from dragoman.wire.session_export.json_lines import (
    ExportedSession,
    ExportedSettings,
    message_line,
    session_line,
)

MAX_FILE = 32_000_000
MAX_FILE_VALUES = 2_000_000
IMPORTED_AT_ONCE = 50  # messages of one transaction
MEDIA_TYPES = {
    "jsonl": "application/x-ndjson",
    "markdown": "text/markdown; charset=utf-8",
    "html": "text/html; charset=utf-8",
}
EXTENSIONS = {"jsonl": "jsonl", "markdown": "md", "html": "html"}


class SessionFileHandlers:
    """Handlers of `/api/sessions/{id}/export` and `/api/sessions/import`."""

    def __init__(self, store: Store, *, runs: RunRegistry) -> None:
        self._store = store
        self._runs = runs

    async def export(self, exchange: Exchange) -> None:
        """Stream the active branch of a session as a file, `?format=jsonl|markdown|html`."""
        format = exchange.query.get("format", "jsonl")
        if format not in MEDIA_TYPES:
            raise BadRequest(f"format must be jsonl, markdown or html, got {format!r:.40}", field="format")
        session = await find_session(
            self._store.sessions, exchange.path_params["id"], caller=exchange.identity
        )
        headers = {
            "content-type": MEDIA_TYPES[format],
            "content-disposition": f'attachment; filename="session.{EXTENSIONS[format]}"',
            "content-security-policy": SECURITY_POLICY,
            "x-content-type-options": "nosniff",
            "cache-control": "private",
        }
        await exchange.start_response(200, headers)
        async for chunk in self._chunks(session, format):
            await exchange.send_chunk(chunk)
        await exchange.send({"type": "http.response.body", "body": b""})

    async def _chunks(self, session: Session, format: str) -> AsyncIterator[bytes]:
        title = session.title or client_session_id(session.id)
        write: Callable[[Message], bytes]
        if format == "jsonl":
            yield session_line(exported(session))
            write = message_line
        elif format == "markdown":
            yield f"# {title}\n".encode()
            write = markdown_bytes
        else:
            yield html_start(title).encode()
            write = html_bytes
        async for page in self._store.messages.pages(session_id=session.id):
            yield await offload(messages_size(page), partial(encode_page, page, write))
        if format == "html":
            yield html_end().encode()

    async def import_session(self, exchange: Exchange) -> None:
        """Create a session from a file; `?id` chooses its id."""
        id, owner = exchange.query.get("id"), exchange.identity.owner
        if id is not None and not is_session_id(id):
            raise BadRequest(f"id must be a printable string of 1 to {MAX_ID_LENGTH} characters", field="id")
        raw = await exchange.read_body(MAX_FILE, max_values=MAX_FILE_VALUES)
        file = await offload(len(raw), lambda: parse_export(raw, max_values=MAX_FILE_VALUES))
        session = self._new_session(file, owner=owner, id=id)
        messages = list(file.messages)
        if messages:
            messages[-1] = decline_requests(messages[-1], WITHDRAWN)[0]
        await self._store.sessions.create(replace(session, kind="importing"), by=exchange.identity)
        try:
            for start in range(0, len(messages), IMPORTED_AT_ONCE):
                batch = messages[start : start + IMPORTED_AT_ONCE]
                await self._store.messages.import_messages(session.id, batch, start=start)
            await self._store.sessions.end_import(session.id)
        except BaseException:
            await self._store.sessions.delete(session.id)
            raise
        body = {"id": session_id_for(owner, session.id), "hubId": session.id, "messages": len(messages)}
        await exchange.respond(201, body)

    def _new_session(self, file: ExportedSession, *, owner: str, id: str | None) -> Session:
        """Return the session of a file; an agent or a model that this hub does not have is left out."""
        now, steps = time.time(), file.settings.max_steps
        session = Session(
            id=hub_session_id(id, owner=owner) if id else new_id("ses"),
            owner=owner,
            title=file.settings.title,
            max_steps=steps if steps and 1 <= steps <= 1000 else None,
            labels=unique_labels(file.settings.labels),
            created_at=now,
            updated_at=now,
        )
        configured = replace(session, agent=file.settings.agent, model=file.settings.model)
        with suppress(BadRequest):
            self._runs.check_model(configured)
            return configured
        return session


def markdown_bytes(message: Message) -> bytes:
    return message_to_markdown(message).encode()


def html_bytes(message: Message) -> bytes:
    return message_to_html(message).encode()


def encode_page(page: Sequence[Message], write: Callable[[Message], bytes]) -> bytes:
    return b"".join(map(write, page))


def exported(session: Session) -> ExportedSettings:
    """Return the settings of a session as they are exported."""
    return ExportedSettings(
        title=session.title,
        agent=session.agent,
        model=session.model,
        max_steps=session.max_steps,
        labels=session.labels,
        created_at=session.created_at,
    )
