"""Domain events: what runners and operations publish in a session as `data-<name>`, checked by a schema."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from dragoman.errors import BadRequest
from dragoman.hub_events.event_log import EventLog
from dragoman.operations.arguments.validation import make_parser
from dragoman.operations.context import Context
from dragoman.operations.ledger import CallCompletion, CallRecord
from dragoman.operations.outcome import to_jsonable

PREFIX = "data-"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class DomainEvents:
    """The registry of domain events: their names, and the JSON Schemas of their data."""

    def __init__(
        self, schemas: Mapping[str, Mapping[str, Any]], *, unknown: Literal["allow", "refuse"] = "allow"
    ) -> None:
        """`unknown` says whether names without a schema may be published. Raises ConfigError."""
        self._parsers = {name: make_parser(schema, f"schema of {name!r}") for name, schema in schemas.items()}
        self._unknown = unknown

    def check(self, name: str, data: Any) -> Mapping[str, Any]:
        """Return the data of an event as it is published. Raises BadRequest, InvalidInput."""
        if not NAME.fullmatch(name):
            raise BadRequest(
                f"{name[:80]!r} is not a valid name of an event",
                hint="use a-z, 0-9, `.`, `_` and `-`",
                field="name",
            )
        if not isinstance(data, Mapping):
            raise BadRequest(f"the data of the event {name!r} must be an object", field="data")
        parser = self._parsers.get(name)
        if parser is not None:
            checked: Mapping[str, Any] = parser(data)
            return checked
        if self._unknown == "refuse":
            raise BadRequest(
                f"there is no event {name!r}",
                field="name",
                hint="`events.schemas` of the configuration lists them",
            )
        return data


class SessionEvents:
    """Publishes domain events, and events of calls. It is the `CallEvents` of a hub."""

    def __init__(self, event_log: EventLog, domain_events: DomainEvents) -> None:
        self.domain_events = domain_events
        """May be replaced; later events are checked by the new one."""
        self._log = event_log
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def publish_domain_event(
        self,
        session_id: str,
        owner: str,
        *,
        name: str,
        data: Any,
        actor: str | None = None,
        is_stored: bool = True,
    ) -> None:
        """Publish `data-<name>` in a session. Raises BadRequest, InvalidInput, TooLarge, Unavailable.

        An event that is not stored only reaches those who follow the session at this host.
        """
        checked = self.domain_events.check(name, data)
        if is_stored:
            self._log.publish(session_id, owner, name=f"{PREFIX}{name}", data=checked, actor=actor)
        else:
            self._log.publish_live(session_id, owner, name=f"{PREFIX}{name}", data=checked)

    def publish(self, context: Context, name: str, *, data: Any, in_answer: bool = False) -> None:
        """See `CallEvents`. An event without a session is checked and dropped. Any thread may call it."""
        owner = context.identity.owner
        data = to_jsonable(data)
        if context.session_id is None:
            self.domain_events.check(name, data)
            return
        submit = partial(
            self.publish_domain_event, context.session_id, owner, name=name, data=data, actor=owner
        )
        if threading.get_ident() == self._thread:
            submit()
        else:  # the log belongs to the event loop
            asyncio.run_coroutine_threadsafe(_run(submit), self._loop).result()

    def call_started(self, record: CallRecord) -> None:
        """See `CallEvents`. The event is not stored: the call is in the ledger."""
        self._publish_call("call.started", record)

    def call_ended(self, record: CallRecord, completion: CallCompletion) -> None:
        """See `CallEvents`."""
        error = completion.error
        body = {
            "status": completion.status,
            "error": None if error is None else error.message,
            "code": None if error is None else error.code,
            "endedAt": completion.ended_at,
            "attempts": completion.attempts,
            "cost": completion.cost,
        }
        self._publish_call("call.ended", record, **body)

    def _publish_call(self, name: str, record: CallRecord, **more: Any) -> None:
        if not self._log.is_followed(record.session_id):
            return
        body = {
            "callId": record.id,
            "operation": record.operation,
            "parentId": record.parent_id,
            "runId": record.run_id,
            "toolCallId": record.tool_call_id,
            "effect": record.effect,
            "agent": record.agent,
            "step": record.step,
            "startedAt": record.started_at,
            **more,
        }
        self._log.publish_live(record.session_id, record.owner, name=name, data=body)


async def _run(function: Callable[[], None]) -> None:
    function()
