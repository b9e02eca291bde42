"""Watchdog: a small process that ends the hub's child processes if the hub is killed (kill -9)."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

log = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("orphan_cleanup.py")
INHERITED_VARIABLES = ("LD_LIBRARY_PATH",)  # no others: the hub's variables hold secrets
END_SECONDS = 2.0


class Watchdog:
    """Tracks the process groups of a hub in a separate process, which starts with the first group.

    Call close() at shutdown.
    """

    def __init__(self) -> None:
        self._groups: dict[int, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def guard(self, group: int, mark: str) -> None:
        """Register a group, and the mark (`NAME=value`) in its environment, to be ended if the hub dies."""
        self._groups[group] = mark
        if self._process is None:
            self._start()
        else:
            self._send(f"+{group} {mark}")

    def release(self, group: int) -> None:
        """Remove a group that has exited."""
        self._groups.pop(group, None)
        self._send(f"-{group}")

    async def close(self) -> None:
        """Stop the watchdog; it ends the groups that were not released."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        if not self._groups:
            process.kill()  # nothing to clean up: do not wait until it notices
            await asyncio.to_thread(process.wait)
            return
        try:
            await asyncio.to_thread(process.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            log.debug("the watchdog is still running after %g seconds", END_SECONDS)

    def _start(self) -> None:
        """Start the process and register all groups. A failure is logged; the hub works without it."""
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-I", "-S", str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ},
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            log.warning("cannot start the watchdog, so child processes will outlive a killed hub: %s", error)
            return
        self._send(*(f"+{group} {mark}" for group, mark in self._groups.items()))

    def _send(self, *lines: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        except OSError:  # it was killed; the next guard() starts another
            self._process.stdin.close()
            self._process.poll()
            self._process = None
