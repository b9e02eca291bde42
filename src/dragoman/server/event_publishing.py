"""The HTTP handler that publishes domain events: what another process shows of its work in a session."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.http.asgi_exchange import Exchange
from dragoman.hub_events.domain_events import PREFIX, SessionEvents
from dragoman.server.sessions.session_lookup import find_session_for
from dragoman.store.store import Store

MAX_BODY = 1_000_000  # bytes; `limits.event` limits the data


class DomainEventBody(msgspec.Struct, forbid_unknown_fields=True):
    """A domain event: its name without `data-`, and a JSON object."""

    name: str
    data: dict[str, Any] = {}


class DomainEventHandlers:
    """Handler of `/api/sessions/{id}/events`."""

    def __init__(self, session_events: SessionEvents, store: Store) -> None:
        self._session_events = session_events
        self._store = store

    async def publish(self, exchange: Exchange) -> None:
        """Publish a domain event in one of the caller's sessions."""
        caller, id = exchange.identity, exchange.path_params["id"]
        try:
            body = msgspec.convert(await exchange.read_json(MAX_BODY), DomainEventBody)
        except msgspec.ValidationError as error:
            raise BadRequest(f"This is not an event: {error}", hint='{"name": "diff", "data": {…}}') from None
        session = await find_session_for(self._store.sessions, id, caller=caller, role="write")
        self._session_events.publish_domain_event(
            session.id, session.owner, name=body.name, data=body.data, actor=caller.owner
        )
        await exchange.respond(202, {"name": f"{PREFIX}{body.name}"})
