"""Which session an id in a request names: the caller's own, or one that it may read as admin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from dragoman.errors import Forbidden
from dragoman.identity import Identity
from dragoman.operations.authorization import SessionRole, require_owner, visible_owner
from dragoman.session_ids import client_session_id, hub_session_id
from dragoman.store.sessions.sessions import Session, SessionRepository, session_not_found


async def find_session(
    sessions: SessionRepository, id: str, *, caller: Identity, owner: str | None = None
) -> Session:
    """Return the session that `id` names: the caller's own, by its client's id or the hub's, or a shared one.

    For an admin also one of another owner: of `owner`, or by the hub's id, or by a client's id that only one
    owner uses. NotFound, the same for another owner's session as for none. BadRequest when an admin's `id` is
    that of several owners.
    """
    is_admin = visible_owner(caller) is None
    if is_admin and owner and owner != caller.owner:
        session = await sessions.get_own(id, owner=owner)
    else:
        session = await sessions.get_accessible(id, caller=caller)
    if session is None and is_admin and not owner:
        session = await sessions.get_of_any_owner(id)
    if session is None:
        raise session_not_found(id)
    return session


async def find_own_session(sessions: SessionRepository, id: str, *, caller: Identity) -> Session:
    """Return the caller's session that `id` names. NotFound; Forbidden for an admin and another owner's."""
    session = await find_session(sessions, id, caller=caller)
    require_owner(caller.owner, session.owner, resource=f"session {id!r}")
    return session


async def find_session_for(
    sessions: SessionRepository, id: str, *, caller: Identity, role: SessionRole
) -> Session:
    """Return the caller's session, or one that is shared with it in this role, to be used or changed.

    NotFound; Forbidden when the caller has a lesser role, or may only read it as admin.
    """
    session = await sessions.get_accessible(id, caller=caller, role=role)
    if session is None:
        readable = await find_session(sessions, id, caller=caller)
        require_owner(caller.owner, readable.owner, resource=f"session {id!r}")
        return readable
    return session


async def find_role(
    sessions: SessionRepository, id: str, *, caller: Identity
) -> Literal["read", "write"] | None:
    """Return what the caller may do in a session, by the hub's id; None if it may not know of it."""
    try:
        found = await sessions.get_accessible(id, caller=caller, role="write")
    except Forbidden:
        return "read"
    return None if found is None else "write"


async def resolve_session_filter(
    sessions: SessionRepository, filters: Mapping[str, str], *, caller: Identity
) -> Mapping[str, str]:
    """Return list filters with the hub's id as `session_id`; those of deleted sessions match too.

    `old_session_id` matches records of sessions that have one id for both, see `session_ids.py`. BadRequest
    when an admin's id is that of several owners.
    """
    id = filters.get("session_id")
    if id is None:
        return filters
    owner = filters.get("owner", visible_owner(caller))
    if owner is not None:
        hub_id = hub_session_id(id, owner=owner)
        return {**filters, "session_id": hub_id, "old_session_id": client_session_id(hub_id), "owner": owner}
    session = await sessions.get_own(id, owner=caller.owner) or await sessions.get_of_any_owner(id)
    return filters if session is None else {**filters, "session_id": session.id}
