"""Preparing: `on_prepare_step`, which may change what one step asks, and of whom."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from dragoman.agent.conversation import read
from dragoman.agent.stops import SoFar
from dragoman.agent.turn import Asking, StepChange, StepContext
from dragoman.errors import BadRequest
from dragoman.providers.model import Model
from dragoman.request import ModelRequest, Tool

OnPrepareStep: TypeAlias = Callable[[StepContext], StepChange | Awaitable[StepChange | None] | None]
Find: TypeAlias = Callable[[Model | str], Model]


class Preparing:
    """Asks a function before each step; `find` gives the model that it names."""

    def __init__(self, function: OnPrepareStep, find: Find) -> None:
        self._function = function
        self._find = find

    async def __call__(self, asking: Asking, so_far: SoFar, *, number: int) -> Asking:
        """The step as the function has it."""
        request = asking.request
        told = self._function(
            StepContext(
                number=number,
                so_far=so_far,
                model=request.model,
                messages=request.messages,
                instructions=request.instructions,
                tools=request.tools,
                options=request.options,
            )
        )
        change = await told if inspect.isawaitable(told) else told
        if change is None:
            return asking
        if not isinstance(change, StepChange):
            raise BadRequest(f"on_prepare_step gives a StepChange or None, got {type(change).__name__}")
        return self._changed(asking, change)

    def _changed(self, asking: Asking, change: StepChange) -> Asking:
        provider, request = asking.provider, asking.request
        if change.model is not None:
            model = self._find(change.model)
            provider = model.provider
            options = {**request.options, **model.options}
            request = replace(request, model=model.name, options=options)
        if change.tools is not None:
            request = replace(request, tools=chosen(request, change.tools))
        if change.messages is not None:
            request = replace(request, messages=read(change.messages))
        if change.instructions is not None:
            request = replace(request, instructions=change.instructions)
        if change.options is not None:
            request = replace(request, options={**request.options, **change.options})
        return Asking(provider, request)


def chosen(request: ModelRequest, names: Sequence[str]) -> tuple[Tool, ...]:
    """The tools of these names. BadRequest for one that there is not."""
    wanted = {name.replace(".", "_") for name in names}
    found = tuple(tool for tool in request.tools if tool.name in wanted)
    missing = wanted - {tool.name for tool in found}
    if missing:
        there = ", ".join(tool.name for tool in request.tools) or "none"
        raise BadRequest(f"there is no tool {', '.join(sorted(missing))}; there are {there}", field="tools")
    return found
