"""Sends one HTTP request again and again, so many a second or as fast as it is answered, and counts.

It reads a JSON object: port, request (the whole request as text; 00000000 in it becomes its number),
wanted (what an answer must hold), rate (a second; 0: as fast as it is answered), seconds, connections,
late (seconds), and pid (the server's, for its memory and CPU). It prints one: sent, answered, wrong, p50 and
p99 in ms since the request was due, seconds, cpu (its own), server_cpu, and memory of the server: pairs of
seconds since the start and MB.
"""

import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

TICK = 0.001
NUMBER = b"00000000"
LATE = 10.0  # seconds that answers may take once no more is due, unless `late` is given
PAGE = os.sysconf("SC_PAGE_SIZE")
CLOCK = os.sysconf("SC_CLK_TCK")


class Pace:
    """The requests that are due, and what came of those that were sent."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.request = options["request"].encode()
        self.wanted = options["wanted"].encode()
        self.rate = options["rate"]
        self.seconds = options["seconds"]
        self.late = options.get("late", LATE)
        self.idle: deque[Connection] = deque()
        self.due: deque[float] = deque()
        self.sent = self.answered = self.wrong = 0
        self.taken: list[float] = []
        self.began = time.perf_counter()
        self.over = False

    def moments(self) -> Iterator[float]:
        """When each request is due."""
        for number in range(int(self.rate * self.seconds)):
            yield self.began + number / self.rate

    def pair(self) -> None:
        """Send what is due over the connections that are free."""
        while self.due and self.idle:
            self.idle.popleft().send(self.due.popleft())

    def free(self, connection: "Connection") -> None:
        """A connection has its answer."""
        self.idle.append(connection)
        if not self.rate and not self.over:
            self.due.append(time.perf_counter())
        self.pair()

    def close(self) -> None:
        """Let the connections go."""
        for connection in self.idle:
            connection.close()

    def took(self, since: float, answer: bytes) -> None:
        """An answer has come."""
        self.answered += 1
        self.wrong += self.wanted not in answer
        self.taken.append(time.perf_counter() - since)


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._buffer = b""
        self._since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport: Any = transport
        self._pace.free(self)

    def send(self, due: float) -> None:
        """Send a request that was due then."""
        self._since = due
        self._pace.sent += 1
        self._transport.write(self._pace.request.replace(NUMBER, b"%08d" % self._pace.sent))

    def close(self) -> None:
        """It is not needed any more."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        """A piece of an answer."""
        self._buffer += data
        if is_whole(self._buffer):
            answer, self._buffer = self._buffer, b""
            self._pace.took(self._since, answer)
            self._pace.free(self)


def is_whole(answer: bytes) -> bool:
    """Whether all of an answer is there."""
    head, mark, body = answer.partition(b"\r\n\r\n")
    if not mark:
        return False
    _, found, length = head.lower().partition(b"content-length:")
    if found:
        return len(body) >= int(length.split(b"\r\n", 1)[0])
    return body.endswith(b"0\r\n\r\n")


def memory(pid: int) -> float:
    """What a process holds, in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6


def cpu(pid: int) -> float:
    """The CPU-seconds that a process has used."""
    stat_fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat_fields[11]) + int(stat_fields[12])) / CLOCK


async def watch(pid: int, pace: Pace) -> list[tuple[float, float]]:
    """The server's memory: at first, then about every tenth of the time."""
    seen = []
    for number in range(11):
        await asyncio.sleep(max(0.0, pace.began + number * pace.seconds / 10 - time.perf_counter()))
        seen.append((round(time.perf_counter() - pace.began, 1), round(memory(pid), 1)))
    return seen


async def play(pace: Pace) -> None:
    """Put on the list what is due, until the time is over and all is answered."""
    moments = pace.moments() if pace.rate else iter(())
    coming = next(moments, None)
    while (now := time.perf_counter()) < pace.began + pace.seconds or coming is not None:
        while coming is not None and coming <= now:
            pace.due.append(coming)
            coming = next(moments, None)
        pace.pair()
        await asyncio.sleep(TICK)
    await settle(lambda: not pace.due, seconds=pace.late)
    pace.over = True
    pace.due.clear()  # what is still due is too much for the server
    await settle(lambda: pace.answered == pace.sent, seconds=pace.late)


async def settle(done: Callable[[], bool], *, seconds: float) -> None:
    """Wait for that, but not for ever."""
    until = time.perf_counter() + seconds
    while not done() and time.perf_counter() < until:  # noqa: ASYNC110
        await asyncio.sleep(TICK)


async def run(options: Mapping[str, Any]) -> dict[str, Any]:
    """Send what is asked for; what came of it."""
    pace = Pace(options)
    loop = asyncio.get_running_loop()
    for _ in range(options["connections"]):
        await loop.create_connection(lambda: Connection(pace), "127.0.0.1", options["port"])
    pace.began = time.perf_counter()
    before, own = cpu(options["pid"]), time.process_time()
    watching = asyncio.create_task(watch(options["pid"], pace))
    await play(pace)
    seconds = time.perf_counter() - pace.began
    taken = sorted(pace.taken) or [0.0]
    pace.close()
    return {
        "sent": pace.sent,
        "answered": pace.answered,
        "wrong": pace.wrong,
        "p50": taken[len(taken) // 2] * 1000,
        "p99": taken[len(taken) * 99 // 100] * 1000,
        "seconds": seconds,
        "cpu": time.process_time() - own,
        "server_cpu": cpu(options["pid"]) - before,
        "memory": await watching,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(json.load(sys.stdin)))))
