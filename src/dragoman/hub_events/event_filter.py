"""Which events a follower gets: those of a session or by name, of what its caller may see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.store.hub_events import HubEvent

MESSAGE = "message"
ALL_OWNERS = "*"  # the owner of an event that everybody may see


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What a follower gets. None does not restrict.

    `owner` is the only owner whose events it sees. A name that ends with `.` or `-` stands for all that begin
    with it.
    """

    owner: str | None = None
    session_id: str | None = None
    names: tuple[str, ...] | None = None

    def matches(self, event: HubEvent) -> bool:
        """Return whether the follower gets the event."""
        if self.session_id is not None and event.session_id != self.session_id:
            return False
        if self.owner is not None and event.owner not in (self.owner, ALL_OWNERS):
            return False
        return self.names is None or any(matches_name(event.name, name) for name in self.names)


def matches_name(name: str, wanted: str) -> bool:
    return name.startswith(wanted) if wanted.endswith((".", "-")) else name == wanted


def with_messages(event: HubEvent) -> Iterator[HubEvent]:
    """Yield the event, and the events of messages that it tells of as well.

    A run that begins has a new message of the user, and one that ends the answer: they are not stored twice.
    """
    if event.name == "run.started":
        body = decode_body(event)
        if body.get("userMessageId") is not None:
            yield message_event(event, id=body["userMessageId"], role="user")
    yield event
    if event.name == "run.ended":
        yield message_event(event, id=decode_body(event)["messageId"], role="assistant")


def without_repeated_positions(events: Sequence[HubEvent]) -> Sequence[HubEvent]:
    """Leave the position to the last of the events that one row tells of.

    A client that comes back behind the first of them would miss the others.
    """
    last = len(events) - 1
    return [
        msgspec.structs.replace(event, position=None)
        if at < last and event.position == events[at + 1].position is not None
        else event
        for at, event in enumerate(events)
    ]


def decode_body(event: HubEvent) -> Mapping[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(event.data)
    return body


def message_event(event: HubEvent, *, id: str, role: str) -> HubEvent:
    body = msgspec.Raw(msgspec.json.encode({"messageId": id, "role": role}))
    return msgspec.structs.replace(event, name=MESSAGE, data=body)
