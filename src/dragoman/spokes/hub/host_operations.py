"""Operations of spokes that are connected to other hosts, in this host's registry.

A host reads another one's list when a signal says that it has changed, and registers the operations as they
are there: owner, visibility, effect and definition stay the same, so the policy, approvals and the ledger of
this host apply. A call is run by the host of the spoke, and recorded by this host alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace

from dragoman.accounts.shared_budgets import SharedBudgets
from dragoman.errors import (
    BadRequest,
    BudgetExhausted,
    CallUncertain,
    DragomanError,
    HostGone,
    NotFound,
    ProviderError,
    StoreError,
    TooLarge,
    Unavailable,
    WireError,
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
from dragoman.hosts.client import HostClient
from dragoman.hosts.response_lines import ResponseLines
from dragoman.http.transport import Response, Timeouts
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.large_json import measure
from dragoman.offload import Slices, offload
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.operations.registry import Registry
from dragoman.spokes.hub.balancer import not_bound
from dragoman.spokes.hub.call import calling_spokes
from dragoman.spokes.hub.permissions import canonical_namespace
from dragoman.spokes.hub.settings import SpokeSettings
from dragoman.spokes.protocol import SpokeFailure, error_from_failure
from dragoman.store.accounts.budgets import ChargedBudget
from dragoman.store.hosts.hosts import HostRepository
from dragoman.store.hosts.signals import Wakeup

log = logging.getLogger(__name__)

POLL_INTERVAL = 30.0  # seconds between two reads of all lists; signals announce changes earlier
RETRY_INTERVAL = 1.0  # seconds to the next read of a host that did not answer
WARN_AFTER = 5  # at a host that does not answer, after which there is a warning
LIST_TIMEOUTS = Timeouts(connect=1.0, first_byte=2.0, idle=2.0)
LISTS = msgspec.json.Decoder(SharedOperations)
TICKETS = msgspec.json.Decoder(CallTicket)
FRAMES = msgspec.json.Decoder(SharedCallFrame)


class HostList:
    """The list of one host, as last read.

    `ended_at`: when it was noticed that the host has ended, by the clock of the event loop. Its operations
    stay for the grace period in which their spokes can reconnect to another host.
    """

    def __init__(self) -> None:
        self.version = ""
        self.operations: Mapping[str, Operation] = {}
        self.ended_at: float | None = None


class HostOperations:
    """The operations of the spokes of all other hosts."""

    def __init__(
        self,
        registry: Registry,
        client: HostClient,
        *,
        hosts: HostRepository,
        own_id: str,
        shared_budgets: SharedBudgets,
        grace: float = SpokeSettings().grace,
    ) -> None:
        """`grace`: seconds that the operations of a host that has ended stay."""
        self._registry = registry
        self._grace = grace
        self._client = client
        self._hosts = hosts
        self._own_id = own_id
        self._shared_budgets = shared_budgets
        self._changed: set[str] = set()
        self._failures: Counter[str] = Counter()  # failed reads of a host since it last answered
        self._is_any_changed = True
        self._wakeup = Wakeup()
        self._lists: dict[str, HostList] = {}
        self._registered: dict[str, Operation] = {}  # by lower-case id

    def refresh(self, host: str | None) -> None:
        """Let `run` read the list of a host again soon; all lists for None."""
        if host is None:
            self._is_any_changed = True
        else:
            self._changed.add(host)
        self._wakeup.wake()

    async def run(self) -> None:
        """Read the lists that have changed, until cancelled."""
        while True:
            if await self.try_poll():
                is_woken = await self._wakeup.wait(self._interval())
                self._is_any_changed = self._is_any_changed or not is_woken
            else:
                await self._wakeup.wait(RETRY_INTERVAL)

    def _interval(self) -> float:
        """Return the seconds to the next read of all lists, or until that of an ended host is dropped."""
        ended = [host_list.ended_at for host_list in self._lists.values() if host_list.ended_at is not None]
        if not ended:
            return POLL_INTERVAL
        return max(0.0, min(POLL_INTERVAL, min(ended) + self._grace - asyncio.get_running_loop().time()))

    async def try_poll(self) -> bool:
        """Like `poll`, but log errors and return False."""
        try:
            return await self.poll()
        except (StoreError, Unavailable) as error:
            log.debug("the hosts cannot be read: %s", error.message)
        except Exception:
            log.exception("the operations of other hosts could not be read")
        return False

    async def poll(self) -> bool:
        """Read the lists that have changed; return whether all answered. Raises StoreError, Unavailable."""
        reads_all, self._is_any_changed = self._is_any_changed, False
        try:
            hosts = [host.id for host in await self._hosts.list() if host.id != self._own_id and host.url]
        except (StoreError, Unavailable):
            self._is_any_changed = reads_all
            raise
        changed, self._changed = self._changed, set()
        for ended in [id for id in self._lists if id not in hosts]:
            self._keep_or_drop(ended)
        read = [id for id in hosts if reads_all or id in changed or id not in self._lists]
        answers = await asyncio.gather(*(self._read(id) for id in read))
        self._changed.update(id for id, has_answered in zip(read, answers, strict=True) if not has_answered)
        await self._update_registry()
        return not self._changed

    def namespaces(self) -> set[str]:
        """Return the canonical namespaces of the operations of other hosts."""
        return {canonical_namespace(operation.namespace) for operation in self._registered.values()}

    def all(self) -> Sequence[Operation]:
        """Return the operations of other hosts."""
        return list(self._registered.values())

    def find(self, id: str) -> Operation | None:
        """Return an operation of another host, by its id in any case."""
        return self._registered.get(id.lower())

    def find_substitute(self, operation: Operation) -> Operation | None:
        """Return the same operation of a spoke at another host, if there is one."""
        for host in self._order_hosts():
            other = self._lists[host].operations.get(operation.id.lower())
            if other is None or self._lists[host].ended_at is not None:
                continue
            if other.definition_hash == operation.definition_hash and is_same(other, operation):
                return other
        return None

    def release(self, id: str) -> None:
        """Remove an operation of another host from the registry: a spoke of this host serves it now."""
        operation = self._registered.pop(id.lower(), None)
        if operation is not None:
            with suppress(NotFound):
                self._registry.remove(operation.id)

    def restore(self, id: str) -> None:
        """Register the operation of another host, if one has it: no spoke of this host serves it now."""
        key = id.lower()
        operations = (self._lists[host].operations.get(key) for host in self._order_hosts())
        self._register(next((operation for operation in operations if operation is not None), None))

    async def _read(self, host: str) -> bool:
        """Read a host's list; return whether it answered. If not, its last list stays until it has ended."""
        host_list = self._lists.get(host) or HostList()
        query = urlencode({"version": host_list.version})
        try:
            response = await self._client.stream(host, f"{OPERATIONS_PATH}?{query}", timeouts=LIST_TIMEOUTS)
            shared = await self._client.read(host, response, decoder=LISTS)
        except HostGone:
            self._keep_or_drop(host)
            del self._failures[host]
            return True
        except DragomanError as error:
            self._failures[host] += 1
            if self._failures[host] == WARN_AFTER:
                log.warning("%s; changes of its spokes are not seen here (%s)", error.message, error.hint)
            return False
        del self._failures[host]
        if shared.operations is not None:
            operations = await self._make_operations(host, shared.operations)
            host_list.operations = {operation.id.lower(): operation for operation in operations}
            host_list.version = shared.version
        host_list.ended_at = None
        self._lists[host] = host_list
        return True

    def _keep_or_drop(self, host: str) -> None:
        """Drop the list of a host that has ended once the grace period of its spokes is over."""
        host_list, now = self._lists.get(host), asyncio.get_running_loop().time()
        if host_list is not None and host_list.ended_at is None:
            host_list.ended_at = now
        if host_list is not None and now - (host_list.ended_at or now) >= self._grace:
            del self._lists[host]

    def _order_hosts(self) -> Sequence[str]:
        """Return the hosts that have a list, those that have ended at the end."""
        return sorted(self._lists, key=lambda host: (self._lists[host].ended_at is not None, host))

    async def _make_operations(self, host: str, shared: Sequence[SharedOperation]) -> Sequence[Operation]:
        slices = Slices()  # compiling the schemas takes time
        operations = []
        for each in shared:
            size = measure((each.input_schema, each.output_schema))
            operation = await offload(size, partial(self._make_operation, host, each))
            if operation is not None:
                operations.append(operation)
            await slices.rest()
        return operations

    def _make_operation(self, host: str, shared: SharedOperation) -> Operation | None:
        try:
            operation = Operation.from_schema(
                not_bound,
                shared.input_schema,
                namespace=shared.namespace,
                name=shared.name,
                description=shared.description,
                output_schema=shared.output_schema,
                effect=shared.effect,
                effect_claimed=shared.effect_claimed,
                timeout=shared.timeout,
                approval=shared.approval,
                source=f"{shared.source}@{host}",
                owner=shared.owner,
                private=shared.private,
                identity_aware=False,
                provider="spoke",
            )
        except DragomanError as error:
            log.warning("the operation %s of the host %s is left out: %s", shared.id, host, error.message)
            return None
        call = SharedCallRunner(
            self._client,
            partial(self._hosts_of, operation, host),
            operation=operation,
            budgets=self._shared_budgets,
        )
        return msgspec.structs.replace(operation, run=call.run, host=host)

    def _hosts_of(self, operation: Operation, host: str) -> Sequence[str]:
        """Return the hosts to which spokes with the same operation are connected, `host` first."""
        living = [id for id in self._order_hosts() if self._lists[id].ended_at is None]
        operations = {id: self._lists[id].operations.get(operation.id.lower()) for id in living}
        serving = [id for id, other in operations.items() if other and is_same(other, operation)]
        first = [host] if host in living else []
        return [*first, *(id for id in serving if id != host)]

    async def _update_registry(self) -> None:
        """Register new operations and remove old ones. Those of spokes of this host take precedence."""
        wanted: dict[str, Operation] = {}
        for host in self._order_hosts():
            for id, operation in self._lists[host].operations.items():
                wanted.setdefault(id, operation)
        slices = Slices()
        for id, registered in list(self._registered.items()):
            if wanted.get(id) is not registered and self._registered.get(id) is registered:
                self.release(id)
                self._register(wanted.get(id))  # before the next await, so that lookups never miss it
            await slices.rest()
        for id, operation in wanted.items():
            if id not in self._registered:
                self._register(operation)
            await slices.rest()

    def _register(self, operation: Operation | None) -> None:
        if operation is not None:
            with suppress(DragomanError):  # a spoke of this host serves it
                self._registry.add(operation)
                self._registered[operation.id.lower()] = operation


class SharedCallRunner:
    """Runs the calls of one operation at the host of its spoke."""

    def __init__(
        self,
        client: HostClient,
        find_hosts: Callable[[], Sequence[str]],
        *,
        operation: Operation,
        budgets: SharedBudgets,
    ) -> None:
        """`find_hosts` returns the hosts that can run it, the preferred one first."""
        self._client = client
        self._find_hosts = find_hosts
        self._operation = operation
        self._budgets = budgets

    async def run(self, input: Any, context: Context) -> Any:
        """Return the result of a call. Cancelling it aborts the call at the other host.

        If the host goes away, a call that may be repeated is made again at another host with the same
        operation, under the same idempotency key. Raises the spoke's error, Unavailable, or CallUncertain.
        """
        shared = () if context.budget is None else await self._budgets.share(context.budget)
        tried: list[str] = []
        while True:
            request = self._request(input, context, shared=shared)
            host, ticket = await self._find_host(request, passed_over=tried)
            try:
                return await self._run_at(host, ticket, context=context)
            except DragomanError as error:
                tried.append(host)
                if not self._is_repeated(error, tried):
                    raise
                log.info("a call of %s is repeated at another host: %s", self._operation.id, error.message)

    def _is_repeated(self, error: DragomanError, tried: Sequence[str]) -> bool:
        """Return whether a call may be made again elsewhere, after its spoke or host went away."""
        has_gone = error.code == Unavailable.code and error.transient
        may_repeat = self._operation.effect != "once"
        return has_gone and may_repeat and any(host not in tried for host in self._find_hosts())

    async def _run_at(self, host: str, ticket: CallTicket, *, context: Context) -> Any:
        """Return the result of a call that a host has accepted."""
        try:
            response = await self._client.stream(host, f"{CALLS_PATH}/{ticket.id}")
            end = await self._read_frames(response, context, host=host)
        except (Unavailable, ProviderError, NotFound, WireError, *DECODE_ERRORS) as error:
            raise self._lost(host, error) from error
        settle_costs(context, end)
        if end.failure is not None:
            raise error_from_failure(SpokeFailure.from_call_failure(end.failure))
        return end.result

    async def _find_host(self, request: SharedCall, *, passed_over: Sequence[str]) -> tuple[str, CallTicket]:
        """Return a host that has accepted the call, and its ticket.

        A host that does not answer, or whose spoke has just gone, is passed over if another one has such a
        spoke. Raises NotFound, Conflict, and Unavailable, also if all hosts have ended.
        """
        hosts = [host for host in self._find_hosts() if host not in passed_over]
        for host in hosts:
            try:
                accepted = await self._client.stream(host, CALLS_PATH, body=request)
                return host, await self._client.read(host, accepted, decoder=TICKETS)
            except (Unavailable, NotFound) as error:
                if host == hosts[-1]:
                    raise (self._ended() if isinstance(error, HostGone) else error) from None
                log.info("the host %s refused a call of %s: %s", host, self._operation.id, error.message)
        raise self._ended()

    def _ended(self) -> Unavailable:
        return Unavailable(
            f"the host of {self._operation.id} has ended, and its spoke has not come back at another one",
            hint="call it again in a few seconds: a spoke reconnects by itself",
        )

    def _request(self, input: Any, context: Context, *, shared: Sequence[ChargedBudget]) -> SharedCall:
        budget = context.budget
        calls = None if budget is None or budget.calls is None else budget.calls - budget.calls_made
        return SharedCall(
            operation=self._operation.id,
            definition=self._operation.definition_hash,
            input=input,
            identity=context.identity,
            call_id=context.call_id or "",
            idempotency_key=context.idempotency_key,
            intermediaries=[(each.identity, each.agent) for each in context.intermediaries],
            parent_agents=[each.agent for each in context.parent_agents],
            run_id=context.run_id,
            session_id=context.session_id,
            tool_call_id=context.tool_call_id,
            agent=context.agent,
            step=context.step,
            remaining=context.remaining,
            budget=None if budget is None else budget.left,
            calls=calls,
            shared_budgets=shared,
            spokes=calling_spokes.get(),
        )

    async def _read_frames(self, response: Response, context: Context, *, host: str) -> SharedCallEnd:
        """Report progress until the end of the call, and return that.

        Raises ProviderError or Unavailable when the connection is lost, WireError and DECODE_ERRORS for a
        line that is not a frame.
        """
        try:
            async for frame in decode_frames(response):
                if (end := read_frame(frame, context)) is not None:
                    return end
        finally:
            response.abort()
        raise Unavailable(f"the host {host!r} ended its response early")

    def _lost(self, host: str, error: Exception) -> DragomanError:
        """Return the error of a call that may have started at a host that went away."""
        self._client.forget(host)
        id = self._operation.id
        if self._operation.effect == "once":
            return CallUncertain(
                f"the host {host!r} went away while it ran {id}; nobody knows whether that took effect",
                hint="look at what it would have changed before you call it again",
            )
        log.info("a call of %s at the host %s was cut off: %s", id, host, error)
        return Unavailable(f"the host {host!r} went away while it ran {id}")


def is_same(first: Operation, second: Operation) -> bool:
    """Return whether two operations of spokes can replace each other: the policy treats them alike."""
    fields = ("call_provider", "private", "effect", "effect_claimed", "approval")
    return all(getattr(first, name) == getattr(second, name) for name in fields)


async def decode_frames(response: Response) -> AsyncIterator[SharedCallFrame]:
    lines = ResponseLines()
    while data := await response.receive():
        for line in lines.feed(data):
            yield await offload(len(line), partial(decode_json, line, FRAMES))


def read_frame(frame: SharedCallFrame, context: Context) -> SharedCallEnd | None:
    """Report the progress of a frame, and put its data into the answer; return the end of the call."""
    if frame.progress is not msgspec.UNSET:
        context.progress(frame.progress)
    for name, value in frame.data.items():
        with suppress(BadRequest, TooLarge):  # as for a spoke of this host
            context.put_in_answer(name, value)
    return frame.end


def settle_costs(context: Context, end: SharedCallEnd) -> None:
    """Charge the call here with its cost, and that of the calls below it, at the other host."""
    budget = context.budget
    if budget is not None:
        with suppress(BudgetExhausted):  # these calls were made; the next one is refused
            for _ in range(end.calls_below):
                budget.count_call()
    if budget is not None and end.is_charged:
        context = replace(context, budget=None)
        budget.settle(0.0, end.cost + end.cost_below)
    if end.cost_below:
        if context.cost_total is not None:
            context.cost_total.add(end.cost_below)
        if context.budget is not None:
            with suppress(BudgetExhausted):
                context.budget.spend(end.cost_below)
    if end.cost:
        context.spend(end.cost)
