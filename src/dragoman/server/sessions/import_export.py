"""HTTP handlers of sessions as files: export one as JSON lines, Markdown or HTML, import one."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from msgspec.structs import replace

from dragoman.agent.approval_events import WITHDRAWN, decline_requests
from dragoman.errors import BadRequest, Conflict, LimitReached, TooLarge
from dragoman.http.asgi_exchange import Exchange
from dragoman.identity import Identity
from dragoman.messages import Message, messages_size
from dragoman.offload import offload, offload_disk
from dragoman.runs.registry import RunRegistry
from dragoman.server.sessions.session_lookup import find_session
from dragoman.server.sessions.session_markdown import escape, message_to_markdown
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
from dragoman.wire.session_export.importer import HINT, read_export
from dragoman.wire.session_export.json_lines import (
    ExportedSession,
    ExportedSettings,
    message_line,
    session_line,
)

MAX_FILE = 1_000_000_000
MAX_FILE_VALUES = 2_000_000  # of a line, or of one conversation
MAX_IMPORT_SECONDS = 3_600.0  # after which an import by another host counts as interrupted by a crash
MAX_IMPORTS = 4  # at once: each has a file on the disk
IMPORTED_AT_ONCE = 50  # messages of one transaction
PAGE_SIZE = 1_000_000  # bytes of one transaction, or one message
CHUNK_SIZE = 262_144  # bytes
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
        self._import_count = 0
        self._started = store.sessions.now()

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
            yield f"# {escape(title)}\n".encode()
            write = markdown_bytes
        else:
            yield html_start(title).encode()
            write = html_bytes
        async for page in self._store.messages.pages(session_id=session.id):
            yield await offload(messages_size(page), partial(encode_page, page, write))
        if format == "html":
            yield html_end().encode()

    async def import_session(self, exchange: Exchange) -> None:
        """Create a session from a file, or one for each of its conversations; `?id` names a single one.

        The file is written to the disk as it arrives, and read from there: nothing is created before all of
        it has arrived.
        """
        id = exchange.query.get("id")
        if id is not None and not is_session_id(id):
            raise BadRequest(f"id must be a printable string of 1 to {MAX_ID_LENGTH} characters", field="id")
        if self._import_count >= MAX_IMPORTS:
            raise LimitReached(f"{MAX_IMPORTS} imports are in progress", retry_after=5.0)
        self._import_count += 1
        try:
            with TemporaryFile(dir=self._store.host_folder) as file:
                digest = await receive_file(exchange, file)
                sessions = read_export(partial(read_chunks, file), digest=digest, max_values=MAX_FILE_VALUES)
                report = await self._import_all(sessions, exchange.identity, id=id)
        finally:
            self._import_count -= 1
        await exchange.respond(201, report)

    async def _import_all(
        self, sessions: Iterator[ExportedSession], caller: Identity, *, id: str | None
    ) -> dict[str, Any]:
        """Create the sessions of a file; return the report as JSON. BadRequest, Conflict, TooLarge."""
        found, following = await take_next(sessions), await take_next(sessions)
        if found is None:
            raise BadRequest("the file has no conversation", hint=HINT)
        if following is None:
            return await self._import_one(found, caller, id=id)
        if id is not None:
            raise BadRequest("the file has several conversations, so none can be given the id", field="id")
        created: list[dict[str, Any]] = []
        existing: list[str] = []
        pending: ExportedSession | None = found
        try:
            while pending is not None:
                try:
                    created.append(await self._import_one(pending, caller, id=None))
                except Conflict:
                    existing.append(imported_id(pending))
                pending, following = following, None
                if pending is None:
                    pending = await take_next(sessions)
        except (BadRequest, TooLarge) as error:
            at = len(created) + len(existing) + 1
            error.message = f"conversation {at}: {error.message}; the {at - 1} before it are imported"
            raise
        return {
            "sessions": created,
            "existing": existing,
            "messages": sum(each["messages"] for each in created),
        }

    async def _import_one(self, file: ExportedSession, caller: Identity, *, id: str | None) -> dict[str, Any]:
        """Create one session. Raises Conflict when its id is taken, BadRequest."""
        owner = caller.owner
        session = self._new_session(file, owner=owner, id=id or imported_id(file))
        try:
            await self._create(session, by=caller)
        except Conflict:
            if id is not None:
                raise
            text = f"this file was imported already, as the session {imported_id(file)!r}"
            raise Conflict(text, hint="choose an id to import it once more: ?id=") from None
        count = 0
        try:
            page = await take_page(file.messages)
            while page:
                following = await take_page(file.messages)
                if not following:
                    page[-1] = decline_requests(page[-1], WITHDRAWN)[0]
                await self._store.messages.import_messages(session.id, page, start=count)
                count += len(page)
                page = following
            await self._store.sessions.end_import(session.id)
        except BaseException:
            await self._store.session_deletion.delete(session.id)
            raise
        return {"id": session_id_for(owner, session.id), "hubId": session.id, "messages": count}

    async def _create(self, session: Session, *, by: Identity) -> None:
        """Create a session to import, in place of one whose import a crash has ended. Raises Conflict."""
        sessions, importing = self._store.sessions, replace(session, kind="importing")
        create = partial(sessions.create, importing, by=by)
        try:
            await self._store.session_deletion.make_room(session.id, create)
        except Conflict:
            is_alone = self._store.membership is None  # otherwise another host may be importing it
            before = self._started if is_alone else sessions.now() - MAX_IMPORT_SECONDS
            if not await self._store.session_deletion.delete(session.id, cut_off=before):
                raise
            await create()

    def _new_session(self, file: ExportedSession, *, owner: str, id: str) -> Session:
        """Return the session of a file, without its agent and model if this hub does not have them."""
        now, steps = time.time(), file.settings.max_steps
        session = Session(
            id=hub_session_id(id, owner=owner),
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


def imported_id(file: ExportedSession) -> str:
    """Return the id of the session of a file: the same for the same bytes, so that none is imported twice."""
    return f"import-{file.digest[:24]}"


async def receive_file(exchange: Exchange, file: BinaryIO) -> str:
    """Write a body to a file; return its SHA-256. Raises TooLarge, ClientDisconnected."""
    digest = hashlib.sha256()

    def write(chunk: bytes) -> None:
        digest.update(chunk)
        file.write(chunk)

    async for chunk in exchange.read_chunks(MAX_FILE, size=CHUNK_SIZE):
        await offload_disk(partial(write, chunk))
    return digest.hexdigest()


def read_chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file in chunks, from its beginning."""
    file.seek(0)
    while chunk := file.read(CHUNK_SIZE):
        yield chunk


async def take_next(sessions: Iterator[ExportedSession]) -> ExportedSession | None:
    """Return the next session, read in a thread; None at the end."""
    return await offload(MAX_FILE, lambda: next(sessions, None))


async def take_page(messages: Iterator[Message]) -> list[Message]:
    """Return the next messages, read in a thread; none at the end."""

    def take() -> list[Message]:
        page, size = list[Message](), 0
        for message in islice(messages, IMPORTED_AT_ONCE):
            page.append(message)
            size += messages_size([message])
            if size > PAGE_SIZE:
                break
        return page

    return await offload(MAX_FILE, take)


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
