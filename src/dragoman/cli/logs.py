"""Logs: what the hub has to report, to stderr, for people or as JSON lines; secrets are blotted out."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec
from typing_extensions import override

from dragoman.operations import identity
from dragoman.providers.retry import MASK, SHORTEST, redact

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
OURS = re.compile(r"(dgm_|\bsk-|[Bb]earer\s+)[\w.~+/=-]{6,}")
NAMED = re.compile(
    r"(?i)((?:authorization|cookie|password|secret|token|api[_-]?key)[\"']?\s*[:=]\s*b?[\"']?)[^\s\"'<>,;)}\]]{6,}"
)
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
NUMBERS = (int, float)
SHORT = 100  # characters
REMEMBERED = 4096  # texts
QUIET = {"uvicorn.error": logging.WARNING, "asyncio": logging.WARNING}
log = logging.getLogger("dragoman")


class Blotter:
    """Blots secrets out of texts; short ones come again and again, and are remembered.

    `secrets` may grow: then everything is looked at anew.
    """

    def __init__(self, secrets: Collection[str] = ()) -> None:
        self._secrets = secrets
        self._count = len(secrets)
        self._known: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """The text without keys."""
        if len(self._secrets) != self._count or len(self._known) >= REMEMBERED:
            self._count = len(self._secrets)
            self._known.clear()
        shown = self._known.get(text)
        if shown is None:
            shown = blot(text, self._secrets)
            if len(text) <= SHORT:
                self._known[text] = shown
        return shown


class ForPeople(logging.Formatter):
    """A line: time, level, where, for which request, what, and its fields. `secrets` are blotted out."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._blot = Blotter(secrets)

    @override
    def format(self, record: logging.LogRecord) -> str:
        request_id = identity.request_id.get()
        where = record.name.removeprefix("dragoman.")
        place = where if request_id is None else f"{where} [{self._blot(request_id)}]"
        said = [
            f"{self.formatTime(record, self.datefmt)} {record.levelname:<7} {place}: {self._event(record)}"
        ]
        said += [f"{name}={value}" for name, value in fields_of(record, self._blot).items()]
        return harmless(" ".join(said))

    def _event(self, record: logging.LogRecord) -> str:
        said = record.getMessage()
        if record.exc_info:
            said = f"{said}\n{self.formatException(record.exc_info)}"
        return self._blot(said)


class ForPrograms(logging.Formatter):
    """A JSON object on a line. `secrets` are blotted out."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        super().__init__()
        self._blot = Blotter(secrets)

    @override
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": self._blot(record.getMessage()),
        }
        request_id = identity.request_id.get()
        if request_id is not None:
            entry["request_id"] = self._blot(request_id)
        entry |= fields_of(record, self._blot)
        if record.exc_info:
            entry["exception"] = self._blot(self.formatException(record.exc_info))
        return msgspec.json.encode(entry).decode()


class Stderr(logging.StreamHandler[Any]):
    """Writes to stderr. Of a line that cannot be written only its place is told: the rest may be secret."""

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        kind = sys.exc_info()[0]
        name = kind.__name__ if kind else "an error"
        with suppress(OSError, ValueError):  # stderr may be gone; then there is nobody to tell
            self.stream.write(f"a log line failed ({name}), from {record.pathname}:{record.lineno}\n")


def set_up(level: Level, *, as_json: bool, secrets: Collection[str] = ()) -> None:
    """Send the program's logs to stderr, and what ends it or one of its threads too. Once, at its start.

    `secrets` are looked up for each line, so whoever gave them may add to them.
    """
    handler = Stderr(sys.stderr)
    handler.setFormatter(ForPrograms(secrets) if as_json else ForPeople(secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(max(least, root.level))
    sys.excepthook = crashed
    threading.excepthook = thread_crashed


def crashed(*told: Any) -> None:
    """Tell what ends the program: its type, itself, its traceback."""
    if not issubclass(told[0], KeyboardInterrupt):
        log.critical("the program failed", exc_info=told)


def thread_crashed(told: threading.ExceptHookArgs) -> None:
    """Tell what ended a thread."""
    if told.exc_value is not None and not isinstance(told.exc_value, SystemExit):
        name = told.thread.name if told.thread else "?"
        log.error("the thread %s failed", name, exc_info=told.exc_value)


def fields_of(record: logging.LogRecord, blot: Blotter) -> Mapping[str, Any]:
    """What a line says in fields: what was logged with `extra={"fields": {...}}`, strings and numbers."""
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return {name: value if isinstance(value, NUMBERS) else blot(str(value)) for name, value in fields.items()}


def harmless(text: str) -> str:
    """The text of one entry: nothing in it steers the terminal, or looks like another entry."""
    seen = STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return seen.replace("\n", "\n    ")


def blot(text: str, secrets: Collection[str] = ()) -> str:
    """The text without keys, whoever put them there: the secrets that are given, and what looks like one.

    A secret of fewer than four characters is none, as in errors: it would blot out half of every line.
    """
    found = [secret for secret in tuple(secrets) if len(secret) >= SHORTEST and secret in text]
    for secret in sorted(found, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return masked(text)


def masked(text: str) -> str:
    """The text without what looks like a key."""
    return redact(NAMED.sub(rf"\1{MASK}", OURS.sub(rf"\1{MASK}", text)))
