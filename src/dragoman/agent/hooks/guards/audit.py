"""Audit log: one line of JSON for each tool call, its end, and the end of a run; secrets are redacted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dragoman.agent.hooks.events import PostToolUse, PreToolUse, RunEnd
from dragoman.agent.hooks.guards.json_strings import replace_strings
from dragoman.agent.hooks.guards.secrets import SecretScan
from dragoman.agent.hooks.hooks import Hooks

MAX_TEXT_LENGTH = 2_000  # characters of a text
TEXT_FIELDS = ("input", "output", "error", "text", "reason")  # by models, tools and people


class AuditLog:
    """Appends to `path`. Above `max_bytes` it becomes `path.1`, and so on up to `keep` old files.

    `secrets`, and whatever looks like one, are redacted. For one process: two must not share a file.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        max_bytes: int = 10_000_000,
        keep: int = 5,
        secrets: Sequence[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(path)
        self._max_bytes = max_bytes
        self._max_files = keep
        self._scan = SecretScan(secrets, fields=True)
        self._clock = clock
        self._lock = threading.Lock()

    def hooks(self) -> Hooks:
        """Return hooks that watch calls and the ends of runs: what ran, and what the model saw."""
        return (
            Hooks()
            .on("pre_tool_use", self._log_call, name="audit_log", watches=True)
            .on("post_tool_use", self._log_result, name="audit_log", watches=True)
            .on("run_end", self._log_run, name="audit_log", watches=True)
        )

    def _log_call(self, event: PreToolUse) -> None:
        self._write("call", event)

    def _log_result(self, event: PostToolUse) -> None:
        self._write("end", event)

    def _log_run(self, event: RunEnd) -> None:
        self._write("run", event)

    def _write(self, kind: str, event: PreToolUse | PostToolUse | RunEnd) -> None:
        moment = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = msgspec.to_builtins(event)
        fields.pop("event")
        texts_redacted = {name: self._redact(fields[name]) for name in TEXT_FIELDS if name in fields}
        line = msgspec.json.encode({"at": moment, "kind": kind, **fields, **texts_redacted}) + b"\n"
        with self._lock:
            self._rotate(len(line))
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)

    def _redact(self, value: Any) -> Any:
        return replace_strings(self._scan.redact(value), lambda text, _: shorten(text))

    def _rotate(self, added_bytes: int) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        if not size or size + added_bytes <= self._max_bytes:
            return
        for number in range(self._max_files, 0, -1):
            older = self._rotated_path(number - 1)
            if older.exists():
                older.replace(self._rotated_path(number))
        self.path.unlink(missing_ok=True)  # where no old file is kept

    def _rotated_path(self, number: int) -> Path:
        return self.path if number == 0 else self.path.with_name(f"{self.path.name}.{number}")


def shorten(text: str) -> str:
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[:MAX_TEXT_LENGTH]}… ({len(text)} characters)"


def audit_log(
    path: str | Path, *, max_bytes: int = 10_000_000, keep: int = 5, secrets: Sequence[str] = ()
) -> Hooks:
    """Return hooks that log each tool call of a model and how it ended."""
    return AuditLog(path, max_bytes=max_bytes, keep=keep, secrets=secrets).hooks()
