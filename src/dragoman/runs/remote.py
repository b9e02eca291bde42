"""A run that another host executes, as its viewers here see it: a copy that is fed over HTTP.

The copy has a fold and a live tail like the run itself, so replays, slow readers and dialects are the same
code. It is fed while somebody follows it. When the host ends in mid-stream, the copy waits for the run's next
host, which may be this one, and brings its followers to the state from which that host continues
(`takeover_events.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, suppress
from urllib.parse import quote

import msgspec

from dragoman import events as e
from dragoman.agent.run_end import close_step, failure_events
from dragoman.errors import (
    DragomanError,
    HostGone,
    HostUnreachable,
    NotFound,
    ProviderError,
    StoreError,
    Unavailable,
    WireError,
)
from dragoman.fold import Fold
from dragoman.hosts.client import HostClient
from dragoman.http.transport import Timeouts
from dragoman.messages import Message
from dragoman.runs.active_run import ActiveRun
from dragoman.runs.deduplication import StoredAnswer
from dragoman.runs.live_tail import Batch, Follower, LiveTail
from dragoman.runs.remote_feed import FeedEnd, FeedItem, RunFeedParser, RunState, current_state, decode_state
from dragoman.runs.run import HubRun, RunSettings
from dragoman.runs.takeover_events import ContinuedEvents, covers, position_in, transition_events
from dragoman.store.hosts.queued_runs import QueuedRun
from dragoman.store.runs import RunRecord
from dragoman.store.sessions.spill_file import AnswerSpill
from dragoman.store.store import Store
from dragoman.unfold import START_POSITION, FoldPosition, current_position, events_since

log = logging.getLogger(__name__)
REQUEST_TIMEOUT = 15.0  # seconds that a request waits for a host that does not answer, or for the next one
FEED_TIMEOUTS = Timeouts(connect=2.0, first_byte=5.0, idle=5.0)
TAKEOVER_TIMEOUT = 60.0  # seconds that viewers wait for the next host of a run
POLL_INTERVALS = (0.05, 0.1, 0.2, 0.5)  # seconds between two searches for it; the last one is repeated
LOST = "the host of this answer does not answer, and no other one has taken the answer over; reload to see it"
CUT_OFF = (ProviderError, Unavailable, NotFound, WireError, StoreError)
"""Errors that end a feed while the run may continue."""
CUT_OFF_CALL = "the hub stopped during the run"


class RunHosts(msgspec.Struct, frozen=True):
    """What a copy of a run needs: the store, the client of other hosts, and the runs of this one by id."""

    store: Store
    client: HostClient
    find_local: Callable[[str], HubRun | None]
    settings: RunSettings

    async def read_state(self, row: RunRecord) -> RunState:
        """Ask the host of a run for its state. Raises HostGone, HostUnreachable, NotFound."""
        host = host_of(row)
        response = await self.client.stream(host, f"/runs/{row.id}")
        try:
            return decode_state(await response.read(self.settings.max_answer * 8))
        except (ProviderError, WireError) as error:  # it was killed while it answered
            raise self.client.unreachable(host, error) from None


class RemoteRun:
    """A run that another host executes: see `ActiveRun`. `row` names its host."""

    def __init__(
        self,
        row: RunRecord,
        state: RunState,
        *,
        hosts: RunHosts,
        on_begin: Callable[[RemoteRun], None],
        on_end: Callable[[RemoteRun], None],
    ) -> None:
        """`on_begin` is called at the first follower, `on_end` after the last one or at the run's end."""
        self.row = row
        self.fold = Fold()
        self.tail = LiveTail(self.fold, on_empty=self._end, on_follow=self._begin)
        self._state = state
        self._hosts = hosts
        self._on_begin, self._on_end = on_begin, on_end
        self._start_position = START_POSITION
        self._from_start: list[Follower] = []
        self._continued: ContinuedEvents | None = None
        self._spill = AnswerSpill(hosts.store.folder)
        self._task: asyncio.Task[None] | None = None
        self._reading: asyncio.Future[bool] | None = None
        self._epoch = row.epoch or 1
        self._replayed: Fold | None = None
        """What the same host has replayed since the connection to it was lost."""
        self._deadline: float | None = None
        self._waits: Iterator[float] = iter(())

    @property
    def is_abandoned(self) -> bool:
        return self._state.is_abandoned

    @property
    def is_unattended(self) -> bool:
        return self._state.is_unattended

    @property
    def action_hash(self) -> str | None:
        return self._state.action_hash

    def message(self) -> Message:
        """Return the message as it was when the state was read."""
        return self._state.message

    def update(self, row: RunRecord, state: RunState) -> None:
        """Replace the state with one that was read later."""
        self.row, self._state = row, state

    def follow(self, *, replay: bool = False, position: FoldPosition = START_POSITION) -> Follower:
        """See `ActiveRun`. Without `replay` it is followed from where the copy is."""
        return self.tail.follow(replay=replay, position=position)

    def follow_from_start(self, *, is_retold: bool = True) -> Follower:
        """See `ActiveRun`."""
        position = self._start_position._replace(is_retold=is_retold)
        follower = self.tail.follow(replay=True, position=position)
        if not self.tail.has_started:
            self._from_start.append(follower)
        return follower

    async def stop_and_wait(self, reason: str) -> None:
        """See `ActiveRun`. Raises HostUnreachable."""
        await stop_at_host(self.row, reason, hosts=self._hosts)

    async def wait_ended(self) -> None:
        """Wait until the database says that it has ended."""
        interval = iter(POLL_INTERVALS)
        while True:
            row = await self._hosts.store.runs.get(self.row.id)
            local = self._hosts.find_local(self.row.id)
            if local is not None:  # it continues on this host
                await local.wait_ended()
                return
            if row is None or row.status != "running":
                return
            await asyncio.sleep(next(interval, POLL_INTERVALS[-1]))

    async def wait_abandoned(self, seconds: float) -> bool:
        """See `ActiveRun`."""
        await asyncio.sleep(seconds)
        try:
            self._state = await self._hosts.read_state(self.row)
        except CUT_OFF as error:
            log.debug("the state of run %s is not known: %s", self.row.id, error.message)
        return self.is_abandoned

    def _begin(self) -> None:
        if self._task is None:
            self._on_begin(self)
            self._task = asyncio.create_task(self._drive(), name=f"copy of {self.row.id}")

    def _end(self) -> None:
        self._on_end(self)
        if self._task is not None:
            self._task.cancel()
        self.tail.close()

    def close(self) -> None:
        """End the copy because this host stops, and disconnect its followers."""
        self.tail.disconnect()
        self._end()

    async def _drive(self) -> None:
        try:
            while not await self._follow_until_moved():
                if not await self._find_next_host():
                    return
        except DragomanError as error:
            log.warning("the copy of run %s ends: %s", self.row.id, error.message)
            self._fail(error.message, code=error.code)
        except Exception:
            log.exception("the copy of run %s failed", self.row.id)
            self._fail("an internal error of the hub", code="internal")
        finally:
            self._end()

    def leave_host(self) -> None:
        """Stop reading from the host: the run continues at another one."""
        if self._reading is not None:
            self._reading.cancel()

    async def _follow_until_moved(self) -> bool:
        self._reading = reading = asyncio.ensure_future(self._follow_host())
        try:
            await asyncio.wait([reading])
            return not reading.cancelled() and reading.result()
        finally:
            reading.cancel()

    async def _follow_host(self) -> bool:
        """Copy what the host of the run sends; return whether the run has ended."""
        local = self._hosts.find_local(self.row.id)
        feed = feed_from_here(local) if local is not None else feed_from_host(self.row, self._hosts.client)
        try:
            return await self._read(feed)
        except CUT_OFF as error:
            log.info("the copy of run %s lost the host %s: %s", self.row.id, self.row.host, error.message)
        self._hosts.client.forget(self.row.host or "")
        return False

    async def _read(self, feed: AsyncGenerator[FeedItem, None]) -> bool:
        async with aclosing(feed) as items:
            async for item in items:
                if isinstance(item, FeedEnd):
                    return True
                await self._take(item)
        return False

    def _begin_with(self, state: RunState) -> None:
        """Begin with the run's message, or continue from it at the run's next host."""
        message, is_same_host = state.message, state.is_replayed or state.epoch == self._epoch
        self._epoch, self._deadline = state.epoch, None
        if self.tail.has_started and is_same_host:  # only the connection was lost
            self._replayed = Fold(message)
            return
        self._replayed = None
        if not self.tail.has_started:
            self.fold = self.tail.fold = Fold(message)
            self._start_position = current_position(self.fold)
            for follower in self._from_start:
                is_retold = follower.position is None or follower.position.is_retold
                follower.position = self._start_position._replace(is_retold=is_retold)
            return
        self.tail.withdraw(transition_events(self.fold, message))
        self._continued = ContinuedEvents(self.fold, message)

    async def _take(self, batch: RunState | Batch) -> None:
        if isinstance(batch, RunState):
            self._begin_with(batch)
            return
        if not batch:
            return
        if isinstance(batch[-1], e.Finish) and await self._is_unfinished():
            raise HostGone(f"the host {self.row.host!r} no longer executes the run")
        self.tail.note_queued(batch)
        events = batch
        if self._replayed is not None:
            self._replayed.add(batch)
            if not covers(self._replayed, self.fold):
                return
            events = events_since(self._replayed, position_in(self._replayed, self.fold))
            self._replayed = None
        if self._continued is not None:
            events = self._continued.translate(events)
        if not events:
            return
        self.tail.add(events)
        self.tail.release(events)
        await self._spill.spill(self.fold)
        settings = self._hosts.settings
        await self.tail.make_room(settings.read_ahead, timeout=settings.reader_timeout)

    async def _is_unfinished(self) -> bool:
        """Return whether the database still has the run as running, although its host has sent the end."""
        try:
            row = await self._hosts.store.runs.get(self.row.id)
        except (StoreError, Unavailable):
            return False  # the host may have it on its disk
        return row is not None and row.status == "running"

    async def _find_next_host(self) -> bool:
        """Wait until the run has a host again; False when it has ended. Raises Unavailable."""
        loop = asyncio.get_running_loop()
        if self._deadline is None:
            self._deadline, self._waits = loop.time() + TAKEOVER_TIMEOUT, iter(POLL_INTERVALS)
        while loop.time() < self._deadline:
            await asyncio.sleep(next(self._waits, POLL_INTERVALS[-1]))
            try:
                row = await self._hosts.store.runs.get(self.row.id)
            except (StoreError, Unavailable):
                continue
            if row is None or row.status != "running":
                await self._finish_stored(row)
                return False
            is_there = row.host != self._hosts.store.host_id or self._hosts.find_local(row.id) is not None
            if row.host is not None and is_there:
                self.row = row
                return True
        raise Unavailable(LOST)

    async def _finish_stored(self, row: RunRecord | None) -> None:
        """End with the message as it is stored."""
        message = await self._hosts.store.messages.get(self.row.session_id, self.row.message_id)
        if row is None or message is None:
            raise NotFound("the session of this answer was deleted")
        if not self.tail.has_started:  # the followers' positions are in the whole message
            self.fold = self.tail.fold = Fold(message)
            self.fold.add([e.Start(message.id)])
            self.tail.withdraw(StoredAnswer(row.id, message, error=row.error).ending())
            return
        self.tail.withdraw(transition_events(self.fold, message))
        answer = StoredAnswer(row.id, message, current_position(self.fold), row.error)
        ending = answer.ending()
        self.tail.withdraw([*close_step(self.fold, reason=CUT_OFF_CALL), *ending])

    def _fail(self, text: str, *, code: str) -> None:
        """End the stream with an error; the run itself may continue."""
        if self.fold.phase not in ("ended", "finished"):
            self.tail.withdraw(failure_events(self.fold, text=text, code=code, transient=True))


def poll_intervals() -> Iterator[float]:
    """Yield the seconds to wait between two searches, until `TAKEOVER_TIMEOUT` is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TAKEOVER_TIMEOUT
    yield from POLL_INTERVALS
    while loop.time() < deadline:
        yield POLL_INTERVALS[-1]


def host_of(row: RunRecord) -> str:
    """Return the host of a run. Raises HostGone for one that waits for its next host."""
    if row.host is None:
        raise HostGone(f"the run {row.id!r} waits for its next host")
    return row.host


async def stop_at_host(run: RunRecord, reason: str, *, hosts: RunHosts) -> None:
    """Stop a run at its host, or at the next one when that is dead. Raises HostUnreachable, Unavailable.

    A host that does not answer may have been killed a moment ago: the others find out, and take the run over.
    """
    deadline = asyncio.get_running_loop().time() + REQUEST_TIMEOUT
    for seconds in poll_intervals():
        row = await hosts.store.runs.get(run.id)
        if row is None or row.status != "running":
            return
        local = hosts.find_local(row.id)
        if local is not None:
            await local.stop_and_wait(reason)
            return
        try:
            await hosts.client.post(host_of(row), f"/runs/{row.id}/stop", body={"reason": reason})
        except HostUnreachable:
            if asyncio.get_running_loop().time() > deadline:
                raise
        except (HostGone, NotFound):  # it has just ended, or another host takes it over
            pass
        else:
            return
        await asyncio.sleep(seconds)
    raise Unavailable(LOST)


async def feed_from_host(row: RunRecord, client: HostClient) -> AsyncGenerator[FeedItem, None]:
    """Yield what the host of a run sends. Raises what `stream` of the client raises, and WireError."""
    parser = RunFeedParser()
    response = await client.stream(host_of(row), f"/runs/{row.id}/events", timeouts=FEED_TIMEOUTS)
    async with response:
        while data := await response.receive():
            for item in parser.feed(data):
                yield item


async def feed_from_here(run: HubRun) -> AsyncGenerator[FeedItem, None]:
    """Yield what `feed_from_host` does, for a run of this host."""
    yield current_state(run, message=run.first_message)
    with run.follow_from_start(is_retold=False) as follower:
        while (batch := await follower.next()) is not None:
            if batch:
                yield batch
    if run.fold.phase == "finished":
        yield FeedEnd()


class RemoteRuns:
    """The runs of other hosts that clients of this host follow."""

    def __init__(self, hosts: RunHosts) -> None:
        self._hosts = hosts
        self._copies: dict[str, RemoteRun] = {}
        self._is_closed = False

    async def find(self, session_id: str) -> ActiveRun | None:
        """Return the session's run at another host; of a host that is dead, the run of the next one.

        Raises HostUnreachable or Unavailable when the host does not answer, and no other takes the run over.
        """
        failure: DragomanError = Unavailable(LOST)
        deadline = asyncio.get_running_loop().time() + REQUEST_TIMEOUT
        for seconds in poll_intervals():
            row = await self._hosts.store.runs.get_active(session_id)
            if row is None:
                return None
            try:
                return self._hosts.find_local(row.id) or await self._attach(row)
            except NotFound:  # it ends, or has not begun yet
                pass
            except Unavailable as error:
                failure = error
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(seconds)
        raise failure

    async def has_run(self, session_id: str) -> bool:
        """Return whether the session has a run, at whichever host."""
        return await self._hosts.store.runs.get_active(session_id) is not None

    async def read_message(self, session_id: str) -> Message | None:
        """Return the message that the session's run is writing; None without one, or if its host is down."""
        row = await self._hosts.store.runs.get_active(session_id)
        with suppress(NotFound, Unavailable):
            return None if row is None else (await self._attach(row)).message()
        return None

    async def take_undelivered(self, row: RunRecord) -> bool:
        """Return whether nobody has seen the end of another host's run; True once, False without the host."""
        with suppress(Unavailable, NotFound):
            path = f"/sessions/{quote(row.session_id, safe='')}/undelivered"
            return bool(await self._hosts.client.post(host_of(row), path))
        return False

    async def abort(self, id: str, reason: str) -> bool:
        """Stop a run, or abort a call, that another host executes; False when none does.

        Raises HostUnreachable, Unavailable.
        """
        row = await self._hosts.store.runs.get(id)
        if row is not None:
            if row.status == "running":
                await stop_at_host(row, reason, hosts=self._hosts)
            return row.status == "running"
        host = await self._hosts.store.calls.find_host(id)
        if host is None or host == self._hosts.store.host_id:
            return False
        try:
            return bool(await self._hosts.client.post(host, f"/calls/{quote(id, safe='')}/abort"))
        except HostGone:
            return False

    async def announce_queued(self, run: RunRecord, queued: QueuedRun) -> None:
        """Announce a queued message to the host of a run. If that fails, a sweep finds the message."""
        with suppress(Unavailable, NotFound):
            await self._hosts.client.post(host_of(run), f"/runs/{run.id}/queued", body={"id": queued.id})

    def move_here(self, run: HubRun) -> None:
        """Connect the copy of a run that continues on this host to the run itself."""
        copy = self._copies.get(run.row.id)
        if copy is not None:
            copy.leave_host()

    def close(self) -> None:
        """End all copies, and those that requests still begin: the runs can be followed at other hosts."""
        self._is_closed = True
        for copy in list(self._copies.values()):
            copy.close()

    async def _attach(self, row: RunRecord) -> RemoteRun:
        if row.host == self._hosts.store.host_id:
            raise NotFound(f"the run {row.id!r} has not begun here yet")
        state = await self._hosts.read_state(row)
        copy = self._copies.get(row.id)
        if copy is None:
            return RemoteRun(row, state, hosts=self._hosts, on_begin=self._add, on_end=self._remove)
        copy.update(row, state)
        return copy

    def _add(self, copy: RemoteRun) -> None:
        self._copies[copy.row.id] = copy
        if self._is_closed:
            asyncio.get_running_loop().call_soon(copy.close)

    def _remove(self, copy: RemoteRun) -> None:
        if self._copies.get(copy.row.id) is copy:
            del self._copies[copy.row.id]
