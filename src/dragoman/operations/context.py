"""The context of a call: identity, position in the call tree, deadline, budget and hooks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from dragoman.errors import BadRequest, CallError
from dragoman.identity import LOCAL, Identity
from dragoman.operations.approval import Grant
from dragoman.operations.budget import Budget, CostTotal
from dragoman.operations.call_hooks import CallHooks, HookDecision
from dragoman.operations.outcome import CallOutcome, to_jsonable

T = TypeVar("T")
ProgressCallback: TypeAlias = Callable[[Any], None]
DataCallback: TypeAlias = Callable[[str, Any], None]
HUB_PARTS = frozenset(
    {"agent-status", "anthropic", "context", "question", "queued", "reset-step", "steered", "task-result"}
)
"""Names of data parts that the hub writes itself."""

CHILD_CANCEL_SECONDS = 5.0  # that cancelled children may take to end


class PolicyDecider(Protocol):
    """Decides who may call what: returns the policy's Verdict on an Operation."""

    def decide(self, operation: Any, *, identity: Identity, agent: str | None = None) -> Any: ...


class ReplayedCallLookup(Protocol):
    """Finds the calls that a run had made before a crash: see `ReplayedCalls`, which is above this layer."""

    def get(self, key: str) -> Any:
        """Return the ledger's entry with this idempotency key, or None."""

    def children(self, call_id: str) -> Sequence[Any]:
        """Return the ledger's entries of the calls directly below a call."""


class ParentAgent(msgspec.Struct, frozen=True):
    """An agent for which another agent works; the policy has to allow a call to both."""

    agent: str | None
    decider: PolicyDecider


class Intermediary(msgspec.Struct, frozen=True):
    """Another identity behind a call, with its agent: the policy has to allow the call to it as well."""

    identity: Identity
    agent: str | None = None


class Activation(msgspec.Struct, frozen=True):
    """A name that an agent has activated in a run, such as that of a skill; policy rules can refer to it."""

    agent: str | None
    name: str


class OperationCaller(PolicyDecider, Protocol):
    """Calls operations."""

    async def call(
        self,
        operation: str,
        input: Mapping[str, Any] | None = None,
        *,
        context: Context,
        on_progress: ProgressCallback | None = None,
    ) -> CallOutcome: ...

    async def offload(self, function: Callable[[], T]) -> T: ...

    def publish(self, context: Context, name: str, *, data: Any, in_answer: bool = False) -> None: ...


class CallNode:
    """A running call in the call tree. No child outlives it. It is stopped at `deadline`."""

    __slots__ = ("_child_count", "_children", "_closed", "caller", "cost", "deadline", "id")

    def __init__(self, caller: OperationCaller, id: str) -> None:
        self.caller = caller
        self.id = id
        self.cost = 0.0  # US dollars
        self.deadline: float | None = None  # in the event loop's time
        self._children: dict[str, asyncio.Task[Any] | None] = {}
        self._child_count = 0
        self._closed = False

    def add_child(self, call_id: str) -> int:
        """Add a child that the current task calls; return its index. Raises CallError after the end."""
        if self._closed:
            raise CallError(f"Call {self.id} has ended; it cannot make further calls.")
        self._children[call_id] = asyncio.current_task()
        self._child_count += 1
        return self._child_count - 1

    @property
    def child_count(self) -> int:
        """The number of children that were added so far."""
        return self._child_count

    def remove_child(self, call_id: str) -> None:
        """Remove a child that has ended."""
        self._children.pop(call_id, None)

    async def close(self) -> None:
        """Cancel the tasks of the remaining children and wait for them."""
        self._closed = True
        tasks = {task for task in self._children.values() if task is not None} - {asyncio.current_task()}
        for task in tasks:
            task.cancel("the parent call has ended")
        if tasks:
            await asyncio.wait(tasks, timeout=CHILD_CANCEL_SECONDS)


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The surroundings of a call.

    A caller sets who makes the call and what it belongs to; `deadline` is in seconds of the event loop's
    clock. The function that runs gets its own context: there `call_id` is the call itself,
    `idempotency_key` stays the same when the call is repeated after a crash, and `call()` calls further
    operations below it.

    `agent` is the agent whose model makes the call, for the policy. `approval` is an answered approval that
    the call uses up. `for_model` is True if the result goes to a model: a large one is stored as an
    artifact. `budget` is shared by all calls below. `on_progress` receives progress, `on_data` the data
    parts that calls put into the answer of the run. `step` counts the model calls of a run, `grant` is the
    approval of this call, `notes` are repairs of its input.
    `intermediaries` are other identities behind the call: a spoke that calls for `identity`, or the caller of
    an operation whose spoke calls as itself. `parent_agents` are the agents for which this one works. The
    call has to be allowed to all of them.

    `hooks` run around the calls of a model; `hook_decision` is their decision about this call. `answer` is
    the user's answer to a question. `may_wait` is True if a nested call may be suspended for an approval: the
    calling operation then raises ApprovalNeeded with a `state`, and runs again with this `state` and the
    `grant`.

    Idempotency keys begin with `key_scope`, or else with `run_id`; `call_key` names the call within its
    parent, if its index among the parent's calls could change. `replayed_calls` are the calls that the run
    made before a crash. `seal` replaces the secrets of the call's team in a JSON value by their handles; None
    if it has none. `check_page` raises CallDenied for a text with a secret that must not be sent to the page
    of a URL. Results, errors, progress and events are sealed automatically. `activations` are the names that
    the agents of the run have activated; all of its calls share the list, and None means no run.
    """

    identity: Identity = LOCAL
    intermediaries: tuple[Intermediary, ...] = ()
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
    cost_total: CostTotal | None = None
    on_progress: ProgressCallback | None = None
    on_data: DataCallback | None = None
    grant: Grant | None = None
    step: int | None = None
    notes: tuple[str, ...] = ()
    hooks: CallHooks | None = None
    hook_decision: HookDecision | None = None
    answer: str | None = None
    state: bytes | None = None
    may_wait: bool = False
    key_scope: str | None = None
    call_key: str | None = None
    replayed_calls: ReplayedCallLookup | None = None
    seal: Callable[[Any], Any] | None = None
    check_page: Callable[[str, str], None] | None = None
    activations: list[Activation] | None = None

    @property
    def crosses_owners(self) -> bool:
        """Whether the call is made because of another owner's call."""
        return any(each.identity.owner != self.identity.owner for each in self.intermediaries)

    async def call(
        self,
        operation: str,
        input: Mapping[str, Any] | None = None,
        *,
        on_progress: ProgressCallback | None = None,
    ) -> Any:
        """Call another operation as a child of this call and return its result.

        It is cancelled with this call. `on_progress` receives its progress. Raises CallError with the
        child's code and message if it fails.
        """
        outcome = await self._caller().call(operation, input, context=self, on_progress=on_progress)
        return outcome.unwrap()

    def progress(self, value: Any) -> None:
        """Report progress: a JSON-able value that is shown as preliminary output.

        Each value replaces the one before it. Without a listener it is ignored.
        """
        if self.on_progress is not None:
            progress = to_jsonable(value)
            self.on_progress(progress if self.seal is None else self.seal(progress))

    def publish(self, name: str, data: Mapping[str, Any], *, in_answer: bool = False) -> None:
        """Publish a domain event, as `data-<name>`, in the session of this call, where it is stored.

        Outside of a session it is only checked. With `in_answer` it is also a data part of the answer that
        makes this call: one for each name, replaced by the next one; outside of an answer this has no effect.
        Raises BadRequest for a name that the configuration does not allow, InvalidInput for data that do not
        match its schema, and TooLarge.
        """
        if in_answer:
            check_part_name(name)
        self._caller().publish(self, name, data=data, in_answer=in_answer)
        if in_answer:
            self.put_in_answer(name, data)

    def put_in_answer(self, name: str, data: Mapping[str, Any]) -> None:
        """Add a data part to the answer that makes this call, without an event.

        Raises BadRequest, TooLarge.
        """
        check_part_name(name)
        if self.on_data is not None:
            shown = to_jsonable(data)
            self.on_data(name, shown if self.seal is None else self.seal(shown))

    def spend(self, usd: float) -> None:
        """Record what this call costs, in US dollars. Raises BudgetExhausted if the budget is exceeded."""
        if self.node is not None:
            self.node.cost += usd
        if self.cost_total is not None:
            self.cost_total.add(usd)
        if self.budget is not None:
            self.budget.spend(usd)

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline; None without one. Use it as the timeout of other requests."""
        return None if self.deadline is None else self.deadline - asyncio.get_running_loop().time()

    async def offload(self, function: Callable[[], T]) -> T:
        """Run blocking code in the hub's bounded threads, off the event loop, and return its result."""
        return await self._caller().offload(function)

    def _caller(self) -> OperationCaller:
        if self.node is None:
            raise CallError(
                "This context does not belong to a running call.",
                hint="Call operations with Calls.call(), which creates the context.",
            )
        return self.node.caller


def check_part_name(name: str) -> None:
    """Raise BadRequest for the name of a data part that only the hub writes."""
    if name in HUB_PARTS:
        raise BadRequest(f"the hub writes the data part {name!r} itself; use another name", field="name")


current_context: ContextVar[Context] = ContextVar("dragoman_call")


def current() -> Context:
    """Return the context of the running call. Raises CallError outside of a call."""
    context = current_context.get(None)
    if context is None:
        raise CallError("No operation is running here.")
    return context
