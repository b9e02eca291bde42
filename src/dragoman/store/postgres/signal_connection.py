"""The connection over which a host sends signals of changes and receives those of others: LISTEN and NOTIFY.

A thread waits for the server and for signals to send. Notifications are few and short: each takes a lock of
the whole database for a moment, and reaches every host. The text of answers goes from host to host instead.

No transaction of a run notifies: if one session listens and stays in a transaction, the server's queue fills
up, and every commit that notifies fails. Signals wait here meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import psycopg
from psycopg import sql

from dragoman.errors import StoreError
from dragoman.ids import new_id
from dragoman.store.hosts.signals import HostSignals
from dragoman.store.postgres.connection import RawConnection, is_closed

log = logging.getLogger(__name__)
CHECK_INTERVAL = 10.0  # seconds without a notification after which the connection is tested
RETRY_INTERVAL = 0.5  # seconds between two attempts to connect
MAX_WAITING = 10_000  # signals that wait for a connection; more are dropped, as in a gap
CHANNEL = "SELECT 'dragoman_' || md5(current_schema())"  # a channel is one of the database, not of the schema
REFUSED = (
    "signals to other hosts wait, because the server refuses them (%s): if its queue is full, "
    "end the session that listens and is idle in a transaction"
)
NOTIFY = "SELECT pg_notify(%s, signal) FROM unnest(%s::text[]) AS signal"


class SignalConnection:
    """Connects `HostSignals` to those of the other hosts of a schema."""

    def __init__(self, signals: HostSignals, connect: Callable[[], RawConnection]) -> None:
        self._signals = signals
        self._connect = connect
        self._prefix = f"{new_id('host')}\n"  # a host also receives its own notifications
        self._loop = asyncio.get_running_loop()
        self._guard = threading.Lock()
        self._waiting: list[str] = []
        self._is_refused = False  # whether the server takes no signals, as far as is known
        self._is_stopping = self._is_closed = False
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._thread = threading.Thread(target=self._run, name="dragoman-signals", daemon=True)

    def start(self) -> None:
        """Begin to listen, and to send."""
        self._signals.post = self._post
        self._thread.start()

    def close(self) -> None:
        """Send the waiting signals if there is a connection, and close it. Blocks."""
        self._signals.post = None
        self._is_stopping = True
        self._wake()
        self._thread.join()
        with self._guard:
            self._is_closed = True
            os.close(self._wake_reader)
            os.close(self._wake_writer)

    def _post(self, text: str) -> None:
        with self._guard:
            if len(self._waiting) < MAX_WAITING:
                self._waiting.append(text)
        self._wake()

    def _wake(self) -> None:
        with self._guard, suppress(BlockingIOError):  # the pipe is full, so the thread is awake
            if not self._is_closed:
                os.write(self._wake_writer, b"\0")

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                with self._connect() as raw:
                    self._serve(raw)
            except (psycopg.Error, OSError, StoreError) as error:
                log.debug("signals of other hosts cannot be received now: %s", type(error).__name__)
            except Exception:
                log.exception("the connection for signals failed")
            if not self._is_stopping:
                wait_readable(self._wake_reader, seconds=RETRY_INTERVAL)
                self._drain()

    def _serve(self, raw: RawConnection) -> None:
        raw.add_notify_handler(lambda each: self._receive(each.payload))
        row = raw.execute(CHANNEL).fetchone()
        channel = str(row[0]) if row else ""
        raw.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        self._call(self._signals.note_gap)
        while True:
            self._is_refused = not self._send(raw, channel)
            if self._is_stopping:
                return
            if self._is_refused:
                ready = wait_readable(raw.fileno(), seconds=RETRY_INTERVAL)
            else:
                ready = wait_readable(raw.fileno(), self._wake_reader, seconds=CHECK_INTERVAL)
            if not ready:
                raw.execute("SELECT")
            elif raw.fileno() in ready:
                self._read(raw)
            self._drain()

    def _send(self, raw: RawConnection, channel: str) -> bool:
        """Send the waiting signals; False if the server refuses them now: then they keep waiting.

        So do signals that a lost connection may not have sent. Raises psycopg.Error.
        """
        texts = self._take()
        try:
            if texts:
                raw.execute(NOTIFY, (channel, [self._prefix + text for text in texts]))
        except psycopg.OperationalError as error:
            with self._guard:
                self._waiting = [*texts, *self._waiting][:MAX_WAITING]
            if is_closed(raw):
                raise
            if not self._is_refused:
                log.warning(REFUSED, error)
            return False
        return True

    def _read(self, raw: RawConnection) -> None:
        """Read notifications. Raises psycopg.OperationalError when the server has closed the connection."""
        raw.pgconn.consume_input()
        while (found := raw.pgconn.notifies()) is not None:
            self._receive(found.extra.decode())

    def _receive(self, payload: str) -> None:
        if not payload.startswith(self._prefix):
            _, _, text = payload.partition("\n")
            self._call(lambda: self._signals.receive(text))

    def _take(self) -> Sequence[str]:
        with self._guard:
            taken, self._waiting = self._waiting, []
        return list(dict.fromkeys(taken))

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._wake_reader, 4_096):
                pass

    def _call(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback)


def wait_readable(*descriptors: int, seconds: float) -> Collection[int]:
    """Wait until one of the descriptors can be read; return those that can."""
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(seconds * 1_000)}
