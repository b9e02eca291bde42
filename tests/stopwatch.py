"""Measures durations in a way that does not depend on the machine's load."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress


class Stopwatch:
    """Counts seconds from its making, without those in which the machine had no processor for us.

    A promise such as "within 100 ms" is about what we wait for: a timer, a poll, an answer that never comes.
    On a machine that does ten things at once, threads that could go on stand in line for a processor; Linux
    counts that time for each thread, and it is taken off for all of this process and those below it.
    """

    def __init__(self) -> None:
        self._queued = dict(queued())
        self._started = time.perf_counter()

    def seconds(self) -> float:
        """What has passed until now."""
        passed = time.perf_counter() - self._started
        return max(0.0, passed - self.in_line())

    def in_line(self) -> float:
        """What our threads have waited for a processor until now, added up."""
        return sum(seconds - self._queued.get(thread, 0.0) for thread, seconds in queued())


def queued() -> Iterator[tuple[str, float]]:
    """How long each thread here and below was ready to run and did not; nothing where Linux does not say."""
    for pid in family(str(os.getpid())):
        for thread, words in read(pid, "schedstat").items():
            yield thread, int(words.split()[1]) / 1e9


def family(pid: str) -> Iterator[str]:
    """A process, and all that it and they have started."""
    yield pid
    for children in read(pid, "children").values():
        for child in children.split():
            yield from family(child)


def read(pid: str, name: str) -> Mapping[str, str]:
    """A file of each thread of a process that has not ended meanwhile."""
    found: dict[str, str] = {}
    with suppress(OSError), os.scandir(f"/proc/{pid}/task") as threads:  # or the process has ended
        for thread in threads:
            with suppress(OSError):
                found[thread.name] = read_at_once(f"{thread.path}/{name}")
    return found


def read_at_once(path: str) -> str:
    """A small file, in a fifth of the time that `Path.read_text` takes: a test may read some ten thousand."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 65_536).decode("ascii")
    finally:
        os.close(descriptor)
