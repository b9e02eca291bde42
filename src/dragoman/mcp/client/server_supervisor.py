"""One MCP server and the task that opens, follows and reopens its connection."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from dragoman.errors import CallError, CallUncertain, DragomanError, Unavailable
from dragoman.mcp.client.flood import FloodMeter, TrafficLimits
from dragoman.mcp.client.imported_operations import RemoteCall
from dragoman.mcp.client.sdk_loader import SdkLoader
from dragoman.mcp.client.secret_redaction import redactor_for
from dragoman.mcp.client.server_log import ErrorHistory, RecentLines
from dragoman.mcp.client.tool_catalog import OfferedTools
from dragoman.mcp.server_spec import ServerSpec, ServerStatus, State
from dragoman.operations.call_limiter import Rate
from dragoman.operations.context import Context
from dragoman.operations.registry import Registry
from dragoman.operations.sanitize import sanitize_text
from dragoman.processes.watchdog import Watchdog
from dragoman.store.mcp_servers import PinStore

if TYPE_CHECKING:
    from dragoman.mcp.client.connection import ConnectionOptions, McpConnection


# ---- Start timeouts: longer when many servers start at once on a machine of few cores.

TICK_SECONDS = 0.25
STARTS_PER_CORE = 2  # processes that start at a time on one core as fast as alone


class StartTimeouts:
    """Start timeouts that stretch when many servers start at once and share the machine's cores."""

    def __init__(self, cores: int | None = None) -> None:
        self._capacity = STARTS_PER_CORE * (cores or os.cpu_count() or 1)
        self._starting = 0

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[None]:
        """Raise TimeoutError after `seconds` of this server's share of the machine."""
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
            await asyncio.sleep(min(TICK_SECONDS, left))
            now = loop.time()
            left -= (now - last) / max(1.0, self._starting / self._capacity)
            last = now
        limit.reschedule(loop.time())


log = logging.getLogger(__name__)

MIN_BACKOFF = 0.5  # seconds before connecting again; doubles each time
MAX_BACKOFF = 60.0
MIN_RETRY_GAP = 0.2  # between attempts, however many calls ask for one
STABLE_SECONDS = 30.0  # a connection that lasted so long resets the backoff
REFRESH_SECONDS = 300.0  # between two readings of the lists of a server that reports no changes
REFRESH_GAP = 0.5  # after the lists were read; doubles while a server keeps changing them
MAX_REFRESH_GAP = 60.0
STOP_SECONDS = 15.0
MAX_PROBLEMS = 200
SHOWN_ERROR_CHARS = 200
STATE_TEXTS: Mapping[State, str] = {
    "starting": "still starting: try again",
    "failed": "not available: try again later",
    "quarantined": "quarantined: it floods its connection",
    "disabled": "switched off",
}


class ServerSharedState(msgspec.Struct, frozen=True):
    """What all servers of a hub share."""

    registry: Registry
    pin_store: PinStore
    environ: Mapping[str, str]
    clock: Callable[[], float]
    start_timeouts: StartTimeouts
    sdk_loader: SdkLoader
    watchdog: Watchdog
    limits: TrafficLimits
    on_change: Callable[[], None]
    """Called when a server's state or its definitions change."""


class RemoteServer:
    """One server: its state, its operations, and the task that owns its connection."""

    def __init__(self, spec: ServerSpec, shared: ServerSharedState) -> None:
        self.spec = spec
        self.offered_tools = OfferedTools(
            spec, shared.registry, pin_store=shared.pin_store, clock=shared.clock, make_call=self.call
        )
        self._shared = shared
        self._state: State = "starting" if spec.enabled else "disabled"
        self._since = shared.clock()
        self._error: str | None = None
        self.recent_lines = RecentLines(shared.clock)
        self._errors = ErrorHistory(self.recent_lines)
        self._attempts = 0
        self._connection: McpConnection | None = None
        self._state_changed = asyncio.Event()  # set and replaced at each change of state
        self._lists_changed = False
        self._refresh_gap = REFRESH_GAP
        self._needed = not spec.lazy
        self._wake = asyncio.Event()  # set when a caller needs the connection now
        self._changed = asyncio.Event()  # set when its lists changed, or the connection has to end
        self._reconnect_requested = False
        self._stopping = False
        self._connection_used = False  # a call went through the connection
        self._definitions_read = False
        self._waiting_callers = 0  # calls that wait for the connection
        self._redactor = redactor_for(spec, shared.environ)
        self._quarantine_reason: str | None = None
        limits = replace(shared.limits, rate=Rate.parse(spec.notification_rate))
        self._meter = FloodMeter(spec.name, limits, on_flood=self._quarantine)
        self._task: asyncio.Task[None] | None = None

    def start(self, after: asyncio.Task[None] | None = None) -> None:
        """Start to connect in the background, `after` a task has ended. A disabled server is not started."""
        self._shared.registry.add_supplier(self.spec.name, self)
        if self.spec.enabled:
            self._task = asyncio.create_task(self._run(after), name=f"mcp {self.spec.name}")

    async def stop(self) -> None:
        """Close the connection, end the process, remove the operations."""
        self._shared.registry.remove_supplier(self.spec.name, self)
        self._stopping = True
        if self._task is not None:
            self._task.cancel("the MCP server is let go")
        await self.offered_tools.clear()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=STOP_SECONDS)
        self._set_state("disabled")

    def status(self) -> ServerStatus:
        live = self._connection
        return ServerStatus(
            name=self.spec.name,
            state=self._state,
            since=self._since,
            error=self._error,
            last_error=self._errors.last,
            last_error_at=self._errors.last_at,
            first_error=self._errors.first,
            tools=self.offered_tools.operation_count,
            waiting=self.offered_tools.pending_count,
            problems=(*filter(None, [self._meter.summary]), *self.offered_tools.problems[:MAX_PROBLEMS]),
            title=None if live is None else live.title,
            protocol=None if live is None else live.protocol,
            attempts=self._attempts,
        )

    def reconnect(self) -> None:
        """Close the connection and open another at once."""
        self._reconnect_requested = True
        self._changed.set()
        self._request_connection()
        if self._state in ("ready", "failed", "quarantined", "lazy"):
            self._set_state("starting")

    async def wait_until_started(self) -> None:
        """Wait until it is no longer starting. One whose connection has just ended is about to start."""
        while self._is_starting:
            await self._state_changed.wait()

    @property
    def _is_starting(self) -> bool:
        return self._state == "starting" or (
            self._connection is not None and self._connection.closed.is_set()
        )

    async def wait_until_ready(self) -> None:
        """Wait while it starts. A failed server is retried, and not waited for."""
        if self._state == "failed":
            self._wake.set()
        await self.wait_until_started()

    def unavailable_reason(self) -> str | None:
        """Return why its operations are missing; None if the server is not the reason."""
        if self._state not in STATE_TEXTS:
            return None
        error = self._error or (self._errors.last if self._state == "starting" else None)
        because = f" (it failed before: {sanitize_text(error, SHOWN_ERROR_CHARS)})" if error else ""
        return f"the MCP server {self.spec.name!r} is {STATE_TEXTS[self._state]}{because}"

    async def call(self, request: RemoteCall, context: Context) -> Any:
        """Return the server's result. A lost call is repeated once, unless that could act twice.

        Raises CallError, transient if the server is not available now, and CallUncertain for a lost call
        with the effect `once`.
        """
        try:
            return await self._call_once(request, context)
        except Unavailable:
            return await self._retry_call(request, context)
        except CallUncertain as error:
            if request.effect == "once":
                raise
            log.info("%s.%s is called again: %s", self.spec.name, request.definition.name, error.message)
            return await self._retry_call(request, context)

    async def _call_once(self, request: RemoteCall, context: Context) -> Any:
        connection, definition = await self._ready_connection(), request.definition
        if not self.offered_tools.is_current(definition):
            raise CallError(
                f"{self.spec.name}.{definition.name} is no longer what was approved, or is gone",
                hint="an administrator has to review the changes of this MCP server",
            )
        self._connection_used = True
        return await connection.call(definition, request.input, context=context)

    async def _retry_call(self, request: RemoteCall, context: Context) -> Any:
        try:
            return await self._call_once(request, context)
        except (Unavailable, CallUncertain) as error:
            raise self._unavailable(error.message) from error

    async def _ready_connection(self) -> McpConnection:
        """Return the connection, once open. Raises a transient CallError if the server has failed."""
        self._request_connection()
        if self._state in ("failed", "quarantined"):
            raise self._unavailable(self._error or "it has failed")
        if self._state == "lazy":
            self._set_state("starting")
        self._waiting_callers += 1
        try:
            while self._is_starting:
                await self._state_changed.wait()
        finally:
            self._waiting_callers -= 1
        if self._connection is None:
            raise self._unavailable(self._error or f"it is {self._state}")
        return self._connection

    def _unavailable(self, reason: str) -> CallError:
        server = f"MCP server {self.spec.name!r}"
        error = CallError(
            reason if server in reason else f"{server} is not available: {reason}", hint="try again later"
        )
        error.transient = True
        return error

    def _request_connection(self) -> None:
        self._needed = True
        self._wake.set()

    def _set_state(self, state: State, error: str | None = None) -> None:
        self._state, self._error, self._since = state, error, self._shared.clock()
        state_changed, self._state_changed = self._state_changed, asyncio.Event()
        state_changed.set()
        self._shared.on_change()

    async def _run(self, after: asyncio.Task[None] | None) -> None:
        """Restore, connect, follow, and retry until cancelled. The first retry is immediate."""
        if after is not None:
            await asyncio.wait([after])
        loop = asyncio.get_running_loop()
        wait, restored = 0.0, False
        while True:
            started_at = loop.time()
            try:
                restored = restored or await self._restore_pinned()
                await self._wait_if_lazy()
                started_at = loop.time()
                await self._run_connection()
            except Exception as error:  # noqa: BLE001 - the top of this task; _fail logs it
                if not self._stopping:
                    self._record_failure(error)
            if self._stopping:  # a task group whose child failed forgets that it was cancelled
                return
            uptime = loop.time() - started_at
            if self._was_useful(uptime):
                wait = 0.0
            wait = await self._wait_before_retry(wait)
            wait = min(max(2 * wait, MIN_BACKOFF), MAX_BACKOFF)
            self._reconnect_requested = self._connection_used = False
            self._set_state("starting")

    def _was_useful(self, uptime: float) -> bool:
        """Return whether the connection that ended was used or lasted, so that the next one opens at once."""
        used = self._reconnect_requested or self._connection_used or not self._needed
        return used or uptime > STABLE_SECONDS

    async def _restore_pinned(self) -> bool:
        await self.offered_tools.restore_pinned()
        return True

    async def _wait_if_lazy(self) -> None:
        """Wait until a lazy server with known tools is needed."""
        if self._needed or not (self.offered_tools.has_pins or self._definitions_read):
            return
        self._set_state("lazy")
        self._wake.clear()
        await self._wake.wait()
        self._set_state("starting")

    async def _wait_before_retry(self, seconds: float) -> float:
        """Wait before the next attempt, as a quarantine or the backoff says. Return the backoff."""
        if self._quarantine_reason is not None:
            await self._wait_in_quarantine(self._quarantine_reason)
        elif seconds or self._state == "failed":
            seconds = seconds or MIN_BACKOFF
            await self._wait_for_backoff(seconds)
        return seconds

    async def _wait_for_backoff(self, seconds: float) -> None:
        """Wait before the next attempt; only MIN_RETRY_GAP if a call waits for the server."""
        self._wake.clear()
        await asyncio.sleep(MIN_RETRY_GAP)
        if self._waiting_callers:
            return
        try:
            async with asyncio.timeout(seconds * random.uniform(0.75, 1.25)):  # noqa: S311 - no secret
                await self._wake.wait()
        except TimeoutError:
            return

    async def _run_connection(self) -> None:
        """Run one connection from its opening to its end."""
        self._attempts += 1
        self._changed.clear()
        self._lists_changed = False
        await self._shared.sdk_loader.load()
        async with AsyncExitStack() as stack:
            try:
                async with self._shared.start_timeouts.timeout(self.spec.connect_timeout):
                    opening = self._shared.sdk_loader.connect(self.spec, self._connection_options())
                    connection = await stack.enter_async_context(opening)
                    await self.offered_tools.update(await connection.definitions())
            except TimeoutError:
                raise Unavailable(f"it did not start within {self.spec.connect_timeout:g} seconds") from None
            self._definitions_read = True
            if not self._needed:
                return  # a lazy server, connected only to read its definitions
            self._connection = connection
            self._errors.mark_ready()
            self._set_state("ready")
            try:
                await self._follow_changes(connection)
                await self._record_loss(connection)
            finally:
                self._connection = None
                self._set_state("starting")

    def _connection_options(self) -> ConnectionOptions:
        from dragoman.mcp.client.connection import ConnectionOptions  # late: the SDK is loaded with it

        return ConnectionOptions(
            self._shared.environ,
            self._redactor,
            self.spec.message_limit,
            self._shared.watchdog,
            self._note_list_change,
            self._meter,
            self.recent_lines,
        )

    def _note_list_change(self) -> None:
        """Have the lists read again. Changes before that are covered by the same reading."""
        if not self._lists_changed:
            self._lists_changed = True
            self._changed.set()

    def _quarantine(self, reason: str) -> None:
        """Close the connection of a server that floods it."""
        if self._quarantine_reason is None:
            self._quarantine_reason = reason
            self._changed.set()

    async def _wait_in_quarantine(self, reason: str) -> None:
        """Stay disconnected for as long as a quarantine lasts, or until `reconnect` is called."""
        seconds = self._shared.limits.quarantine
        error = f"quarantined for {seconds:g} seconds: {reason}"
        log.warning("MCP server %s is %s", self.spec.name, error)
        self._errors.add(error)
        self._set_state("quarantined", error)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._reconnect_requested:
                    self._changed.clear()
                    await self._changed.wait()
        self._quarantine_reason = None
        self._set_state("starting")

    async def _follow_changes(self, connection: McpConnection) -> None:
        """Keep the operations in step with the server's lists until the connection ends."""
        listening = asyncio.create_task(connection.watch_changes())
        ended = asyncio.create_task(connection.closed.wait())
        ended.add_done_callback(lambda _: self._changed.set())
        try:
            while not self._has_to_end(connection):
                if await self._wait_for_change(connection):
                    await self._refresh(connection)
                    await self._wait_after_refresh(connection)
        finally:
            for task in (listening, ended):
                task.cancel()
            await asyncio.wait([listening, ended])

    async def _refresh(self, connection: McpConnection) -> None:
        """Read the lists again. If that fails, the approved operations stay."""
        try:
            async with asyncio.timeout(self.spec.connect_timeout):
                await self.offered_tools.update(await connection.definitions())
            self._shared.on_change()
        except (TimeoutError, DragomanError) as error:
            log.warning("MCP server %s: its lists could not be read again: %s", self.spec.name, error)

    def _has_to_end(self, connection: McpConnection) -> bool:
        return connection.closed.is_set() or self._reconnect_requested or self._quarantine_reason is not None

    async def _wait_after_refresh(self, connection: McpConnection) -> None:
        """Wait before the lists are read again: longer each time for a server that keeps changing them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._refresh_gap):
                while not self._has_to_end(connection):
                    self._changed.clear()
                    await self._changed.wait()
        doubled = min(2 * self._refresh_gap, MAX_REFRESH_GAP)
        self._refresh_gap = doubled if self._lists_changed else REFRESH_GAP

    async def _wait_for_change(self, connection: McpConnection) -> bool:
        """Wait for a reason to read the lists again. Return False if the connection has to end instead."""
        try:
            async with asyncio.timeout(REFRESH_SECONDS):
                while not (self._lists_changed or self._has_to_end(connection)):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return True
        self._lists_changed = False
        return not self._has_to_end(connection)

    def _record_failure(self, error: BaseException) -> None:
        cause = root_cause(error)
        message = self._redactor(
            sanitize_text(cause.message if isinstance(cause, DragomanError) else str(cause), 1_000)
        )
        log.warning(
            "MCP server %s: %s",
            self.spec.name,
            message,
            exc_info=None if isinstance(cause, DragomanError) else error,
        )
        message = message or type(cause).__name__
        self._errors.add(message)
        self._set_state("failed", message)

    async def _record_loss(self, connection: McpConnection) -> None:
        """Record why an open connection ended, unless the hub ended it."""
        if self._reconnect_requested or not connection.closed.is_set():
            return
        report = connection.exit_report
        reason = "the server closed the connection" if report is None else await report()
        log.warning("MCP server %s: %s; connecting again", self.spec.name, reason)
        self._errors.add(reason)


def root_cause(error: BaseException) -> BaseException:
    """Return the first DragomanError of a group of errors, or the first error if there is none."""
    leaves = leaf_errors(error)
    return next((leaf for leaf in leaves if isinstance(leaf, DragomanError)), leaves[0])


def leaf_errors(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in leaf_errors(each)]
