"""The queue that hosts share: DBOS, in a schema of its own beside that of the hub.

DBOS allows one instance a process, so a second hub in the same process has none: see `open_engine`. The
workflow only names a row: what the run has done is in its message and the ledger. DBOS executes workflows in
an event loop of its own, in a thread; `execute` passes each on to the event loop of the hub.

DBOS polls for turns, which would be the largest cost of an idle host. So it polls seldom, and often for a
while after a host has signalled that something is queued (`PollEvent`).

DBOS itself does not look for lost hosts. `recover` queues again what they had begun: hosts call it when they
take over from one, and every few seconds after that, since the claim of a killed host may be committed late.
Nor does it notice a turn that it took from the queue in a commit whose connection was lost: this host looks
for those every `CLAIM_INTERVAL` seconds.

While DBOS cannot be started (the database user may not create its schema, say), turns are queued in memory.
That is safe: one host claims a run whatever queue it was in, and a lost host's turns are found by its rows.
The same holds while it takes long to start: its migrations create indexes CONCURRENTLY, which wait for every
older transaction of the database, such as that of a backup.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

import msgspec
import psycopg
from dbos import DBOS, DBOSConfig, SetEnqueueOptions, SetWorkflowID
from dbos import Serializer as DbosSerializer
from dbos._queue import queue_worker_thread
from sqlalchemy import Engine as ConnectionPool
from sqlalchemy import create_engine
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.pool import ConnectionPoolEntry
from typing_extensions import override

from dragoman.errors import Unavailable
from dragoman.offload import run_in_own_thread
from dragoman.runs.engine import ListHosts, MemoryEngine, QueuedTurn, TurnHandler
from dragoman.store.postgres.backend import without_database_traceback

T = TypeVar("T")
log = logging.getLogger(__name__)
APPLICATION = "dragoman"
VERSION = "turn-1"  # of the workflow below: rows of another version are not executed
QUEUE = "turns"
POLL_INTERVAL = 2.0  # seconds between two polls while no host has signalled anything
QUICK_INTERVAL = 0.25  # seconds between two polls after a host has queued a turn
QUICK_SECONDS = 2.0  # how long the quick polling lasts
POOL_SIZE = 4  # connections
START_DELAY = 1.0  # seconds after the hub's start, so that its first requests have the processor
LAUNCH_TIMEOUT = 5.0  # seconds of DBOS' start after which turns are queued in memory until it has ended
RETRY_INTERVAL = 5.0  # seconds until DBOS is started again where it could not be
CALL_TIMEOUT = 10.0  # seconds; while the database is down DBOS tries for ever
RETENTION = 86_400.0  # seconds for which turns that have ended are kept, so that their ids stay known
PURGE_INTERVAL = 3_600.0
CLAIM_INTERVAL = 10.0  # seconds between two searches for turns that were taken but not begun
DRAIN_INTERVAL = 0.05
CLOSE_TIMEOUT = 2.0
PURGE_BATCH = 1_000
ENDED = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]
WAITING = ["ENQUEUED", "DELAYED", "PENDING"]


class JsonSerializer(DbosSerializer):
    """Stores arguments as JSON: whoever can write to the database must not execute code in a hub."""

    @override
    def serialize(self, data: Any) -> str:
        return msgspec.json.encode(data, enc_hook=str).decode()

    @override
    def deserialize(cls, serialized_data: str) -> Any:  # noqa: N805 - the parameter's name in DBOS
        return msgspec.json.decode(serialized_data)

    @override
    def name(self) -> str:
        return "json"


class PollEvent(threading.Event):
    """The event that ends DBOS' polling when it is set. `wake` ends a pause, and shortens the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self._change = threading.Event()
        self._quick_until = 0.0

    @override
    def set(self) -> None:
        super().set()
        self._change.set()

    def wake(self) -> None:
        """Look for turns at once, and often for `QUICK_SECONDS`. May be called in any thread."""
        self._quick_until = time.monotonic() + QUICK_SECONDS
        self._change.set()

    @override
    def wait(self, timeout: float | None = None) -> bool:
        is_quick = timeout is not None and time.monotonic() < self._quick_until
        self._change.wait(QUICK_INTERVAL if is_quick else timeout)
        if not self.is_set():
            self._change.clear()
        return self.is_set()


_engines: list[DbosEngine] = []


@DBOS.workflow(name="turn")
async def execute_turn(body: str) -> None:
    """Execute a turn in the hub of this process."""
    await _engines[0].execute(msgspec.json.decode(body, type=QueuedTurn))


class DbosEngine:
    """Executes turns that any of the hosts of a database has queued."""

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        *,
        host_id: str,
        at_once: int,
        notify_hosts: Callable[[], None] = lambda: None,
        start_delay: float = START_DELAY,
    ) -> None:
        """`connect` opens a connection. At most `at_once` turns are executed at a time in this host.

        `notify_hosts` makes other hosts call `wake`; that may get lost. Raises Unavailable if this process
        has such an engine already.
        """
        if _engines:
            raise Unavailable("this process has an engine already")
        self._connect = connect
        self._host_id = host_id
        self._at_once = at_once
        self._notify_hosts = notify_hosts
        self._start_delay = start_delay
        self._polling = PollEvent()
        self._handler: TurnHandler | None = None
        self._loop = asyncio.get_running_loop()
        self._instance: DBOS | None = None
        self._pool: ConnectionPool | None = None
        self._connections: WeakSet[psycopg.Connection[Any]] = WeakSet()
        self._substitute = MemoryEngine(at_once=at_once)
        self._has_tried = asyncio.Event()
        self._has_launched = asyncio.Event()
        self._is_wanted = asyncio.Event()
        self._maintenance: asyncio.Task[None] | None = None
        self._launching: asyncio.Future[None] | None = None
        self._is_draining = False
        self._is_closed = False
        self._not_begun: set[str] = set()

    def start(self, handler: TurnHandler) -> None:
        """Begin to execute turns with this handler, as soon as DBOS has started in the background."""
        _engines.append(self)
        self._handler = handler
        self._substitute.start(handler)
        self._maintenance = asyncio.create_task(self._maintain())

    async def enqueue(self, turn: QueuedTurn) -> None:
        """Queue a turn; one with an id that was queued within the last day does nothing.

        Raises Unavailable when the queue cannot be reached.
        """
        if await self._is_substituted():
            await self._substitute.enqueue(turn)
            return
        body = msgspec.json.encode(turn).decode()

        def call() -> None:
            options = SetEnqueueOptions(queue_partition_key=turn.session_id)
            with SetWorkflowID(turn.id), options:
                DBOS.enqueue_workflow(QUEUE, execute_turn, body)

        await self._call(call)
        self._wake_all_hosts()

    def wake(self, _: str | None = None) -> None:
        """Look for turns at once: another host may have queued some. Usable as a signal's subscriber."""
        self._polling.wake()

    def _wake_all_hosts(self) -> None:
        self._polling.wake()
        self._notify_hosts()

    async def cancel(self, id: str) -> None:
        """Remove a turn that has not begun. Raises Unavailable."""
        await self._substitute.cancel(id)
        if await self._is_substituted():
            return

        def call() -> None:
            if any(
                each.status != "PENDING" for each in DBOS.list_workflows(workflow_ids=[id], status=WAITING)
            ):
                DBOS.cancel_workflow(id)

        await self._call(call)

    async def list(self) -> Sequence[QueuedTurn]:
        """Return the turns of all hosts that wait or are executed, oldest first. Raises Unavailable."""
        substituted = await self._substitute.list()
        if await self._is_substituted():
            return substituted
        workflows = await self._call(lambda: DBOS.list_queued_workflows(queue_name=QUEUE))
        bodies = [workflow.input["args"][0] for workflow in workflows if workflow.input is not None]
        return [*substituted, *(msgspec.json.decode(body, type=QueuedTurn) for body in bodies)]

    async def recover(self, *, list_living: ListHosts) -> None:
        """Queue again what hosts had begun that are not among the living ones. Raises Unavailable."""
        if await self._is_substituted():
            return

        def list_executing() -> set[str]:
            pending = DBOS.list_workflows(status="PENDING", load_input=False, load_output=False)
            return {str(each.executor_id) for each in pending}

        executing = await self._call(list_executing) - {self._host_id}
        # A host is listed before it begins a turn: those that began one while this looked are, too.
        lost = executing.difference(await list_living()) if executing else executing
        if lost:
            recover = partial(DBOS._recover_pending_workflows, sorted(lost))  # noqa: SLF001 - no other way
            await self._call(recover)
            self._wake_all_hosts()

    async def drain(self, seconds: float) -> None:
        """Begin no more turns, and wait up to `seconds` until those that are executed have ended."""
        self._is_draining = True
        await self._substitute.drain(seconds)
        if self._instance is None or not self._has_launched.is_set():
            return
        for event in self._instance.background_thread_stop_events:
            event.set()
        deadline = self._loop.time() + seconds
        with suppress(Unavailable):
            while self._loop.time() < deadline:
                if not await self._call(self._count_executed, seconds=CLOSE_TIMEOUT):
                    return
                await asyncio.sleep(DRAIN_INTERVAL)

    async def close(self) -> None:
        """Stop; what has not ended waits for another host."""
        await self.drain(CLOSE_TIMEOUT)
        await self._substitute.close()
        await self._end_launch()
        self._is_closed = True
        if self._maintenance is not None:
            self._maintenance.cancel()
            with suppress(asyncio.CancelledError):
                await self._maintenance
        with suppress(Unavailable):
            await with_timeout(run_in_own_thread(self._destroy), CALL_TIMEOUT)
        if self in _engines:
            _engines.remove(self)

    async def execute(self, turn: QueuedTurn) -> None:
        """Execute a turn in the hub's event loop. Called by DBOS, in its own."""
        future = asyncio.run_coroutine_threadsafe(self._handle(turn), self._loop)
        await asyncio.wrap_future(future)

    async def _handle(self, turn: QueuedTurn) -> None:
        if self._handler is not None:
            try:
                await self._handler(turn)
            except Exception:
                log.exception("the turn %s failed", turn.id)
        self._wake_all_hosts()  # the next one of its session may wait

    async def _maintain(self) -> None:
        """Start DBOS, look for lost turns, and delete old ones, until cancelled."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_wanted.wait(), self._start_delay)
        while not self._has_launched.is_set():
            self._launching = asyncio.ensure_future(run_in_own_thread(self._launch))
            await asyncio.wait([self._launching], timeout=LAUNCH_TIMEOUT)
            if not self._launching.done():
                self._queue_in_memory(
                    "is not ready, so this host queues in memory until it is"
                    " (its migrations wait for transactions of the database that began before)"
                )
            try:
                await asyncio.shield(self._launching)
                self._has_launched.set()
                self._has_tried.set()
            except Exception as error:  # noqa: BLE001 - no traceback in the log: it may name the database
                self._queue_in_memory(
                    f"cannot be used, so this host queues in memory: {type(error).__name__}"
                    " (may the database user create the schema of the queue?)"
                )
                await run_in_own_thread(self._destroy)
                await asyncio.sleep(RETRY_INTERVAL)
        purged_at = self._loop.time()
        while True:
            await asyncio.sleep(CLAIM_INTERVAL)
            with suppress(Unavailable):
                await self._call(self._queue_not_begun)
                if self._loop.time() - purged_at >= PURGE_INTERVAL:
                    purged_at = self._loop.time()
                    await self._call(self._purge)

    def _queue_in_memory(self, reason: str) -> None:
        if not self._has_tried.is_set() and not self._is_draining:
            log.warning("the queue of the hosts %s", reason)
        self._has_tried.set()

    async def _is_substituted(self) -> bool:
        """Wait until DBOS was started or has failed to; return whether turns are queued in memory instead."""
        self._is_wanted.set()
        with suppress(Unavailable):
            await with_timeout(self._has_tried.wait(), CALL_TIMEOUT)
        return self._has_tried.is_set() and not self._has_launched.is_set()

    def _launch(self) -> None:
        with self._connect() as connection:
            row = connection.execute("SELECT current_schema()").fetchone()
        schema = row[0] if row else "public"
        self._pool = create_engine(
            "postgresql+psycopg://",
            creator=self._open,
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_pre_ping=True,
        )
        sqlalchemy_event.listen(self._pool, "checkin", self._close_late)
        config: DBOSConfig = {
            "name": APPLICATION,
            "system_database_engine": self._pool,
            "dbos_system_schema": f"{schema}_engine",
            "executor_id": self._host_id,
            "application_version": VERSION,
            "use_listen_notify": False,
            "serializer": JsonSerializer(),
            "enable_otlp": False,
            "log_level": "ERROR",
        }
        quieten_logs()
        self._instance = DBOS(config=config)
        DBOS.listen_queues([])
        DBOS.launch()
        # What DBOS does each second for queues, schedules, delays and timeouts, of which the hub has none.
        idle = [*self._instance.background_thread_stop_events, self._instance._background_jobs_stop_event]  # noqa: SLF001
        for event in idle:
            event.set()
        queue = DBOS.register_queue(
            QUEUE,
            partition_concurrency=1,
            worker_concurrency=self._at_once,
            polling_interval_sec=POLL_INTERVAL,
        )
        self._polling = PollEvent()
        self._instance._registry.register_poller(  # noqa: SLF001 - so DBOS ends it as its own
            self._polling, queue_worker_thread, self._polling, self._instance, queue
        )

    def _open(self) -> psycopg.Connection[Any]:
        """Open a connection of the pool; none after `close`, when threads of DBOS may still run."""
        if self._is_closed:
            raise Unavailable("the hub is shutting down")
        connection = self._connect()
        self._connections.add(connection)
        return connection

    async def _end_launch(self) -> None:
        """Wait until DBOS has started. What it waits for in the database is cancelled after CLOSE_TIMEOUT."""
        for end in (None, self._cancel_statements):
            if self._launching is None or self._launching.done():
                return
            if end is not None:
                with suppress(Unavailable):
                    await with_timeout(run_in_own_thread(end), CLOSE_TIMEOUT)
            await asyncio.wait([self._launching], timeout=CLOSE_TIMEOUT)

    def _cancel_statements(self) -> None:
        for connection in list(self._connections):
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=CLOSE_TIMEOUT)

    def _close_late(self, _: object, entry: ConnectionPoolEntry) -> None:
        """Close a connection that a thread of DBOS returns after the pool was disposed of."""
        if self._pool is None:
            entry.invalidate()

    def _destroy(self) -> None:
        if self._instance is not None:
            DBOS.destroy()
            self._instance = None
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.dispose()

    def _count_executed(self) -> int:
        return len(self._list_taken())

    def _list_taken(self) -> set[str]:
        """Return the ids of the turns that this host has taken from the queue."""
        taken = DBOS.list_workflows(
            status="PENDING", executor_id=self._host_id, load_input=False, load_output=False
        )
        return {each.workflow_id for each in taken}

    def _queue_not_begun(self) -> None:
        """Queue again the turns that this host has taken for two searches in a row and does not execute."""
        if self._instance is None:
            return
        taken = self._list_taken()
        not_begun = taken.difference(self._instance._active_workflows_set.activeList())  # noqa: SLF001
        for id in not_begun & self._not_begun:
            log.warning("the turn %s was taken from the queue, and not begun: it is queued again", id)
            self._instance._sys_db.reenqueue_for_recovery(id, [self._host_id], QUEUE)  # noqa: SLF001
            self._polling.wake()
        self._not_begun = not_begun

    def _purge(self) -> None:
        """Delete the turns that ended long ago."""
        before = datetime.fromtimestamp(time.time() - RETENTION, UTC).isoformat()
        ids = ["first"]
        while ids:
            ended = DBOS.list_workflows(
                status=ENDED, completed_before=before, limit=PURGE_BATCH, load_input=False, load_output=False
            )
            ids = [each.workflow_id for each in ended]
            DBOS.delete_workflows(ids)

    async def _call(self, call: Callable[[], T], *, seconds: float = CALL_TIMEOUT) -> T:
        """Call DBOS in a thread, once it has started. Raises Unavailable.

        DBOS retries for ever while the database is down: a thread of its own lets the process end meanwhile.
        """
        if self._is_draining and not self._has_launched.is_set():
            raise Unavailable("the hub is shutting down")
        self._is_wanted.set()

        async def launched_call() -> T:
            await self._has_launched.wait()
            return await run_in_own_thread(call)

        return await with_timeout(launched_call(), seconds)


async def with_timeout(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Await a coroutine for some seconds. Raises Unavailable if it takes longer or fails."""
    try:
        return await asyncio.wait_for(work, seconds)
    except Exception as error:  # noqa: BLE001 - DBOS, SQLAlchemy and psycopg name the database in theirs
        raise Unavailable(f"the queue of the hosts cannot be used: {type(error).__name__}") from None


def quieten_logs() -> None:
    """Log only what is wrong, through the handlers of the hub. An outage is logged by the hub itself."""
    logger = logging.getLogger("dbos")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())  # DBOS adds one for the console if there is none
    logger.setLevel(logging.ERROR)
    logger.addFilter(without_database_traceback)
