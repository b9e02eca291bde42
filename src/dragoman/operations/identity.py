"""Who is asking: a key, its owner, its scopes, and how much it may."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Literal, TypeAlias

import msgspec

from dragoman.limits import Limits

Scope: TypeAlias = Literal["gateway", "chat", "operations", "admin"]


class Identity(msgspec.Struct, frozen=True):
    """A caller. `key_id` is None where there are no keys (`--no-auth`, library use).

    `scopes` are the doors that are open: "gateway" (the models under `/v1`), "chat" (sessions and their
    runs), "operations", and "admin" (what others used). Without any, all are but "admin".
    `models` are patterns (`openai/*`, an alias) of the models that the key may ask, None for all of them.
    `limits` are the key's own, None where it has the hub's usual ones.
    """

    owner: str
    key_id: str | None = None
    scopes: frozenset[str] = frozenset()
    models: tuple[str, ...] | None = None
    limits: Limits | None = None

    def may(self, scope: Scope) -> bool:
        """Whether the doors of this scope are open. "admin" is given by name, or to callers without a key."""
        if self.scopes:
            return scope in self.scopes
        return scope != "admin" or self.key_id is None


LOCAL = Identity(owner="local")


# ---- Origin: the request to the hub that work is done for, known to whatever runs on its behalf.
# Tasks and threads that a request begins inherit both, so a run's late log line still names its request.

request_id: ContextVar[str | None] = ContextVar("dragoman_request_id", default=None)
"""The request's id, as log lines, spans and the client's `x-dragoman-request-id` have it."""

traceparent: ContextVar[str | None] = ContextVar("dragoman_traceparent", default=None)
"""The W3C `traceparent` that a request sent from here carries; None while nothing is traced."""
