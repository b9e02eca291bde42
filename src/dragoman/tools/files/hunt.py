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
from dragoman.tools.files.folder import LONGEST
from dragoman.tools.files.roots import Roots

# ---- Finding a text in bytes: where it stands, on which line, and what stands around it.

BEFORE = 80  # bytes shown around what is found
AROUND = 240


class Match(msgspec.Struct, frozen=True):
    """A line that holds the text: its number from 1, the byte at which it is found, what stands there."""

    line: int
    offset: int
    text: str


def find(body: bytes, wanted: str, *, exact: bool = False) -> Iterator[Match]:
    """The lines that hold a text; of a long line a stretch, and as many of them as it holds.

    Unless `exact`, A to Z are taken for a to z.
    """
    pattern = re.compile(re.escape(wanted.encode()), 0 if exact else re.IGNORECASE)
    line, counted, at = 1, 0, 0
    while found := pattern.search(body, at):
        line += body.count(b"\n", counted, found.start())
        counted = found.start()
        begin = max(body.rfind(b"\n", max(0, counted - BEFORE), counted) + 1, counted - BEFORE, 0)
        stop = found.end() + AROUND
        end = body.find(b"\n", found.end(), stop)
        at = end + 1 if end >= 0 else min(stop, len(body))
        yield Match(line, counted, excerpt(body[begin : at if end < 0 else end]))
        if at >= len(body):
            return


def excerpt(raw: bytes) -> str:
    """The text of a stretch, without the parts of characters at its ends."""
    start = next((index for index, byte in enumerate(raw[:4]) if byte & 0xC0 != 0x80), 0)
    return raw[start:].decode(errors="ignore").rstrip("\r")


def is_text(body: bytes) -> bool:
    """Whether the beginning of a file looks like text."""
    return b"\0" not in body[:8_192]


ENTRIES = 50_000  # looked at in one search
A_FOLDER = 10_000
BYTES = 256_000_000  # read in one search
A_FILE = 8_000_000
SECONDS = 10.0
PER_FILE = 5


class Hunt:
    """One search. `complete` says whether all was looked through."""

    def __init__(self, roots: Roots, pattern: str) -> None:
        self.complete = True
        self._roots = roots
        self._pattern = pattern
        self._entries = ENTRIES
        self._bytes = BYTES
        self._end = time.monotonic() + SECONDS

    def names(self, path: str) -> Iterator[str]:
        """The paths of the files below a folder whose path or name fits the pattern, folder by folder."""
        waiting = [path]
        while waiting and self._go_on():
            here = waiting.pop()
            inner = []
            for name, mode in self._look(here):
                whole = name if here in (".", "") else f"{here.rstrip('/')}/{name}"
                if stat.S_ISDIR(mode):
                    inner.append(whole)
                elif stat.S_ISREG(mode) and self._fits(whole, name):
                    yield whole
            waiting += reversed(inner)

    def matches(self, path: str, wanted: str, *, exact: bool) -> Iterator[tuple[str, Match]]:
        """The lines that hold a text in the files below a folder; at most five a file."""
        for name in self.names(path):
            body = self._read(name)
            if is_text(body):
                for match in islice(find(body, wanted, exact=exact), PER_FILE):
                    yield name, match

    def _fits(self, path: str, name: str) -> bool:
        return fnmatchcase(path if "/" in self._pattern else name, self._pattern)

    def _go_on(self) -> bool:
        going = self._entries > 0 and self._bytes > 0 and time.monotonic() < self._end
        self.complete = self.complete and going
        return going

    def _look(self, path: str) -> list[tuple[str, int]]:
        """The names in a folder with what they are, sorted; nothing of one that cannot be opened."""
        tops = self._roots.tops(path)
        if tops is not None:
            return [(name, stat.S_IFDIR) for name in tops]
        try:
            with self._roots.open(path) as descriptor, os.scandir(descriptor) as found:
                entries = sorted(islice(found, A_FOLDER), key=lambda each: each.name)
                seen = [(each.name, kind(each)) for each in entries if is_name(each.name, path)]
        except (Forbidden, NotFound, OSError):
            return []
        self._entries -= len(seen)
        self.complete = self.complete and len(seen) < A_FOLDER
        return seen

    def _read(self, path: str) -> bytes:
        """The beginning of a file; nothing of one that has gone or cannot be opened."""
        if not self._go_on():
            return b""
        try:
            with self._roots.open(path) as descriptor:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return b""
                body = os.pread(descriptor, min(A_FILE, self._bytes), 0)
        except (Forbidden, NotFound, OSError):
            return b""
        self._bytes -= len(body)
        self.complete = self.complete and len(body) < A_FILE
        return body


def kind(entry: os.DirEntry[str]) -> int:
    """A mode that says file, folder or neither; links are neither."""
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFREG if entry.is_file(follow_symlinks=False) else 0


def is_name(name: str, folder: str) -> bool:
    """Whether a path with this name can be said and opened again."""
    try:
        return len(f"{folder}/{name}".encode()) < LONGEST
    except UnicodeEncodeError:
        return False
