"""The queue of each session: messages that arrived while a run was active, and wait in the database.

The host of the run begins the next one as soon as the run has ended; a background run is begun by any host
with room. What is left (its host was killed, an approval has expired) is found by the sweep of any host. A
row is deleted in the transaction that begins its run, so that it begins once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import msgspec

from dragoman import events as e
from dragoman.errors import Conflict, DragomanError, NotFound, RunActive, StoreError, Unavailable
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.messages import Message, decode, encode
from dragoman.model_request import Tool
from dragoman.runs.active_run import ActiveRun, StartedRun
from dragoman.runs.deduplication import StoredAnswer
from dragoman.runs.live_tail import QUEUED
from dragoman.runs.preparation import QUEUE_WAIT, awaits_answer, find_requester, new_session
from dragoman.runs.run import HubRun
from dragoman.store.connection import DatabaseJob
from dragoman.store.hosts.queued_runs import OLDEST, RANKS, FreeSession, QueuedRun, QueueLimits, QueueMode
from dragoman.store.sessions.sessions import Session
from dragoman.store.settled_clock import SettledClock
from dragoman.store.store import Store
from dragoman.wire.ui.client_request import ChatRequest, ContinueAnswer, NewMessage

log = logging.getLogger(__name__)
Clock: TypeAlias = Callable[[], float]
SWEEP_INTERVAL = 2.0  # seconds between two searches for messages whose session is free
SWEPT = 200  # sessions in one sweep
POLL_INTERVAL = 2.0  # seconds between two polls for a run, in case another host's signal was missed
QUEUE_INTERVAL = 0.05  # seconds between two polls for a run that is about to begin
RETENTION = 86_400.0  # seconds for which a withdrawn or failed message is stored
INTERRUPTED = "interrupted by a new message"
WEBHOOK_RETENTION = 7 * RETENTION
PURGE_INTERVAL = 3_600.0  # seconds
CLOSE_TIMEOUT = 1.0  # seconds
STOPPING = "the hub is shutting down; the message waits, and is answered when it is back"


class QueueSettings(msgspec.Struct, frozen=True):
    """How many messages may wait, and how many runs of this host in the background at a time."""

    limits: QueueLimits = QueueLimits()
    background_runs: int = 64


class QueuedRunStarter(Protocol):
    """Starts queued runs: see `RunRegistry`."""

    async def begin_waiting(
        self, request: ChatRequest, identity: Identity, *, claim: DatabaseJob[None]
    ) -> None: ...
    async def find_begun(self, session_id: str) -> ActiveRun | None: ...
    def get(self, run_id: str) -> HubRun | None: ...
    def get_active(self, session_id: str) -> HubRun | None: ...
    def count_background(self) -> int: ...


class RequestBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a request that a queued row stores as JSON."""

    message: msgspec.Raw
    model: str | None = None
    agent: str | None = None
    tools: tuple[Tool, ...] = ()
    compact_threshold: int | None = None
    max_tool_calls: int | None = None
    output_format: str | None = None


class RunQueue:
    """Queues messages, and begins their runs."""

    def __init__(
        self, store: Store, starter: QueuedRunStarter, *, settings: QueueSettings, clock: Clock = time.time
    ) -> None:
        self.settings = settings
        self._store = store
        self._starter = starter
        self._clock = clock
        self._settled_clock = SettledClock(clock, ahead=store.clock_ahead)
        self._sessions: set[str] = set()
        """Sessions in whose queue something may wait, as far as this host knows."""
        self._is_filled = False  # whether `_sessions` has what waited when this host began
        self._swept = OLDEST
        self._announced: dict[str, str] = {}
        """The sessions of the messages that were announced to runs of this host, by message row."""
        self._beginning = 0  # runs in the background
        self._waiters: dict[str, asyncio.Future[None]] = {}
        self._dispatching: dict[str, bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        store.signals.subscribe("queue", self._on_queued)
        store.signals.subscribe("begun", self._on_begun)

    @property
    def is_full(self) -> bool:
        """Whether this host has as many runs in the background as it may."""
        return self._starter.count_background() + self._beginning >= self.settings.background_runs

    def may_have(self, session_id: str) -> bool:
        """Return whether something may wait in the session; False only if nothing does."""
        return self._store.host_id is not None or not self._is_filled or session_id in self._sessions

    async def add(
        self,
        request: ChatRequest,
        message: Message,
        *,
        session: Session | None,
        identity: Identity,
        extra_job: DatabaseJob[None] | None = None,
    ) -> QueuedRun:
        """Queue the message of a request, for `when_busy`; run `extra_job` in the same transaction.

        Raises LimitReached, Conflict.
        """
        mode: QueueMode = "queue"
        if request.when_busy is not None and request.when_busy != "refuse":
            mode = request.when_busy
        now = self._clock()
        body = RequestBody(
            msgspec.Raw(encode(message)),
            model=request.model,
            agent=request.agent,
            tools=request.tools,
            compact_threshold=request.compact_threshold,
            max_tool_calls=request.max_tool_calls,
            output_format=request.output_format,
        )
        queued = QueuedRun(
            id=new_id("run"),
            session_id=request.session_id,
            owner=identity.owner,
            key_id=identity.key_id,
            message_id=message.id,
            mode=mode,
            rank=RANKS[mode],
            body=msgspec.json.encode(body).decode(),
            background=request.background,
            webhook=request.webhook,
            created_at=now,
        )
        session = session or new_session(request, owner=identity.owner, now=now)
        stored = await self._store.queued_runs.add(
            queued, session=session, limits=self.settings.limits, extra_job=extra_job
        )
        self._sessions.add(request.session_id)
        if request.background:
            self._store.signals.send("queue", request.session_id)  # another host may have room
        return stored

    async def has_waiting(self, session_id: str) -> bool:
        """Return whether something waits in the session."""
        return self.may_have(session_id) and await self._store.queued_runs.first(session_id) is not None

    async def has_to_wait(self, request: ChatRequest, session: Session | None) -> bool:
        """Return whether a message that may wait has to, though its session has no active run.

        In a session of a runner a question is a pause of its turn, which a message waits for. To an agent
        of the hub, as from an A2A client, it is sent instead of the answer that the last turn waits for.
        """
        if await self.has_waiting(request.session_id):
            return True
        if session is None or not session.runner or request.when_busy == "interrupt":
            return False
        return await awaits_answer(self._store, session.id, now=self._settled_clock.settled_time())

    async def find_current(self, session_id: str) -> ActiveRun | None:
        """Return the active run of the session, or that of the message that is about to be answered.

        Between two runs, a page that follows the session waits for the next answer, not for the last one.
        Raises as `RunRegistry.find_active`.
        """
        deadline = time.monotonic() + QUEUE_WAIT
        while time.monotonic() < deadline:
            run = await self._starter.find_begun(session_id)
            if run is not None:
                return run
            if not await self._is_beginning(session_id):
                break
            await asyncio.sleep(QUEUE_INTERVAL)
        return await self._starter.find_begun(session_id)  # it may have started between the two queries

    async def _is_beginning(self, session_id: str) -> bool:
        """Return whether something waits in the session that can be answered now, or is about to be."""
        if session_id in self._dispatching:
            return True
        queued = await self._store.queued_runs.first(session_id) if self.may_have(session_id) else None
        if queued is None or (queued.background and self.is_full):
            return False
        return not await self._is_waiting(queued)

    async def find(self, session_id: str, message_id: str) -> QueuedRun | None:
        """Return the waiting row of a message, or None."""
        if not self.may_have(session_id):
            return None
        return await self._store.queued_runs.find(session_id, message_id)

    def announce(self, run: HubRun, queued: QueuedRun) -> None:
        """Announce a queued message to a run of this host and its followers; steer or interrupt the run."""
        self._sessions.add(queued.session_id)
        self._announced[queued.id] = queued.session_id
        run.announce(queue_event(queued))
        if queued.mode == "steer":
            run.end_after_step(e.Data("data-steered", {"messageId": queued.message_id, "runId": queued.id}))
        elif queued.mode == "interrupt":
            run.stop(INTERRUPTED)

    async def announce_id(self, run: HubRun, queued_id: str) -> None:
        """Announce a message that another host has queued to a run of this host."""
        queued = await self._store.queued_runs.get(queued_id)
        if queued is not None and queued.session_id == run.row.session_id and queued.status == "queued":
            self.announce(run, queued)

    async def announce_all(self, run: HubRun) -> None:
        """Announce all messages that wait behind a run that continues."""
        if self.may_have(run.row.session_id):
            for queued in await self._store.queued_runs.list(run.row.session_id):
                self.announce(run, queued)

    def run_begun(self, run: HubRun) -> None:
        """Announce, in the background, what waits behind a run that continues an answer."""
        if isinstance(run.action, ContinueAnswer):
            self._spawn(self._announce_all_if_up(run))

    async def _announce_all_if_up(self, run: HubRun) -> None:
        with suppress(StoreError, Unavailable):  # what waits is answered all the same
            await self.announce_all(run)

    async def withdraw(self, queued: QueuedRun) -> bool:
        """Withdraw a message; False when it no longer waits."""
        withdrawn = await self._store.queued_runs.end(queued.id, "withdrawn", at=self._clock())
        if withdrawn:
            self._signal_begun(queued.id)
            self._announce_withdrawn(queued)
        return withdrawn

    def _announce_withdrawn(self, queued: QueuedRun) -> None:
        self._announced.pop(queued.id, None)
        run = self._starter.get_active(queued.session_id)
        if run is not None:
            run.announce(queue_event(queued, state="withdrawn"))

    async def withdraw_all(self, session_id: str) -> None:
        """Withdraw all that waits in a session, which is about to be deleted."""
        if self.may_have(session_id):
            waiting = await self._store.queued_runs.list(session_id)
            await self._store.queued_runs.withdraw_all(session_id, at=self._clock())
            for queued in waiting:
                self._signal_begun(queued.id)

    async def wait_begun(self, queued: QueuedRun) -> StartedRun | StoredAnswer:
        """Wait until the run of a message has begun, at whichever host.

        Raises Conflict when it was withdrawn, or could not be answered; NotFound when its session is gone.
        """
        while True:
            waiter = self._waiters.setdefault(queued.id, asyncio.get_running_loop().create_future())
            found = await self._find_begun(queued)
            if found is not None:
                self._wake(queued.id)  # other waiters, too: no signal will come
                return found
            timeout = None if self._store.host_id is None else POLL_INTERVAL
            await asyncio.wait([waiter], timeout=timeout)
            if self._closed:
                raise Unavailable(STOPPING)

    async def _find_begun(self, queued: QueuedRun) -> StartedRun | StoredAnswer | None:
        run: ActiveRun | None = self._starter.get(queued.id)
        if run is not None:
            return StartedRun(run, replay="message")
        row = await self._store.runs.get(queued.id)
        if row is None:
            current = await self._store.queued_runs.get(queued.id)
            if current is None and await self._store.runs.get(queued.id) is None:
                raise NotFound("the session of this message was deleted")
            if current is not None and current.status != "queued":
                raise Conflict(f"message {queued.message_id!r} was {ended_text(current)}")
            return None
        if row.status == "running":
            run = await self._starter.find_begun(row.session_id)
            if run is not None and run.row.id == row.id:
                return StartedRun(run, replay="message")
            row = await self._store.runs.get(queued.id) or row
        message = await self._store.messages.get(row.session_id, row.message_id)
        if message is None or row.status == "running":
            return None
        return StoredAnswer(row.id, message, error=row.error)

    # Beginning.

    def run_ended(self, run: HubRun) -> None:
        """Begin what waits for the end of this run."""
        for id in [id for id, session in self._announced.items() if session == run.row.session_id]:
            del self._announced[id]
        if run.row.session_id in self._sessions:
            self.dispatch_soon(run.row.session_id)
        if run.row.background and (self._sessions or self._store.host_id is not None):
            self._spawn(self._sweep_for_room())

    def dispatch_soon(self, session_id: str) -> None:
        """Begin the session's next message, in the background."""
        self._spawn(self.dispatch(session_id))

    async def run(self) -> None:
        """Begin what waits in sessions without an active run, until cancelled."""
        purged_at = 0.0
        while True:
            with suppress(StoreError, Unavailable):
                is_due = not 0.0 <= self._clock() - purged_at <= PURGE_INTERVAL
                purged_at = self._clock() if is_due else purged_at
                await self._sweep_if_up(purges=is_due)
            await asyncio.sleep(SWEEP_INTERVAL)

    async def _sweep_if_up(self, *, purges: bool) -> None:
        if self._store.database.is_up:
            await self.sweep()
            if purges and self._settled_clock.is_settled():
                await self.purge()

    async def sweep(self) -> None:
        """Begin what waits in sessions without an active run, those behind the ones of the last sweep.

        So many that wait for a person do not keep the others waiting. Raises StoreError, Unavailable.
        """
        if not self._is_filled:
            self._sessions.update(await self._store.queued_runs.sessions())
            self._is_filled = True
        self._swept = await self._sweep_page(self._swept)

    async def _sweep_for_room(self) -> None:
        with suppress(StoreError, Unavailable):
            await self._sweep_page(OLDEST)

    async def _sweep_page(self, after: FreeSession) -> FreeSession:
        sessions = await self._store.queued_runs.free_sessions(SWEPT, after=after)
        for free in sessions:
            await self.dispatch(free.session_id)
        return sessions[-1] if len(sessions) == SWEPT else OLDEST

    async def purge(self) -> None:
        """Delete old rows: of messages that were withdrawn or failed, and of webhooks that were posted."""
        await self._store.webhooks.purge(before=self._clock() - WEBHOOK_RETENTION)
        await self._store.queued_runs.purge(before=self._clock() - RETENTION)

    async def dispatch(self, session_id: str) -> None:
        """Begin the session's next message, unless it is busy, or its answer waits for a person."""
        if session_id in self._dispatching:
            self._dispatching[session_id] = True  # look again: what it has read may be outdated
            return
        try:
            self._dispatching[session_id] = True
            while self._dispatching[session_id]:
                self._dispatching[session_id] = False
                self._dispatching[session_id] |= await self._dispatch_next(session_id)
        except (StoreError, Unavailable) as error:
            log.info("what waits in session %s cannot begin yet: %s", session_id, error.message)
        finally:
            del self._dispatching[session_id]

    async def _dispatch_next(self, session_id: str) -> bool:
        """Begin a message; return whether to look for the next one."""
        if self._closed:
            return False
        queued = await self._store.queued_runs.first(session_id)
        if queued is None:
            self._sessions.discard(session_id)
            return False
        self._sessions.add(session_id)
        if await self._is_waiting(queued) or (queued.background and self.is_full):
            return False
        self._beginning += queued.background
        try:
            identity = await find_requester(self._store, queued, key_id=queued.key_id, owner=queued.owner)
            claim = self._store.queued_runs.claim_job(queued.id)
            await self._starter.begin_waiting(queued_request(queued), identity, claim=claim)
        except RunActive:
            return False
        except (StoreError, Unavailable):
            raise
        except DragomanError as error:
            await self._give_up(queued, error.message)
            return True
        except Exception:  # such as a row that cannot be read; it must not block the ones behind it
            log.exception("message %s of session %s could not be answered", queued.id, session_id)
            await self._give_up(queued, "an internal error of the hub")
            return True
        finally:
            self._beginning -= queued.background
        self._signal_begun(queued.id)
        return False

    async def _is_waiting(self, queued: QueuedRun) -> bool:
        """Return whether a message has to wait until the session's last question or approval is answered."""
        now = self._settled_clock.settled_time()  # a clock that was set ahead ends no question
        return queued.mode != "interrupt" and await awaits_answer(self._store, queued.session_id, now=now)

    async def _give_up(self, queued: QueuedRun, reason: str) -> None:
        ended = await self._store.queued_runs.end(queued.id, "failed", at=self._clock(), error=reason)
        if ended:  # otherwise another host has begun it meanwhile
            log.info("message %s of session %s is not answered: %s", queued.id, queued.session_id, reason)
        self._signal_begun(queued.id)

    def _signal_begun(self, id: str) -> None:
        """Wake the waiters of a message, here and at other hosts: its run has begun, or never will."""
        self._wake(id)
        self._store.signals.send("begun", id)

    def _on_queued(self, session_id: str | None) -> None:
        """Begin what another host has queued, if this one has room."""
        if not self._closed and not self.is_full:
            self._spawn(self._sweep_for_room() if session_id is None else self.dispatch(session_id))

    def _on_begun(self, id: str | None) -> None:
        """Wake the waiters of a message that another host has begun or removed from the queue."""
        for waiting in [id] if id is not None else list(self._waiters):
            self._wake(waiting)
        if id in self._announced:
            self._spawn(self._check_withdrawn(id))

    async def _check_withdrawn(self, id: str) -> None:
        with suppress(StoreError, Unavailable):
            queued = await self._store.queued_runs.get(id)
            if queued is not None and queued.status == "withdrawn" and id in self._announced:
                self._announce_withdrawn(queued)

    def _wake(self, id: str) -> None:
        waiter = self._waiters.pop(id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Begin no more; what waits stays in the database."""
        self._closed = True
        for id in list(self._waiters):
            self._wake(id)
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT)
            for task in pending:
                task.cancel()


def queue_event(queued: QueuedRun, *, state: str = "queued") -> e.Data:
    """Return the event that announces a waiting message to the followers of the active run."""
    body = msgspec.json.decode(queued.body, type=RequestBody)
    data = {
        "runId": queued.id,
        "messageId": queued.message_id,
        "mode": queued.mode,
        "state": state,
        "message": msgspec.json.decode(body.message),
    }
    return e.Data(QUEUED, data, id=queued.id, transient=True)


def queued_request(queued: QueuedRun) -> ChatRequest:
    """Return the request of a message that waits."""
    body = msgspec.json.decode(queued.body, type=RequestBody)
    return ChatRequest(
        session_id=queued.session_id,
        action=NewMessage(decode(bytes(body.message))),
        model=body.model,
        agent=body.agent,
        tools=body.tools,
        compact_threshold=body.compact_threshold,
        max_tool_calls=body.max_tool_calls,
        output_format=body.output_format,
        background=queued.background,
        webhook=queued.webhook,
        queued_id=queued.id,
    )


def ended_text(queued: QueuedRun) -> str:
    return "withdrawn" if queued.status == "withdrawn" else f"not answered: {queued.error}"


def queue_to_json(waiting: Sequence[QueuedRun]) -> list[dict[str, Any]]:
    """Return messages that wait as JSON values, in order."""
    return [{**queue_event(queued).data, "createdAt": queued.created_at} for queued in waiting]
