"""Remotes: one server each, kept connected by one task that opens, follows and closes its connection."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.errors import CallError, CallUncertain, DragomanError, Unavailable
from dragoman.mcp.client.blot import blot_for
from dragoman.mcp.client.imported import Request
from dragoman.mcp.client.offers import Offers
from dragoman.mcp.client.pins import Pins
from dragoman.mcp.client.sdk import Sdk
from dragoman.mcp.spec import ServerSpec, ServerStatus, State
from dragoman.operations.cleaning import clean
from dragoman.operations.context import Context
from dragoman.operations.registry import Registry
from dragoman.processes.watchdog import Watchdog

if TYPE_CHECKING:
    from dragoman.mcp.client.connection import Connection, Surroundings


# ---- Patience: how long a server may take to start, when many start at once on a machine of few cores.

TICK = 0.25
EACH_CORE = 2  # processes that start at a time on one core as fast as alone


class Patience:
    """Counts those that start. The more, the slower their time runs: they share the machine."""

    def __init__(self, cores: int | None = None) -> None:
        self._room = EACH_CORE * (cores or os.cpu_count() or 1)
        self._starting = 0

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """TimeoutError after so many seconds, as if no more were starting than the machine starts at ease."""
        self._starting += 1
        async with asyncio.timeout(None) as limit:
            watching = asyncio.create_task(self._watch(limit, seconds))
            try:
                yield
            finally:
                self._starting -= 1
                watching.cancel()

    async def _watch(self, limit: asyncio.Timeout, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        left, last = seconds, loop.time()
        while left > 0:
            await asyncio.sleep(min(TICK, left))
            now = loop.time()
            left -= (now - last) / max(1.0, self._starting / self._room)
            last = now
        limit.reschedule(loop.time())


log = logging.getLogger(__name__)

FIRST_WAIT = 0.5  # seconds before connecting again; doubles each time
LONGEST_WAIT = 60.0
SHORTEST_WAIT = 0.2  # between attempts, however many calls ask for one
STEADY_SECONDS = 30.0  # a connection that held so long begins the waits anew
REFRESH_SECONDS = 300.0  # a server may change what it offers and say nothing
REFRESH_GAP = 0.5
STOP_SECONDS = 15.0
PROBLEMS = 200
SAID: Mapping[State, str] = {
    "starting": "still starting: try again",
    "failed": "not available: try again later",
    "disabled": "switched off",
}


class Shared(msgspec.Struct, frozen=True):
    """What all servers of a hub share."""

    registry: Registry
    pins: Pins
    environ: Mapping[str, str]
    clock: Callable[[], float]
    patience: Patience
    sdk: Sdk
    limit: int
    watchdog: Watchdog


class Remote:
    """One server: its state, its operations, and the task that owns its connection."""

    def __init__(self, spec: ServerSpec, shared: Shared) -> None:
        self.spec = spec
        self.offers = Offers(spec, shared.registry, pins=shared.pins, clock=shared.clock, call=self.call)
        self._shared = shared
        self._state: State = "starting" if spec.enabled else "disabled"
        self._since = shared.clock()
        self._error: str | None = None
        self._attempts = 0
        self._connection: Connection | None = None
        self._moved = asyncio.Event()  # set and replaced at each change of state
        self._wanted = not spec.lazy
        self._wake = asyncio.Event()  # somebody wants it now
        self._stirred = asyncio.Event()  # its lists changed, or it is to be connected anew
        self._dropped = False
        self._let_go = False
        self._used = False  # a call went through the connection
        self._learned = False
        self._callers = 0  # calls that wait for the connection
        self._blot = blot_for(spec, shared.environ)
        self._task: asyncio.Task[None] | None = None

    def start(self, after: asyncio.Task[None] | None = None) -> None:
        """Begin to connect, in the background, `after` another has ended. A disabled server is left alone."""
        self._shared.registry.expect(self.spec.name, self)
        if self.spec.enabled:
            self._task = asyncio.create_task(self._run(after), name=f"mcp {self.spec.name}")

    async def stop(self) -> None:
        """Close the connection, end the process, take the operations out."""
        self._shared.registry.forgo(self.spec.name, self)
        self.offers.clear()
        self._let_go = True
        if self._task is not None:
            self._task.cancel("the MCP server is let go")
            await asyncio.wait([self._task], timeout=STOP_SECONDS)
        self._move("disabled")

    def status(self) -> ServerStatus:
        live = self._connection
        return ServerStatus(
            name=self.spec.name,
            state=self._state,
            since=self._since,
            error=self._error,
            tools=self.offers.count,
            waiting=self.offers.waiting,
            problems=self.offers.problems[:PROBLEMS],
            title=None if live is None else live.title,
            protocol=None if live is None else live.protocol,
            attempts=self._attempts,
        )

    def reconnect(self) -> None:
        """Drop the connection, and open another at once."""
        self._dropped = True
        self._stirred.set()
        self._want()
        if self._state in ("ready", "failed", "lazy"):
            self._move("starting")

    async def settle(self) -> None:
        """Wait until it is no longer starting."""
        while self._state == "starting":
            await self._moved.wait()

    async def arrive(self) -> None:
        """Wait while it starts. One that has failed is tried again, and not waited for."""
        if self._state == "failed":
            self._wake.set()
        await self.settle()

    def absence(self) -> str | None:
        """Why it has no operations; None when it is not to blame."""
        gone = self._state in ("starting", "failed", "disabled")
        return f"the MCP server {self.spec.name!r} is {SAID[self._state]}" if gone else None

    async def call(self, request: Request, context: Context) -> Any:
        """What the server gives. One that was lost is asked once more, when that cannot do a thing twice."""
        try:
            return await self._once(request, context)
        except Unavailable:
            return await self._twice(request, context)
        except CallUncertain as lost:
            if request.effect == "once":
                raise
            log.info("%s.%s is tried again: %s", self.spec.name, request.definition.name, lost.message)
            return await self._twice(request, context)

    async def _once(self, request: Request, context: Context) -> Any:
        connection, definition = await self._connected(), request.definition
        if not self.offers.holds(definition):
            raise CallError(
                f"{self.spec.name}.{definition.name} is no longer what was approved, or is gone",
                hint="somebody has to look at the changes of this MCP server",
            )
        self._used = True
        return await connection.call(definition, request.input, context=context)

    async def _twice(self, request: Request, context: Context) -> Any:
        try:
            return await self._once(request, context)
        except (Unavailable, CallUncertain) as error:
            raise self._unavailable(error.message) from error

    async def _connected(self) -> Connection:
        """The connection; waits while it is being made. CallError, transient, when the server has failed."""
        self._want()
        if self._state == "failed":
            raise self._unavailable(self._error or "it has failed")
        if self._state == "lazy":
            self._move("starting")
        self._callers += 1
        try:
            while self._state == "starting" or (self._connection and self._connection.closed.is_set()):
                await self._moved.wait()
        finally:
            self._callers -= 1
        if self._connection is None:
            raise self._unavailable(self._error or f"it is {self._state}")
        return self._connection

    def _unavailable(self, why: str) -> CallError:
        about = f"MCP server {self.spec.name!r}"
        error = CallError(why if about in why else f"{about} is not available: {why}", hint="try again later")
        error.transient = True
        return error

    def _want(self) -> None:
        self._wanted = True
        self._wake.set()

    def _move(self, state: State, error: str | None = None) -> None:
        self._state, self._error, self._since = state, error, self._shared.clock()
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _run(self, after: asyncio.Task[None] | None) -> None:
        """Recall, connect, follow, and again; until it is cancelled. The first time again is at once."""
        if after is not None:
            await asyncio.wait([after])
        loop = asyncio.get_running_loop()
        wait, recalled = 0.0, False
        while True:
            began = loop.time()
            try:
                recalled = recalled or await self._recall()
                await self._rest()
                began = loop.time()
                await self._session()
            except Exception as error:  # noqa: BLE001 - the top of this task; _fail logs it
                if not self._let_go:
                    self._fail(error)
            if self._let_go:  # a task group whose child failed forgets that it was cancelled
                return
            held = loop.time() - began
            if self._dropped or self._used or not self._wanted or held > STEADY_SECONDS:
                wait = 0.0
            if wait or self._state == "failed":
                wait = wait or FIRST_WAIT
                await self._pause(wait)
            wait = min(max(2 * wait, FIRST_WAIT), LONGEST_WAIT)
            self._dropped = self._used = False
            self._move("starting")

    async def _recall(self) -> bool:
        await self.offers.recall()
        return True

    async def _rest(self) -> None:
        """A lazy server whose tools are known waits here until it is wanted."""
        if self._wanted or not (self.offers.known or self._learned):
            return
        self._move("lazy")
        self._wake.clear()
        await self._wake.wait()
        self._move("starting")

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt; less when it is wanted meanwhile."""
        self._wake.clear()
        await asyncio.sleep(SHORTEST_WAIT)
        if self._callers:
            return
        try:
            async with asyncio.timeout(seconds * random.uniform(0.75, 1.25)):  # noqa: S311 - no secret
                await self._wake.wait()
        except TimeoutError:
            return

    async def _session(self) -> None:
        """One connection, from its opening until it is closed."""
        self._attempts += 1
        self._stirred.clear()
        await self._shared.sdk.load()
        async with AsyncExitStack() as stack:
            try:
                async with self._shared.patience.within(self.spec.connect_timeout):
                    opening = self._shared.sdk.connect(self.spec, self._surroundings())
                    connection = await stack.enter_async_context(opening)
                    await self.offers.take(await connection.definitions())
            except TimeoutError:
                raise Unavailable(f"it did not start within {self.spec.connect_timeout:g} seconds") from None
            self._learned = True
            if not self._wanted:
                return  # it was only asked what it offers
            self._connection = connection
            self._move("ready")
            try:
                await self._follow(connection)
            finally:
                self._connection = None
                self._move("starting")

    def _surroundings(self) -> Surroundings:
        from dragoman.mcp.client.connection import Surroundings  # late: the SDK is loaded with it

        about = self._shared
        return Surroundings(about.environ, self._blot, about.limit, about.watchdog, self._stirred.set)

    async def _follow(self, connection: Connection) -> None:
        """Keep the operations as the server's lists are, until the connection ends or is given up."""
        listening = asyncio.create_task(connection.listen())
        ended = asyncio.create_task(connection.closed.wait())
        ended.add_done_callback(lambda _: self._stirred.set())
        try:
            while not (connection.closed.is_set() or self._dropped):
                if await self._stir():
                    await self._refresh(connection)
        finally:
            for task in (listening, ended):
                task.cancel()
            await asyncio.wait([listening, ended])

    async def _refresh(self, connection: Connection) -> None:
        """List again. When that fails, all stays as it was approved."""
        try:
            async with asyncio.timeout(self.spec.connect_timeout):
                await self.offers.take(await connection.definitions())
        except (TimeoutError, DragomanError) as error:
            log.warning("MCP server %s does not say what it offers now: %s", self.spec.name, error)
        await asyncio.sleep(REFRESH_GAP)

    async def _stir(self) -> bool:
        """Wait for a reason to list again; False when it is a reason to stop."""
        try:
            async with asyncio.timeout(REFRESH_SECONDS):
                await self._stirred.wait()
        except TimeoutError:
            return True
        self._stirred.clear()
        live = self._connection
        return not (self._dropped or live is None or live.closed.is_set())

    def _fail(self, error: BaseException) -> None:
        cause = cause_of(error)
        why = self._blot(clean(cause.message if isinstance(cause, DragomanError) else str(cause), 1_000))
        log.warning(
            "MCP server %s: %s",
            self.spec.name,
            why,
            exc_info=None if isinstance(cause, DragomanError) else error,
        )
        self._move("failed", why or type(cause).__name__)


def cause_of(error: BaseException) -> BaseException:
    """The error that says most in a group of those that came of one."""
    found = list(leaves_of(error))
    return next((each for each in found if isinstance(each, DragomanError)), found[0])


def leaves_of(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in leaves_of(each)]
