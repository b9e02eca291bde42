"""The record of each plugin, beside its file: state, hash, schema, who proposed and approved it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from dragoman.errors import NotFound, StoreError, Unavailable
from dragoman.operations.operation import Effect
from dragoman.store.mcp_servers import DefinitionPin, PinStore
from dragoman.suggestions import suggest

PIN_PREFIX = "plugin:"  # before the team; no MCP server has a colon in its name
MAX_EARLIER = 50
PluginState = Literal["proposed", "active", "deprecated", "failed_verification"]


class PluginRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin of a team. `owner` proposed it and alone sees it; `reason` is why it is not active.

    `earlier` are the hashes of sources that were approved before: a file of such a hash is out of date, and
    was not changed by anybody.
    """

    team: str
    name: str
    owner: str
    state: PluginState
    hash: str
    source: str
    description: str
    schema: Mapping[str, Any]
    effect: Effect
    reason: str | None = None
    approved_by: str | None = None
    changed_at: float = 0.0
    earlier: tuple[str, ...] = ()

    @property
    def approved_hashes(self) -> tuple[str, ...]:
        """The hashes of the sources that were approved so far, the last ones."""
        own = () if self.approved_by is None else (self.hash,)
        return tuple(dict.fromkeys((*self.earlier, *own)))[-MAX_EARLIER:]

    @property
    def id(self) -> str:
        """`team.name`, by which it is called."""
        return f"{self.team}.{self.name}"


class PluginStore:
    """The plugins of all teams, in the table of approved definitions."""

    def __init__(self, pins: PinStore, *, clock: Callable[[], float] = time.time) -> None:
        self._pins = pins
        self._clock = clock
        self._records: dict[tuple[str, str], PluginRecord] = {}

    async def load(self) -> Sequence[PluginRecord]:
        """Read all plugins. Raises Unavailable while the database does not answer."""
        try:
            pins = await self._pins.list_prefix(PIN_PREFIX)
        except StoreError as error:
            raise Unavailable(f"the plugins cannot be read: {error.message}") from error
        records = [msgspec.json.decode(pin.body, type=PluginRecord) for pin in pins]
        self._records = {(record.team, record.name): record for record in records}
        return records

    def find(self, team: str, name: str) -> PluginRecord | None:
        """Return a plugin, or None."""
        return self._records.get((team, name))

    def get(self, team: str, name: str, *, owner: str) -> PluginRecord:
        """Return a plugin of an owner. Raises NotFound."""
        record = self.find(team, name)
        if record is None or record.owner != owner:
            names = [each.name for each in self.list(team, owner=owner)]
            raise NotFound(f"There is no plugin {name[:100]!r} of the team {team!r}{suggest(name, names)}.")
        return record

    def list(self, team: str, *, owner: str) -> Sequence[PluginRecord]:
        """Return the plugins of a team that an owner sees, by name."""
        found = [each for each in self._records.values() if each.team == team and each.owner == owner]
        return sorted(found, key=lambda record: record.name)

    async def put(self, record: PluginRecord) -> PluginRecord:
        """Store a plugin as it is now, and return it."""
        changed = msgspec.structs.replace(record, changed_at=self._clock())
        pin = DefinitionPin(
            server=PIN_PREFIX + record.team,
            name=record.name,
            hash=record.hash,
            body=msgspec.json.encode(changed).decode(),
            approved_at=changed.changed_at,
            approved_by=record.approved_by,
        )
        await self._pins.put([pin])
        self._records[record.team, record.name] = changed
        return changed
