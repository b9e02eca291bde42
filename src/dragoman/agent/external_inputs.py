"""Inputs to a run from outside: outputs of client tools, approval answers, answers to questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from dragoman import events as e
from dragoman.agent.approval_events import question_call_id
from dragoman.errors import Conflict
from dragoman.flag import Flag
from dragoman.messages import ToolPart

ExternalInput: TypeAlias = e.ToolOutputAvailable | e.ToolOutputError | e.ToolApprovalResponse | e.Data


class ExternalInputs:
    """Queues submitted inputs until the run receives them. Each call, approval or question takes one
    answer.
    """

    def __init__(self) -> None:
        self._queued: dict[str, ExternalInput] = {}
        self._used_keys: set[str] = set()
        self._wakeup = Flag()
        self.on_wait: Callable[[Sequence[ToolPart]], None] = lambda _: None
        """Called with the waiting calls each time the run starts to wait."""

    def submit(self, input: ExternalInput) -> None:
        """Queue an output or an answer. Raises Conflict for a second one."""
        key = input_key(input)
        if key in self._queued or question_key(input) in self._used_keys:
            raise Conflict(f"{key!r} already has an answer; each call or approval takes one")
        self._queued[key] = input
        self._wakeup.set()

    def submit_first(self, input: ExternalInput) -> None:
        """Queue an input, or drop a second one: the thread that sent it cannot receive the Conflict."""
        with suppress(Conflict):
            self.submit(input)

    async def receive(self, calls: Sequence[ToolPart]) -> Sequence[e.Event]:
        """Wait for inputs to any of these calls and return them."""
        self.on_wait(calls)
        while True:
            self._wakeup.clear()
            keys = [key for call in calls for key in awaited_keys(call) if key in self._queued]
            if keys:
                inputs = [self._queued.pop(key) for key in keys]
                self._used_keys.update(map(question_key, inputs))
                return inputs
            await self._wakeup.wait()


def question_key(input: ExternalInput) -> str:
    """Return the key that takes one answer: a question id, or what `input_key` returns."""
    return str(input.data["id"]) if isinstance(input, e.Data) else input_key(input)


def input_key(input: ExternalInput) -> str:
    """Return what an input answers: the id of a tool call or of an approval request."""
    match input:
        case e.ToolApprovalResponse(approval_id=id):
            return id
        case e.Data(data=body):
            return question_call_id(body)
        case _:
            return input.tool_call_id


def awaited_keys(call: ToolPart) -> list[str]:
    """Return the keys that a call waits for: its own id, and the id of its approval request."""
    needs_approval = call.state == "approval-requested" and call.approval is not None
    return [call.tool_call_id, *([call.approval.id] if needs_approval and call.approval else ())]
