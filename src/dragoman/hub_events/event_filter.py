"""Which events a follower gets: those of a session or by name, as far as its caller may see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.store.hub_events import HubEvent

MESSAGE = "message"
ALL_OWNERS = "*"  # the owner of an event that everybody may see


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The events that a follower gets; a field that is None does not restrict them.

    `owner`: only events of this owner, and those of `ALL_OWNERS`. A name that ends with `.` or `-` stands for
    all names that begin with it.
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
    """Yield the event, and the `message` events that follow from it.

    A run that starts has a new message of the user, and one that ends has the answer, so no event of its own
    is stored for these messages.
    """
    if event.name == "run.started":
        body = decode_body(event)
        if body.get("userMessageId") is not None:
            yield message_event(event, id=body["userMessageId"], role="user")
    yield event
    if event.name == "run.ended":
        yield message_event(event, id=decode_body(event)["messageId"], role="assistant")


def without_repeated_positions(events: Sequence[HubEvent]) -> Sequence[HubEvent]:
    """Keep the position of one stored row only on the last of the events made from it.

    A client that resumes after the first of them would miss the others.
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
