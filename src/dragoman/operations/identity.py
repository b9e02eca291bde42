"""Who is asking: a key, its owner, its scopes."""

from __future__ import annotations

import msgspec


class Identity(msgspec.Struct, frozen=True):
    """A caller. `key_id` is None where there are no keys (`--no-auth`, library use)."""

    owner: str
    key_id: str | None = None
    scopes: frozenset[str] = frozenset()


LOCAL = Identity(owner="local")
