"""A soak test: clients that disconnect at random, a server that fails at random, and an audit.

`python -m tests.faults.soak --seconds 600` runs it for long. At its end no socket and no task is left, memory
is flat, and the usage rows are what the server says that it has served.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dragoman.server.app import Hub
from dragoman.usage_record import UsageRecord
from tests.faults.gateway_faults import DOCUMENTS, EARLY, LATE, Fault, play, speech_at
from tests.faults.gateway_upstream import (
    DEADLINE,
    END,
    WAYS,
    Baseline,
    Client,
    Speech,
    ask,
    opened,
    provider,
    rows_of,
)
from tests.providers.servers import CHUNKED, Peer, chunk, ok
from tests.waiting import until

PAGE = os.sysconf("SC_PAGE_SIZE")
FAMILIES = ("openai", "anthropic", "ollama")
QUICK: dict[str, Any] = {
    "first_byte_timeout": 0.5,
    "idle_timeout": 0.5,
    "retries": 1,
    "cooldown": {"failures": 1_000_000},
}
FAULTY = 0.3  # of all attempts
LEAVING = 0.25  # of all clients
WARM = 0.4  # of the time, after which memory has to be flat
FLAT = 16.0  # megabytes by which it may have grown then
REQUESTS = 8  # of each client on average, at least: a busy machine serves few in the time
FAULTS: dict[bool, list[Fault]] = {
    True: [*EARLY.values(), *LATE.values()],
    False: list(DOCUMENTS.values()),
}


@dataclass
class Asked:
    """One request: what the server says of it, what its client saw, and its usage row."""

    attempts: int = 0
    faults: int = 0  # attempts that got no whole answer
    began: float = field(default_factory=time.monotonic)  # when the hub can have begun the last attempt
    served: int | None = None  # tokens of an answer that was written to its end
    seen: str | None = None  # complete, failed, left
    row: UsageRecord | None = None


@dataclass
class Report:
    """What a soak has found."""

    requests: int = 0
    attempts: int = 0
    faults: int = 0  # attempts that got no whole answer
    seen: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    problems: list[str] = field(default_factory=list)
    warm_mb: float = 0.0
    end_mb: float = 0.0
    seconds: float = 0.0


def resident() -> float:
    """Megabytes of memory that this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


class Upstream:
    """The server: fails now and then, and keeps account of what it has served."""

    def __init__(self, book: Book, dice: random.Random) -> None:
        self._book = book
        self._dice = dice
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> int:
        """How many connections it has."""
        return len(self._tasks)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Serve; the address."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(Peer(1, reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, peer: Peer) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
                while await self._answer(peer):
                    pass
        finally:
            peer.writer.close()

    async def _answer(self, peer: Peer) -> bool:
        """Answer one request; whether there may be another on this connection."""
        received = await peer.request()
        body: dict[str, Any] = msgspec.json.decode(received.body)
        request = (
            self._book.questions.get(body["model"]) or Asked()
        )  # its client may be gone, and all is settled
        request.attempts += 1
        self._book.report.attempts += 1
        speech, stream = speech_at(received.line), bool(body.get("stream"))
        if self._dice.random() < FAULTY:
            request.faults += 1
            try:
                await play(peer, self._dice.choice(FAULTS[stream])(speech))
            finally:
                request.began = time.monotonic()
            return False
        tokens = self._dice.randrange(1, 100_000)
        if stream:
            await self._talk(peer, speech, tokens)
        else:
            await peer.send(ok(counted(speech.whole, tokens)))
        request.served = tokens
        return True

    async def _talk(self, peer: Peer, speech: Speech, tokens: int) -> None:
        pieces = [speech.opening, *[speech.text] * self._dice.randrange(40), speech.finish]
        await peer.send(CHUNKED)
        for piece in filter(None, pieces):
            await peer.send(chunk(piece))
            if self._dice.random() < 0.2:
                await asyncio.sleep(self._dice.random() * 0.01)
        await peer.send(chunk(counted(speech.usage + speech.ending, tokens)) + END)


def counted(raw: bytes, tokens: int) -> bytes:
    """The same with another count of tokens."""
    for name in (b"completion_tokens", b"output_tokens", b"eval_count"):
        raw = raw.replace(b'"%b":3' % name, b'"%b":%d' % (name, tokens))
    return raw


class Book:
    """The account of all requests; what is complete and right is forgotten."""

    def __init__(self) -> None:
        self.questions: dict[str, Asked] = {}
        self.report = Report()
        self._seen: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._ids: set[int] = set()

    def begin(self) -> str:
        """A new request, by its model's name."""
        name = f"n{self.report.requests}"
        self.report.requests += 1
        self.questions[name] = Asked()
        return name

    def settled(self, record: UsageRecord) -> None:
        """The hub has written a usage row."""
        name = (record.model_asked or "").partition("/")[2]
        self._rows[record.status] += 1
        request = self.questions.get(name)
        if request is None or request.row is not None:
            self.report.problems.append(f"a second row for {name}")
            return
        request.row = record
        self.report.tokens += record.tokens.output_tokens or 0
        self._close(name, request)

    def ended(self, name: str, seen: str) -> None:
        """A client is done."""
        self._seen[seen] += 1
        self.questions[name].seen = seen
        self._close(name, self.questions[name])

    def finish(self) -> Report:
        """What is still open is wrong, unless the hub has never heard of it."""
        for name, request in self.questions.items():
            if request.row is None and (request.attempts or request.seen != "left"):
                self.report.problems.append(f"no row for {name}: {request}")
        self.report.seen, self.report.rows = dict(self._seen), dict(self._rows)
        return self.report

    def _close(self, name: str, request: Asked) -> None:
        if request.row is None or request.seen is None:
            return
        self.report.problems += [f"{name}: {problem}: {request}" for problem in wrong(request, request.row)]
        del self.questions[name]


def wrong(request: Asked, row: UsageRecord) -> Iterator[str]:
    """What does not fit together."""
    tokens = row.tokens
    fitting = {"complete": ("finished",), "failed": ("failed",), "left": ("finished", "failed", "aborted")}
    if row.status not in fitting[request.seen or ""]:
        yield "the client saw something else"
    if row.status == "finished" and (tokens.output_tokens, tokens.estimated) != (request.served, False):
        yield "not what was served"
    if row.status == "finished" and tokens.input_tokens != 7:
        yield "not what was asked"
    if row.status == "failed" and row.error is None:
        yield "a failure without a reason"
    if (
        row.status == "aborted"
        and tokens.output_tokens not in (None, request.served)
        and not tokens.estimated
    ):
        yield "an estimate that is not marked"
    # The last attempt was too slow for the hub, perhaps: on a busy machine that is not the server's fault.
    is_slow = time.monotonic() - request.began > QUICK["first_byte_timeout"] / 2
    # All were refused, and the client left while the hub waited to try again.
    is_refused = request.attempts <= request.faults + is_slow
    if row.status == "aborted" and tokens.output_tokens is None and not is_refused:
        yield "nothing was written down"


class Crowd:
    """The clients."""

    def __init__(self, book: Book, url: str, dice: random.Random) -> None:
        self._book = book
        self._url = url
        self._dice = dice

    async def live(self, until: float, *, requests: int) -> None:
        """One client after the other, until then and until there were so many requests."""
        while time.monotonic() < until or self._book.report.requests < requests:
            name = self._book.begin()
            try:
                seen = await self._visit(name)
            except (ConnectionError, TimeoutError, AssertionError) as error:
                seen = "failed"
                self._book.report.problems.append(f"{name}: {error!r}")
            self._book.ended(name, seen)

    async def _visit(self, name: str) -> str:
        """Ask once; what the client saw."""
        dice = self._dice
        way, stream = dice.choice(WAYS), dice.random() < 0.7
        body = ask(stream=stream, model=f"{way.family}/{name}")
        client = await Client.ask(self._url, way.path, body, {"connection": "close"})
        reading = asyncio.ensure_future(client.rest())
        try:
            if dice.random() < LEAVING:
                await asyncio.wait([reading], timeout=dice.random() * 0.05)
                return "left"
            await asyncio.wait([reading], timeout=DEADLINE)
            assert reading.done(), "the hub does not come to an end"
            return read(reading.result(), stream=stream)
        finally:
            reading.cancel()
            await asyncio.wait([reading])
            client.leave()


def read(raw: bytes, *, stream: bool) -> str:
    """What a whole answer is: complete, or failed; anything between is neither."""
    head, _, body = raw.partition(b"\r\n\r\n")
    good = head.startswith(b"HTTP/1.1 200")
    ends = (b"data: [DONE]" in body) + (b"event: message_stop" in body)
    errors = (b'data: {"error"' in body) + (b"event: error" in body)
    if stream and good:
        assert ends + errors == 1, raw[-500:]
        assert body.endswith(END), raw[-500:]
        return "complete" if ends else "failed"
    assert good or b'"error":' in body, raw
    return "complete" if good else "failed"


async def soak(folder: Path, *, seconds: float, clients: int, seed: int) -> Report:
    """Run it."""
    dice, book = random.Random(seed), Book()
    before = Baseline.now()
    began = time.monotonic()
    upstream = Upstream(book, dice)
    async with upstream.open() as url:
        config = {"providers": {name: provider(name, url, **QUICK) for name in FAMILIES}}
        async with opened(folder, config) as (hub, address):
            hub.meter.observers.append(book.settled)
            idle, end = tasks(upstream), time.monotonic() + seconds  # a database has to start before
            async with asyncio.TaskGroup() as group:
                for _ in range(clients):
                    living = Crowd(book, address, dice).live(end, requests=clients * REQUESTS)
                    group.create_task(living)
                await asyncio.sleep(seconds * WARM)
                await until(lambda: book.report.requests >= clients * REQUESTS * WARM)
                book.report.warm_mb = resident()
            await calm(hub, upstream, book, before=idle)
            book.report.end_mb = resident()
            if book.report.end_mb - book.report.warm_mb > FLAT:
                book.report.problems.append("memory grows")
            await audit(hub, book)
    book.report.problems += await left(before)
    book.report.seconds = time.monotonic() - began
    return book.finish()


async def calm(hub: Hub, upstream: Upstream, book: Book, *, before: int) -> None:
    """All is over: no request under way, no task, no connection but those at rest."""
    with suppress(TimeoutError):
        await until(lambda: not hub.gateway.active and tasks(upstream) <= before)
    if tasks(upstream) > before:
        book.report.problems.append(f"tasks are left: {asyncio.all_tasks()}")
    if hub.gateway.active:
        book.report.problems.append(f"{hub.gateway.active} requests are under way for ever")
    for transport in hub._setup.providers.transports:
        resting = sum(len(host._idle) for host in transport._hosts.values())
        if len(transport._connections) != resting:
            book.report.problems.append(f"{len(transport._connections)} connections, {resting} at rest")


def tasks(upstream: Upstream) -> int:
    """All tasks but those of the server, whose connections may rest."""
    return len(asyncio.all_tasks()) - upstream.busy


async def audit(hub: Hub, book: Book) -> None:
    """What the database says is what was told."""
    await rows_of(hub, 0)
    totals = await hub.store.usage.totals()
    if totals.calls != sum(book._rows.values()):
        book.report.problems.append(f"{totals.calls} rows in the database, {book._rows} were told")
    if (totals.tokens.output_tokens or 0) != book.report.tokens:
        book.report.problems.append(f"{totals.tokens} in the database, {book.report.tokens} were told")


async def left(before: Baseline) -> list[str]:
    """What is left behind when everything is closed."""
    try:
        await before.back()
    except AssertionError as error:
        return [f"left behind: {error}"]
    return []


def main() -> int:
    """The soak from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    namespace = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(
            soak(Path(folder), seconds=namespace.seconds, clients=namespace.clients, seed=namespace.seed)
        )
    shown = asdict(report)
    shown["problems"] = [len(report.problems), *report.problems[:20]]
    print(json.dumps(shown, indent=2))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
