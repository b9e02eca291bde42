"""HTTP handlers of grants and of the audit log: who else may use a session, and who did what in it."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.errors import BadRequest, NotFound
from dragoman.http.asgi_exchange import Exchange
from dragoman.operations.authorization import SessionRole
from dragoman.server.event_json import event_to_json
from dragoman.server.http.query_parameters import parse_limit
from dragoman.server.sessions.grant_revocation import SharedAccess
from dragoman.server.sessions.session_lookup import find_session, find_session_for
from dragoman.store.hub_events import EventPosition
from dragoman.store.sessions.grants import GranteeKind, SessionGrant
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store

MAX_BODY = 4_096
MAX_NAME = 200  # characters of an owner or the id of a key
MAX_PAGE = 500
BODY_HINT = 'send {"owner": "NAME", "role": "read" | "write" | "admin"}, or {"key": "key_…", "role": …}'


class GrantBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a grant: to an owner, or to one key."""

    role: SessionRole
    owner: str | None = None
    key: str | None = None


class GrantHandlers:
    """Handlers of `/api/sessions/{id}/grants` and `/api/sessions/{id}/audit`.

    The owner of a session grants, and whoever has the role "admin" in it. Everybody who may read the session
    sees its grants and its audit log, and may remove a grant of their own.
    """

    def __init__(self, store: Store, *, access: SharedAccess) -> None:
        self._store = store
        self._access = access

    async def list(self, exchange: Exchange) -> None:
        """List the grants of a session."""
        await self._respond(exchange, await self._find_readable(exchange))

    async def put(self, exchange: Exchange) -> None:
        """Grant a role to an owner or a key, in place of an earlier one."""
        session = await find_session_for(
            self._store.sessions, exchange.path_params["id"], caller=exchange.identity, role="admin"
        )
        try:
            body = msgspec.convert(await exchange.read_json(MAX_BODY), GrantBody)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the body is invalid: {error}", hint=BODY_HINT) from None
        kind, grantee = parse_grantee({"owner": body.owner, "key": body.key})
        if kind == "owner" and grantee == session.owner:
            raise BadRequest(f"the session is {grantee!r}'s own", field="owner")
        await self._store.sessions.grants.put(
            session.id, kind, grantee=grantee, role=body.role, by=exchange.identity
        )
        await self._apply(session)
        await self._respond(exchange, session)

    async def remove(self, exchange: Exchange) -> None:
        """Revoke the grant of `?owner` or `?key`. Open requests that it allowed end within seconds."""
        caller, query = exchange.identity, exchange.query
        session = await find_session(self._store.sessions, exchange.path_params["id"], caller=caller)
        kind, grantee = parse_grantee({"owner": query.get("owner"), "key": query.get("key")})
        is_own = grantee == (caller.owner if kind == "owner" else caller.key_id)
        if not is_own:
            session = await find_session_for(
                self._store.sessions, exchange.path_params["id"], caller=caller, role="admin"
            )
        if not await self._store.sessions.grants.remove(session.id, kind, grantee=grantee, by=caller):
            raise NotFound(f"the session has no grant to the {kind} {grantee!r}")
        await self._apply(session)
        await exchange.respond(204)

    async def audit(self, exchange: Exchange) -> None:
        """List what somebody did in the session, the newest first; `?before` and `?limit` page."""
        session = await self._find_readable(exchange)
        limit = parse_limit(exchange.query.get("limit", "100"), maximum=MAX_PAGE)
        before = exchange.query.get("before")
        found = await self._store.events.audit(
            session.id, before=None if before is None else EventPosition.parse(before), limit=limit
        )
        owner = exchange.identity.owner
        entries = [{**event_to_json(event, owner=owner), "keyId": event.key_id} for event in found]
        await exchange.respond(
            200, {"audit": entries, "next": entries[-1]["id"] if len(entries) == limit else None}
        )

    async def _apply(self, session: Session) -> None:
        """End the open requests that a removed grant allowed, here and at other hosts."""
        self._store.signals.send("grants", session.id)
        await self._access.check()

    async def _find_readable(self, exchange: Exchange) -> Session:
        return await find_session(
            self._store.sessions,
            exchange.path_params["id"],
            caller=exchange.identity,
            owner=exchange.query.get("owner"),
        )

    async def _respond(self, exchange: Exchange, session: Session) -> None:
        grants = await self._store.sessions.grants.list(session.id)
        found = [grant_to_json(each) for each in grants]
        await exchange.respond(200, {"owner": session.owner, "hubId": session.id, "grants": found})


def parse_grantee(fields: dict[str, str | None]) -> tuple[GranteeKind, str]:
    """Return the kind of a grant's grantee and its name: exactly one of `owner` and `key`. BadRequest."""
    owner, key = fields["owner"], fields["key"]
    if (owner is None) == (key is None):
        raise BadRequest("name one of `owner` and `key`", hint=BODY_HINT)
    kind: GranteeKind = "owner" if owner is not None else "key"
    grantee = owner or key or ""
    if not grantee or len(grantee) > MAX_NAME or not grantee.isprintable():
        raise BadRequest(f"{kind} must be 1 to {MAX_NAME} printable characters", field=kind)
    return kind, grantee


def grant_to_json(grant: SessionGrant) -> dict[str, Any]:
    """Return a grant as JSON."""
    return {
        grant.kind: grant.grantee,
        "role": grant.role,
        "createdAt": grant.created_at,
        "createdBy": grant.created_by,
    }
