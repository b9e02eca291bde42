"""HTTP handlers of sessions: list, create, read, change, delete, and search their messages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.errors import BadRequest, Forbidden, NotFound, Unavailable
from dragoman.http.asgi_exchange import Exchange
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.messages import Message, encode_messages, messages_size
from dragoman.offload import offload
from dragoman.operations.authorization import is_visible, require_owner, visible_owner
from dragoman.operations.message_search import MessageSearchResult
from dragoman.runs.run_queue import queue_to_json
from dragoman.server.http.query_parameters import parse_limit
from dragoman.server.sessions.session_lookup import find_session, find_session_for
from dragoman.server.token_bounds import beyond_bounds, require_within_bounds
from dragoman.session_ids import MAX_ID_LENGTH, hub_session_id, is_session_id, session_id_for
from dragoman.store.call_trees.waiting_runs import RunWait
from dragoman.store.sessions.branches import Siblings
from dragoman.store.sessions.sessions import Session, SessionFilters
from dragoman.store.store import Store

if TYPE_CHECKING:
    from dragoman.runs.registry import RunRegistry

MAX_BODY = 65_536
DELETED = "the session was deleted"
MAX_PAGE = 200
PAGE_SIZE = 262_144  # bytes, about, after which no more messages are read into a page
MAX_RESULTS = 100
MAX_QUERY_LENGTH = 1_000
MAX_LABELS = 20
MAX_LABEL_LENGTH = 64
ARCHIVED: Mapping[str, bool | None] = {"true": True, "false": False, "all": None}


class SessionBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The fields that a caller can set; None is the hub's default."""

    id: str | None = None
    title: str | None = None
    model: str | None = None
    agent: str | None = None
    max_steps: int | None = None
    runner: bool = False
    labels: list[str] | None = None
    archived: bool | None = None


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
        query, caller = exchange.query, exchange.identity
        limit = parse_limit(query.get("limit", "50"), maximum=MAX_PAGE)
        if caller.bounds is not None and (caller.bounds.prefix is None or "owner" in query):
            raise beyond_bounds()
        sessions = await self._store.sessions.list(
            _requested_owner(exchange),
            limit=limit,
            before=await self._cursor(exchange),
            filters=_parse_filters(query, caller),
        )
        body = {"sessions": await self._list_to_json(sessions, caller)}
        await exchange.respond(200, body)

    async def create(self, exchange: Exchange) -> None:
        """Create an empty session."""
        body = _parse_body(await exchange.read_json(MAX_BODY))
        now, owner = time.time(), exchange.identity.owner
        session = Session(
            id=hub_session_id(body.id, owner=owner) if body.id else new_id("ses"),
            owner=owner,
            created_at=now,
            updated_at=now,
            title=body.title,
            agent=body.agent,
            model=body.model,
            max_steps=body.max_steps,
            runner=1 if body.runner else None,
            labels=unique_labels(body.labels),
            archived_at=now if body.archived else None,
        )
        self._require_runs().check_model(session)
        create = partial(self._store.sessions.create, session, by=exchange.identity)
        await self._store.session_deletion.make_room(session.id, create)
        await exchange.respond(201, await self._to_json(session, exchange.identity))

    async def get(self, exchange: Exchange) -> None:
        """Return one session."""
        session = await self._find_readable(exchange)
        await exchange.respond(200, await self._to_json(session, exchange.identity))

    async def update(self, exchange: Exchange) -> None:
        """Set title, model, agent, maxSteps, labels or archived; null restores the hub's default."""
        session = await find_session_for(
            self._store.sessions, exchange.path_params["id"], caller=exchange.identity, role="admin"
        )
        payload = await exchange.read_json(MAX_BODY)
        body = _parse_body(payload)
        if body.id is not None:
            raise BadRequest("The id of a session cannot be changed.", field="id")
        if "runner" in payload:
            raise BadRequest("Who answers in a session cannot be changed.", field="runner")
        names = {"title": "title", "model": "model", "agent": "agent", "maxSteps": "max_steps"}
        fields: dict[str, Any] = {
            field: getattr(body, field) for name, field in names.items() if name in payload
        }
        if "labels" in payload:
            fields["labels"] = unique_labels(body.labels)
        if "archived" in payload:
            fields["archived_at"] = (session.archived_at or time.time()) if body.archived else None
        self._require_runs().check_model(msgspec.structs.replace(session, **fields))
        await self._store.sessions.update(session.id, by=exchange.identity, **fields)
        await self.get(exchange)

    async def delete(self, exchange: Exchange) -> None:
        """Delete the session with all its messages; stop its active run first."""
        session = await self._find_own(exchange)
        runs = self._require_runs()
        await runs.queue.withdraw_all(session.id)
        await runs.stop_run(session.id, DELETED)
        await self._store.session_deletion.delete(session.id, by=exchange.identity)
        if session.runner and runs.factory.runners is not None:
            await runs.factory.runners.waiting_turns.end(session.id)
        await exchange.respond(204)

    async def messages(self, exchange: Exchange) -> None:
        """Return the session's messages as `UIMessage`s, including the part of one that is being written.

        `?limit` and `?before=<id>` page: the last messages, or those before one, with the number of earlier
        ones. Messages that wait for the active run to end are in `queued`, in order. A session that does not
        exist, or is another owner's, has none.
        """
        try:
            session = await self._find_readable(exchange)
        except NotFound:  # a session that its first message will create
            await exchange.respond(200, {"messages": []})
            return
        stored, earlier = await self._read_messages(session, exchange.query)
        siblings = await self._store.branches.siblings(session.id)
        if siblings:
            stored = [with_siblings(message, siblings.get(message.id)) for message in stored]
        encoded = await offload(messages_size(stored), lambda: encode_messages(stored))
        waiting = await self._store.queued_runs.list(session.id) if "before" not in exchange.query else ()
        count = b"" if earlier is None else b',"earlierMessages":%d' % earlier
        queued = b',"queued":%b' % msgspec.json.encode(queue_to_json(waiting)) if waiting else b""
        body = b'{"messages":%b%b%b}' % (encoded, count, queued)
        await exchange.respond(200, body)

    async def _read_messages(
        self, session: Session, query: Mapping[str, str]
    ) -> tuple[Sequence[Message], int | None]:
        """Return the messages that a request asks for, and for a page how many are before it. BadRequest."""
        current = None if self._runs is None else await self._runs.current_message(session.id)
        if "limit" in query or "before" in query:
            limit, before = parse_limit(query.get("limit", "50"), maximum=MAX_PAGE), query.get("before")
            found, earlier = await self._store.messages.last(
                session.id, limit=limit, size=PAGE_SIZE, before=before
            )
        else:
            found, earlier = await self._store.messages.list(session.id), None
        if current is not None and found and found[-1].id == current.id:
            found = [*found[:-1], current]
        return found, earlier

    async def queue(self, exchange: Exchange) -> None:
        """Return the messages that wait for the active run to end, in order."""
        session = await self._find_readable(exchange)
        waiting = await self._store.queued_runs.list(session.id)
        await exchange.respond(200, {"queued": queue_to_json(waiting)})

    async def withdraw(self, exchange: Exchange) -> None:
        """Withdraw a message that waits, by the id of its run or its own. NotFound when it does not wait."""
        session = await self._find_own(exchange)
        name = exchange.path_params["queued"]
        waiting = await self._store.queued_runs.list(session.id)
        found = next((each for each in waiting if name in (each.id, each.message_id)), None)
        if found is None or not await self._require_runs().queue.withdraw(found):
            raise NotFound(f"no message {name!r} waits in the session", hint="it may have started")
        await exchange.respond(204)

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
        owner, session_id = _requested_owner(exchange), None
        if "session" in query:
            session = await self._find_session(query["session"], exchange)
            owner, session_id = session.owner, session.id
        owners = await self._store.sessions.owners() if owner is None else [owner]
        results = {
            name: await self._store.history.search(words, owner=name, session_id=session_id, limit=limit)
            for name in owners
        }
        await exchange.respond(200, _merge_results(results, limit=limit, caller=exchange.identity))

    async def _cursor(self, exchange: Exchange) -> str | None:
        """Return the hub's id of the session that `?before` names."""
        before = exchange.query.get("before")
        if before is None:
            return None
        require_within_bounds(exchange.identity, before)
        return (await self._find_session(before, exchange)).id

    async def _find_readable(self, exchange: Exchange) -> Session:
        return await self._find_session(exchange.path_params["id"], exchange)

    async def _find_own(self, exchange: Exchange) -> Session:
        """Return the session of the path. NotFound; Forbidden when an admin changes another owner's."""
        id = exchange.path_params["id"]
        session = await self._find_session(id, exchange)
        require_owner(exchange.identity.owner, session.owner, resource=f"session {id!r}")
        return session

    async def _find_session(self, id: str, exchange: Exchange) -> Session:
        """Return the caller's session, or one that it may read as admin. NotFound, BadRequest."""
        owner = exchange.query.get("owner")
        owner = None if owner == "*" else owner
        return await find_session(self._store.sessions, id, caller=exchange.identity, owner=owner)

    def _require_runs(self) -> RunRegistry:
        if self._runs is None:
            raise Unavailable("This needs a running hub.", hint="name one with --hub")
        return self._runs

    async def _is_running(self, session_id: str) -> bool:
        if self._runs is not None:
            return await self._runs.is_running(session_id)
        return await self._store.runs.get_active(session_id) is not None

    async def _to_json(self, session: Session, caller: Identity) -> dict[str, Any]:
        [described] = await self._list_to_json([session], caller)
        return described

    async def _list_to_json(self, sessions: Sequence[Session], caller: Identity) -> Sequence[dict[str, Any]]:
        ids = [session.id for session in sessions]
        statuses = await self._store.sessions.run_statuses(ids)
        waits = await self._store.waiting_runs.of_sessions(ids)
        return [
            await self._describe(each, caller, run_status=statuses.get(each.id), waits=waits.get(each.id, ()))
            for each in sessions
        ]

    async def _describe(
        self, session: Session, caller: Identity, *, run_status: str | None, waits: Sequence[RunWait]
    ) -> dict[str, Any]:
        """Return a session as JSON, with the status of its newest run and what it waits for."""
        return {
            "id": session_id_for(caller.owner, session.id),
            "hubId": session.id,
            "owner": session.owner,
            "title": session.title,
            "model": session.model,
            "agent": session.agent,
            "maxSteps": session.max_steps,
            "runner": bool(session.runner),
            "labels": list(session.labels),
            "archived": session.archived_at is not None,
            "createdAt": session.created_at,
            "updatedAt": session.updated_at,
            "running": await self._is_running(session.id),
            "runStatus": run_status,
            "waitsFor": msgspec.to_builtins(waits),
        }


def with_siblings(message: Message, siblings: Siblings | None) -> Message:
    """Return a message with its versions in its metadata."""
    if siblings is None or not isinstance(message.metadata, Mapping | None):
        return message
    return msgspec.structs.replace(message, metadata={**(message.metadata or {}), "siblings": siblings})


def unique_labels(labels: Sequence[str] | None) -> tuple[str, ...]:
    """Return labels without repetitions. Raises BadRequest for an empty, long or unprintable one."""
    found = tuple(dict.fromkeys(labels or ()))
    for label in found:
        if not label.strip() or len(label) > MAX_LABEL_LENGTH or not label.isprintable():
            text = f"a label must have 1 to {MAX_LABEL_LENGTH} printable characters, got {label!r:.80}"
            raise BadRequest(text, field="labels")
    if len(found) > MAX_LABELS:
        raise BadRequest(f"a session may have {MAX_LABELS} labels, got {len(found)}", field="labels")
    return found


def _parse_filters(query: Mapping[str, str], caller: Identity) -> SessionFilters:
    """Return the filters of a list: `?archived`, `?label`, `?title`, a token's prefix. Raises BadRequest."""
    archived = query.get("archived", "false")
    if archived not in ARCHIVED:
        raise BadRequest(f"archived must be true, false or all, got {archived!r:.40}", field="archived")
    title = query.get("title", "")
    if len(title) > MAX_QUERY_LENGTH:
        raise BadRequest(f"title must have up to {MAX_QUERY_LENGTH} characters", field="title")
    label = query.get("label")
    if label is not None and len(label) > MAX_LABEL_LENGTH:
        raise BadRequest(f"label must have up to {MAX_LABEL_LENGTH} characters", field="label")
    prefix = None if caller.bounds is None else caller.bounds.prefix
    return SessionFilters(
        archived=ARCHIVED[archived],
        label=label,
        title=title,
        id_prefix="" if prefix is None else hub_session_id(prefix, owner=caller.owner),
    )


def _requested_owner(exchange: Exchange) -> str | None:
    """Return the owner that `?owner` selects, None for all; the caller's without it. Forbidden."""
    caller, owner = exchange.identity, exchange.query.get("owner", exchange.identity.owner)
    if not is_visible(owner, to=visible_owner(caller)):
        raise Forbidden(
            f"this key may not see the sessions of the owner {owner!r}",
            hint="use a key with the scope admin",
        )
    return None if owner == "*" else owner


def _merge_results(
    results: Mapping[str, MessageSearchResult], *, limit: int, caller: Identity
) -> dict[str, Any]:
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
        "found": [
            {
                **msgspec.to_builtins(passage),
                "sessionId": session_id_for(caller.owner, passage.session_id),
                "owner": owner,
            }
            for _, owner, passage in best
        ],
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
        raise BadRequest(f"the body is invalid: {error}") from None
    if body.max_steps is not None and not 1 <= body.max_steps <= 1000:
        raise BadRequest("maxSteps must be 1 to 1000", field="maxSteps")
    if body.id is not None and not is_session_id(body.id):
        raise BadRequest(f"id must be a printable string of 1 to {MAX_ID_LENGTH} characters", field="id")
    return body
