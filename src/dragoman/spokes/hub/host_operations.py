"""Operations of spokes that are connected to other hosts, in this host's registry.

A host reads another one's list when that says that it has changed, and registers what it is told as those
have it: the owner, who may see it, the effect and the definition stay the same, so the policy, approvals and
the ledger of this host apply. A call is run by the host of the spoke, and recorded by this one alone.
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

POLL_INTERVAL = 30.0  # seconds between two looks at all lists, whose changes are told by signals
RETRY_INTERVAL = 1.0  # seconds to the next look at a host that did not answer
MUTE_LOOKS = 5  # at a host that does not answer, after which there is a warning
LIST_TIMEOUTS = Timeouts(connect=1.0, first_byte=2.0, idle=2.0)
LISTS = msgspec.json.Decoder(SharedOperations)
TICKETS = msgspec.json.Decoder(CallTicket)
FRAMES = msgspec.json.Decoder(SharedCallFrame)


class HostList:
    """The list of one host, as last read.

    `ended_at`: when the host was found to have ended, by the clock of the event loop. Its operations stay for
    the time that their spokes have to come back, at another host.
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
        """`grace`: how long the operations of a host that has ended stay."""
        self._registry = registry
        self._grace = grace
        self._client = client
        self._hosts = hosts
        self._own_id = own_id
        self._shared_budgets = shared_budgets
        self._changed: set[str] = set()
        self._failures: Counter[str] = Counter()  # looks at a host since it answered last
        self._is_any_changed = True
        self._wakeup = Wakeup()
        self._lists: dict[str, HostList] = {}
        self._registered: dict[str, Operation] = {}  # by lower-case id

    def look(self, host: str | None) -> None:
        """Read the list of a host again, soon; of all for None."""
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
        """Return the time to the next look at all lists, or at those of ended hosts if one goes earlier."""
        ended = [each.ended_at for each in self._lists.values() if each.ended_at is not None]
        if not ended:
            return POLL_INTERVAL
        return max(0.0, min(POLL_INTERVAL, min(ended) + self._grace - asyncio.get_running_loop().time()))

    async def try_poll(self) -> bool:
        """Do what `poll` does; return False, too, if it fails, which is logged."""
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
            hosts = [each.id for each in await self._hosts.list() if each.id != self._own_id and each.url]
        except (StoreError, Unavailable):
            self._is_any_changed = reads_all
            raise
        changed, self._changed = self._changed, set()
        for ended in [id for id in self._lists if id not in hosts]:
            self._keep_ended(ended)
        read = [id for id in hosts if reads_all or id in changed or id not in self._lists]
        answers = await asyncio.gather(*(self._read(id) for id in read))
        self._changed.update(id for id, has_answered in zip(read, answers, strict=True) if not has_answered)
        await self._update_registry()
        return not self._changed

    def namespaces(self) -> set[str]:
        """Return the canonical namespaces of which other hosts brought operations."""
        return {canonical_namespace(operation.namespace) for operation in self._registered.values()}

    def all(self) -> Sequence[Operation]:
        """Return the operations of other hosts."""
        return list(self._registered.values())

    def find(self, id: str) -> Operation | None:
        """Return an operation of another host, by its id in any case."""
        return self._registered.get(id.lower())

    def stand_in(self, operation: Operation) -> Operation | None:
        """Return the same operation of a spoke at another host, if one has it."""
        for host in self._order_hosts():
            found = self._lists[host].operations.get(operation.id.lower())
            if found is None or self._lists[host].ended_at is not None:
                continue
            if found.definition_hash == operation.definition_hash and is_same(found, operation):
                return found
        return None

    def release(self, id: str) -> None:
        """Take an operation of another host out of the registry: a spoke of this host serves it too."""
        operation = self._registered.pop(id.lower(), None)
        if operation is not None:
            with suppress(NotFound):
                self._registry.remove(operation.id)

    def restore(self, id: str) -> None:
        """Register an operation of another host, if it has one: no spoke of this host serves it now."""
        key = id.lower()
        found = (self._lists[host].operations.get(key) for host in self._order_hosts())
        self._register(next((operation for operation in found if operation is not None), None))

    async def _read(self, host: str) -> bool:
        """Read a host's list; return whether it answered. One that does not keeps it until it is dead."""
        found = self._lists.get(host) or HostList()
        query = urlencode({"version": found.version})
        try:
            response = await self._client.stream(host, f"{OPERATIONS_PATH}?{query}", timeouts=LIST_TIMEOUTS)
            shared = await self._client.read(host, response, decoder=LISTS)
        except HostGone:
            self._keep_ended(host)
            del self._failures[host]
            return True
        except DragomanError as error:
            self._failures[host] += 1
            if self._failures[host] == MUTE_LOOKS:
                log.warning("%s; changes of its spokes are not seen here (%s)", error.message, error.hint)
            return False
        del self._failures[host]
        if shared.operations is not None:
            made = await self._make_operations(host, shared.operations)
            found.operations = {operation.id.lower(): operation for operation in made if operation}
            found.version = shared.version
        found.ended_at = None
        self._lists[host] = found
        return True

    def _keep_ended(self, host: str) -> None:
        """Keep the list of a host that has ended, until its spokes have stayed away for too long."""
        found, now = self._lists.get(host), asyncio.get_running_loop().time()
        if found is not None and found.ended_at is None:
            found.ended_at = now
        if found is not None and now - (found.ended_at or now) >= self._grace:
            del self._lists[host]

    def _order_hosts(self) -> Sequence[str]:
        """Return the hosts whose lists are known, those that have ended last."""
        return sorted(self._lists, key=lambda host: (self._lists[host].ended_at is not None, host))

    async def _make_operations(
        self, host: str, shared: Sequence[SharedOperation]
    ) -> Sequence[Operation | None]:
        slices = Slices()  # the schemas are compiled
        made = []
        for each in shared:
            size = measure((each.input_schema, each.output_schema))
            made.append(await offload(size, partial(self._make_operation, host, each)))
            await slices.rest()
        return made

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
        """Return the hosts to which spokes with the same operation are connected, the given one first."""
        living = [each for each in self._order_hosts() if self._lists[each].ended_at is None]
        found = {each: self._lists[each].operations.get(operation.id.lower()) for each in living}
        others = [each for each, other in found.items() if other and is_same(other, operation)]
        first = [host] if host in living else []
        return [*first, *(each for each in others if each != host)]

    async def _update_registry(self) -> None:
        """Register what is new, and remove what no host has any more. A spoke of this host goes first."""
        wanted: dict[str, Operation] = {}
        for host in self._order_hosts():
            for id, operation in self._lists[host].operations.items():
                wanted.setdefault(id, operation)
        slices = Slices()
        for id, registered in list(self._registered.items()):
            if wanted.get(id) is not registered and self._registered.get(id) is registered:
                self.release(id)
                self._register(wanted.get(id))  # at once: what is served all the time is found all the time
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
        """Return the result of a call. Raises the spoke's error, Unavailable, or CallUncertain when the host
        went away. Cancelling it aborts the call there.

        One that may be repeated is made again at another host with the same operation, with the same key.
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
        """Return a host that has accepted the call, and how to begin it. NotFound, Unavailable, Conflict.

        Unavailable also where all hosts of the spoke have ended.

        One that does not answer, or whose spoke has just gone, is passed over if another one has the spoke.
        """
        hosts = [host for host in self._find_hosts() if host not in passed_over]
        for host in hosts:
            try:
                accepted = await self._client.stream(host, CALLS_PATH, body=request)
                return host, await self._client.read(host, accepted, decoder=TICKETS)
            except (Unavailable, NotFound) as error:
                if host == hosts[-1]:
                    raise (self._ended() if isinstance(error, HostGone) else error) from None
                log.info("the host %s did not take a call of %s: %s", host, self._operation.id, error.message)
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
        """Report progress until the end. Raises ProviderError or Unavailable when the connection is lost,
        WireError and DECODE_ERRORS for another line than a frame.
        """
        try:
            async for frame in decode_frames(response):
                if (end := read_frame(frame, context)) is not None:
                    return end
        finally:
            response.abort()
        raise Unavailable(f"the host {host!r} ended its response early")

    def _lost(self, host: str, error: Exception) -> DragomanError:
        """Return the error of a call that may have begun at a host that went away."""
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
    """Return whether two operations of spokes may stand for each other: the policy allows both or neither."""
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
    """Charge the call here with what it, and the calls below it, have cost at the other host."""
    budget = context.budget
    if budget is not None:
        with suppress(BudgetExhausted):  # they are made: the next one is refused
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
