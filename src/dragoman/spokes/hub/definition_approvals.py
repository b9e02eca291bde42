"""Approvals of single definitions: operations of spokes that an administrator opened to all owners.

An approval names the owner of the spokes, the operation and the hash of its definition, so a changed
definition, and another owner's operation of the same name, is not approved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from dragoman.errors import StoreError, Unavailable
from dragoman.operations.operation import Operation
from dragoman.store.mcp_servers import DefinitionPin, MemoryPinStore, PinStore

PIN_PREFIX = "spoke:"  # before the owner; no MCP server has a colon in its name
Sharing = Literal["granted", "approved", "changed", "private"]


class SpokeDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """An operation of spokes: who may call it, and why.

    `sharing`: `granted`: all owners, by `spokes.namespaces`. `approved`: all owners, by an administrator.
    `changed`: its owner only, since it differs from what was approved. `private`: its owner only. `offered`
    is False for an approved operation that no spoke offers at present; `hash` is then that of the approved
    definition.
    """

    id: str
    owner: str
    sharing: Sharing
    hash: str
    offered: bool = True
    approved_by: str | None = None
    approved_at: float | None = None


class SpokeDefinitionDetail(SpokeDefinition, frozen=True, kw_only=True):
    """The definition in full, and how it differs from the approved one."""

    definition: Mapping[str, Any]
    diff: str


class DefinitionApprovals:
    """The approved definitions of all spokes, by owner and operation. Without a store they are in memory."""

    def __init__(self, store: PinStore | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._store = MemoryPinStore() if store is None else store
        self._clock = clock
        self._pins: dict[tuple[str, str], DefinitionPin] = {}
        self._is_loaded = False

    async def load(self) -> None:
        """Read the stored approvals, once. Raises Unavailable while the database does not answer."""
        if not self._is_loaded:
            await self.reload()

    async def reload(self) -> bool:
        """Read the stored approvals again; return whether they changed. Raises Unavailable."""
        before = self._pins
        try:
            pins = await self._store.list_prefix(PIN_PREFIX)
        except StoreError as error:
            raise Unavailable(f"the approved definitions cannot be read: {error.message}") from error
        self._pins = {(pin.server.removeprefix(PIN_PREFIX), pin.name): pin for pin in pins}
        self._is_loaded = True
        return self._pins != before

    def find(self, owner: str, id: str) -> DefinitionPin | None:
        """Return the approval of an owner's operation, even if the operation has changed since."""
        return self._pins.get((owner, id.lower()))

    def all(self) -> Sequence[tuple[str, DefinitionPin]]:
        """Return all approvals with the owners of the operations, by id."""
        return sorted(((key[0], pin) for key, pin in self._pins.items()), key=lambda pair: pair[1].name)

    def covers(self, owner: str, operation: Operation) -> bool:
        """Return whether exactly this definition of the owner's operation is approved."""
        pin = self.find(owner, operation.id)
        return pin is not None and pin.hash == operation.definition_hash

    async def approve(self, operations: Sequence[tuple[str, Operation]], *, by: str) -> None:
        """Approve operations of owners as they are now defined. Raises StoreError, Unavailable."""
        pins = {
            (owner, operation.id.lower()): DefinitionPin(
                server=PIN_PREFIX + owner,
                name=operation.id.lower(),
                hash=operation.definition_hash,
                body=operation.definition.decode(),
                approved_at=self._clock(),
                approved_by=by,
            )
            for owner, operation in operations
        }
        await self._store.put(list(pins.values()))
        self._pins |= pins

    async def revoke(self, keys: Sequence[tuple[str, str]]) -> None:
        """Remove approvals, by owner and lower-case id. Raises StoreError, Unavailable."""
        await self._store.delete_names([(PIN_PREFIX + owner, id) for owner, id in keys])
        for key in keys:
            self._pins.pop(key, None)
