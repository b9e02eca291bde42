"""Normalisation of a provider's answer to one step: unique call ids, known tools, repaired arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from dragoman import events as e
from dragoman.agent.meta_tool_calls import call_title, calls_metadata
from dragoman.agent.tools.toolbox import Toolbox
from dragoman.agent.turn_spec import Batch, StepRequest, TurnSpec
from dragoman.errors import ProviderError
from dragoman.fold import Fold
from dragoman.messages import OUTPUT_CALL, ToolPart
from dragoman.model_request import Tool
from dragoman.operations.arguments.broken_json import repair_json
from dragoman.operations.context import Context
from dragoman.part_builders import ToolCallBuilder


async def shorten_request(
    step: StepRequest, turn: TurnSpec, *, error: ProviderError
) -> tuple[StepRequest, Batch]:
    """Return the shortened request and the events of what it drops. Raises `error` if nothing can go."""
    if turn.context_window is None:
        raise error
    request, dropped = await turn.context_window.shrink(step.request, turn.context, provider=step.provider)
    if not dropped:
        raise error
    return StepRequest(step.routes, request), dropped


REPAIR_NOTE = "the arguments were broken JSON; read as what was meant"
_ToolInputEvent = e.ToolInputStart | e.ToolInputDelta | e.ToolInputAvailable | e.ToolInputError


class StreamNormaliser:
    """Normalises the events of one step before they enter the run.

    `existing_ids` are the ids of earlier calls, `visible_tools` the tools that may be called (None for
    all), and `output_tool` is the one that the loop handles itself. `repair_notes` say what was corrected.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        context: Context,
        *,
        existing_ids: Iterable[str],
        visible_tools: Sequence[Tool] | None = None,
        output_tool: str | None = None,
    ) -> None:
        self.repair_notes: dict[str, str] = {}
        self._toolbox = toolbox
        self._context = context
        self._output_tool = output_tool
        self._used_ids = dict.fromkeys(existing_ids)  # an empty set takes three times as much
        self._visible_tools = None if visible_tools is None else {tool.name for tool in visible_tools}
        self._id_mapping: dict[str, str] = {}

    def normalise(self, batch: Sequence[e.Event]) -> Sequence[e.Event]:
        """Return the events as they enter the run, without `finish-step`, which the loop sends itself."""
        admitted: list[e.Event] = []
        for event in batch:
            match event:
                case e.FinishStep():
                    pass
                case e.ToolInputStart() | e.ToolInputDelta() | e.ToolInputAvailable() | e.ToolInputError():
                    admitted.append(self._tool_event(event))
                case e.ToolOutputAvailable() | e.ToolOutputError():
                    key = event.tool_call_id
                    admitted.append(
                        msgspec.structs.replace(event, tool_call_id=self._id_mapping.get(key, key))
                    )
                case _:
                    admitted.append(event)
        return admitted

    def _tool_event(self, event: _ToolInputEvent) -> e.Event:
        key, seen = event.tool_call_id, self._used_ids
        if key in seen and key not in self._id_mapping:
            self._id_mapping[key] = _unique_id(key, seen)
        seen[self._id_mapping.setdefault(key, key)] = None
        if self._id_mapping[key] != key:
            event = msgspec.structs.replace(event, tool_call_id=self._id_mapping[key])
        if isinstance(event, e.ToolInputError):
            event = self._repair_arguments(event)
        if not isinstance(event, e.ToolInputDelta) and self._is_output_call(event):
            return msgspec.structs.replace(
                event, provider_metadata={**(event.provider_metadata or {}), **OUTPUT_CALL}
            )
        if isinstance(event, e.ToolInputAvailable) and not event.provider_executed:
            return self._check_tool_name(event)
        return event

    def _is_output_call(self, event: e.ToolInputStart | e.ToolInputAvailable | e.ToolInputError) -> bool:
        return event.tool_name == self._output_tool and not event.provider_executed

    def _repair_arguments(self, event: e.ToolInputError) -> e.ToolInputError | e.ToolInputAvailable:
        """Return the event with its broken JSON repaired, if there is no doubt about what was meant."""
        arguments = (
            repair_json(event.input) if isinstance(event.input, str) and not event.provider_executed else None
        )
        if arguments is None:
            return event
        self.repair_notes[event.tool_call_id] = REPAIR_NOTE
        key, metadata = event.tool_call_id, event.provider_metadata
        return e.ToolInputAvailable(key, event.tool_name, arguments, provider_metadata=metadata)

    def _check_tool_name(self, event: e.ToolInputAvailable) -> e.Event:
        called = event.tool_name
        hidden = self._visible_tools is not None and called not in self._visible_tools
        if self._toolbox.kind(called) != "unknown" and not hidden:
            return self._describe(event)
        shown = self._toolbox.tool_names() if self._visible_tools is None else sorted(self._visible_tools)
        tools = f"the tools are {', '.join(shown)}." if shown else "there are no tools."
        text = f"there is no tool {called!r}; {tools} {self._toolbox.search_hint}".rstrip()
        return e.ToolInputError(event.tool_call_id, called, event.input, text)

    def _describe(self, event: e.ToolInputAvailable) -> e.ToolInputAvailable:
        """Return the event with the operations that the call runs, as its title and in its metadata."""
        calls = self._toolbox.inner_calls(event.tool_name, event.input, context=self._context)
        if not calls:
            return event
        return msgspec.structs.replace(
            event,
            title=call_title([call.operation for call in calls]),
            provider_metadata={**(event.provider_metadata or {}), **calls_metadata(calls)},
        )


def tool_parts(fold: Fold) -> list[ToolPart]:
    """Return all tool calls of a message."""
    calls = [builder for builder in fold.builders if isinstance(builder, ToolCallBuilder)]
    return [call.current for call in calls]


def _unique_id(tool_call_id: str, used_ids: Collection[str]) -> str:
    number = 2
    while f"{tool_call_id}-{number}" in used_ids:
        number += 1
    return f"{tool_call_id}-{number}"
