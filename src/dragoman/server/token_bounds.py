"""What lies within the bounds of a caller's session token. To it, nothing else exists: NotFound."""

from __future__ import annotations

import msgspec

from dragoman.errors import Forbidden, NotFound
from dragoman.identity import Identity


def beyond_bounds() -> NotFound:
    """Return the error for what lies beyond the bounds of a session token."""
    return NotFound("there is nothing here for this session token", hint="it is for the chat of its session")


def require_within_bounds(caller: Identity, session_id: str | None) -> None:
    """Raise NotFound unless the session is within the bounds of the caller's token."""
    if not caller.covers(session_id):
        raise beyond_bounds()


def require_write(caller: Identity, session_id: str | None) -> None:
    """Raise NotFound beyond the bounds of the caller's token, Forbidden for a token that may read only."""
    require_within_bounds(caller, session_id)
    if caller.bounds is not None and caller.bounds.role == "read":
        raise Forbidden("this session token may read only", hint="make one with the role `write`")


def run_caller(caller: Identity, session_id: str) -> Identity:
    """Return the identity of a run that a caller starts. Raises as `require_write`.

    A token is checked only here: the run belongs to the key, and continues when the token expires.
    """
    require_write(caller, session_id)
    return caller if caller.bounds is None else msgspec.structs.replace(caller, bounds=None)
