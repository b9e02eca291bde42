"""Transactions on connections that maintenance opens itself, without an event loop and a writer thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from dragoman.store.connection import Backend, BackendConnection, RetryTransaction
from dragoman.store.writer import MAX_ATTEMPTS, cause_of

T = TypeVar("T")


@contextmanager
def raising_store_errors(backend: Backend) -> Iterator[None]:
    """Raise a driver's errors as those of errors.py."""
    try:
        yield
    except Exception as error:
        meaning = backend.translate_error(cause_of(error))
        if meaning is error:
            raise
        raise meaning from error


@contextmanager
def snapshot(backend: Backend) -> Iterator[BackendConnection]:
    """A connection that reads one state of the database, whatever is written meanwhile."""
    with raising_store_errors(backend):
        connection = backend.connect(writing=False)
        try:
            connection.begin()
            yield connection
        finally:
            connection.rollback()
            connection.close()


def run_transaction(connection: BackendConnection, job: Callable[[], T]) -> T:
    """Run a job in a transaction and commit it. On RetryTransaction, repeat it, up to MAX_ATTEMPTS times."""
    for attempt in range(MAX_ATTEMPTS):
        connection.begin()
        try:
            result = job()
            connection.commit()
        except BaseException as error:
            connection.rollback()
            if not isinstance(error, RetryTransaction) or attempt == MAX_ATTEMPTS - 1:
                raise
        else:
            return result
    raise AssertionError("the last attempt returns or raises")
