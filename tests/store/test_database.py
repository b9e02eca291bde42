"""The database: group commit, concurrent readers, refusals."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dragoman.errors import Conflict, HostFenced, StoreError, Unavailable
from dragoman.store.connection import DatabaseConnection, DatabaseJob
from dragoman.store.database import MAX_QUEUED, Database
from dragoman.store.store import Store
from tests.store.places import Place
from tests.store.samples import session
from tests.waiting import until

PUT = "INSERT INTO keys (id, hash, prefix, owner, scopes, created_at) VALUES ('{0}', '{0}', '', '', '[]', 0)"
IDS = "SELECT id FROM keys ORDER BY id"
DEADLINE = 120.0


class Broken(Exception):
    """What a test's own job raises."""


@pytest.fixture
def opened(store: Store) -> Database:
    return store.database


def put(id: str) -> DatabaseJob[int]:
    return lambda connection: connection.execute(PUT.format(id), {})


def put_and_fail(id: str) -> DatabaseJob[None]:
    def job(connection: DatabaseConnection) -> None:
        connection.execute(PUT.format(id), {})
        raise Broken(id)

    return job


async def ids(database: Database) -> list[str]:
    return [row[0] for row in await database.read(lambda connection: connection.fetch_all(IDS, {}))]


@asynccontextmanager
async def blocked_writer(database: Database) -> AsyncIterator[None]:
    """The writer is busy inside, so that all that is written there waits and makes one group."""
    entered, free = threading.Event(), threading.Event()

    def job(_: DatabaseConnection) -> None:
        entered.set()
        free.wait(DEADLINE)

    database.enqueue(job)
    assert await asyncio.to_thread(entered.wait, DEADLINE)
    try:
        yield
    finally:
        free.set()


async def test_a_write_that_returned_is_seen_by_the_next_read(opened: Database) -> None:
    for number in range(20):
        await opened.write(put(f"{number:02}"))
        assert len(await ids(opened)) == number + 1


async def test_a_failing_write_does_not_fail_its_neighbours(opened: Database) -> None:
    async with blocked_writer(opened):
        jobs = [put("a"), put_and_fail("b"), put("c"), put("a"), put("d")]
        writes = [asyncio.ensure_future(opened.write(job)) for job in jobs]
        await asyncio.sleep(0)
    first, broken, second, taken, third = await asyncio.gather(*writes, return_exceptions=True)
    assert (first, second, third) == (1, 1, 1)
    assert isinstance(broken, Broken)
    assert isinstance(taken, Conflict)
    assert await ids(opened) == ["a", "c", "d"]


async def test_writes_that_wait_together_are_one_transaction(opened: Database) -> None:
    seen: list[int] = []

    def look(connection: DatabaseConnection) -> None:
        seen.append(len(connection.fetch_all(IDS, {})))

    async def write(job: DatabaseJob[object]) -> int:
        await opened.write(job)
        return len(await ids(opened))

    async with blocked_writer(opened):
        writes = [asyncio.ensure_future(write(job)) for job in (put("a"), look, put("b"))]
        await asyncio.sleep(0)
    assert await asyncio.gather(*writes) == [2, 2, 2]
    assert seen == [1]


async def test_writes_are_done_in_the_order_in_which_they_were_asked_for(opened: Database) -> None:
    done: list[int] = []

    def note(number: int) -> DatabaseJob[None]:
        return lambda _: done.append(number)

    for number in range(1_000):
        if number % 10:
            opened.enqueue(note(number))
        else:
            await opened.write(note(number))
    await opened.flush()
    assert done == list(range(1_000))


async def test_short_writes_go_ahead_of_long_ones_and_a_long_one_is_a_transaction_of_its_own(
    opened: Database,
) -> None:
    order: list[str] = []

    def job(name: str) -> DatabaseJob[None]:
        def run(connection: DatabaseConnection) -> None:
            order.append(name)
            connection.execute(PUT.format(name), {})

        return run

    async with blocked_writer(opened):
        long = [opened.submit(job(f"long-{number}"), is_long=True) for number in range(3)]
        await asyncio.sleep(0)  # they are with the writer
        short = [opened.submit(job(f"short-{number}")) for number in range(3)]
        await asyncio.sleep(0)
    await asyncio.wait(short)
    await asyncio.wait(long)
    assert order == [*(f"short-{number}" for number in range(3)), *(f"long-{number}" for number in range(3))]


async def test_a_flush_waits_for_the_long_writes_too(opened: Database) -> None:
    async with blocked_writer(opened):
        writing = opened.submit(put("long"), is_long=True)
        await asyncio.sleep(0)
    await opened.flush()
    assert writing.done()
    assert await ids(opened) == ["long"]


async def test_what_a_cancelled_caller_asked_for_is_written_all_the_same(opened: Database) -> None:
    async with blocked_writer(opened):
        write = asyncio.ensure_future(opened.write(put("a")))
        await asyncio.sleep(0)
        write.cancel()
    await opened.flush()
    assert write.cancelled()
    assert await ids(opened) == ["a"]


async def test_a_posted_write_that_fails_is_reported_and_the_next_ones_are_done(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.enqueue(put_and_fail("a"))
    store.enqueue(put("b"))
    await store.flush()
    assert await ids(store.database) == ["b"]
    assert "a queued write failed: a" in caplog.text


async def test_a_write_that_a_fenced_host_refuses_is_logged_without_a_traceback(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """A fenced host refuses all its writes, and each is an expected end: the host stops."""

    def job(_: DatabaseConnection) -> None:
        raise HostFenced("host_a")

    store.enqueue(job)
    await store.flush()
    assert "a queued write failed: the other hosts" in caplog.text
    assert "Traceback" not in caplog.text


async def test_who_posted_a_write_may_hear_that_it_failed(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Exception] = []
    store.enqueue(put_and_fail("a"), on_failure=heard.append)
    store.enqueue(put("b"), on_failure=heard.append)
    await store.flush()
    assert [str(error) for error in heard] == ["a"]
    assert caplog.text == ""


async def test_posting_more_than_the_database_can_keep_up_with_is_refused(opened: Database) -> None:
    async with blocked_writer(opened):
        for _ in range(MAX_QUEUED - 1):
            opened.enqueue(lambda _: None)
        with pytest.raises(Unavailable, match="writes behind"):
            opened.enqueue(put("a"))
    await opened.flush()
    opened.enqueue(put("b"))
    await opened.flush()
    assert await ids(opened) == ["b"]


class Body(str):
    """A value that a weak reference can refer to."""


async def test_a_value_that_is_written_is_not_held_until_the_next_write(opened: Database) -> None:
    await opened.write(put("before"))  # what is opened with the first write

    async def write() -> weakref.ref[Body]:
        body = Body("large")
        await opened.write(lambda connection: connection.execute(PUT.format(body), {}))
        return weakref.ref(body)

    written = await write()
    await until(lambda: written() is None)


async def test_a_read_sees_one_moment(opened: Database) -> None:
    begun, written = threading.Event(), threading.Event()

    def query(connection: DatabaseConnection) -> tuple[int, int]:
        before = len(connection.fetch_all(IDS, {}))
        begun.set()
        assert written.wait(DEADLINE)
        return before, len(connection.fetch_all(IDS, {}))

    read = asyncio.ensure_future(opened.read(query))
    await asyncio.to_thread(begun.wait, DEADLINE)
    await opened.write(put("a"))
    written.set()
    assert await read == (0, 0)
    assert await ids(opened) == ["a"]


async def test_reads_do_not_wait_for_the_writer(opened: Database) -> None:
    async with blocked_writer(opened):
        assert await asyncio.wait_for(ids(opened), DEADLINE) == []


async def test_a_reader_cannot_write(opened: Database) -> None:
    with pytest.raises(StoreError, match=r"read-?only"):
        await opened.read(put("a"))
    assert await ids(opened) == []


async def test_a_failing_read_raises_what_it_raised(opened: Database) -> None:
    def query(_: DatabaseConnection) -> None:
        raise Broken

    with pytest.raises(Broken):
        await opened.read(query)
    assert await ids(opened) == []


async def test_closing_finishes_what_was_posted(place: Place) -> None:
    store = await place.open()
    posted = [f"{number:03}" for number in range(500)]
    for id in posted:
        store.enqueue(put(id))
    await store.close()
    await store.close()
    async with await place.open() as again:
        assert await ids(again.database) == posted


async def test_a_closed_database_refuses_everything(store: Store) -> None:
    await store.close()
    with pytest.raises(Unavailable):
        await store.sessions.get("s")
    with pytest.raises(Unavailable):
        await store.sessions.create(session())
    with pytest.raises(Unavailable):
        store.enqueue(put("a"))


async def test_a_query_that_was_queued_before_the_database_closed_is_answered(store: Store) -> None:
    reading = asyncio.ensure_future(store.sessions.list("alice"))
    await asyncio.sleep(0)  # the query is queued, and handed to a reader in the next iteration of the loop
    await store.close()
    assert await reading == []
