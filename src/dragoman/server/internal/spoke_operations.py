"""Operations of this host's spokes for other hosts: their list, and calls that those hosts have allowed.

A call is accepted first and begun by a second request: if that does not arrive, nothing has begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from dragoman.accounts.shared_budgets import SharedBudgets
from dragoman.agent.tools.tool_execution import MAX_DATA_NAMES
from dragoman.errors import (
    BadRequest,
    CallError,
    CallTimeout,
    Conflict,
    DragomanError,
    NotFound,
    TooLarge,
    Unavailable,
)
from dragoman.hosts.call_messages import (
    CALLS_PATH,
    OPERATIONS_PATH,
    CallTicket,
    SharedCall,
    SharedCallEnd,
    SharedCallFrame,
    SharedOperation,
    SharedOperations,
)
from dragoman.hosts.client import KEEP_ALIVE
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.disconnect import DisconnectWatch
from dragoman.ids import new_id
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.large_json import weigh
from dragoman.offload import offload
from dragoman.operations.budget import Budget, CostTotal
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import CallNode, Context, Intermediary, ParentAgent
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import to_failure, to_jsonable
from dragoman.operations.registry import Registry
from dragoman.server.internal.routes import HostRoutes
from dragoman.spokes.hub.call import calling_spokes, runs_for_other_host

log = logging.getLogger(__name__)

MAX_BODY = 64_000_000  # bytes of a call
CALLS = msgspec.json.Decoder(SharedCall)
TICKET_SECONDS = 30.0  # after which an accepted call that nobody begins is forgotten
SPOKE_PREFIX = "spoke:"
ANNOUNCE_DELAY = 0.02  # seconds within which changes of the list are announced together


class SpokeOperationList:
    """The operations of this host's spokes, kept in step with the registry, with a version."""

    def __init__(self, registry: Registry, *, on_change: Callable[[], None]) -> None:
        """`on_change` is called once for changes within `ANNOUNCE_DELAY`."""
        self._on_change = on_change
        self._is_announced = True
        self._is_closed = False
        self._boot = new_id("list")
        self._changes = 0
        self._operations: dict[str, Operation] = {}
        registry.add_listener(self)

    @property
    def version(self) -> str:
        """Changes with the list."""
        return f"{self._boot}.{self._changes}"

    def add(self, operation: Operation) -> None:
        """Note an operation that was registered."""
        if is_of_own_spoke(operation) and not self._is_closed:
            self._operations[operation.id] = operation
            self._note_change()

    def remove(self, operation: Operation) -> None:
        """Note an operation that was removed."""
        if not self._is_closed and self._operations.pop(operation.id, None) is not None:
            self._note_change()

    def _note_change(self) -> None:
        self._changes += 1
        if self._is_announced:
            self._is_announced = False
            asyncio.get_running_loop().call_later(ANNOUNCE_DELAY, self._announce_change)

    def _announce_change(self) -> None:
        self._is_announced = True
        self._on_change()

    def get(self, id: str) -> Operation:
        """Return an operation. NotFound, or Unavailable once this host stops."""
        if self._is_closed:
            raise Unavailable(
                f"the host of {id} is shutting down",
                hint="call it again in a few seconds: its spoke reconnects",
            )
        operation = self._operations.get(id)
        if operation is None:
            raise NotFound(f"no spoke of this host serves {id!r} any more")
        return operation

    def close(self) -> None:
        """Freeze the list: the spokes of this host disconnect now, and reconnect to other hosts."""
        self._is_closed = True

    def shared(self, version: str | None) -> SharedOperations:
        """Return the list for a host that has `version` of it: without operations if nothing has changed."""
        if version == self.version:
            return SharedOperations(self.version)
        return SharedOperations(
            self.version, [SharedOperation.of(operation) for operation in self._operations.values()]
        )


def is_of_own_spoke(operation: Operation) -> bool:
    """Whether a spoke serves it that is connected to this host; those of other hosts name the host."""
    return operation.source.startswith(SPOKE_PREFIX) and operation.host is None


class SpokeCallHandlers:
    """Runs calls of this host's spokes for other hosts."""

    def __init__(
        self,
        registry: Registry,
        calls: Calls,
        *,
        shared_budgets: SharedBudgets,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called, soon, when other hosts should read the list again."""
        self._shared_budgets = shared_budgets
        self._operations = SpokeOperationList(registry, on_change=on_change)
        self._calls = calls
        self._accepted: dict[str, SharedCall] = {}

    def close(self) -> None:
        """Accept no more calls; other hosts keep the operations while the spokes reconnect."""
        self._operations.close()

    def routes(self) -> HostRoutes:
        """The paths of the internal listener."""
        yield OPERATIONS_PATH, {"GET": self.list}
        yield CALLS_PATH, {"POST": self.accept}
        yield f"{CALLS_PATH}/{{id}}", {"GET": self.run}

    async def list(self, exchange: Exchange) -> None:
        """List the operations, unless they are those of `?version`."""
        await exchange.respond(200, self._operations.shared(exchange.query.get("version")))

    async def accept(self, exchange: Exchange) -> None:
        """Accept a call; answer with a ticket, by which `run` begins it. BadRequest, NotFound, Conflict."""
        raw = await exchange.read_body(MAX_BODY)
        try:
            call = await offload(weigh(raw), partial(decode_json, raw, CALLS))
        except DECODE_ERRORS as error:
            raise BadRequest(f"the request is not a call: {error}") from None
        self._find(call)
        ticket = CallTicket(new_id("ticket"))
        self._accepted[ticket.id] = call
        asyncio.get_running_loop().call_later(TICKET_SECONDS, self._accepted.pop, ticket.id, None)
        await exchange.respond(200, ticket)

    async def run(self, exchange: Exchange) -> None:
        """Run an accepted call, once; stream its progress and its end. A disconnect aborts it."""
        call = self._accepted.pop(exchange.path_params["id"], None)
        if call is None:
            raise NotFound("there is no such call, or it was begun before")
        operation = self._find(call)
        await exchange.start_response(200, {"content-type": "application/x-ndjson"})
        output = SharedCallOutput()
        with DisconnectWatch(exchange, at_once=True) as watch:
            working = asyncio.ensure_future(self._run(call, operation, output=output))
            try:
                await send_frames(exchange, output, watch=watch)
            finally:
                working.cancel()
                await asyncio.wait([working])
        if not watch.disconnected:
            await exchange.send({"type": "http.response.body", "body": b""})

    def _find(self, call: SharedCall) -> Operation:
        operation = self._operations.get(call.operation)
        if operation.definition_hash != call.definition:
            raise Conflict(f"{call.operation} has changed since", hint="read its schema again, then call it")
        return operation

    async def _run(self, call: SharedCall, operation: Operation, *, output: SharedCallOutput) -> None:
        node, total = CallNode(self._calls, call.call_id), CostTotal()
        budget = Budget(usd=call.budget, calls=call.calls)
        context = self._context(call, node, total=total, budget=budget, output=output)
        result, failure = None, None
        calling_spokes.set(tuple(call.spokes))
        runs_for_other_host.set(True)
        try:
            budget.parent = await self._shared_budgets.restore(call.shared_budgets)
            async with asyncio.timeout_at(context.deadline):
                result = to_jsonable(await operation.run(call.input, context))
        except TimeoutError:
            failure = to_failure(CallTimeout(f"{operation.id} timed out: it did not end by its deadline."))
        except DragomanError as error:
            failure = to_failure(error)
        except Exception:  # without an end the caller would wait for ever
            log.exception("the call %s of %s for another host failed", call.call_id, operation.id)
            failure = to_failure(CallError(f"{operation.id} failed: an internal error of its host"))
        finally:
            await node.close()
        below = max(0.0, (total.usd or 0.0) - node.cost)
        end = SharedCallEnd(
            result=result,
            failure=failure,
            cost=node.cost,
            cost_below=below,
            calls_below=budget.calls_made,
            is_charged=budget.parent is not None,
        )
        output.end(end)

    def _context(
        self,
        call: SharedCall,
        node: CallNode,
        *,
        total: CostTotal,
        budget: Budget,
        output: SharedCallOutput,
    ) -> Context:
        """Return the context of the call as its own host has it; the policy of both hosts is the same."""
        now = asyncio.get_running_loop().time()
        fields: Mapping[str, Any] = {
            name: getattr(call, name)
            for name in ("identity", "call_id", "idempotency_key", "run_id", "session_id", "tool_call_id")
        }
        return Context(
            **fields,
            agent=call.agent,
            step=call.step,
            intermediaries=tuple(Intermediary(identity, agent) for identity, agent in call.intermediaries),
            parent_agents=tuple(ParentAgent(agent, self._calls) for agent in call.parent_agents),
            deadline=None if call.remaining is None else now + call.remaining,
            node=node,
            budget=budget,
            cost_total=total,
            on_progress=output.set_progress,
            on_data=output.set_data,
        )


class SharedCallOutput:
    """What a call has reported and was not sent yet: the newest progress, and data parts by name."""

    def __init__(self) -> None:
        self._frame = SharedCallFrame()
        self._has_frame = asyncio.Event()

    def set_progress(self, value: Any) -> None:
        """Report progress, in place of progress that was not sent yet."""
        self._put(progress=value)

    def set_data(self, name: str, value: Any) -> None:
        """Put a data part into the answer. Raises TooLarge for too many."""
        data = {**self._frame.data, name: value}
        if len(data) > MAX_DATA_NAMES:
            raise TooLarge(f"a call may put {MAX_DATA_NAMES} data parts into the answer at once")
        self._put(data=data)

    def end(self, end: SharedCallEnd) -> None:
        """Report the end."""
        self._put(end=end)

    def _put(self, **fields: Any) -> None:
        self._frame = msgspec.structs.replace(self._frame, **fields)
        self._has_frame.set()

    async def take(self) -> SharedCallFrame:
        """Return what was reported, once there is something."""
        await self._has_frame.wait()
        self._has_frame.clear()
        frame, self._frame = self._frame, SharedCallFrame()
        return frame


async def send_frames(exchange: Exchange, output: SharedCallOutput, *, watch: DisconnectWatch) -> None:
    """Send frames as lines, with the last one the end of the call."""
    while not watch.response_complete:
        frame = await next_frame(output)
        watch.response_complete = frame is not None and frame.end is not None
        await exchange.send_chunk((b"" if frame is None else msgspec.json.encode(frame)) + b"\n")


async def next_frame(output: SharedCallOutput) -> SharedCallFrame | None:
    """Return the next frame; None when none came for a while."""
    with suppress(TimeoutError):
        async with asyncio.timeout(KEEP_ALIVE):
            return await output.take()
    return None
