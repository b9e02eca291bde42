"""Scopes: whose words they are, as words in an index, which then looks only at what one of them said."""

from __future__ import annotations

from hashlib import blake2b


def scope_of(session_id: str, *, owner: str) -> str:
    """The scope of what was said in a session."""
    return f"{owner_word(owner)} {session_word(session_id)}"


def owner_word(owner: str) -> str:
    return f"o{_digest(owner)}"


def session_word(session_id: str) -> str:
    return f"s{_digest(session_id)}"


def _digest(name: str) -> str:
    return blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()
