"""Files that fire triggers: changes in the workspaces of teams, found by scanning all of them.

A trigger stores what its last scan found, for each folder, so that hosts with folders of their own do not
take the files of one for changes in the other. The occurrence is named by path, time and size, so a change
fires once.

Who has changed a file is not known. A task that changes files which its own trigger watches would fire it for
ever, so firings for changes that were made while a task of the trigger ran are counted, as a chain, and the
trigger is disabled when that is too long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import NamedTuple, TypeAlias

import msgspec

from dragoman.errors import BadRequest, DragomanError, NotFound, StoreError, Unavailable
from dragoman.store.teams.triggers import TriggerOccurrence, TriggerRecord
from dragoman.teams.trigger_spec import FileChange, FileConfig
from dragoman.teams.triggers.occurrence_input import occurrence_input
from dragoman.teams.triggers.service import TriggerService, read_definition
from dragoman.tools.files.folder_search import MAX_DEPTH, MAX_ENTRIES, is_usable_name
from dragoman.tools.files.rooted_folder import RootedFolder

log = logging.getLogger(__name__)
SCAN_INTERVAL = 5.0  # seconds between two scans of all workspaces
REST_FACTOR = 20.0  # a scan is followed by a pause at least this many times as long
REFRESH_INTERVAL = 30.0  # seconds between two reads of the triggers
SETTLE_TIME = 1.0  # seconds that a file has to stay as it is: it may still be being written
MAX_FILES = 5_000  # of one trigger
MAX_FOLDERS = 10  # whose files a trigger remembers; those of hosts that are gone drop out
MAX_CHAIN = 200  # firings in a row for changes that may be its own; a busy morning has fewer
CHAIN_SLACK = 15.0  # seconds for which a change that a task has made may be found after its end
MAX_CHANGES = 100  # occurrences of one scan; the others follow with the next one
Seen: TypeAlias = dict[str, tuple[int, int]]
"""Time of change and size of each file, by its path in the workspace."""


CHAIN_ENDED = (
    "it has fired {limit} times in a row for changes that were made while a task of it ran, so its tasks "
    "seem to change the files that it watches: let them write elsewhere, or set max_chain"
)


class WatchedFiles(NamedTuple):
    """A trigger of files, the folder that it looks at, and what was seen there, by the name of the folder."""

    trigger: TriggerRecord
    config: FileConfig
    folder: Path
    seen: dict[str, Seen]


class FileWatcher:
    """Looks at the workspaces of teams while a trigger waits for changes of files."""

    def __init__(self, service: TriggerService) -> None:
        self._service = service
        self._triggers = service.triggers
        self._changed = asyncio.Event()
        self._watched: Sequence[WatchedFiles] = ()
        self._read_at = float("-inf")
        self._scanned_at: float | None = None
        self._gap = 0.0  # seconds between the last two scans

    def refresh(self) -> None:
        """Scan now."""
        self._changed.set()

    async def run(self) -> None:
        """Fire what changes of files fire, until cancelled."""
        while True:
            is_new = self._changed.is_set()
            self._changed.clear()
            has_some, began = True, time.monotonic()
            try:
                has_some = await self.scan(is_new=is_new)
            except (StoreError, Unavailable) as error:
                log.info("files for triggers are scanned later: %s", error.message)
            with suppress(TimeoutError):
                rest = REST_FACTOR * (time.monotonic() - began)
                delay = max(SCAN_INTERVAL, rest) if has_some else REFRESH_INTERVAL
                async with asyncio.timeout(delay):
                    await self._changed.wait()

    async def scan(self, *, is_new: bool = True) -> bool:
        """Scan once; return whether there are triggers that wait for files. Raises StoreError, Unavailable.

        The triggers are read again if they are new, and now and then: another host may have changed them.
        """
        now = time.monotonic()
        self._gap = now - self._scanned_at if self._scanned_at is not None else 0.0
        self._scanned_at = now
        if is_new or now > self._read_at + REFRESH_INTERVAL:
            self._watched = await self._read_triggers()
            self._read_at = now
        if self._watched:
            found = await asyncio.to_thread(scan_all, self._watched)
            for watched, (name, files) in zip(self._watched, found, strict=True):
                if watched.seen.get(name) != files:
                    await self._compare(watched, name, found=files)
        return bool(self._watched)

    async def _read_triggers(self) -> Sequence[WatchedFiles]:
        watched: list[WatchedFiles] = []
        for trigger in await self._triggers.list_active(["file"]):
            team = self._service.teams.find(trigger.team)
            with suppress(BadRequest):
                config = read_definition(trigger).config
                if team is not None and isinstance(config, FileConfig):
                    watched.append(WatchedFiles(trigger, config, team.workspace, read_progress(trigger)))
        return watched

    async def _compare(self, watched: WatchedFiles, name: str, *, found: Seen) -> None:
        """Fire the trigger for what has changed in a folder since the last scan."""
        try:
            trigger = await self._triggers.get(watched.trigger.id)
        except NotFound:
            return
        progress = read_progress(trigger)
        if name not in progress:  # what was there before the trigger does not count
            watched.seen[name] = found
            await self._triggers.fire(trigger, (), progress=encode(progress, name, seen=found))
            return
        changes, seen = compare(progress[name], found, now=self._triggers.now())
        watched.seen[name] = seen
        if seen == progress[name]:
            return
        wanted = [(path, change) for path, change in changes if change in watched.config.on]
        chain = await self._chain(trigger) if wanted else 0
        limit = watched.config.max_chain or MAX_CHAIN
        fired = [
            self._occurrence(
                trigger, path, change=change, stat=found.get(path) or progress[name][path], chain=chain
            )
            for path, change in wanted
            if chain <= limit
        ]
        if await self._triggers.fire(trigger, fired, progress=encode(progress, name, seen=seen)):
            self._service.wake()
        if chain > limit:
            reason = CHAIN_ENDED.format(limit=limit)
            log.warning("the trigger %s of the team %s is disabled: %s", trigger.name, trigger.team, reason)
            await self._service.disable(trigger, reason)

    async def _chain(self, trigger: TriggerRecord) -> int:
        """Return how many firings in a row changes that are found now may come from, themselves included.

        That is 0 unless a task of the trigger runs, or has run when they may have been made.
        """
        since = self._triggers.now() - CHAIN_SLACK - self._gap
        working = await self._triggers.list_working(trigger.id, since=since)
        return max((chain_of(each) + 1 for each in working), default=0)

    def _occurrence(
        self, trigger: TriggerRecord, path: str, *, change: FileChange, stat: tuple[int, int], chain: int
    ) -> TriggerOccurrence:
        now = self._triggers.now()
        shown = {"path": path, "change": change, "size": stat[1]}
        if chain:
            shown["chain"] = chain
        return TriggerOccurrence(
            trigger_id=trigger.id,
            key=f"file:{change}:{stat[0]}:{stat[1]}:{path}",
            due_at=now,
            created_at=now,
            next_at=now,
            input=occurrence_input(trigger, due_at=now, file=shown),
        )


def chain_of(occurrence: TriggerOccurrence) -> int:
    """Return the place of an occurrence in a chain; 0 for one that no task of the trigger has caused."""
    file = msgspec.json.decode(occurrence.input).get("file", {})
    return int(file.get("chain", 0))


def read_progress(trigger: TriggerRecord) -> dict[str, Seen]:
    """Return what the last scan of a trigger found, by folder."""
    return msgspec.json.decode(trigger.progress or "{}", type=dict[str, Seen])


def scan_all(watched: Sequence[WatchedFiles]) -> list[tuple[str, Seen]]:
    """Return the name of each folder and the files in it, in a thread for all of them."""
    return [(folder_name(each.folder), scan(each.folder, each.config.path)) for each in watched]


def scan(folder: Path, pattern: str) -> Seen:
    """Return the files in a folder that a pattern matches. Links are not followed, also new ones."""
    found: Seen = {}
    try:
        root = RootedFolder(folder)
    except (DragomanError, OSError):  # it is gone
        return found
    pending, left = [""], MAX_ENTRIES
    while pending and left > 0 and len(found) < MAX_FILES:
        path = pending.pop()
        entries = list_folder(root, path, limit=left)
        left -= len(entries)
        if path.count("/") < MAX_DEPTH:
            pending += [f"{path}{entry.name}/" for entry in reversed(entries) if entry.is_folder]
        matching = [each for each in entries if each.stat and fnmatchcase(path + each.name, pattern)]
        found |= {path + each.name: each.stat for each in matching[: MAX_FILES - len(found)] if each.stat}
    return found


class WatchedEntry(NamedTuple):
    """What is in a folder; `stat` is a file's time of change and size."""

    name: str
    is_folder: bool
    stat: tuple[int, int] | None


def list_folder(root: RootedFolder, path: str, *, limit: int) -> Sequence[WatchedEntry]:
    """Return what is in a folder, in order; nothing if it cannot be opened."""
    try:
        with root.open(path or ".") as descriptor, os.scandir(descriptor) as scanned:
            entries = sorted(islice(scanned, limit), key=lambda entry: entry.name)
            return [read_entry(entry) for entry in entries if is_usable_name(entry.name, path)]
    except (DragomanError, OSError):
        return ()


def read_entry(entry: os.DirEntry[str]) -> WatchedEntry:
    """Return an entry; neither a folder nor a file if it is gone, or something else."""
    with suppress(OSError):
        status = entry.stat(follow_symlinks=False)
        stat = (status.st_mtime_ns, status.st_size) if S_ISREG(status.st_mode) else None
        return WatchedEntry(entry.name, S_ISDIR(status.st_mode), stat)
    return WatchedEntry(entry.name, is_folder=False, stat=None)


def folder_name(folder: Path) -> str:
    """Return a name that distinguishes a folder from one of the same path at another host."""
    try:
        return f"{folder.resolve()}#{folder.stat().st_ino}"
    except OSError:
        return f"{folder.resolve()}#"


def compare(
    before: Mapping[str, Sequence[int]], after: Seen, *, now: float
) -> tuple[Sequence[tuple[str, FileChange]], Seen]:
    """Return the changes, and the new state of the folder. A file that was just written is left for later."""
    changes: list[tuple[str, FileChange]] = []
    seen: Seen = {path: (stat[0], stat[1]) for path, stat in before.items()}
    for path in sorted({*before, *after}):
        if len(changes) >= MAX_CHANGES:
            break
        if path not in after:
            changes.append((path, "deleted"))
            del seen[path]
            continue
        age = now - after[path][0] / 1e9
        is_new = path not in before
        if not 0.0 <= age < SETTLE_TIME and (is_new or tuple(before[path]) != after[path]):
            changes.append((path, "created" if is_new else "changed"))
            seen[path] = after[path]
    return changes, seen


def encode(progress: Mapping[str, Seen], name: str, *, seen: Seen) -> str:
    """Return the progress with the new state of a folder, which is put last and so dropped last."""
    others = [(folder, files) for folder, files in progress.items() if folder != name]
    return msgspec.json.encode(dict([*others[1 - MAX_FOLDERS :], (name, seen)])).decode()
