"""A spoke: a process that brings operations to a hub and serves their calls."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
from typing_extensions import override

from dragoman.errors import CallError, ConfigError, NotFound, Unavailable
from dragoman.operations.call import Calls, CallSettings
from dragoman.operations.context import Context
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.operation import Operation, Run
from dragoman.operations.registry import Allow, Registry
from dragoman.spokes.client.dialing import dial, door_of, error_for, greet, pause
from dragoman.spokes.client.jobs import Jobs, job
from dragoman.spokes.client.session import MESSAGE, Session
from dragoman.spokes.protocol import VERSION, Failure, Frame, Hello, Offer, Register, Registered, Unregister

# ---- Reach: a spoke's own operations, and behind them those of the hub.

Ask: TypeAlias = Callable[[str], Run]


class Reach(Registry):
    """What operations of a spoke can call: `get` knows its own, and takes any other for one of the hub's."""

    def __init__(self, own: Registry, ask: Ask) -> None:
        super().__init__()
        self._own = own
        self._ask = ask

    @override
    def get(self, id: str, *, allow: Allow | None = None) -> Operation:
        """The operation of this id. NotFound when it can be none.

        One of its own that wants an approval is called by way of the hub, which asks for it.
        """
        try:
            own = self._own.get(id, allow=allow)
        except NotFound as error:
            return self._distant(id, error)
        return self._distant(own.id, NotFound(f"no operation {id!r}")) if own.approval else own

    def _distant(self, id: str, error: NotFound) -> Operation:
        namespace, _, name = id.partition(".")
        try:
            return Operation(
                namespace=namespace,
                name=name,
                input_schema={"type": "object"},
                parse=dict,
                run=self._ask(id),
            )
        except ConfigError:
            raise error from None


log = logging.getLogger(__name__)

REMEMBERED = 100  # calls that the spoke's own ledger holds
ALL = "all"
NO_REPEATS = 1_000_000_000  # who calls again what failed is the hub's to notice


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """How much a spoke takes: `window` calls at a time, those of sync functions in `threads` threads.

    `drain`: how many seconds the calls under way get to end when the spoke is closed.
    """

    window: int = 256
    threads: int = 16
    drain: float = 5.0


DEFAULTS = Capacity()


class Changes:
    """A watcher of a registry that tells of what comes and goes."""

    def __init__(self, tell: Callable[[Frame], None]) -> None:
        self._tell = tell

    def add(self, operation: Operation) -> None:
        """An operation has come."""
        self._tell(Register(id=operation.id[:128], operations=(Offer.of(operation),)))

    def remove(self, operation: Operation) -> None:
        """An operation has gone."""
        self._tell(Unregister(operations=(operation.id,)))


class Spoke:
    """Serves the operations of a registry to a hub, over as many connections as it takes.

        async with Spoke(registry, hub="http://127.0.0.1:8000", key=key):
            ...  # the hub has the operations

    or `await Spoke(...).run()`, which serves until close() is called. Operations that are added to the
    registry or removed from it meanwhile are so at the hub. `id` names this process: one that comes back with
    the same id takes the place of the one before. `name` is what the hub shows as the source; spokes that
    offer the same operations share the calls.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        hub: str,
        key: str | None = None,
        id: str | None = None,
        name: str | None = None,
        capacity: Capacity = DEFAULTS,
    ) -> None:
        self.url = door_of(hub)
        self.name = name or id or "spoke"
        self.id = id or f"{self.name}-{secrets.token_hex(4)}"
        self.refused: Mapping[str, Failure] = {}
        """The operations that the hub did not take, and why."""
        self._registry = registry
        self._key = key or None
        self._capacity = capacity
        self._session: Session | None = None
        self._ready = asyncio.Event()
        self._closing = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._away: asyncio.TimerHandle | None = None
        registry.watch(Changes(self._tell))

    def __repr__(self) -> str:
        return f"Spoke({self.id!r}, hub={self.url!r})"

    async def __aenter__(self) -> Spoke:
        self._running = asyncio.create_task(self.run())
        try:
            await self.ready()
        except BaseException:
            self._running.cancel()
            await asyncio.wait([self._running])
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def ready(self) -> None:
        """Wait until the hub has the operations. Raises what run() raises."""
        waiting = asyncio.create_task(self._ready.wait())
        await asyncio.wait(
            [waiting, *([self._running] if self._running else ())], return_when=asyncio.FIRST_COMPLETED
        )
        if not waiting.done():
            waiting.cancel()
            if self._running is not None:
                self._running.result()

    async def close(self) -> None:
        """Take no more calls, let those under way end, and go."""
        self._closing.set()
        if self._running is not None:
            await asyncio.wait([self._running])
            if not self._running.cancelled():
                self._running.result()

    async def run(self) -> None:
        """Serve until close(). Comes back by itself when the connection is lost or the hub restarts.

        Raises Unauthorized, Forbidden, Conflict, NotFound or WireError when it is no use to try again.
        """
        calls = Calls(
            Reach(self._registry, self._ask),
            MemoryLedger(keep=REMEMBERED),
            settings=CallSettings(threads=self._capacity.threads, repeats=NO_REPEATS),
        )
        jobs = Jobs(calls, self._registry, limit=2 * self._capacity.window)
        async with calls:
            try:
                await self._stay(jobs)
            finally:
                self._stop_waiting()
                await jobs.stop()

    async def _stay(self, jobs: Jobs) -> None:
        failures = 0
        while not self._closing.is_set():
            try:
                await self._connect(jobs)
                failures = 0
                if not self._closing.is_set():
                    log.warning("the connection to the hub at %s is lost; coming back", self.url)
            except Unavailable as error:
                failures += 1
                log.warning("%s; trying again", error.message)
            await self._wait(pause(failures))

    async def _connect(self, jobs: Jobs) -> None:
        """One connection, from its beginning to its end."""
        socket = await dial(self.url, self._key)
        try:
            hello = Hello(
                protocol=VERSION,
                id=self.id,
                name=self.name,
                window=self._capacity.window,
                message=MESSAGE,
                calls=jobs.held(),
            )
            session = Session(socket, await greet(socket, hello), jobs=jobs)
            self._stop_waiting()
            await self._serve(session)
            grace = session.welcome.grace
            self._away = asyncio.get_running_loop().call_later(grace, jobs.stop_all)
        finally:
            self._session = None
            await socket.close()
        if session.bye is not None and not session.bye.again:
            raise error_for(session.bye.code, f"the hub closed the connection: {session.bye.message}")

    async def _serve(self, session: Session) -> None:
        offers = tuple(Offer.of(each) for each in self._registry.list())
        session.tell(Register(id=ALL, operations=offers, all=True))
        self._session = session
        serving = asyncio.create_task(session.run(self._note))
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait([serving, closing], return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                await session.leave(self._capacity.drain)
        finally:
            closing.cancel()
            serving.cancel()
            await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()

    def _note(self, registered: Registered) -> None:
        """What came of a registration. The first one must have brought something."""
        refused = {each.operation: each.error for each in registered.refused}
        kept = {} if registered.id == ALL else self.refused
        self.refused = {**kept, **refused}
        for id, error in refused.items():
            log.warning("the hub does not take %s: %s", id, error.message)
        if not registered.operations and refused and not self._ready.is_set():
            first = next(iter(refused.values()))
            raise error_for(first.code, first.message, hint=first.hint)
        self._ready.set()

    def _ask(self, operation: str) -> Run:
        """How an operation of the hub is run, for one that runs here."""

        async def run(input: Any, context: Context) -> Any:
            running = job.get(None)
            if running is None:
                raise CallError(f"{operation} is the hub's: only a call that came from there can call it")
            if self._session is None:
                raise Unavailable(f"{operation} was not called: the hub cannot be reached now")
            return await self._session.ask(operation, input, parent=running.id, report=context.progress)

        return run

    def _tell(self, change: Frame) -> None:
        if self._session is not None:
            self._session.tell(change)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return

    def _stop_waiting(self) -> None:
        if self._away is not None:
            self._away.cancel()
            self._away = None
