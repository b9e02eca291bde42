"""Signals that are sent while, or after, the connection for them closes."""

from __future__ import annotations

import psycopg

from dragoman.store.hosts.signals import HostSignals
from dragoman.store.postgres.connection import RawConnection
from dragoman.store.postgres.signal_connection import SignalConnection


def refuse() -> RawConnection:
    raise psycopg.OperationalError("the server is down")


async def test_a_signal_that_is_sent_as_the_connection_closes_is_dropped() -> None:
    signals = HostSignals()
    connection = SignalConnection(signals, refuse)
    connection.start()
    post = signals.post
    assert post is not None
    connection.close()
    signals.send("queue", "a session")
    post("queue")  # as a caller does that has read `post` before
