"""Context: for whom a call is made, what it stands under, and by when it must end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import msgspec

from dragoman.errors import CallError
from dragoman.operations.identity import LOCAL, Identity
from dragoman.operations.outcome import Outcome

T = TypeVar("T")

CLOSE_SECONDS = 5.0  # how long children may take to end once they are cancelled


class Caller(Protocol):
    """What makes calls."""

    async def call(
        self, operation: str, input: Mapping[str, Any] | None = None, *, context: Context
    ) -> Outcome: ...

    async def offload(self, function: Callable[[], T]) -> T: ...


class Node:
    """A call under way: those that it makes are its children, and none outlives it."""

    __slots__ = ("_children", "_closed", "_made", "caller", "id")

    def __init__(self, caller: Caller, id: str) -> None:
        self.caller = caller
        self.id = id
        self._children: dict[str, asyncio.Task[Any] | None] = {}
        self._made = 0
        self._closed = False

    def adopt(self, call_id: str) -> int:
        """Take on a child that this task makes; gives its index. CallError once the call has ended."""
        if self._closed:
            raise CallError(f"call {self.id} has ended; it can make no further calls")
        self._children[call_id] = asyncio.current_task()
        self._made += 1
        return self._made - 1

    def release(self, call_id: str) -> None:
        """A child has ended."""
        self._children.pop(call_id, None)

    async def close(self) -> None:
        """Cancel the tasks of the children that are left, and wait for them."""
        self._closed = True
        left = {task for task in self._children.values() if task is not None} - {asyncio.current_task()}
        for task in left:
            task.cancel("the call that made this one has ended")
        if left:
            await asyncio.wait(left, timeout=CLOSE_SECONDS)


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What a call knows of its surroundings.

    Whoever begins a call says who asks, and what the call belongs to; `deadline` is in seconds of the loop's
    clock. The function that runs gets a context of its own: there `call_id` is the call itself,
    `idempotency_key` stays the same when the call is repeated after a crash, and `call()` calls further
    operations below it.
    """

    identity: Identity = LOCAL
    parent_id: str | None = None
    run_id: str | None = None
    session_id: str | None = None
    tool_call_id: str | None = None
    deadline: float | None = None
    idempotency_key: str | None = None
    call_id: str | None = None
    node: Node | None = None

    async def call(self, operation: str, input: Mapping[str, Any] | None = None) -> Any:
        """The result of another operation, called as a child of this call and cancelled with it.

        Raises CallError with the child's own code and message when it fails.
        """
        outcome = await self._inside().call(operation, input, context=self)
        return outcome.unwrap()

    async def offload(self, function: Callable[[], T]) -> T:
        """What blocking code returns, run in the hub's bounded threads, off the event loop."""
        return await self._inside().offload(function)

    def _inside(self) -> Caller:
        if self.node is None:
            raise CallError(
                "this context is not inside a call",
                hint="operations are called with Calls.call(), which gives one",
            )
        return self.node.caller


running: ContextVar[Context] = ContextVar("dragoman_call")


def current() -> Context:
    """The context of the call that runs here, for code that was not handed it. CallError outside of any."""
    context = running.get(None)
    if context is None:
        raise CallError("no operation is running here")
    return context
