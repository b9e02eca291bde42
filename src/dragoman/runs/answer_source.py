"""What answers in a run: the agent loop, or the turn of a runner."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from dragoman import events as e
from dragoman.agent.hook_dispatch import HookDispatcher
from dragoman.agent.loop import Batch
from dragoman.agent.restoration import RestoredAnswer
from dragoman.agent.stop_conditions import SoFar
from dragoman.fold import Fold
from dragoman.operations.context import Context


class AnswerSource(Protocol):
    """What answers in a run: the agent loop, or the turn of a runner."""

    @property
    def turn(self) -> AnswerTurn: ...

    @property
    def hooks(self) -> HookDispatcher: ...

    @property
    def usage(self) -> e.Usage | None: ...

    @property
    def cost(self) -> float | None: ...

    @property
    def step_count(self) -> int: ...

    def run(self, on_delta: e.DeltaHandler | None = None, /) -> AsyncGenerator[Batch, None]: ...
    def message_metadata(self, reason: Any, /) -> dict[str, Any]: ...
    def so_far(self) -> SoFar: ...
    def end_after_step(self, event: e.Data, /) -> None: ...


class AnswerTurn(Protocol):
    """The turn that a source answers: see `TurnSpec`."""

    @property
    def fold(self) -> Fold: ...

    @property
    def context(self) -> Context: ...

    @property
    def restored(self) -> RestoredAnswer | None: ...
