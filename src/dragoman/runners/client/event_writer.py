"""Write the events of an agent into a turn: those of the library, or decoded from a program's output."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman import events as e
from dragoman.errors import ProviderError
from dragoman.runners.client.turn import RunnerTurn
from dragoman.wire.runner.frames import ToolStatus


class EventWriter:
    """Converts events to the frames of a turn. Reasoning, which has no frame, is the status `thinking`."""

    def __init__(self, turn: RunnerTurn) -> None:
        self.error: str | None = None
        """The text of the last error event; the caller decides whether it fails the turn (see `finish`)."""
        self._turn = turn
        self._tool_names: dict[str, str] = {}
        self._ends_with_space = True  # False: an empty line separates the next block of text

    async def write_batch(self, batch: Sequence[e.Event]) -> None:
        """Write events in their order."""
        for event in batch:
            await self._write(event)

    async def _write(self, event: e.Event) -> None:
        match event:
            case e.TextStart() if not self._ends_with_space:
                await self._write_text("\n\n")
            case e.TextDelta(delta=delta):
                await self._write_text(delta)
            case e.ReasoningStart():
                await self._turn.set_status("thinking")
            case e.Data(name=name, data=data, id=id, transient=transient):
                await self._turn.publish(name, data, id=id, transient=bool(transient))
            case e.ErrorEvent(error_text=text):
                self.error = text
            case _:
                await self._write_tool_event(event)

    def finish(self) -> None:
        """Raise the error that the events reported, if any."""
        if self.error is not None:
            raise ProviderError(self.error, category="unknown")

    async def _write_text(self, text: str) -> None:
        if text:
            self._ends_with_space = text[-1].isspace()
            await self._turn.write_text(text)

    async def _write_tool_event(self, event: e.Event) -> None:
        turn = self._turn
        match event:
            case e.ToolInputStart(tool_call_id=id, tool_name=name):
                self._tool_names[id] = name
                await turn.update_tool(id, name, status="pending")
            case e.ToolInputAvailable(tool_call_id=id, tool_name=name, input=input):
                self._tool_names[id] = name
                self._ends_with_space = True
                await turn.update_tool(id, name, status="running", args=input)
            case e.ToolInputError(tool_call_id=id, tool_name=name, input=input, error_text=text):
                await turn.update_tool(id, name, status="error", args=input, error=text)
            case e.ToolOutputAvailable(tool_call_id=id, output=output, preliminary=preliminary):
                status: ToolStatus = "running" if preliminary else "completed"
                await turn.update_tool(id, self._name(id), status=status, result=output)
            case e.ToolOutputError(tool_call_id=id, error_text=text):
                await turn.update_tool(id, self._name(id), status="error", error=text)
            case e.ToolOutputDenied(tool_call_id=id):
                await turn.update_tool(id, self._name(id), status="error", error="the call was not approved")
            case _:
                pass

    def _name(self, call_id: str) -> str:
        return self._tool_names.get(call_id, "tool")
