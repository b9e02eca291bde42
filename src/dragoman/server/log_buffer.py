"""The last log lines of a hub, in memory, and their list over HTTP."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from typing_extensions import override

from dragoman import identity
from dragoman.errors import BadRequest
from dragoman.http.asgi_exchange import Exchange
from dragoman.hub_events.event_log import EventLog
from dragoman.ids import new_id
from dragoman.json_decoding import parse_digits
from dragoman.offload import offload_disk
from dragoman.redaction import redact_log
from dragoman.server.http.query_parameters import parse_limit

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LEVELS: dict[LogLevel, int] = {
    name: logging.getLevelNamesMapping()[name.upper()] for name in get_args(LogLevel)
}
MAX_LINES = 2_000
MAX_TEXT = 4_000  # characters of a line and of its traceback
DEFAULT_LIMIT = 200
MAX_LIMIT = 1_000
OWN_LOGGER = "dragoman"
EVENT_INTERVAL = 0.5  # seconds from a line to its event


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line as it was logged, not redacted. `number` counts the lines of this process."""

    number: int
    time: float
    level: int
    logger: str
    message: str
    request_id: str | None = None
    fields: dict[str, Any] = {}


class LogRing(logging.Handler):
    """Stores the last lines that the loggers of the hub let through; `secrets` are redacted when read."""

    def __init__(self, secrets: Collection[str] = (), *, size: int = MAX_LINES) -> None:
        super().__init__()
        self.id = new_id("log")
        """Changes with each start of the process, when the numbers of lines begin at 1 again."""
        self.on_line: Callable[[], None] = lambda: None
        """Called in the thread that logs a line, after it is stored."""
        self._secrets = secrets
        self._lines: deque[LogLine] = deque(maxlen=size)
        self._count = 0
        self._adding = threading.Lock()

    @contextmanager
    def attached(self) -> Iterator[LogRing]:
        """Store lines while the block runs."""
        logger = logging.getLogger(OWN_LOGGER)
        logger.addHandler(self)
        try:
            yield self
        finally:
            logger.removeHandler(self)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
            if record.exc_info:
                message = f"{message}\n{logging.Formatter().formatException(record.exc_info)}"
        except Exception:  # noqa: BLE001 - a line that cannot be formatted must not fail its caller
            message = f"a log line failed, from {record.pathname}:{record.lineno}"
        with self._adding:
            self._count += 1
            self._lines.append(
                LogLine(
                    number=self._count,
                    time=record.created,
                    level=record.levelno,
                    logger=record.name,
                    message=message[: 2 * MAX_TEXT],
                    request_id=identity.request_id.get(),
                    fields=dict(getattr(record, "fields", {})),
                )
            )
        self.on_line()

    def read(self, *, since: int, level: int, text: str, limit: int) -> tuple[Sequence[dict[str, Any]], int]:
        """Return the newest lines after number `since`, oldest first, and the number of the last line."""
        with self._adding:
            lines, last = list(self._lines), self._count
        wanted = text.lower()
        newest = (
            shown
            for line in reversed(lines)
            if line.number > since and line.level >= level
            if wanted in (shown := self._show(line))["message"].lower() or wanted in shown["logger"]
        )
        return list(islice(newest, limit))[::-1], last

    def _show(self, line: LogLine) -> dict[str, Any]:
        """Return a line as JSON."""
        shown: dict[str, Any] = {
            "number": line.number,
            "time": line.time,
            "level": level_name(line.level),
            "logger": line.logger.removeprefix(f"{OWN_LOGGER}."),
            "message": self._redact(line.message)[:MAX_TEXT],
        }
        if line.request_id is not None:
            shown["requestId"] = self._redact(line.request_id)
        if line.fields:
            shown["fields"] = {
                name: value if isinstance(value, int | float) else self._redact(str(value))
                for name, value in line.fields.items()
            }
        return shown

    def _redact(self, text: str) -> str:
        return redact_log(text, self._secrets)


class LogEvents:
    """Tells administrators who follow the hub's events that lines were logged: `log.lines`, without lines.

    Many lines are one event. It has no owner, so that only those see it who see the events of all.
    """

    def __init__(self, ring: LogRing, event_log: EventLog) -> None:
        self._event_log = event_log
        self._loop = asyncio.get_running_loop()
        self._is_due = False
        ring.on_line = self._note_line

    def _note_line(self) -> None:
        if self._is_due or not self._event_log.is_followed(None):
            return
        self._is_due = True
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._loop.call_later, EVENT_INTERVAL, self._publish)

    def _publish(self) -> None:
        self._is_due = False
        self._event_log.publish_live(None, "", name="log.lines")


def level_name(level: int) -> LogLevel:
    """Return the name of the highest level that a line reaches."""
    return next((name for name in reversed(LEVELS) if level >= LEVELS[name]), "debug")


class LogHandlers:
    """Handler of `/api/logs`, for administrators."""

    def __init__(self, ring: LogRing) -> None:
        self._ring = ring

    async def list(self, exchange: Exchange) -> None:
        """List the last lines; `?since=NUMBER` only later ones, `?level` and `?text` narrow it."""
        query = exchange.query
        level = query.get("level", "debug")
        if level not in LEVELS:
            raise BadRequest(
                f"{level!r} is not a level", field="level", hint=f"use one of {', '.join(LEVELS)}"
            )
        limit = parse_limit(query.get("limit", str(DEFAULT_LIMIT)), maximum=MAX_LIMIT)
        since = parse_number(query.get("since", "0"))
        least, text = LEVELS[level], query.get("text", "")[:200]
        lines, last = await offload_disk(
            lambda: self._ring.read(since=since, level=least, text=text, limit=limit)
        )
        await exchange.respond(200, {"lines": lines, "last": last, "ring": self._ring.id})


def parse_number(text: str) -> int:
    """Parse the number of a line. BadRequest."""
    number = parse_digits(text)
    if number is None:
        raise BadRequest(f"{text[:20]!r} is not the number of a line", field="since", hint="use `last`")
    return number
