"""Logs: what the hub has to report, to stderr, for people or as JSON lines; secrets are blotted out."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TypeAlias

import structlog
from structlog.stdlib import ProcessorFormatter

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
SECRET = re.compile(r"(dgm_|\bsk-|[Bb]earer\s+)[\w.~+/=-]{6,}")
QUIET = {"uvicorn.error": logging.WARNING, "asyncio": logging.WARNING}
HIDDEN = {"timestamp", "level", "logger", "event", "exception", "stack"}


class Formatter(ProcessorFormatter):
    """Lines without secrets, whatever was put into them."""

    def format(self, record: logging.LogRecord) -> str:
        return SECRET.sub(r"\1***", super().format(record))


def set_up(level: Level, *, as_json: bool) -> None:
    """Send the logs of structlog and of the standard library to stderr. Once, at the start of the program."""
    known: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json),
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *known, ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    drawn = structlog.processors.JSONRenderer() if as_json else write_line
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        Formatter(foreign_pre_chain=known, processors=[ProcessorFormatter.remove_processors_meta, drawn])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(max(least, root.level))


def write_line(_logger: Any, _method_name: str, event_dict: MutableMapping[str, Any]) -> str:
    """An event as a line for people."""
    fields = "".join(f" {name}={value!r}" for name, value in event_dict.items() if name not in HIDDEN)
    place = str(event_dict.get("logger", "")).removeprefix("dragoman.")
    level = event_dict["level"].upper()
    head = f"{event_dict['timestamp']} {level:<7} {place}: {event_dict['event']}{fields}"
    trace = event_dict.get("exception")
    return f"{head}\n{trace}" if trace else head
