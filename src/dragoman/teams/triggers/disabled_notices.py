"""Notices of disabled triggers: a message in the session that a trigger delivers to."""

from __future__ import annotations

from dragoman.ids import new_id
from dragoman.messages import DataPart, Message, TextPart
from dragoman.store.connection import DatabaseConnection
from dragoman.store.store import Store
from dragoman.store.teams.triggers import TriggerRecord

NOTICE_PART = "data-trigger-disabled"


class TriggerNotices:
    """Adds notices to sessions; a busy session gets its notice when it is free."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, tuple[TriggerRecord, str]] = {}

    def add(self, trigger: TriggerRecord, reason: str) -> None:
        """Queue a notice for the session of a disabled trigger; `deliver` adds it."""
        if trigger.session_id is not None:
            self._waiting[trigger.id] = (trigger, reason)

    async def deliver(self) -> None:
        """Add the notices whose sessions are free. Raises StoreError, Unavailable."""
        for id, (trigger, reason) in list(self._waiting.items()):
            if await self._deliver(trigger, reason):
                del self._waiting[id]

    async def _deliver(self, trigger: TriggerRecord, reason: str) -> bool:
        session = await self._store.sessions.get(trigger.session_id or "")
        if session is None:
            return True
        message = notice(trigger, reason)

        def job(connection: DatabaseConnection) -> None:
            self._store.messages.append_turn(connection, session.id, user=None, assistant=message)

        return await self._store.runs.write_unless_running(session.id, job)


def notice(trigger: TriggerRecord, reason: str) -> Message:
    """Return the message that tells why a trigger was disabled."""
    body = {"triggerId": trigger.id, "team": trigger.team, "name": trigger.name, "reason": reason}
    text = f"The trigger {trigger.name} of the team {trigger.team} is disabled: {reason}"
    return Message(new_id("msg"), "assistant", (DataPart(type=NOTICE_PART, data=body), TextPart(text)))
