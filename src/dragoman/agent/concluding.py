"""Concluding: an answer that is to be a value of a type, asked for until it is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman import events as e
from dragoman.agent.structured import ACCEPTED, Output, Problem
from dragoman.messages import ToolPart
from dragoman.operations.outcome import to_json
from dragoman.request import ModelRequest


class Conclusion:
    """Asks for the value, reads it, asks again. `value` is there when `done`."""

    def __init__(self, output: Output[Any] | None) -> None:
        self.done = False
        self.value: Any = None
        self.problem: Problem | None = None
        self._output = output
        self._failed = 0

    @property
    def tool(self) -> str | None:
        """The tool that takes the value; it is never run."""
        return self._output.tool.name if self._output is not None else None

    def prepare(self, request: ModelRequest, family: str) -> ModelRequest:
        """The request that asks for the value, and says what was wrong with the one before."""
        if self._output is None:
            return request
        problem, self.problem = self.problem, None
        if problem is not None:
            request = replace(request, messages=(*request.messages, self._output.remind(problem)))
        return self._output.prepare(request, family)

    def read(self, text: str, calls: Sequence[ToolPart]) -> Sequence[e.Event]:
        """Take the value from a step that gives it; what its call is answered. ProviderError after too many
        attempts.
        """
        if self._output is None or (calls and all(call.name != self.tool for call in calls)):
            return ()
        found = self._output.read(text, calls)
        if not isinstance(found, Problem):
            self.value, self.done = found, True
            open_calls = [c for c in calls if c.name == self.tool and c.state == "input-available"]
            return [e.ToolOutputAvailable(call.tool_call_id, ACCEPTED) for call in open_calls]
        self._failed += 1
        if self._failed > self._output.attempts:
            raise found.error(type=self._output.type, tries=self._failed)
        self.problem = found
        open_calls = [c for c in calls if c.name == self.tool and c.state == "input-available"]
        return [e.ToolOutputError(call.tool_call_id, found.message) for call in open_calls]

    def untold(self, text: str) -> str | None:
        """The value as JSON, unless this text is that: for whoever reads the message alone."""
        said = to_json(self.value).decode()
        try:
            return None if msgspec.json.decode(text) == msgspec.json.decode(said) else said
        except (msgspec.DecodeError, RecursionError):
            return said
