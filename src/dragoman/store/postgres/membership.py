"""This process as one of the hosts of a database: its locks, its tick, and which other hosts are dead.

A host has a row in `hosts`, and a session advisory lock on a connection that does nothing else. A thread
sends one query (a tick) on it every `INTERVAL` seconds. The other hosts see in `pg_stat_activity` when it was
answered, and its result shows the other hosts to this one. A host counts as dead when its lock has been free
for `GRACE` seconds, because its process or its connection is gone, or when its last tick is `FROZEN` seconds
old: a process that is stopped keeps its lock. The thread ticks only while the event loop answers. A host that
has lost its own connection gives the others `RETURN_GRACE` seconds to come back, as the server may have cut
all connections. A tick without an answer shows a server that is connected but does nothing: see `on_mute`.

The host that finds another one dead fences it (`fenced_at`): each writing transaction of a host begins with a
read of its own row, so a fenced host writes nothing any more. Times are those of the database, or of this
process' monotonic clock; the clocks of different machines are not compared.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from dragoman.errors import HostFenced, StoreError
from dragoman.store.hosts.host_folder import HostFolder
from dragoman.store.postgres import locks
from dragoman.store.postgres.connection import (
    PostgresConnection,
    RawConnection,
    closing_on_error,
    is_closed,
    run_command,
)
from dragoman.store.postgres.connection_watch import ConnectionWatch
from dragoman.version import version

log = logging.getLogger(__name__)

INTERVAL = 0.25  # seconds between two ticks, and between two attempts to connect again
GRACE = 1.0  # seconds for which this host sees another one dead before it fences it
RETURN_GRACE = 3.0  # seconds after its own connection was cut for which it fences nobody whose is cut, too
FROZEN = 5.0  # seconds without a tick after which a host counts as frozen
STALL = 10.0  # seconds without an answer of the event loop after which this host stops its ticks
MUTE = 10.0  # seconds without an answer to a tick after which the database counts as down
RESCUE_INTERVAL = 2.0  # seconds after which a fenced host whose row is still there is reported (again)
MAX_SKEW = 30.0  # seconds between this machine's clock and the server's above which a warning is logged
MAX_DRAWS = 5
MAX_MACHINE = 24  # characters of its name in the id of a host
SPACE_LENGTH = 6  # characters that tell apart machines and containers of the same name
RANDOM_LENGTH = 8
_joined: set[str] = set()  # the ids of this process' own hosts

# The server notices within seconds that a machine is gone. A fence waits a second for a transaction.
SETTINGS = """
SET tcp_keepalives_idle = 3; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 3;
SET tcp_user_timeout = 6000; SET lock_timeout = '1s'; SET jit = off
"""
CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"
INSERT = "INSERT INTO hosts (id, name, version, started_at) VALUES (%s, %s, %s, %s)"
COUNT_MEMBER = "SELECT count(*) FROM hosts WHERE id = %s AND fenced_at IS NULL"
FENCE = "UPDATE hosts SET fenced_at = %s WHERE id = %s AND fenced_at IS NULL"
# Of two hosts that take each other for dead, after a stall of both, one fences the other.
TRY_FENCING = "SELECT pg_try_advisory_xact_lock(%s, hashtext(current_schema()))"
FENCE_AS_HOST = f"{FENCE} AND EXISTS (SELECT FROM hosts own WHERE own.id = %s AND own.fenced_at IS NULL)"
FENCE_ALL = "UPDATE hosts SET fenced_at = %s WHERE fenced_at IS NULL"
# Like `BEGIN_WRITING`, it returns the id of the transaction; nothing to a host that is fenced.
PREPARE_BEGIN = """
PREPARE begin_as_host AS
SELECT pg_current_xact_id() FROM hosts WHERE id = '{}' AND fenced_at IS NULL FOR SHARE
"""
BEGIN_AS_HOST = b"BEGIN; EXECUTE begin_as_host"
DELETE = """
DELETE FROM hosts WHERE id = %(id)s
    AND NOT EXISTS (SELECT FROM runs WHERE runs.host = %(id)s AND runs.status = 'running')
"""
TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = ANY(%s) AND datname = current_database() AND pid != pg_backend_pid()
"""
# `state_change` is when the server answered: a host whose query the server has not answered is not idle.
TICK = f"""
SELECT host.id, host.fenced_at IS NOT NULL, host.draining_at IS NOT NULL, lock.pid IS NOT NULL,
    CASE WHEN activity.state = 'idle'
        THEN extract(epoch FROM clock_timestamp() - activity.state_change)::float8 ELSE 0 END
FROM hosts host
LEFT JOIN pg_locks lock ON lock.locktype = 'advisory' AND lock.granted AND lock.objsubid = 2
    AND lock.classid = {locks.HOST_LOCK}::oid
    AND lock.objid = (hashtext(current_schema() || host.id)::bigint & 4294967295)::oid
    AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
LEFT JOIN pg_stat_activity activity ON activity.pid = lock.pid
"""  # noqa: S608 - constants


class HostState(NamedTuple):
    """A host as a tick sees it. `idle` is the seconds since the server answered its last tick."""

    id: str
    is_fenced: bool
    is_draining: bool
    has_lock: bool
    idle: float


class Membership:
    """This process as a host. `id` is final once it has joined.

    `on_host_lost` is called with the id of each host that this one has fenced, and of each fenced host whose
    fencer has died; again every `RESCUE_INTERVAL` seconds until its row is removed, and by one host at a
    time. `on_fenced` is called once, when this host was fenced; `on_mute` when the database has not answered
    for `MUTE` seconds. All are called on the event loop.
    """

    def __init__(self, connect: Callable[[str], RawConnection], *, database: str, folder: HostFolder) -> None:
        """`connect` opens a connection with an application name; `database` is the name in error texts."""
        self.folder = folder
        self.id = new_host_id()
        self.on_host_lost: Callable[[str], None] | None = None
        self.on_fenced: Callable[[], None] | None = None
        self.on_mute: Callable[[], None] | None = None
        self.is_fenced = False
        self.is_draining = False
        self.clock_ahead = 0.0
        """By how many seconds this machine's clock was ahead of the server's when it joined."""
        self.connections = ConnectionWatch()
        self._connect = connect
        self._database = database
        self._guard = threading.RLock()
        self._raw: RawConnection | None = None
        self._has_joined = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beat_at = 0.0
        self._is_beat_pending = False
        self._asked_at: float | None = None
        self._is_mute = False
        self._observed_at = 0.0
        self._returned_at = -RETURN_GRACE
        self._suspected_since: dict[str, float] = {}
        self._fenced_since: dict[str, float] = {}
        self._reported_at: dict[str, float] = {}

    @property
    def pool_name(self) -> str:
        """The application name of the connections that read and write."""
        return pool_name(self.id)

    def join(self, prepare_schema: Callable[[RawConnection], None]) -> None:
        """Take the locks and insert the row; after a lost connection, take the locks again. Blocks.

        `prepare_schema` is called before the row is inserted, while no maintenance can begin. Raises
        HostFenced, StoreError when maintenance uses the database, psycopg.Error.
        """
        with self._guard:
            self.folder.take()
            if self._raw is not None and not is_closed(self._raw):
                return
            with closing_on_error(self._open()) as raw:
                locks.take_schema(raw, self._database, is_shared=True, seconds=locks.LOCK_SECONDS)
                prepare_schema(raw)
                if self._has_joined:
                    self._return(raw)
                else:
                    self._enrol(raw)
                    self._compare_clocks(raw)
            self._raw, self._has_joined = raw, True

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to tick."""
        self._loop = loop
        self._beat_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="dragoman-membership", daemon=True)
        self._thread.start()
        self._check_answer()

    def watch(self, *, on_host_lost: Callable[[str], None], on_fenced: Callable[[], None]) -> None:
        """Set both callbacks; `on_fenced` is called at once if this host is fenced already."""
        self.on_host_lost, self.on_fenced = on_host_lost, on_fenced
        if self.is_fenced:
            self._call(on_fenced)

    def leave(self) -> None:
        """End the ticks, remove the row unless runs remain in it for others, release the locks. Blocks."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        with self._guard:
            raw = self._raw
            if raw is not None and not self.is_fenced:
                with suppress(psycopg.Error):
                    raw.execute(DELETE, {"id": self.id})
            self._disconnect()
        _joined.discard(self.id)
        self.folder.release()

    def notice_fence(self) -> None:
        """Call `on_fenced`, once: this host has found out that it may not write. From any thread."""
        with self._guard:
            if self.is_fenced:
                return
            self.is_fenced = True
        self._stopping.set()
        log.error("other hosts found this one, %s, dead and have taken over its runs: it stops", self.id)
        self._call(lambda: self.on_fenced and self.on_fenced())

    def _open(self) -> RawConnection:
        with closing_on_error(self._connect(membership_name(self.id))) as raw:
            raw.execute(SETTINGS)
        return raw

    def _enrol(self, raw: RawConnection) -> None:
        """Take the lock of an id, and insert its row."""
        for _ in range(MAX_DRAWS):
            if locks.take_id(raw, self.id, lock=locks.HOST_LOCK):
                _joined.add(self.id)
                raw.execute(INSERT, (self.id, machine_name(), version(), time.time()))
                self._fence_ended(raw)
                return
            self.id = new_host_id()
            raw.execute("SELECT set_config('application_name', %s, false)", (membership_name(self.id),))
        raise StoreError("no free id was found for this host")

    def _compare_clocks(self, raw: RawConnection) -> None:
        self.clock_ahead = time.time() - locks.fetch_value(raw, CLOCK)
        if abs(self.clock_ahead) > MAX_SKEW:
            log.warning(
                "this machine's clock is %+.0f s off that of the database: set both by NTP", self.clock_ahead
            )

    def _fence_ended(self, raw: RawConnection) -> None:
        """Fence the hosts of this machine whose processes have ended: their runs continue at once."""
        for state in read_states(raw):
            if not state.is_fenced and not state.has_lock and has_ended(state.id):
                with suppress(psycopg.errors.LockNotAvailable):  # a tick tries again
                    raw.execute(FENCE, (time.time(), state.id))

    def _return(self, raw: RawConnection) -> None:
        """Take the lock again. A connection that was lost without the server's notice still has it."""
        if not locks.fetch_value(raw, COUNT_MEMBER, self.id):
            self.notice_fence()
            raise HostFenced(self.id)
        if not locks.take_id(raw, self.id, lock=locks.HOST_LOCK):
            raw.execute(TERMINATE, ([membership_name(self.id)],))
            raise psycopg.OperationalError("the former connection of this host still has its lock")

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL):
            if not self._is_loop_alive():
                continue
            with self._guard:
                try:
                    self._tick()
                except HostFenced:
                    break
                except (psycopg.Error, OSError, StoreError) as error:
                    log.debug("the membership connection was lost: %s", error)
                    self._disconnect()
                except Exception:
                    log.exception("a tick of host %s failed", self.id)
                    self._disconnect()
        if self.is_fenced:
            with self._guard:
                self._disconnect()

    def _is_loop_alive(self) -> bool:
        """Whether the event loop has answered within `STALL` seconds."""
        if not self._is_beat_pending:
            self._is_beat_pending = True
            self._call(self._beat)
        return time.monotonic() - self._beat_at < STALL

    def _check_answer(self) -> None:
        """Call `on_mute` if the database does not answer, and schedule the next check. On the event loop."""
        asked_at, was_mute = self._asked_at, self._is_mute
        self._is_mute = asked_at is not None and time.monotonic() - asked_at >= MUTE
        if self._is_mute and not was_mute and self.on_mute is not None:
            self.on_mute()
        if self._loop is not None and not self._stopping.is_set():
            self._loop.call_later(MUTE / 4, self._check_answer)

    def _beat(self) -> None:
        self._beat_at = time.monotonic()
        self._is_beat_pending = False

    def _tick(self) -> None:
        if not self._has_joined:
            return  # the database was down at the start: `join` is called when it is up
        raw = self._raw
        if raw is None or is_closed(raw):
            raw = self._rejoin()
        self._asked_at = time.monotonic()
        try:
            states = read_states(raw)
        finally:
            self._asked_at = None
        own = next((state for state in states if state.id == self.id), None)
        if own is None or own.is_fenced:
            self.notice_fence()
            raise HostFenced(self.id)
        self.is_draining = own.is_draining
        self.connections.check(raw)
        now = time.monotonic()
        self._report_fenced(raw, [state.id for state in states if state.is_fenced], now=now)
        for state in self._find_dead(states, now):
            self._fence(raw, state.id, now=now)

    def _rejoin(self) -> RawConnection:
        self._disconnect()
        with closing_on_error(self._open()) as raw:
            locks.take_schema(raw, self._database, is_shared=True, seconds=0.0)
            self._return(raw)
        self._raw, self._returned_at = raw, time.monotonic()
        log.info("the membership connection of host %s was replaced", self.id)
        return raw

    def _find_dead(self, states: Sequence[HostState], now: float) -> Sequence[HostState]:
        """Return the hosts that have seemed dead for `GRACE` seconds without a gap between ticks.

        A host of this machine whose process has ended is dead at once.
        """
        if now - self._observed_at > GRACE:
            self._suspected_since.clear()
        self._observed_at = now
        suspects = {
            state.id: state
            for state in states
            if state.id != self.id and not state.is_fenced and (not state.has_lock or state.idle >= FROZEN)
        }
        since = {id: self._suspected_since.get(id, now) for id in suspects}
        self._suspected_since = since
        is_cut = now - self._returned_at < RETURN_GRACE
        return [
            state
            for id, state in suspects.items()
            if (now - since[id] >= GRACE and (state.has_lock or not is_cut))
            or (not state.has_lock and has_ended(id))
        ]

    def _fence(self, raw: RawConnection, id: str, *, now: float) -> None:
        """Fence a host. If its transaction does not end, end it, and try again at the next tick.

        One host fences at a time, unless it was fenced itself.
        """
        try:
            with raw.transaction():
                if not locks.fetch_value(raw, TRY_FENCING, locks.FENCE_LOCK):
                    return
                is_fencer = raw.execute(FENCE_AS_HOST, (time.time(), id, self.id)).rowcount > 0
        except psycopg.errors.LockNotAvailable:
            terminate(raw, id)
            return
        del self._suspected_since[id]
        if is_fencer:
            log.warning("host %s is dead: others take over its runs", id)
            terminate(raw, id)
            self._report(raw, id, now=now)

    def _report_fenced(self, raw: RawConnection, fenced: Sequence[str], *, now: float) -> None:
        """Report the fenced hosts whose rows are still there after a while, if no other host does."""
        for id in [id for id in self._reported_at if id not in fenced]:
            locks.release_id(raw, id, lock=locks.RESCUE_LOCK)
            del self._reported_at[id]
        self._fenced_since = {id: self._fenced_since.get(id, now) for id in fenced}
        for id, since in self._fenced_since.items():
            if now - self._reported_at.get(id, since) >= RESCUE_INTERVAL:
                self._report(raw, id, now=now)

    def _report(self, raw: RawConnection, id: str, *, now: float) -> None:
        """Call `on_host_lost`, unless another host handles that host."""
        if id in self._reported_at or locks.take_id(raw, id, lock=locks.RESCUE_LOCK):
            self._reported_at[id] = now
            self._call(lambda: self.on_host_lost and self.on_host_lost(id))

    def _disconnect(self) -> None:
        """Close the connection, and reset what was observed and locked over it."""
        raw, self._raw = self._raw, None
        self._observed_at = 0.0
        self._suspected_since.clear()
        self._fenced_since.clear()
        self._reported_at.clear()
        if raw is not None:
            with suppress(psycopg.Error):
                raw.close()

    def _call(self, callback: Callable[[], Any]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(callback)


class HostConnection(PostgresConnection):
    """A connection that writes as a host: a transaction begins only while the host is not fenced.

    The row is locked until the commit, so that fencing waits for the transaction.
    """

    def __init__(self, connect: Callable[[], RawConnection], membership: Membership) -> None:
        self._membership = membership
        super().__init__(lambda: prepare_begin(connect(), membership.id), begin=BEGIN_AS_HOST)

    def begin(self, *, is_group: bool = False) -> None:
        super().begin(is_group=is_group)
        if self._transaction_id is None:
            self.rollback()
            self._membership.notice_fence()
            raise HostFenced(self._membership.id)


def prepare_begin(raw: RawConnection, id: str) -> RawConnection:
    """Prepare `BEGIN_AS_HOST`, which the server would plan for each transaction otherwise."""
    with closing_on_error(raw):
        run_command(raw, PREPARE_BEGIN.format(id).encode())
    return raw


def fence_absent_hosts(raw: RawConnection) -> None:
    """Fence all hosts, as none holds its lock: one that was cut off must not write after maintenance."""
    if locks.fetch_value(raw, "SELECT to_regclass(quote_ident(current_schema()) || '.hosts')") is not None:
        raw.execute(FENCE_ALL, (time.time(),))


def terminate(raw: RawConnection, id: str) -> None:
    """Make the server close all connections of a host, if this role may do that."""
    try:
        raw.execute(TERMINATE, ([membership_name(id), pool_name(id)],))
    except psycopg.errors.InsufficientPrivilege as error:
        log.warning("the connections of host %s cannot be closed: %s", id, error)


def read_states(raw: RawConnection) -> Sequence[HostState]:
    """Return all hosts, including this one and those that are fenced."""
    return [HostState(*row) for row in raw.execute(TICK).fetchall()]


def has_ended(id: str) -> bool:
    """Return whether a host was a process of this machine or container that has ended.

    A host with this process's number that is not its own was an earlier process.
    """
    place, _, end = id.rpartition("-")
    machine, _, process = place.rpartition("-")
    is_here = machine == machine_name()[:MAX_MACHINE] and end[:-RANDOM_LENGTH] == process_space()
    if not is_here or not process.isdecimal():
        return False
    if int(process) == os.getpid():
        return id not in _joined
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # of another user; no number of a process
        return False
    return False


def new_host_id() -> str:
    """Return `<machine>-<process>-<space><random>`, short enough for the name of a connection (63 bytes)."""
    end = process_space() + secrets.token_hex(RANDOM_LENGTH // 2)
    return f"{machine_name()[:MAX_MACHINE]}-{os.getpid()}-{end}"


@cache
def process_space() -> str:
    """Return what tells this machine and container from others of the same name, whose process numbers are
    independent.
    """
    found = [str(uuid.getnode())]
    with suppress(OSError):  # of Linux
        found = [
            Path("/proc/sys/kernel/random/boot_id").read_text(),
            str(Path("/proc/self/ns/pid").readlink()),
        ]
    return hashlib.sha256("".join(found).encode()).hexdigest()[:SPACE_LENGTH]


def machine_name() -> str:
    """Return the name of this machine, without what a host name cannot have."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "host"


def membership_name(id: str) -> str:
    """Return the application name of the connection that is a host's membership."""
    return f"dragoman host {id}"


def pool_name(id: str) -> str:
    """Return the application name of a host's other connections."""
    return f"dragoman {id}"
