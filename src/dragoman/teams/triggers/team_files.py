"""Triggers that people write: `triggers:` in `team.yaml`, and `triggers/NAME.yaml` in the folder of a team.

The files define a trigger, the database has its state. A trigger that is new in the files, or has changed, is
pending until a person activates its present definition. One that no file has any more is disabled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from dragoman.errors import BadRequest, Conflict, StoreError, Unavailable
from dragoman.ids import new_id
from dragoman.store.teams.triggers import TriggerRecord
from dragoman.teams.trigger_spec import Name, TriggerDefinition, convert, parse_definition
from dragoman.teams.triggers.service import TriggerService, webhook_secret

log = logging.getLogger(__name__)
SOURCE = "file"
GONE = "no file of the team has it any more"
CHANGED = "its definition has changed"
RETRY_INTERVAL = 5.0
MAX_FROM_FILES = 10_000


class TriggerFiles:
    """Updates the stored triggers of files when the files change."""

    def __init__(self, service: TriggerService) -> None:
        self._service = service
        self._triggers = service.triggers
        self._changed = asyncio.Event()
        self._changed.set()

    def refresh(self) -> None:
        """Read the files again: they have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Apply the files at the start and after each change, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.apply()
            except (StoreError, Unavailable) as error:
                log.info("the triggers of files are read later: %s", error.message)
                self._changed.set()
                await asyncio.sleep(RETRY_INTERVAL)

    async def apply(self) -> None:
        """Update the stored triggers to what the files say. Raises StoreError, Unavailable."""
        wanted = dict(self._definitions())
        stored = await self._triggers.list_of_files()
        existing = {(each.team, each.name): each for each in stored}
        has_changed = False
        for place, definition in wanted.items():
            has_changed |= await self._apply_one(place, definition, stored=existing.get(place))
        for place, trigger in existing.items():
            if place not in wanted and trigger.state != "disabled":
                await self._triggers.update(trigger.id, state="disabled", reason=GONE, next_at=None)
                has_changed = True
        if has_changed:
            self._service.on_change()

    def _definitions(self) -> Iterator[tuple[tuple[str, str], TriggerDefinition]]:
        """Yield the triggers of all files, by team and name; a wrong one is logged and left out."""
        teams = self._service.teams
        for team in teams.names():
            written: Mapping[str, object] = {**teams.sources(team).triggers, **teams.get(team).triggers}
            for name, raw in written.items():
                try:
                    convert(name, Name, where="name")
                    yield (team, name), parse_definition(convert(raw, dict[str, object], where=name))
                except BadRequest as error:
                    log.warning("the trigger %s of the team %s is left out: %s", name, team, error.message)

    async def _apply_one(
        self, place: tuple[str, str], definition: TriggerDefinition, *, stored: TriggerRecord | None
    ) -> bool:
        """Create or change one trigger; return whether anything has changed."""
        if stored is not None and stored.hash == definition.hash and stored.reason != GONE:
            return False
        team, name = place
        now = self._triggers.now()
        fields: dict[str, Any] = {
            "type": definition.fields.type,
            "body": definition.body,
            "hash": definition.hash,
        }
        if stored is not None:
            changes = {**fields, "state": "pending", "reason": CHANGED, "next_at": None}
            await self._triggers.update(stored.id, **changes)
            return True
        record = TriggerRecord(
            id=new_id("trg"),
            owner="",
            team=team,
            name=name,
            source=SOURCE,
            secret=webhook_secret(definition, None),
            created_at=now,
            updated_at=now,
            **fields,
        )
        with suppress(Conflict):  # another host was faster
            await self._triggers.create(record, limit=MAX_FROM_FILES)
        return True
