"""Session doors: list, create, read, rename, delete, and search in what was said."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from dragoman.errors import BadRequest, NotFound
from dragoman.http.exchange import Exchange
from dragoman.ids import new_id
from dragoman.messages import to_json
from dragoman.operations.access import require_owner
from dragoman.runs.registry import RunRegistry
from dragoman.store.sessions import Session
from dragoman.store.store import Store

MAX_BODY = 65_536
MAX_PAGE = 200
MAX_RESULTS = 100
MAX_QUERY_LENGTH = 1_000


class SessionBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """What can be set; None means: as the hub is configured."""

    id: str | None = None
    title: str | None = None
    model: str | None = None
    agent: str | None = None
    max_steps: int | None = None


class SessionHandlers:
    """The doors under `/api/sessions`."""

    def __init__(self, runs: RunRegistry, store: Store) -> None:
        self._runs = runs
        self._store = store

    async def list(self, exchange: Exchange) -> None:
        """The caller's sessions, the newest first; `?limit` and `?before=<id>` page."""
        query = exchange.query
        limit = _parse_limit(query.get("limit", "50"), maximum=MAX_PAGE)
        found = await self._store.sessions.list(
            exchange.identity.owner, limit=limit, before=query.get("before")
        )
        await exchange.respond(200, {"sessions": [self._to_json(session) for session in found]})

    async def create(self, exchange: Exchange) -> None:
        """A new, empty session."""
        body = _parse_body(await exchange.read_json(MAX_BODY))
        now = time.time()
        session = Session(
            id=body.id or new_id("ses"),
            owner=exchange.identity.owner,
            created_at=now,
            updated_at=now,
            title=body.title,
            agent=body.agent,
            model=body.model,
            max_steps=body.max_steps,
        )
        self._runs.check_model(session)
        await self._store.sessions.create(session)
        await exchange.respond(201, self._to_json(session))

    async def get(self, exchange: Exchange) -> None:
        """One session."""
        await exchange.respond(200, self._to_json(await self._find(exchange)))

    async def update(self, exchange: Exchange) -> None:
        """Set title, model, agent or maxSteps; null puts the hub's default back."""
        session = await self._find(exchange)
        sent = await exchange.read_json(MAX_BODY)
        body = _parse_body(sent)
        if body.id is not None:
            raise BadRequest("a session's id cannot be changed", field="id")
        names = {"title": "title", "model": "model", "agent": "agent", "maxSteps": "max_steps"}
        fields = {field: getattr(body, field) for word, field in names.items() if word in sent}
        self._runs.check_model(msgspec.structs.replace(session, **fields))
        await self._store.sessions.update(session.id, **fields)
        await self.get(exchange)

    async def delete(self, exchange: Exchange) -> None:
        """Delete the session and all that was said in it; a run that is active is stopped first."""
        session = await self._find(exchange)
        await self._runs.stop_run(session.id, "the session was deleted")
        await self._store.sessions.delete(session.id)
        await exchange.respond(204)

    async def messages(self, exchange: Exchange) -> None:
        """Everything said, as `UIMessage`s; the message under way as far as it is."""
        session = await self._find(exchange)
        stored = list(await self._store.messages.list(session.id))
        run = self._runs.get_active(session.id)
        if run is not None and stored and stored[-1].id == run.fold.id:
            stored[-1] = run.fold.message()
        await exchange.respond(200, {"messages": [to_json(message) for message in stored]})

    async def search(self, exchange: Exchange) -> None:
        """What was said in the caller's sessions; `?q` are the words, `?session` and `?limit` narrow it."""
        query = exchange.query
        asked = query.get("q", "")
        if not asked.strip() or len(asked) > MAX_QUERY_LENGTH:
            raise BadRequest(f"q must be some words, of 1 to {MAX_QUERY_LENGTH} characters", field="q")
        limit = _parse_limit(query.get("limit", "20"), maximum=MAX_RESULTS)
        session = query.get("session")
        if session is not None:
            await self._find_own(session, exchange)
        owner = exchange.identity.owner
        found = await self._store.history.search(asked, owner=owner, session_id=session, limit=limit)
        left = {} if found.indexing is None else {"indexing": found.indexing}
        await exchange.respond(200, {"matched": found.matched, "found": found.passages, **left})

    async def _find(self, exchange: Exchange) -> Session:
        return await self._find_own(exchange.path_params["id"], exchange)

    async def _find_own(self, id: str, exchange: Exchange) -> Session:
        session = await self._store.sessions.get(id)
        if session is None:
            raise NotFound(f"there is no session {id!r}")
        require_owner(exchange.identity.owner, session.owner, resource=f"session {id!r}")
        return session

    def _to_json(self, session: Session) -> dict[str, Any]:
        return {
            "id": session.id,
            "title": session.title,
            "model": session.model,
            "agent": session.agent,
            "maxSteps": session.max_steps,
            "createdAt": session.created_at,
            "updatedAt": session.updated_at,
            "running": self._runs.get_active(session.id) is not None,
        }


def _parse_limit(text: str, *, maximum: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10) or not 1 <= int(text) <= maximum:
        raise BadRequest(f"limit must be 1 to {maximum}, not {text[:20]!r}", field="limit")
    return int(text)


def _parse_body(payload: Any) -> SessionBody:
    try:
        body = msgspec.convert(payload, SessionBody)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the body does not fit: {error}") from None
    if body.max_steps is not None and not 1 <= body.max_steps <= 1000:
        raise BadRequest("maxSteps must be 1 to 1000", field="maxSteps")
    if body.id is not None and (not body.id or len(body.id) > 200 or not body.id.isprintable()):
        raise BadRequest("id must be a printable string of 1 to 200 characters", field="id")
    return body
