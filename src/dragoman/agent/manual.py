"""The desk: where a run waits for the calls that somebody outside runs, and for answers to approvals."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from dragoman import events as e
from dragoman.errors import Conflict
from dragoman.messages import ToolPart

Given: TypeAlias = e.ToolOutputAvailable | e.ToolOutputError | e.ToolApprovalResponse


class ManualDesk:
    """Keeps what was handed in until the run takes it. A call, or an approval, takes one answer."""

    def __init__(self) -> None:
        self._held: dict[str, Given] = {}
        self._taken: set[str] = set()
        self._news = asyncio.Event()

    def give(self, given: Given) -> None:
        """Hand in what became of a call, or the answer to an approval. Conflict when it has one."""
        key = key_of(given)
        if key in self._held or key in self._taken:
            raise Conflict(f"{key!r} has its answer already; it takes one")
        self._held[key] = given
        self._news.set()

    async def take(self, calls: Sequence[ToolPart]) -> Sequence[e.Event]:
        """What was handed in for these calls, as soon as there is anything."""
        while True:
            self._news.clear()
            keys = [key for call in calls if (key := awaited(call)) in self._held]
            if keys:
                self._taken.update(keys)
                return [self._held.pop(key) for key in keys]
            await self._news.wait()


def key_of(given: Given) -> str:
    """What it is an answer to."""
    return given.approval_id if isinstance(given, e.ToolApprovalResponse) else given.tool_call_id


def awaited(call: ToolPart) -> str:
    """What a call waits for: the id of its approval, or its own for its output."""
    waits = call.state == "approval-requested" and call.approval is not None
    return call.approval.id if waits and call.approval else call.tool_call_id
