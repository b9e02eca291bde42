"""What one answer writes: its transactions and statements, and how its response begins."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chat_turn import TEXT_ANSWER, ModelServer
from benchmarks.path import chat
from dragoman.accounts import usage_ledger
from dragoman.cli.serving.lifecycle import host_hub
from dragoman.config import parse_config
from dragoman.runs.journal import Journal
from dragoman.server.http.response_cycle import CorkedTransport
from dragoman.store.sqlite import SQLiteConnection

BEGINNING = [
    "INSERT INTO sessions",
    "INSERT INTO runs",
    "INSERT INTO messages",
    "INSERT INTO messages",
    "INSERT INTO parts",
    "INSERT INTO hub_events",
    "INSERT INTO hub_events",
]
END = [
    "INSERT INTO usage",
    "UPDATE runs SET",
    "INSERT INTO parts",
    "INSERT INTO parts",
    "UPDATE messages SET",
    "INSERT INTO hub_events",
]
NEVER = 3_600.0


class TextServer(ModelServer):
    """Answers each request with words, in one write."""

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, mark, body = self.received.partition(b"\r\n\r\n")
        if mark and len(body) >= int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]):
            self.received = b""
            self.transport.write(TEXT_ANSWER)


class Transactions:
    """The statements of each transaction that writes, by their first three words, one for each row."""

    def __init__(self) -> None:
        self.written: list[list[str]] = []

    def record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Record from now on."""
        begin, many = SQLiteConnection.begin, SQLiteConnection.execute_many

        def begin_recorded(connection: SQLiteConnection, *, is_group: bool = False) -> None:
            if connection._begin_sql == "BEGIN IMMEDIATE":
                self.written.append([])
            begin(connection, is_group=is_group)

        def execute_many(connection: SQLiteConnection, sql: str, rows: Iterable[Mapping[str, Any]]) -> None:
            counted = list(rows)
            self._add(sql, len(counted))
            many(connection, sql, counted)

        monkeypatch.setattr(SQLiteConnection, "begin", begin_recorded)
        monkeypatch.setattr(SQLiteConnection, "execute_many", execute_many)
        for name in ("execute", "execute_batched", "execute_positional", "fetch_one"):
            monkeypatch.setattr(SQLiteConnection, name, self._recorded(getattr(SQLiteConnection, name)))

    def _recorded(self, run: Any) -> Any:
        def recorded(connection: SQLiteConnection, sql: str, values: Any) -> Any:
            if connection._begin_sql == "BEGIN IMMEDIATE":
                self._add(sql, 1)
            return run(connection, sql, values)

        return recorded

    def _add(self, sql: str, rows: int) -> None:
        self.written[-1] += [" ".join(sql.split()[:3])] * rows


async def measure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Sequence[Sequence[str]], bytes]:
    """Return the transactions of one answer in a new session, and what its client gets in the first write."""
    loop = asyncio.get_running_loop()
    upstream = await loop.create_server(TextServer, "127.0.0.1", 0)
    provider = {"type": "openai", "base_url": f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}/v1"}
    config = parse_config({"providers": {"up": provider}, "model": "up/m"})
    monkeypatch.setattr(Journal.__init__, "__kwdefaults__", {"interval": NEVER})
    monkeypatch.setattr(usage_ledger, "BATCH_SECONDS", NEVER)
    transactions, writes = Transactions(), list[bytes]()
    flush = CorkedTransport._flush

    def flush_recorded(transport: CorkedTransport) -> None:
        writes.append(b"".join(transport._buffer))
        flush(transport)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with host_hub(config, folder, listener=listener, require_keys=False):
            port = listener.getsockname()[1]
            await chat(port, "first")
            transactions.record(monkeypatch)
            monkeypatch.setattr(CorkedTransport, "_flush", flush_recorded)
            answer = await chat(port, "measured")
            monkeypatch.undo()
    assert b"[DONE]" in answer
    upstream.close()
    # At its start the hub deletes what is old, in transactions that may be those of the answer.
    others = [[sql for sql in each if not sql.startswith("DELETE")] for each in transactions.written]
    return [each for each in others if not set(each).isdisjoint([*BEGINNING, *END])], writes[0]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_an_answer_is_two_transactions_and_begins_with_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions, first_write = await measure(tmp_path, monkeypatch)
    assert transactions == [BEGINNING, END]
    assert first_write.startswith(b"HTTP/1.1 200 ")
    assert b'"type":"start-step"' in first_write
