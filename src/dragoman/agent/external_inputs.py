"""The desk: where a run waits for the calls that somebody outside runs, and for answers to approvals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from dragoman import events as e
from dragoman.agent.approvals import question_call_id
from dragoman.errors import Conflict
from dragoman.messages import ToolPart

ExternalInput: TypeAlias = e.ToolOutputAvailable | e.ToolOutputError | e.ToolApprovalResponse | e.Data


class ExternalInputs:
    """Keeps what was handed in until the run takes it. A call, or an approval, takes one answer."""

    def __init__(self) -> None:
        self._queued: dict[str, ExternalInput] = {}
        self._used_keys: set[str] = set()
        self._wakeup = asyncio.Event()
        self.on_wait: Callable[[Sequence[ToolPart]], None] = lambda _: None
        """Hears of the calls that are waited for."""

    def submit(self, input: ExternalInput) -> None:
        """Hand in what became of a call, or the answer to an approval. Conflict when it has one."""
        key = input_key(input)
        if key in self._queued or question_key(input) in self._used_keys:
            raise Conflict(f"{key!r} has its answer already; it takes one")
        self._queued[key] = input
        self._wakeup.set()

    async def receive(self, calls: Sequence[ToolPart]) -> Sequence[e.Event]:
        """What was handed in for these calls, as soon as there is anything."""
        self.on_wait(calls)
        while True:
            self._wakeup.clear()
            keys = [key for call in calls for key in awaited_keys(call) if key in self._queued]
            if keys:
                given = [self._queued.pop(key) for key in keys]
                self._used_keys.update(map(question_key, given))
                return given
            await self._wakeup.wait()


def question_key(input: ExternalInput) -> str:
    """What takes one answer: of a call that asks several questions, each."""
    return str(input.data["id"]) if isinstance(input, e.Data) else input_key(input)


def input_key(input: ExternalInput) -> str:
    """What it is an answer to: a call, or an approval."""
    match input:
        case e.ToolApprovalResponse(approval_id=id):
            return id
        case e.Data(data=body):
            return question_call_id(body)
        case _:
            return input.tool_call_id


def awaited_keys(call: ToolPart) -> list[str]:
    """What a call waits for: its output, or the answer to its question; and the id of its approval."""
    waits = call.state == "approval-requested" and call.approval is not None
    return [call.tool_call_id, *([call.approval.id] if waits and call.approval else ())]
