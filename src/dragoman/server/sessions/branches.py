"""HTTP handlers of a session's branches: fork it, rewind it, switch between versions of a message."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from dragoman.errors import BadRequest
from dragoman.http.asgi_exchange import Exchange
from dragoman.runs.forks import fork_session
from dragoman.runs.registry import RunRegistry
from dragoman.server.sessions.session_lookup import find_session_for
from dragoman.session_ids import MAX_ID_LENGTH, is_session_id, session_id_for
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store

MAX_BODY = 65_536
B = TypeVar("B", bound=msgspec.Struct)


class MessageBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The message that a request is about."""

    message_id: str


class ForkBody(MessageBody, rename="camel", forbid_unknown_fields=True):
    """The message that a fork ends with, and the id that the client chooses for the fork."""

    id: str | None = None


class BranchHandlers:
    """Handlers of `/api/sessions/{id}/fork`, `/rewind` and `/branch`, for those who may write in the session.

    A fork belongs to who makes it."""

    def __init__(self, store: Store, *, runs: RunRegistry) -> None:
        self._store = store
        self._runs = runs

    async def fork(self, exchange: Exchange) -> None:
        """Create a session with the messages of this one up to a message."""
        session = await self._find_writable(exchange)
        body = _parse_body(await exchange.read_json(MAX_BODY), ForkBody)
        if body.id is not None and not is_session_id(body.id):
            raise BadRequest(f"id must be a printable string of 1 to {MAX_ID_LENGTH} characters", field="id")
        fork = await fork_session(
            self._store, session, message_id=body.message_id, id=body.id, by=exchange.identity
        )
        owner = exchange.identity.owner
        ids = {"id": session_id_for(owner, fork.id), "hubId": fork.id}
        await exchange.respond(201, {**ids, "messageId": body.message_id})

    async def rewind(self, exchange: Exchange) -> None:
        """Make a message the last one of the session; what follows stays in an earlier branch."""
        session = await self._find_writable(exchange)
        body = _parse_body(await exchange.read_json(MAX_BODY), MessageBody)
        async with self._runs.locked(session.id):
            last = await self._store.branches.rewind(session.id, body.message_id, by=exchange.identity)
        await exchange.respond(200, {"messageId": body.message_id, "undo": last})

    async def switch(self, exchange: Exchange) -> None:
        """Make the newest branch with a message the active one."""
        session = await self._find_writable(exchange)
        body = _parse_body(await exchange.read_json(MAX_BODY), MessageBody)
        async with self._runs.locked(session.id):
            await self._store.branches.switch(session.id, body.message_id, by=exchange.identity)
        await exchange.respond(200, {"messageId": body.message_id})

    async def _find_writable(self, exchange: Exchange) -> Session:
        id = exchange.path_params["id"]
        return await find_session_for(self._store.sessions, id, caller=exchange.identity, role="write")


def _parse_body(payload: Any, kind: type[B]) -> B:
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the body is invalid: {error}", hint='send {"messageId": "…"}') from None
