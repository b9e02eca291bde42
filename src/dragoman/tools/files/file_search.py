"""Searching files: names by a pattern, contents by a text, in a folder and all below it, within bounds."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice

import msgspec

from dragoman.errors import Forbidden, NotFound
from dragoman.tools.files.rooted_folder import MAX_PATH_BYTES
from dragoman.tools.files.roots import Roots

# ---- Finding a text in bytes: where it stands, on which line, and what stands around it.

BYTES_BEFORE = 80  # bytes shown around what is found
BYTES_AFTER = 240


class LineMatch(msgspec.Struct, frozen=True):
    """A line that holds the text: its number from 1, the byte at which it is found, what stands there."""

    line: int
    offset: int
    text: str


def find_lines(body: bytes, text: str, *, exact: bool = False) -> Iterator[LineMatch]:
    """The lines that hold a text; of a long line a stretch, and as many of them as it holds.

    Unless `exact`, A to Z are taken for a to z.
    """
    pattern = re.compile(re.escape(text.encode()), 0 if exact else re.IGNORECASE)
    line, counted, at = 1, 0, 0
    while found := pattern.search(body, at):
        line += body.count(b"\n", counted, found.start())
        counted = found.start()
        begin = max(body.rfind(b"\n", max(0, counted - BYTES_BEFORE), counted) + 1, counted - BYTES_BEFORE, 0)
        stop = found.end() + BYTES_AFTER
        end = body.find(b"\n", found.end(), stop)
        at = end + 1 if end >= 0 else min(stop, len(body))
        yield LineMatch(line, counted, decode_excerpt(body[begin : at if end < 0 else end]))
        if at >= len(body):
            return


def decode_excerpt(raw: bytes) -> str:
    """The text of a stretch, without the parts of characters at its ends."""
    start = next((index for index, byte in enumerate(raw[:4]) if byte & 0xC0 != 0x80), 0)
    return raw[start:].decode(errors="ignore").rstrip("\r")


def looks_like_text(body: bytes) -> bool:
    """Whether the beginning of a file looks like text."""
    return b"\0" not in body[:8_192]


MAX_ENTRIES = 50_000  # looked at in one search
MAX_FOLDER_ENTRIES = 10_000
MAX_BYTES = 256_000_000  # read in one search
MAX_FILE_BYTES = 8_000_000
MAX_SECONDS = 10.0
MAX_MATCHES_PER_FILE = 5


class FileSearch:
    """One search. `complete` says whether all was looked through."""

    def __init__(self, roots: Roots, pattern: str) -> None:
        self.complete = True
        self._roots = roots
        self._pattern = pattern
        self._entries_left = MAX_ENTRIES
        self._bytes_left = MAX_BYTES
        self._deadline = time.monotonic() + MAX_SECONDS

    def find_paths(self, path: str) -> Iterator[str]:
        """The paths of the files below a folder whose path or name fits the pattern, folder by folder."""
        waiting = [path]
        while waiting and self._has_budget():
            here = waiting.pop()
            inner = []
            for name, mode in self._list_folder(here):
                whole = name if here in (".", "") else f"{here.rstrip('/')}/{name}"
                if stat.S_ISDIR(mode):
                    inner.append(whole)
                elif stat.S_ISREG(mode) and self._matches_pattern(whole, name):
                    yield whole
            waiting += reversed(inner)

    def find_matches(self, path: str, text: str, *, exact: bool) -> Iterator[tuple[str, LineMatch]]:
        """The lines that hold a text in the files below a folder; at most five a file."""
        for name in self.find_paths(path):
            body = self._read_file(name)
            if looks_like_text(body):
                for match in islice(find_lines(body, text, exact=exact), MAX_MATCHES_PER_FILE):
                    yield name, match

    def _matches_pattern(self, path: str, name: str) -> bool:
        return fnmatchcase(path if "/" in self._pattern else name, self._pattern)

    def _has_budget(self) -> bool:
        going = self._entries_left > 0 and self._bytes_left > 0 and time.monotonic() < self._deadline
        self.complete = self.complete and going
        return going

    def _list_folder(self, path: str) -> list[tuple[str, int]]:
        """The names in a folder with what they are, sorted; nothing of one that cannot be opened."""
        tops = self._roots.top_names(path)
        if tops is not None:
            return [(name, stat.S_IFDIR) for name in tops]
        try:
            with self._roots.open(path) as descriptor, os.scandir(descriptor) as found:
                entries = sorted(islice(found, MAX_FOLDER_ENTRIES), key=lambda each: each.name)
                seen = [(each.name, entry_mode(each)) for each in entries if is_usable_name(each.name, path)]
        except (Forbidden, NotFound, OSError):
            return []
        self._entries_left -= len(seen)
        self.complete = self.complete and len(seen) < MAX_FOLDER_ENTRIES
        return seen

    def _read_file(self, path: str) -> bytes:
        """The beginning of a file; nothing of one that has gone or cannot be opened."""
        if not self._has_budget():
            return b""
        try:
            with self._roots.open(path) as descriptor:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return b""
                body = os.pread(descriptor, min(MAX_FILE_BYTES, self._bytes_left), 0)
        except (Forbidden, NotFound, OSError):
            return b""
        self._bytes_left -= len(body)
        self.complete = self.complete and len(body) < MAX_FILE_BYTES
        return body


def entry_mode(entry: os.DirEntry[str]) -> int:
    """A mode that says file, folder or neither; links are neither."""
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFREG if entry.is_file(follow_symlinks=False) else 0


def is_usable_name(name: str, folder: str) -> bool:
    """Whether a path with this name can be said and opened again."""
    try:
        return len(f"{folder}/{name}".encode()) < MAX_PATH_BYTES
    except UnicodeEncodeError:
        return False
