"""A real Postgres for the tests: one server a test process, and a schema of its own for each test.

The server listens on a socket in a temporary folder, keeps nothing (no fsync), and is stopped by its pid.
Under root it runs as another user, since Postgres refuses root.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

DEBIAN = Path("/usr/lib/postgresql")
USER = "dragoman"
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_connections": "400",
    "shared_buffers": "32MB",
    "log_min_messages": "fatal",
    "max_wal_senders": "0",
    "wal_level": "minimal",
}
READY_SECONDS = 120.0


def find_program(name: str) -> str:
    """Return the path of a program of Postgres: on PATH, or the newest of Debian."""
    found = sorted(DEBIAN.glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    program = str(found[-1]) if found else shutil.which(name)
    if program is None:
        raise AssertionError(f"these tests need Postgres, and there is no {name}: apt-get install postgresql")
    return program


class PostgresServer:
    """A server with one database. `close` stops it."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are those that differ from `SETTINGS`."""
        self._settings = {**SETTINGS, **(settings or {})}
        self._names = count()
        self._used_schemas: list[str] = []
        self._operator: psycopg.Connection[tuple[Any, ...]] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="dragoman-postgres-"))
        self._data = self.folder / "data"
        self._user = unprivileged_user()
        self._data.mkdir(mode=0o700)
        if self._user is not None:
            shutil.chown(self.folder, self._user)
            shutil.chown(self._data, self._user)
        initdb = ["initdb", "--no-sync", "--auth=trust", f"--username={USER}", "--encoding=UTF8"]
        self._run(*initdb, "--locale=C.UTF-8", f"--pgdata={self._data}")
        self.start()

    @property
    def pid(self) -> int:
        """The first process of the server."""
        return self._process.pid

    def start(self) -> None:
        """Start the server, and wait until it takes connections."""
        settings = [f"-c{name}={value}" for name, value in self._settings.items()]
        command = [find_program("postgres"), "-D", str(self._data), "-k", str(self.folder), *settings]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as_user())
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                psycopg.connect(self.url(), autocommit=True).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.02)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT cuts all connections, SIGQUIT is a crash."""
        if self._operator is not None:
            self._operator.close()
        self._process.send_signal(how)
        self._process.wait()

    def let_in(self, *rules: str) -> None:
        """Replace the rules by which the server lets in whoever does not come by its socket."""
        (self._data / "pg_hba.conf").write_text("\n".join(("local all all trust", *rules, "")))
        self.execute("SELECT pg_reload_conf()")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """A block in which no process of the server does anything; its connections stay."""
        signal_all(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            signal_all(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop the server, and remove its folder."""
        if self._process.poll() is None:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, schema: str | None = None, **options: str) -> str:
        """Return the URL of the database, with its tables in a schema."""
        if schema is not None:
            options["options"] = f"-csearch_path={schema}"
        if "port" in self._settings:
            options["port"] = self._settings["port"]
        more = "".join(f"&{name}={quote(value, safe='')}" for name, value in options.items())
        return f"postgresql:///postgres?host={quote(str(self.folder), safe='')}&user={USER}{more}"

    @contextmanager
    def schema(self, *, new: bool = False) -> Iterator[str]:
        """The name of a schema without rows, whose tables may have been used before; or of a new, empty one.

        Creating tables takes longer than most tests.
        """
        if self._used_schemas and not new:
            name = self._used_schemas.pop()
        else:
            name = f"test_{next(self._names)}"
            self.execute(f"CREATE SCHEMA {name}")
        yield name
        if new:
            schemas = f"{name}, {name}_engine"
            self.execute(f"SET client_min_messages = warning; DROP SCHEMA IF EXISTS {schemas} CASCADE")
            return
        self.execute(";".join(f"DELETE FROM {table}" for table in self._filled_tables(name)))
        self._used_schemas.append(name)

    def _filled_tables(self, schema: str) -> Sequence[str]:
        """Return the tables whose rows are of one test: those of the hub, and the turns of its queue.

        A turn that a killed hub had begun would hold up those of the next test's session of this name.
        """
        tables = self.execute(f"SELECT relname FROM pg_class WHERE relkind = 'r' AND {in_schema(schema)}")
        names = [f"{schema}.{table}" for (table,) in tables if table != "alembic_version"]
        turns = f"{schema}_engine.workflow_status"
        return [*names, turns] if self.execute(f"SELECT to_regclass('{turns}')") != [(None,)] else names

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL as the server's operator; return the rows of a single statement."""
        if self._operator is None or self._operator.closed:
            self._operator = psycopg.connect(self.url(), autocommit=True)
        cursor = self._operator.execute(sql)
        return cursor.fetchall() if cursor.description else []

    def cut_connections(self) -> int:
        """Let the server close all connections but its operator's; return how many there were."""
        sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid()"
        return len(self.execute(f"{sql} AND backend_type = 'client backend'"))

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [find_program(program), *arguments],
            check=False,
            capture_output=True,
            text=True,
            **self._as_user(),
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _as_user(self) -> dict[str, Any]:
        place: dict[str, Any] = {"cwd": self.folder, "stdin": subprocess.DEVNULL}
        if self._user is None:
            return place
        group = pwd.getpwnam(self._user).pw_gid
        return {**place, "user": self._user, "group": group, "extra_groups": []}


def signal_all(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and its children, which has no more of them once it is stopped."""
    os.kill(pid, number)
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(child), number)


def in_schema(name: str) -> str:
    """Return the condition of a relation in a schema."""
    return f"relnamespace = '{name}'::regnamespace"


def unprivileged_user() -> str | None:
    """Return the user that runs the server; None for the user of the tests."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


_shared: list[PostgresServer] = []


def shared_server() -> PostgresServer:
    """Return the server of this test process, started by the first test that needs it."""
    if not _shared:
        _shared.append(PostgresServer())
    return _shared[0]


def close_shared_server() -> None:
    """Stop the server of this test process, if it has one."""
    while _shared:
        _shared.pop().close()
