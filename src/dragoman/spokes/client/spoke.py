"""A spoke: a process that offers operations to a hub and serves their calls."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec
from typing_extensions import override

from dragoman.errors import CallError, ConfigError, NotFound, Unavailable
from dragoman.http.reconnecting_websocket import ReconnectingClient
from dragoman.http.websocket_client import open_websocket
from dragoman.operations.call_dispatcher import Calls, CallSettings
from dragoman.operations.context import Context
from dragoman.operations.execution import is_task_cancelled
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.operation import Operation, OperationFunction
from dragoman.operations.registry import OperationFilter, Registry
from dragoman.spokes.client.connection import MESSAGE_LIMIT, HubConnection
from dragoman.spokes.client.events import SpokeEvents
from dragoman.spokes.client.handshake import SCOPE, endpoint_url, handshake, refusal
from dragoman.spokes.client.jobs import JobRunner, current_job
from dragoman.spokes.protocol import (
    HEARTBEAT_TIMEOUT,
    NORMAL_CLOSURE,
    VERSION,
    HelloFrame,
    OperationOffer,
    RegisteredFrame,
    RegisterFrame,
    SpokeFailure,
    SpokeFrame,
    UnregisterFrame,
)

# ---- The operations that a spoke's operation can call.

HubOperation: TypeAlias = Callable[[str], OperationFunction]


class HubBackedRegistry(Registry):
    """The spoke's own operations, and for every other id an operation that calls the hub."""

    def __init__(self, own: Registry, hub_operation: HubOperation) -> None:
        super().__init__()
        self._own = own
        self._hub_run = hub_operation

    @override
    def get(self, id: str, *, allow: OperationFilter | None = None, owner: str | None = None) -> Operation:
        """Return the operation of this id. Raises NotFound.

        An own operation that needs an approval is called through the hub, which asks for it.
        """
        try:
            own = self._own.get(id, allow=allow, owner=owner)
        except NotFound as error:
            return self._hub_operation(id, error)
        return self._hub_operation(own.id, NotFound(f"no operation {id!r}")) if own.approval else own

    def _hub_operation(self, id: str, error: NotFound) -> Operation:
        namespace, _, name = id.partition(".")
        try:
            return Operation(
                namespace=namespace,
                name=name,
                input_schema={"type": "object"},
                parse=dict,
                run=self._hub_run(id),
            )
        except ConfigError:
            raise error from None


log = logging.getLogger(__name__)

LEDGER_CALLS = 100  # calls in the spoke's own ledger
ALL_OPERATIONS = "all"  # the id of the first registration of a connection
NO_REPEAT_LIMIT = 1_000_000_000  # the hub notices repeated failures of a caller


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """How many calls a spoke runs: `window` at a time, those of sync functions in `threads` threads.

    `drain`: seconds that running calls get to finish when the spoke is closed.
    """

    window: int = 256
    threads: int = 16
    drain: float = 5.0


DEFAULT_CAPACITY = Capacity()


class RegistryChanges:
    """Reports additions to and removals from a registry."""

    def __init__(self, send: Callable[[SpokeFrame], None]) -> None:
        self._send = send

    def add(self, operation: Operation) -> None:
        """Report an added operation."""
        self._send(
            RegisterFrame(id=operation.id[:128], operations=(OperationOffer.from_operation(operation),))
        )

    def remove(self, operation: Operation) -> None:
        """Report a removed operation."""
        self._send(UnregisterFrame(operations=(operation.id,)))


class Spoke(ReconnectingClient):
    """Serves the operations of a registry to a hub. It reconnects as often as needed.

        async with Spoke(registry, hub="http://127.0.0.1:8000", key=key):
            ...  # the hub has the operations

    or `await Spoke(...).run()`, which serves until close() is called. The hub follows later changes of the
    registry. `id` names this process: a spoke with the same id replaces the earlier one. `name` is the source
    that the hub shows; spokes that offer the same operations share the calls.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        hub: str,
        key: str | None = None,
        id: str | None = None,
        name: str | None = None,
        capacity: Capacity = DEFAULT_CAPACITY,
    ) -> None:
        super().__init__(endpoint_url(hub))
        self.name = name or id or "spoke"
        self.id = id or f"{self.name}-{secrets.token_hex(4)}"
        self.refused: Mapping[str, SpokeFailure] = {}
        """The operations that the hub has refused, and why."""
        self._registry = registry
        self._key = key or None
        self._capacity = capacity
        self._connection: HubConnection | None = None
        self._grace_timer: asyncio.TimerHandle | None = None
        registry.add_listener(RegistryChanges(self._send_change))

    def __repr__(self) -> str:
        return f"Spoke({self.id!r}, hub={self.url!r})"

    async def run(self) -> None:
        """See `ReconnectingClient.run`."""
        events = SpokeEvents()
        calls = Calls(
            HubBackedRegistry(self._registry, self._hub_run),
            MemoryLedger(max_calls=LEDGER_CALLS),
            settings=CallSettings(
                threads=self._capacity.threads, max_failures=NO_REPEAT_LIMIT, events=events
            ),
        )
        jobs = events.job_runner = JobRunner(calls, self._registry, limit=2 * self._capacity.window)
        async with calls:
            try:
                await self._reconnect_until_closed(partial(self._run_connection, jobs))
            finally:
                self._cancel_grace_timer()
                await jobs.stop()

    async def _run_connection(self, job_runner: JobRunner) -> None:
        """Run one connection."""
        socket = await open_websocket(self.url, self._key, scope=SCOPE)
        try:
            hello = HelloFrame(
                protocol=VERSION,
                id=self.id,
                name=self.name,
                window=self._capacity.window,
                message=MESSAGE_LIMIT,
                calls=job_runner.open_call_ids(),
            )
            session = HubConnection(socket, await handshake(socket, hello), job_runner=job_runner)
            self._cancel_grace_timer()
            await self._serve(session)
            grace = session.welcome.grace
            self._grace_timer = asyncio.get_running_loop().call_later(grace, job_runner.stop_all)
        finally:
            self._connection = None
            # 1000 means that the spoke does not come back: the hub fails its calls at once.
            stays_away = self._closing.is_set() or is_task_cancelled()
            await socket.close(NORMAL_CLOSURE if stays_away else HEARTBEAT_TIMEOUT)
        if session.bye is not None and not session.bye.again:
            raise refusal(session.bye.code, f"the hub closed the connection: {session.bye.message}")

    async def _serve(self, connection: HubConnection) -> None:
        offers = tuple(OperationOffer.from_operation(operation) for operation in self._registry.list())
        connection.send_change(RegisterFrame(id=ALL_OPERATIONS, operations=offers, all=True))
        self._connection = connection
        end = partial(connection.drain, self._capacity.drain)
        await self._serve_until_closed(connection.run(self._on_registered), end=end)

    def _on_registered(self, registered: RegisteredFrame) -> None:
        """Handle the result of a registration. The first one must have registered something."""
        refused = {refusal.operation: refusal.error for refusal in registered.refused}
        earlier = {} if registered.id == ALL_OPERATIONS else self.refused
        self.refused = {**earlier, **refused}
        for id, error in refused.items():
            log.warning("the hub refuses the operation %s: %s", id, error.message)
        if not registered.operations and refused and not self._ready.is_set():
            first = next(iter(refused.values()))
            raise refusal(first.code, first.message, hint=first.hint)
        self._ready.set()

    def _hub_run(self, operation: str) -> OperationFunction:
        """Return a function that calls an operation of the hub, below the call that the hub made here."""

        async def run(input: Any, context: Context) -> Any:
            job = current_job.get(None)
            if job is None:
                raise CallError(f"{operation} is the hub's: only a call that came from there can call it")
            if self._connection is None:
                raise Unavailable(f"{operation} was not called: the hub cannot be reached now")
            return await self._connection.call_hub(operation, input, parent=job.id, report=context.progress)

        return run

    def _send_change(self, change: SpokeFrame) -> None:
        if self._connection is not None:
            self._connection.send_change(change)

    def _cancel_grace_timer(self) -> None:
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None
