"""Ids of sessions: the one that a client chose, unique within its owner, and the hub's, unique in the hub.

The hub's id is made of the owner and the client's id, and can be turned back. Two owners can thus use one id
without meeting, and records that outlive a session, such as usage, still show its client's id. The owner is
in it as a hash of fixed length, so that no client's id can yield the hub's id of another owner's session.
Sessions made without an id, and those that are older than this form, have one id for both.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import overload

MAX_ID_LENGTH = 200  # of a client's id
OWNER_HASH_LENGTH = 16  # hexadecimal digits
PREFIX = re.compile(rf"ses_[0-9a-f]{{{OWNER_HASH_LENGTH}}}~")


def is_session_id(id: str) -> bool:
    """Whether a client may use the id: 1 to `MAX_ID_LENGTH` printable characters, or an id of the hub's."""
    return 1 <= len(client_session_id(id)) <= MAX_ID_LENGTH and id.isprintable()


def hub_session_id(id: str, *, owner: str) -> str:
    """Return the hub's id of the owner's session that a client calls `id`. The hub's own id is unchanged."""
    prefix = owner_prefix(owner)
    return id if id.startswith(prefix) else prefix + id


@overload
def session_id_for(owner: str, hub_id: str) -> str: ...


@overload
def session_id_for(owner: str, hub_id: None) -> None: ...


@overload
def session_id_for(owner: str, hub_id: str | None) -> str | None: ...


def session_id_for(owner: str, hub_id: str | None) -> str | None:
    """Return the id that the owner's clients use; the hub's for a session of another owner."""
    return None if hub_id is None else hub_id.removeprefix(owner_prefix(owner))


def client_session_id(hub_id: str) -> str:
    """Return the id that the session's own client uses, whoever its owner is. It is unique only within it."""
    return PREFIX.sub("", hub_id, count=1) if PREFIX.match(hub_id) else hub_id


@lru_cache(1024)
def owner_prefix(owner: str) -> str:
    return f"ses_{hashlib.sha256(owner.encode()).hexdigest()[:OWNER_HASH_LENGTH]}~"
