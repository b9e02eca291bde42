"""The watchdog: a small process that ends what the hub has started when the hub is killed and cannot."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

log = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("orphan_cleanup.py")
INHERITED_VARIABLES = ("LD_LIBRARY_PATH",)  # of the hub's variables, which hold secrets
END_SECONDS = 2.0


class Watchdog:
    """Knows of the process groups that a hub has started. It starts with the first of them; close() it."""

    def __init__(self) -> None:
        self._groups: dict[int, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def guard(self, group: int, mark: str) -> None:
        """When the hub has died, end this group, and what has the mark (`NAME=value`) in its environment."""
        self._groups[group] = mark
        if self._process is None:
            self._start()
        else:
            self._send(f"+{group} {mark}")

    def release(self, group: int) -> None:
        """The group has ended."""
        self._groups.pop(group, None)
        self._send(f"-{group}")

    async def close(self) -> None:
        """Let the process go; it ends what was not released."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        if not self._groups:
            process.kill()  # it has nothing left to do, and need not find that out
            await asyncio.to_thread(process.wait)
            return
        try:
            await asyncio.to_thread(process.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            log.debug("the watchdog is still at work")

    def _start(self) -> None:
        """Start it with all groups that there are. Without one a hub does its work just the same."""
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
            log.warning("what it started will outlive a hub that is killed: no watchdog: %s", error)
            return
        self._send(*(f"+{group} {mark}" for group, mark in self._groups.items()))

    def _send(self, *lines: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        except OSError:  # it was killed; the next group has another one started
            self._process.stdin.close()
            self._process.poll()
            self._process = None
