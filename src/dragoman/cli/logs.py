"""Logs: what the hub has to report, to stderr, for people or as JSON lines; secrets are blotted out."""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import msgspec

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
SECRET = re.compile(r"(dgm_|\bsk-|[Bb]earer\s+)[\w.~+/=-]{6,}")
QUIET = {"uvicorn.error": logging.WARNING, "asyncio": logging.WARNING}


class ForPeople(logging.Formatter):
    """A line: time, level, where, what."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(place)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        record.place = record.name.removeprefix("dragoman.")
        return blot(super().format(record))


class ForPrograms(logging.Formatter):
    """A JSON object on a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": blot(record.getMessage()),
        }
        if record.exc_info:
            entry["exception"] = blot(self.formatException(record.exc_info))
        return msgspec.json.encode(entry).decode()


def set_up(level: Level, *, as_json: bool) -> None:
    """Send the program's logs to stderr. Once, at its start."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ForPrograms() if as_json else ForPeople())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(max(least, root.level))


def blot(text: str) -> str:
    """The text without keys, whoever put them there."""
    return SECRET.sub(r"\1***", text)
