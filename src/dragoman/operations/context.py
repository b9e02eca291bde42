"""Context: for whom a call is made, what it stands under, and by when it must end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from dragoman.errors import CallError
from dragoman.identity import LOCAL, Identity
from dragoman.operations.approval import Grant
from dragoman.operations.budget import Budget
from dragoman.operations.call_hooks import CallHooks, Ruling
from dragoman.operations.outcome import CallOutcome, to_jsonable

T = TypeVar("T")
ProgressCallback: TypeAlias = Callable[[Any], None]

CHILD_CANCEL_SECONDS = 5.0  # how long children may take to end once they are cancelled


class PolicyDecider(Protocol):
    """What says who may call what: the policy's Verdict of an Operation."""

    def decide(self, operation: Any, *, identity: Identity, agent: str | None = None) -> Any: ...


class ParentAgent(msgspec.Struct, frozen=True):
    """An agent that has another one work for it: what that may do, this one has to be allowed, too."""

    agent: str | None
    decider: PolicyDecider


class OperationCaller(PolicyDecider, Protocol):
    """What makes calls."""

    async def call(
        self,
        operation: str,
        input: Mapping[str, Any] | None = None,
        *,
        context: Context,
        on_progress: ProgressCallback | None = None,
    ) -> CallOutcome: ...

    async def offload(self, function: Callable[[], T]) -> T: ...


class CallNode:
    """A call under way: those that it makes are its children, and none outlives it. `deadline` stops it."""

    __slots__ = ("_child_count", "_children", "_closed", "caller", "cost", "deadline", "id")

    def __init__(self, caller: OperationCaller, id: str) -> None:
        self.caller = caller
        self.id = id
        self.cost = 0.0  # US dollars
        self.deadline: float | None = None  # by the loop's clock
        self._children: dict[str, asyncio.Task[Any] | None] = {}
        self._child_count = 0
        self._closed = False

    def add_child(self, call_id: str) -> int:
        """Take on a child that this task makes; gives its index. CallError once the call has ended."""
        if self._closed:
            raise CallError(f"call {self.id} has ended; it can make no further calls")
        self._children[call_id] = asyncio.current_task()
        self._child_count += 1
        return self._child_count - 1

    def remove_child(self, call_id: str) -> None:
        """A child has ended."""
        self._children.pop(call_id, None)

    async def close(self) -> None:
        """Cancel the tasks of the children that are left, and wait for them."""
        self._closed = True
        left = {task for task in self._children.values() if task is not None} - {asyncio.current_task()}
        for task in left:
            task.cancel("the call that made this one has ended")
        if left:
            await asyncio.wait(left, timeout=CHILD_CANCEL_SECONDS)


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What a call knows of its surroundings.

    Whoever begins a call says who asks, and what the call belongs to; `deadline` is in seconds of the loop's
    clock. The function that runs gets a context of its own: there `call_id` is the call itself,
    `idempotency_key` stays the same when the call is repeated after a crash, and `call()` calls further
    operations below it.

    `agent` is whose model asks, for the policy. `approval` is an answered approval that the call uses up.
    `for_model` is True where the result goes to a model: a big one is kept as an artifact, and told in part.
    `budget` is shared by all that is called below. `on_progress` hears of progress. `step` counts the model
    calls of a run, `grant` is what was approved of this call, `notes` what was mended of its input already.
    `intermediaries` are others who make the call for `identity`, as spokes do: they have to be allowed it,
    too. So have the agents in `parent_agents`, for each of which the next one works.
    `hooks` are asked about the calls that a model makes, `ruling` is what they said of this one already.

    `answer` is what a person said to the question that the call is. `may_wait` is True where a call that is
    made in here may wait for somebody's word; whoever makes it then raises ApprovalNeeded, and is run again
    with the `state` that it gave along, and the `grant`.
    """

    identity: Identity = LOCAL
    intermediaries: tuple[Identity, ...] = ()
    parent_agents: tuple[ParentAgent, ...] = ()
    parent_id: str | None = None
    run_id: str | None = None
    session_id: str | None = None
    tool_call_id: str | None = None
    deadline: float | None = None
    idempotency_key: str | None = None
    call_id: str | None = None
    node: CallNode | None = None
    agent: str | None = None
    approval: str | None = None
    for_model: bool = False
    budget: Budget | None = None
    on_progress: ProgressCallback | None = None
    grant: Grant | None = None
    step: int | None = None
    notes: tuple[str, ...] = ()
    hooks: CallHooks | None = None
    ruling: Ruling | None = None
    answer: str | None = None
    state: bytes | None = None
    may_wait: bool = False

    async def call(
        self,
        operation: str,
        input: Mapping[str, Any] | None = None,
        *,
        on_progress: ProgressCallback | None = None,
    ) -> Any:
        """The result of another operation, called as a child of this call and cancelled with it.

        `on_progress` hears what it says meanwhile. Raises CallError with the child's own code and message
        when it fails.
        """
        outcome = await self._caller().call(operation, input, context=self, on_progress=on_progress)
        return outcome.unwrap()

    def progress(self, value: Any) -> None:
        """Say how far it is: a JSON-able value, shown as preliminary output; the newest takes the place of
        those before. It is no error when nobody listens.
        """
        if self.on_progress is not None:
            self.on_progress(to_jsonable(value))

    def spend(self, usd: float) -> None:
        """Account for what this call costs, in US dollars. BudgetExhausted when the tree has no more."""
        if self.node is not None:
            self.node.cost += usd
        if self.budget is not None:
            self.budget.spend(usd)

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, None without one; to be handed on to whoever does the work."""
        return None if self.deadline is None else self.deadline - asyncio.get_running_loop().time()

    async def offload(self, function: Callable[[], T]) -> T:
        """What blocking code returns, run in the hub's bounded threads, off the event loop."""
        return await self._caller().offload(function)

    def _caller(self) -> OperationCaller:
        if self.node is None:
            raise CallError(
                "this context is not inside a call",
                hint="operations are called with Calls.call(), which gives one",
            )
        return self.node.caller


current_context: ContextVar[Context] = ContextVar("dragoman_call")


def current() -> Context:
    """The context of the call that runs here, for code that was not handed it. CallError outside of any."""
    context = current_context.get(None)
    if context is None:
        raise CallError("no operation is running here")
    return context
