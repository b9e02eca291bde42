"""File search: file names by glob and contents by text, in a folder and below, within limits."""

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

BYTES_BEFORE = 80  # bytes shown around a match
BYTES_AFTER = 240


class LineMatch(msgspec.Struct, frozen=True):
    """A matching line: its number from 1, the byte offset of the match, the text around it."""

    line: int
    offset: int
    text: str


def find_lines(body: bytes, text: str, *, exact: bool = False) -> Iterator[LineMatch]:
    """Yield the lines that contain a text; of a long line, each matching part.

    Unless `exact`, ASCII letters match in either case.
    """
    pattern = re.compile(re.escape(text.encode()), 0 if exact else re.IGNORECASE)
    line, match_start, position = 1, 0, 0
    while match := pattern.search(body, position):
        line += body.count(b"\n", match_start, match.start())
        match_start = match.start()
        excerpt_start = max(
            body.rfind(b"\n", max(0, match_start - BYTES_BEFORE), match_start) + 1,
            match_start - BYTES_BEFORE,
            0,
        )
        stop = match.end() + BYTES_AFTER
        end = body.find(b"\n", match.end(), stop)
        position = end + 1 if end >= 0 else min(stop, len(body))
        yield LineMatch(line, match_start, decode_excerpt(body[excerpt_start : position if end < 0 else end]))
        if position >= len(body):
            return


def decode_excerpt(raw: bytes) -> str:
    """Decode a part of a line, without incomplete characters at its ends."""
    start = next((index for index, byte in enumerate(raw[:4]) if byte & 0xC0 != 0x80), 0)
    return raw[start:].decode(errors="ignore").rstrip("\r")


def looks_like_text(body: bytes) -> bool:
    """Return whether the start of a file looks like text."""
    return b"\0" not in body[:8_192]


MAX_ENTRIES = 50_000  # entries visited in one search
MAX_FOLDER_ENTRIES = 10_000
MAX_DEPTH = 200  # levels of folders: each folder is opened from the top, so deep ones cost the most
MAX_BYTES = 256_000_000  # bytes read in one search
MAX_FILE_BYTES = 8_000_000
MAX_SECONDS = 10.0
MAX_MATCHES_PER_FILE = 5


class FileSearch:
    """One search. `complete` says whether everything was searched."""

    def __init__(self, roots: Roots, pattern: str) -> None:
        self.complete = True
        self._roots = roots
        self._pattern = pattern
        self._entries_left = MAX_ENTRIES
        self._bytes_left = MAX_BYTES
        self._deadline = time.monotonic() + MAX_SECONDS

    def find_paths(self, path: str) -> Iterator[str]:
        """Yield the paths of the files below a folder that match the pattern, folder by folder.

        A pattern with a slash is compared with the whole path, another with the name.
        """
        pending = [path]
        while pending and self._has_budget():
            folder = pending.pop()
            subfolders = []
            for name, mode in self._list_folder(folder):
                file_path = name if folder in (".", "") else f"{folder.rstrip('/')}/{name}"
                if stat.S_ISDIR(mode):
                    subfolders.append(file_path)
                elif stat.S_ISREG(mode) and self._matches_pattern(file_path, name):
                    yield file_path
            if subfolders and folder.count("/") >= MAX_DEPTH:
                self.complete = False
                continue
            pending += reversed(subfolders)

    def find_matches(self, path: str, text: str, *, exact: bool) -> Iterator[tuple[str, LineMatch]]:
        """Yield path and match of the lines that contain a text, at most MAX_MATCHES_PER_FILE a file."""
        for name in self.find_paths(path):
            body = self._read_file(name)
            if looks_like_text(body):
                for match in islice(find_lines(body, text, exact=exact), MAX_MATCHES_PER_FILE):
                    yield name, match

    def _matches_pattern(self, path: str, name: str) -> bool:
        return fnmatchcase(path if "/" in self._pattern else name, self._pattern)

    def _has_budget(self) -> bool:
        has_budget = self._entries_left > 0 and self._bytes_left > 0 and time.monotonic() < self._deadline
        self.complete = self.complete and has_budget
        return has_budget

    def _list_folder(self, path: str) -> list[tuple[str, int]]:
        """Return the names in a folder with their modes, sorted; empty if it cannot be opened."""
        top_names = self._roots.top_names(path)
        if top_names is not None:
            return [(name, stat.S_IFDIR) for name in top_names]
        try:
            with self._roots.open(path) as descriptor, os.scandir(descriptor) as scan:
                entries = sorted(islice(scan, MAX_FOLDER_ENTRIES), key=lambda entry: entry.name)
                usable = [
                    (entry.name, entry_mode(entry)) for entry in entries if is_usable_name(entry.name, path)
                ]
        except (Forbidden, NotFound, OSError):
            return []
        self._entries_left -= len(usable)
        self.complete = self.complete and len(usable) < MAX_FOLDER_ENTRIES
        return usable

    def _read_file(self, path: str) -> bytes:
        """Return the start of a file; empty if it is gone or cannot be opened."""
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
    """Return a mode for file, folder or neither; links are neither."""
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFREG if entry.is_file(follow_symlinks=False) else 0


def is_usable_name(name: str, folder: str) -> bool:
    """Return whether a path with this name can be returned and opened again."""
    try:
        return len(f"{folder}/{name}".encode()) < MAX_PATH_BYTES
    except UnicodeEncodeError:
        return False
