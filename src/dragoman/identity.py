"""Identity of a caller (key, owner, scopes, limits), and the context variables of its request.

It is at the root because the HTTP exchange carries an identity, and store, operations and spokes read it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Literal, TypeAlias, get_args

import msgspec

from dragoman.session_ids import hub_session_id
from dragoman.usage_limits import Limits

Scope: TypeAlias = Literal["gateway", "chat", "operations", "spoke", "runner", "admin"]
NAMED_ONLY: frozenset[Scope] = frozenset({"spoke", "runner", "admin"})
"""Scopes that a key has only if they are given to it by name."""
DEFAULT_SCOPES: frozenset[Scope] = frozenset(get_args(Scope)) - NAMED_ONLY
"""The scopes of a key that names none."""


class SessionBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a session token may reach: one session, or those whose ids begin with a prefix; until it expires.

    `session` and `prefix` are ids as clients choose them; one of the two is set. Any role but "write" may
    read only.
    """

    token_id: str
    expires_at: float
    session: str | None = None
    prefix: str | None = None
    role: Literal["read", "write"] = "write"

    def covers(self, id: str, *, owner: str) -> bool:
        """Return whether a session is within the bounds; `id` is the client's or the hub's."""
        found = hub_session_id(id, owner=owner)
        if self.session is not None:
            return found == hub_session_id(self.session, owner=owner)
        return bool(self.prefix) and found.startswith(hub_session_id(self.prefix or "", owner=owner))


class Identity(msgspec.Struct, frozen=True):
    """A caller. `key_id` is None without keys (`--no-auth`, library use).

    `secret_id` is the start of the hash of the secret that was sent: a key that is rotated has two.
    `scopes` grant access: "gateway" (the models under `/v1`), "chat" (sessions and their runs), "operations",
    "spoke" (registering operations), "runner" (answering in sessions), and "admin" (the data of others). An
    empty set grants all but the last three. `models` are patterns (`openai/*`, an alias) of the models that
    the key may use; None allows all. `limits` are the key's own; None means the hub's defaults.
    `bounds` are those of a session token: nothing beyond them exists for its caller. A key itself has none.
    """

    owner: str
    key_id: str | None = None
    scopes: frozenset[str] = frozenset()
    models: tuple[str, ...] | None = None
    limits: Limits | None = None
    secret_id: str | None = None
    bounds: SessionBounds | None = None

    def covers(self, session_id: str | None) -> bool:
        """Return whether a session is within the bounds of the caller's token; True for a key itself."""
        if self.bounds is None:
            return True
        return session_id is not None and self.bounds.covers(session_id, owner=self.owner)

    def may(self, scope: Scope) -> bool:
        """Return whether the scope is granted. "spoke", "runner" and "admin" must be granted by name, or the
        caller has no key.
        """
        if self.scopes:
            return scope in self.scopes
        return scope not in NAMED_ONLY or self.key_id is None


LOCAL = Identity(owner="local")

# What runs on behalf of a request inherits both: a run's late log line still names its request.
request_id: ContextVar[str | None] = ContextVar("dragoman_request_id", default=None)
"""The request's id, as log lines, spans and the client's `x-dragoman-request-id` have it."""

traceparent: ContextVar[str | None] = ContextVar("dragoman_traceparent", default=None)
"""The W3C `traceparent` of outgoing requests; None when nothing is traced."""

door: ContextVar[str | None] = ContextVar("dragoman_door", default=None)
"""The endpoint that a request came through, as runs and calls record it; None for what nobody requested."""


def door_of(path: str) -> str:
    """Return the name of the endpoint at a path: `chat` for `/api/chat/ses_1`, `mcp` for `/mcp`."""
    segments = path.split("/", 3)
    is_prefixed = len(segments) > 2 and segments[1] in ("api", "v1")
    return segments[2 if is_prefixed else 1]
