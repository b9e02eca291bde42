"""Tells followers of the hub's events that the list of operations has changed, without the changes."""

from __future__ import annotations

import asyncio

from dragoman.hub_events.event_filter import ALL_OWNERS
from dragoman.hub_events.event_log import EventLog
from dragoman.operations.operation import Operation
from dragoman.operations.registry import Registry

NAME = "operations.changed"
INTERVAL = 0.25  # seconds in which many changes are one event
ADMINISTRATORS = ""  # an owner that nobody is: only those see the event who see the events of all owners


class OperationEvents:
    """Publishes `operations.changed` when operations, MCP servers or spokes come or go.

    Changes within `INTERVAL` are one event. For a private operation it goes to its owner and administrators.
    """

    def __init__(self, registry: Registry, event_log: EventLog) -> None:
        self._event_log = event_log
        self._loop = asyncio.get_running_loop()
        self._owners: set[str] = set()
        registry.add_listener(self)

    def add(self, operation: Operation) -> None:
        """Note that an operation is there."""
        self._note(ALL_OWNERS if not operation.private or operation.owner is None else operation.owner)

    def remove(self, operation: Operation) -> None:
        """Note that an operation is gone."""
        self.add(operation)

    def note_sources(self) -> None:
        """Note that an MCP server or a spoke came, went or changed its state: for administrators."""
        self._note(ADMINISTRATORS)

    def _note(self, owner: str) -> None:
        if not self._event_log.is_followed(None):
            return
        if not self._owners:
            self._loop.call_later(INTERVAL, self._publish)
        self._owners.add(owner)

    def _publish(self) -> None:
        owners, self._owners = self._owners, set()
        for owner in [ALL_OWNERS] if ALL_OWNERS in owners else sorted(owners):
            self._event_log.publish_live(None, owner, name=NAME)
