"""Limits of `/mcp`."""

from __future__ import annotations

from msgspec import Struct

BODY_LIMIT = 4_000_000
IDLE_SECONDS = 1_800.0


class McpLimits(Struct, frozen=True, kw_only=True):
    """The maximum bytes of a request body, and of open sessions, in all and per owner.

    A session without a request for `idle` seconds is closed. Revision 2026-07-28 has no sessions.
    """

    body: int = BODY_LIMIT
    sessions: int = 2_000
    owner_sessions: int = 500
    idle: float = IDLE_SECONDS
