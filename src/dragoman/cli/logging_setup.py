"""Log formatting: to stderr, as text or as JSON lines, with secrets replaced."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec
from typing_extensions import override

from dragoman import identity
from dragoman.redaction import redact_log

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
CONTROL_PATTERN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
NUMBERS = (int, float)
OWN_IDS = {"run_id", "key_id"}  # made by the hub: they hold no secret, and caching them is useless
MAX_CACHED_LENGTH = 100  # characters
MAX_CACHED = 4096  # texts
QUIET_LOGGERS = {"uvicorn.error": logging.WARNING, "asyncio": logging.WARNING}
log = logging.getLogger("dragoman")


class LogRedactor:
    """Redacts secrets in texts; caches the results of short texts, which repeat.

    `secrets` may grow: then the cache is cleared.
    """

    def __init__(self, secrets: Collection[str] = ()) -> None:
        self._secrets = secrets
        self._count = len(secrets)
        self._cache: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """Return the text without secrets."""
        if len(self._secrets) != self._count or len(self._cache) >= MAX_CACHED:
            self._count = len(self._secrets)
            self._cache.clear()
        shown = self._cache.get(text)
        if shown is None:
            shown = redact_log(text, self._secrets)
            if len(text) <= MAX_CACHED_LENGTH:
                self._cache[text] = shown
        return shown


class TextFormatter(logging.Formatter):
    """Formats a line of text: time, level, logger, request id, message and fields, with secrets redacted."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        super().__init__()
        self._redact = LogRedactor(secrets)
        self._second = -1
        self._time = ""

    @override
    def format(self, record: logging.LogRecord) -> str:
        request_id = identity.request_id.get()
        where = record.name.removeprefix("dragoman.")
        place = where if request_id is None else f"{where} [{self._redact(request_id)}]"
        parts = [f"{self._time_of(record)} {record.levelname:<7} {place}: {self._message(record)}"]
        parts += [f"{name}={value}" for name, value in record_fields(record, self._redact).items()]
        return escape_controls(" ".join(parts))

    def _time_of(self, record: logging.LogRecord) -> str:
        """Return the local time of a record, formatted once a second."""
        second = int(record.created)
        if second != self._second:
            self._second, self._time = second, time.strftime("%H:%M:%S", time.localtime(second))
        return self._time

    def _message(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return self._redact(text)


class JsonFormatter(logging.Formatter):
    """Formats a JSON object per line, with secrets redacted."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        super().__init__()
        self._redact = LogRedactor(secrets)

    @override
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": self._redact(record.getMessage()),
        }
        request_id = identity.request_id.get()
        if request_id is not None:
            entry["request_id"] = self._redact(request_id)
        entry |= record_fields(record, self._redact)
        if record.exc_info:
            entry["exception"] = self._redact(self.formatException(record.exc_info))
        return msgspec.json.encode(entry).decode()


class StderrHandler(logging.StreamHandler[Any]):
    """Writes to stderr. For a line that fails, it prints only the source line: the rest may be secret."""

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        kind = sys.exc_info()[0]
        name = kind.__name__ if kind else "an error"
        with suppress(OSError, ValueError):  # stderr may be closed
            self.stream.write(f"a log line failed ({name}), from {record.pathname}:{record.lineno}\n")


def configure_logging(level: Level, *, as_json: bool, secrets: Collection[str] = ()) -> None:
    """Send logs to stderr, including uncaught exceptions of the program and its threads. Call once at start.

    `secrets` is read for each line, so the caller may add to it.
    """
    # No format names the thread or the process; finding them out takes a third of the time of a record.
    for switch in ("logThreads", "logProcesses", "logMultiprocessing"):
        setattr(logging, switch, False)
    handler = StderrHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(secrets) if as_json else TextFormatter(secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, least in QUIET_LOGGERS.items():
        logging.getLogger(name).setLevel(max(least, root.level))
    sys.excepthook = log_crash
    threading.excepthook = log_thread_crash


def log_crash(*exc_info: Any) -> None:
    """Log the exception that ends the program; the arguments are those of `sys.excepthook`."""
    if not issubclass(exc_info[0], KeyboardInterrupt):
        log.critical("the program failed", exc_info=exc_info)


def log_thread_crash(crash: threading.ExceptHookArgs) -> None:
    """Log the exception that ended a thread."""
    if crash.exc_value is not None and not isinstance(crash.exc_value, SystemExit):
        name = crash.thread.name if crash.thread else "?"
        log.error("the thread %s failed", name, exc_info=crash.exc_value)


def record_fields(record: logging.LogRecord, redact: LogRedactor) -> Mapping[str, Any]:
    """Return the fields of a record, logged with `extra={"fields": {...}}`: strings and numbers."""
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return {
        name: value if isinstance(value, NUMBERS) or name in OWN_IDS else redact(str(value))
        for name, value in fields.items()
    }


def escape_controls(text: str) -> str:
    """Escape control characters, so that a text cannot steer the terminal or imitate another entry."""
    seen = CONTROL_PATTERN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return seen.replace("\n", "\n    ")
