"""What the engine that hosts share relies on in DBOS: each host is a process of its own, as DBOS wants it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.hosts.postgres_proxy import PostgresProxy, proxied
from tests.postgres_server import USER, shared_server
from tests.waiting import LIMIT

ROOT = Path(__file__).parents[2]


class HostProcess:
    """A process with an engine, by its pipes."""

    def __init__(
        self,
        url: str,
        host_id: str,
        *,
        server_url: str,
        version: str = "turn-1",
        poll_interval: float = 0.25,
        launch_timeout: float = LIMIT,
    ) -> None:
        arguments = [url, server_url, host_id, version, str(poll_interval), str(launch_timeout)]
        command = [sys.executable, "-m", "tests.hosts.dbos_host", *arguments]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._events: list[dict[str, Any]] = []

    def send(self, **command: Any) -> None:
        """Send a command that is not answered."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def ask(self, answer: str, **command: Any) -> Any:
        """Send a command, and return its answer."""
        self.send(**command)
        return self._next(answer)

    def enqueue(self, *ids: str, session: str) -> None:
        for id in ids:
            assert self.ask("enqueued", enqueue=id, session=session) == id

    def begun(self) -> Any:
        """Return the next turn that begins; wait for it."""
        return self._next("begun")

    def _next(self, key: str) -> Any:
        while (event := next((each for each in self._events if key in each), None)) is None:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            assert line, "the host has ended"
            self._events.append(json.loads(line))
        self._events.remove(event)
        return event[key]

    def end(self) -> int:
        """Let the process end by itself; return its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(LIMIT)

    def end_with(self, key: str) -> Any:
        """Let the process end by itself; return what it writes about that."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._next(key)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def server_url() -> Iterator[str]:
    """The URL of an empty schema."""
    with shared_server().schema(new=True) as schema:
        yield shared_server().url(schema)


@pytest.fixture
def open_host(server_url: str) -> Iterator[Callable[..., HostProcess]]:
    """Open hosts on one schema, through a proxy if its `url` is given."""
    with ExitStack() as stack:

        def open_one(host_id: str, user: str = USER, url: str = server_url, **options: Any) -> HostProcess:
            url = url.replace(f"user={USER}", f"user={user}")
            host = HostProcess(url, host_id, server_url=server_url, **options)
            stack.callback(host.close)
            return host

        yield open_one


@pytest.fixture
def proxy(tmp_path: Path, server_url: str) -> Iterator[PostgresProxy]:
    with proxied(tmp_path / "p", server_url) as made:
        yield made


def test_turns_run_once_and_in_the_order_of_their_session_also_after_lost_connections(
    open_host: Callable[..., HostProcess],
) -> None:
    host = open_host("host-1")
    host.enqueue("a", session="one")
    assert host.begun() == "a"
    host.enqueue("a", "b", "a", "c", session="one")
    for id in ("a", "b"):
        host.ask("cancelled", cancel=id)
    host.enqueue("d", session="two")
    assert host.begun() == "d"
    assert shared_server().cut_connections()
    assert host.ask("listed", list=True) == ["a", "c", "d"]
    host.send(end="a")
    assert host.begun() == "c"
    host.enqueue("a", session="one")
    host.send(end="c")
    host.enqueue("e", session="one")
    assert host.begun() == "e"


def test_a_host_ends_while_postgres_does_not_answer(open_host: Callable[..., HostProcess]) -> None:
    host = open_host("host-1")
    assert host.ask("listed", list=True) == []
    with shared_server().frozen():
        assert host.end() == 0


def test_a_host_that_hardly_ever_polls_finds_at_once_what_is_queued_or_recovered(
    open_host: Callable[..., HostProcess],
) -> None:
    victim = open_host("host-1", poll_interval=3_600.0)
    victim.enqueue("a", session="one")
    assert victim.begun() == "a"
    victim.kill()
    host = open_host("host-2", poll_interval=3_600.0)
    assert host.ask("recovered", recover=["host-2"])
    assert host.begun() == "a"
    host.enqueue("b", session="two")
    assert host.begun() == "b"


def test_what_a_killed_host_had_begun_waits_until_it_is_recovered_and_holds_its_session_until_then(
    open_host: Callable[..., HostProcess],
) -> None:
    victim = open_host("host-1")
    victim.enqueue("a", session="one")
    assert victim.begun() == "a"
    victim.kill()
    host = open_host("host-2")
    host.enqueue("b", session="one")
    host.enqueue("c", session="two")
    assert host.begun() == "c"  # it polls, and leaves the other session alone
    assert host.ask("recovered", recover=["host-1", "host-2"])
    assert host.ask("listed", list=True) == ["a", "b", "c"]
    assert host.ask("recovered", recover=["host-2"])
    assert host.begun() == "a"
    assert host.ask("recovered", recover=["host-2"])
    host.send(end="a")
    assert host.begun() == "b"


def test_what_a_host_of_another_version_has_queued_waits_for_one_of_that_version(
    open_host: Callable[..., HostProcess],
) -> None:
    old = open_host("host-1", version="turn-0")
    old.enqueue("a", session="one")
    assert old.begun() == "a"
    old.kill()
    new = open_host("host-2", version="turn-1")
    assert new.ask("recovered", recover=["host-2"])
    new.enqueue("b", session="two")
    assert new.begun() == "b"
    assert new.ask("listed", list=True) == ["a", "b"]
    next_old = open_host("host-3", version="turn-0")
    assert next_old.ask("recovered", recover=["host-2", "host-3"])
    assert next_old.begun() == "a"


def test_a_host_that_may_not_create_the_schema_of_the_queue_queues_in_memory(
    open_host: Callable[..., HostProcess],
) -> None:
    server = shared_server()
    if not server.execute("SELECT 1 FROM pg_roles WHERE rolname = 'limited'"):
        server.execute("CREATE ROLE limited LOGIN")
    host = open_host("host-1", user="limited")
    host.enqueue("a", "b", "a", session="one")
    assert host.begun() == "a"
    host.enqueue("c", session="two")
    assert host.begun() == "c"
    assert host.ask("listed", list=True) == ["a", "b", "c"]
    assert host.ask("recovered", recover=["host-1"])
    host.send(end="a")
    assert host.begun() == "b"


@contextmanager
def long_transaction() -> Iterator[None]:
    """A transaction that holds a snapshot of the database, as a backup does."""
    with psycopg.connect(shared_server().url(), autocommit=True) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pg_class")
        yield


def test_a_host_queues_in_memory_until_the_migrations_of_the_queue_have_waited_for_a_backup(
    open_host: Callable[..., HostProcess],
) -> None:
    with long_transaction():
        host = open_host("host-1", launch_timeout=0.1)
        host.enqueue("a", "b", "a", session="one")
        assert host.begun() == "a"
        assert host.ask("listed", list=True) == ["a", "b"]
    other = open_host("host-2")
    other.enqueue("c", session="two")
    while "c" not in host.ask("listed", list=True):
        pass
    host.send(end="a")
    while host.begun() != "b":  # it may have begun "c"
        pass


def test_a_host_whose_queue_waits_for_a_backup_ends_nevertheless(
    open_host: Callable[..., HostProcess],
) -> None:
    with long_transaction():
        host = open_host("host-1", launch_timeout=0.1)
        host.enqueue("a", session="one")
        assert host.begun() == "a"
        assert host.end() == 0


def test_a_queue_whose_connections_carry_nothing_any_more_executes_what_is_queued(
    open_host: Callable[..., HostProcess], proxy: PostgresProxy
) -> None:
    """As behind a firewall, or a pooler, that has forgotten them."""
    host = open_host("host-1", url=proxy.url)
    assert host.ask("listed", list=True) == []
    assert proxy.stall("queue")
    host.enqueue("a", session="one")
    assert host.begun() == "a"


def test_a_claim_whose_answer_is_lost_is_executed_all_the_same(
    open_host: Callable[..., HostProcess], proxy: PostgresProxy
) -> None:
    host = open_host("host-1", url=proxy.url, poll_interval=3_600.0)
    assert host.ask("listed", list=True) == []
    proxy.loses_claims = True
    host.enqueue("a", session="one")
    proxy.claim_lost.wait()
    host.enqueue("b", session="one")
    assert host.begun() == "a"
    host.send(end="a")
    assert host.begun() == "b"


def test_a_connection_that_is_given_back_after_the_end_is_closed(
    open_host: Callable[..., HostProcess],
) -> None:
    host = open_host("one")
    assert host.ask("borrowed", borrow=True)
    assert host.end_with("closed") == [False, True]
