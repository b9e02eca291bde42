"""Agents with sub-agents, scripts for them, and readers of their events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dragoman import Agent, ScriptedModel, operation
from dragoman import events as e
from dragoman.agent.result import Result
from dragoman.agent.run import Run
from dragoman.fold import Fold
from dragoman.messages import DataPart, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.operations import Operation
from dragoman.providers.scripted import Step

TASK = ("agents_worker", {"prompt": "Do it."})
Act = Callable[[Run[Any], e.Event], Any]


class Letters:
    """An operation that somebody has to approve, one that needs nobody, and what both have done."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.noted: list[str] = []

        @operation(namespace="mail", effect="once", approval=True)
        async def send(to: str) -> str:
            """Send a letter."""
            self.sent.append(to)
            return f"sent to {to}"

        @operation(namespace="mail", effect="once")
        async def note(text: str) -> str:
            """Write something down."""
            self.noted.append(text)
            return f"noted {text}"

        self.operations = (send, note)


def worker(
    *steps: Any, name: str = "worker", operations: Sequence[Any] = (), **options: Any
) -> tuple[Operation, ScriptedModel]:
    """An agent as an operation, and the model that plays it."""
    model = ScriptedModel(list(steps))
    agent = Agent(model, operations=operations, name=name, **options)
    return agent.as_operation(f"The {name}."), model


def lead(*steps: Any, operations: Sequence[Any], **options: Any) -> tuple[Agent[Any], ScriptedModel]:
    """An agent that has others work for it, and the model that plays it."""
    model = ScriptedModel(list(steps))
    return Agent(model, operations=operations, name="lead", **options), model


async def driven(run: Run[Any], act: Act | None = None) -> tuple[list[e.Event], Result[Any]]:
    """All events, which must follow the grammar, and the result; `act` may say something to each."""
    events: list[e.Event] = []
    async for event in run.events():
        events.append(event)
        if act is not None and (action := act(run, event)) is not None:
            await action
    Fold().add(events)
    return events, await run.result


def approving(approved: bool = True, reason: str | None = None) -> Act:
    """Answers each request for approval."""

    def act(run: Run[Any], event: e.Event) -> Any:
        if isinstance(event, e.ToolApprovalRequest):
            return run.approve(event.approval_id, approved, reason=reason)
        return None

    return act


def answering(text: str) -> Act:
    """Answers each question."""

    def act(run: Run[Any], event: e.Event) -> Any:
        if isinstance(event, e.Data) and event.data["status"] == "pending":
            return run.answer(event.id or "", text)
        return None

    return act


def outputs(request: ModelRequest) -> list[Any]:
    """What the model is told of the calls before it: outputs, and errors."""
    parts = [part for message in request.messages for part in message.parts if isinstance(part, ToolPart)]
    return [part.error_text if part.error_text is not None else part.output for part in parts]


def outputs_in(events: Sequence[e.Event]) -> list[Any]:
    """The final outputs of calls, as they came."""
    ends = [each for each in events if isinstance(each, e.ToolOutputAvailable) and not each.preliminary]
    return [each.output for each in ends]


def seen(events: Sequence[e.Event]) -> list[Mapping[str, Any]]:
    """The preliminary outputs of calls, as they came."""
    return [each.output for each in events if isinstance(each, e.ToolOutputAvailable) and each.preliminary]


def questions_in(result: Result[Any]) -> list[DataPart]:
    """The questions in the last message."""
    return [part for part in result.messages[-1].parts if isinstance(part, DataPart)]


def slow(text: str, delay: float = 0.05) -> Step:
    """A step whose text takes a while."""
    return Step(text=text.split(), delay=delay)
