"""Events of sessions as their readers get them: JSON, and frames of server-sent events."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.session_ids import session_id_for
from dragoman.store.hub_events import HubEvent

RESET = "reset"


def encode_frame(event: HubEvent, *, owner: str) -> bytes:
    """Return the frame of an event, as a key of `owner` sees it."""
    id = b"" if event.position is None else b"id: %b\n" % str(event.position).encode()
    return b"%bdata: %b\n\n" % (id, msgspec.json.encode(event_to_json(event, owner=owner)))


def encode_reset() -> bytes:
    """Return the frame that says that events may be missing."""
    return b'data: {"id":null,"name":"%b","data":{}}\n\n' % RESET.encode()


def event_to_json(event: HubEvent, *, owner: str) -> dict[str, Any]:
    """Return an event as a key of `owner` sees it."""
    return {
        "id": None if event.position is None else str(event.position),
        "name": event.name,
        "sessionId": session_id_for(owner, event.session_id),
        "owner": event.owner,
        "actor": event.actor,
        "createdAt": event.created_at,
        "data": event.data,
    }
