"""The desk: where a run waits for the calls that somebody outside runs, and for answers to approvals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from dragoman import events as e
from dragoman.agent.word import call_of
from dragoman.errors import Conflict
from dragoman.messages import ToolPart

Given: TypeAlias = e.ToolOutputAvailable | e.ToolOutputError | e.ToolApprovalResponse | e.Data


class ManualDesk:
    """Keeps what was handed in until the run takes it. A call, or an approval, takes one answer."""

    def __init__(self) -> None:
        self._held: dict[str, Given] = {}
        self._taken: set[str] = set()
        self._news = asyncio.Event()
        self.on_wait: Callable[[Sequence[ToolPart]], None] = lambda _: None
        """Hears of the calls that are waited for."""

    def give(self, given: Given) -> None:
        """Hand in what became of a call, or the answer to an approval. Conflict when it has one."""
        key = key_of(given)
        if key in self._held or asked_by(given) in self._taken:
            raise Conflict(f"{key!r} has its answer already; it takes one")
        self._held[key] = given
        self._news.set()

    async def take(self, calls: Sequence[ToolPart]) -> Sequence[e.Event]:
        """What was handed in for these calls, as soon as there is anything."""
        self.on_wait(calls)
        while True:
            self._news.clear()
            keys = [key for call in calls for key in awaited(call) if key in self._held]
            if keys:
                given = [self._held.pop(key) for key in keys]
                self._taken.update(map(asked_by, given))
                return given
            await self._news.wait()


def asked_by(given: Given) -> str:
    """What takes one answer: of a call that asks several questions, each."""
    return str(given.data["id"]) if isinstance(given, e.Data) else key_of(given)


def key_of(given: Given) -> str:
    """What it is an answer to: a call, or an approval."""
    match given:
        case e.ToolApprovalResponse(approval_id=id):
            return id
        case e.Data(data=body):
            return call_of(body)
        case _:
            return given.tool_call_id


def awaited(call: ToolPart) -> list[str]:
    """What a call waits for: its output, or the answer to its question; and the id of its approval."""
    waits = call.state == "approval-requested" and call.approval is not None
    return [call.tool_call_id, *([call.approval.id] if waits and call.approval else ())]
