"""HTTP handlers of sessions: list, create, read, change, delete, and search their messages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.errors import BadRequest, Forbidden, Unavailable
from dragoman.http.exchange import Exchange
from dragoman.ids import new_id
from dragoman.messages import to_json
from dragoman.operations.access import is_visible, require_owner, visible_owner
from dragoman.operations.message_search import MessageSearchResult
from dragoman.runs.registry import RunRegistry
from dragoman.server.query_parameters import parse_limit
from dragoman.store.sessions import Session, session_not_found
from dragoman.store.store import Store

MAX_BODY = 65_536
MAX_PAGE = 200
MAX_RESULTS = 100
MAX_QUERY_LENGTH = 1_000


class SessionBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The fields that a caller can set; None is the hub's default."""

    id: str | None = None
    title: str | None = None
    model: str | None = None
    agent: str | None = None
    max_steps: int | None = None


class SessionHandlers:
    """Handlers of `/api/sessions` and `/api/search`.

    A caller reads and changes the sessions of its own owner. With the scope "admin" it also reads those of
    others: by id, and with `?owner=NAME` or, for everybody's, `?owner=*`.
    """

    def __init__(self, store: Store, *, runs: RunRegistry | None) -> None:
        """`runs` None makes the handlers read-only, for an app beside a hub (see `app.attached`)."""
        self._store = store
        self._runs = runs

    async def list(self, exchange: Exchange) -> None:
        """List sessions, last changed first; `?limit` and `?before=<id>` page, `?owner` selects."""
        query = exchange.query
        limit = parse_limit(query.get("limit", "50"), maximum=MAX_PAGE)
        sessions = await self._store.sessions.list(
            _requested_owner(exchange), limit=limit, before=query.get("before")
        )
        await exchange.respond(200, {"sessions": [await self._to_json(session) for session in sessions]})

    async def create(self, exchange: Exchange) -> None:
        """Create an empty session."""
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
        self._require_runs().check_model(session)
        await self._store.sessions.create(session)
        await exchange.respond(201, await self._to_json(session))

    async def get(self, exchange: Exchange) -> None:
        """Return one session."""
        await exchange.respond(200, await self._to_json(await self._find_readable(exchange)))

    async def update(self, exchange: Exchange) -> None:
        """Set title, model, agent or maxSteps; null restores the hub's default."""
        session = await self._find_own(exchange)
        payload = await exchange.read_json(MAX_BODY)
        body = _parse_body(payload)
        if body.id is not None:
            raise BadRequest("The id of a session cannot be changed.", field="id")
        names = {"title": "title", "model": "model", "agent": "agent", "maxSteps": "max_steps"}
        fields = {field: getattr(body, field) for name, field in names.items() if name in payload}
        self._require_runs().check_model(msgspec.structs.replace(session, **fields))
        await self._store.sessions.update(session.id, **fields)
        await self.get(exchange)

    async def delete(self, exchange: Exchange) -> None:
        """Delete the session with all its messages; stop its active run first."""
        session = await self._find_own(exchange)
        await self._require_runs().stop_run(session.id, "the session was deleted")
        await self._store.sessions.delete(session.id)
        await exchange.respond(204)

    async def messages(self, exchange: Exchange) -> None:
        """Return the session's messages as `UIMessage`s, including the part of one that is being written."""
        session = await self._find_readable(exchange)
        stored = list(await self._store.messages.list(session.id))
        run = None if self._runs is None else self._runs.get_active(session.id)
        if run is not None and stored and stored[-1].id == run.fold.id:
            stored[-1] = run.fold.message()
        await exchange.respond(200, {"messages": [to_json(message) for message in stored]})

    async def search(self, exchange: Exchange) -> None:
        """Search messages for the words of `?q`; `?session`, `?owner` and `?limit` narrow it.

        Over several owners the best match of each comes first, then the second best of each, and so on:
        the ranks of different owners cannot be compared.
        """
        query = exchange.query
        words = query.get("q", "")
        if not words.strip() or len(words) > MAX_QUERY_LENGTH:
            raise BadRequest(f"q must be some words, of 1 to {MAX_QUERY_LENGTH} characters", field="q")
        limit = parse_limit(query.get("limit", "20"), maximum=MAX_RESULTS)
        owner, session_id = _requested_owner(exchange), query.get("session")
        if session_id is not None:
            owner = (await self._find_session(session_id, exchange, may_read=True)).owner
        owners = await self._store.sessions.owners() if owner is None else [owner]
        results = {
            name: await self._store.history.search(words, owner=name, session_id=session_id, limit=limit)
            for name in owners
        }
        await exchange.respond(200, _merge_results(results, limit=limit))

    async def _find_readable(self, exchange: Exchange) -> Session:
        return await self._find_session(exchange.path_params["id"], exchange, may_read=True)

    async def _find_own(self, exchange: Exchange) -> Session:
        return await self._find_session(exchange.path_params["id"], exchange, may_read=False)

    async def _find_session(self, id: str, exchange: Exchange, *, may_read: bool) -> Session:
        """Return the session if it is the caller's, or readable to it as admin.

        NotFound, the same for another owner's as for none; Forbidden when an admin changes another owner's.
        """
        session = await self._store.sessions.get(id)
        if session is None:
            raise session_not_found(id)
        caller = exchange.identity
        if not is_visible(session.owner, to=visible_owner(caller)):
            raise session_not_found(id)
        if not may_read:
            require_owner(caller.owner, session.owner, resource=f"session {id!r}")
        return session

    def _require_runs(self) -> RunRegistry:
        if self._runs is None:
            raise Unavailable("This needs a running hub.", hint="name one with --hub")
        return self._runs

    async def _is_running(self, session_id: str) -> bool:
        if self._runs is not None:
            return self._runs.get_active(session_id) is not None
        return await self._store.runs.get_active(session_id) is not None

    async def _to_json(self, session: Session) -> dict[str, Any]:
        return {
            "id": session.id,
            "owner": session.owner,
            "title": session.title,
            "model": session.model,
            "agent": session.agent,
            "maxSteps": session.max_steps,
            "createdAt": session.created_at,
            "updatedAt": session.updated_at,
            "running": await self._is_running(session.id),
        }


def _requested_owner(exchange: Exchange) -> str | None:
    """Return the owner that `?owner` selects, None for all; the caller's without it. Forbidden."""
    caller, owner = exchange.identity, exchange.query.get("owner", exchange.identity.owner)
    if not is_visible(owner, to=visible_owner(caller)):
        raise Forbidden(
            f"this key may not see the sessions of the owner {owner!r}",
            hint="use a key with the scope admin",
        )
    return None if owner == "*" else owner


def _merge_results(results: Mapping[str, MessageSearchResult], *, limit: int) -> dict[str, Any]:
    """Return the search results of all owners as one JSON value: the best kind of match that any has."""
    kinds = {result.matched for result in results.values() if result.passages}
    matched = next((kind for kind in ("all", "some") if kind in kinds), "text")
    ranked = [
        (rank, owner, passage)
        for owner, result in results.items()
        if result.matched == matched
        for rank, passage in enumerate(result.passages)
    ]
    best = sorted(ranked, key=lambda entry: entry[:2])[:limit]
    body: dict[str, Any] = {
        "matched": matched,
        "found": [{**msgspec.to_builtins(passage), "owner": owner} for _, owner, passage in best],
    }
    progress = [result.indexing for result in results.values() if result.indexing is not None]
    if progress:
        body["indexing"] = {
            "done": sum(each.done for each in progress),
            "left": sum(each.left for each in progress),
        }
    return body


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
