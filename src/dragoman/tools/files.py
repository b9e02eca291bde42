"""Files to look at: `files.list` and `files.read` over one folder, read-only."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from pydantic import Field

from dragoman.errors import BadRequest
from dragoman.operations.function import from_function
from dragoman.operations.operation import Operation
from dragoman.tools.folder import Folder

SHOWN = 200  # entries of a folder
SCANNED = 10_000
PIECE = 16_384  # bytes of a file in one answer
LARGEST_PIECE = 65_536


class File(TypedDict):
    """An entry of a folder; `size` is in bytes, and given for files."""

    name: str
    kind: Literal["file", "folder", "link", "other"]
    size: int | None


class Listing(TypedDict):
    """A folder's entries by name; `more` counts those that are not shown."""

    path: str
    entries: list[File]
    more: int


class Text(TypedDict):
    """A piece of a file; `next_offset` is where the rest begins, null at its end."""

    path: str
    text: str
    size: int
    next_offset: int | None


def operations(root: Path) -> list[Operation]:
    """`files.list` and `files.read` below `root`. ConfigError when it is no folder."""
    folder = Folder(root)

    def show(path: str = ".") -> Listing:
        """List the files of a folder, with their sizes.

        Args:
            path: The folder, from the top of the files that are shown; `.` is the top itself.
        """
        return list_files(folder, path)

    def read(
        path: str,
        *,
        offset: Annotated[int, Field(ge=0)] = 0,
        limit: Annotated[int, Field(ge=16, le=LARGEST_PIECE)] = PIECE,
    ) -> Text:
        """Read a text file, or a piece of it.

        Args:
            path: The file, as files.list shows it, behind its folder: notes/today.txt.
            offset: The byte to begin at; next_offset of the piece before.
            limit: How many bytes to read at most.
        """
        return read_file(folder, path, offset=offset, limit=limit)

    return [
        from_function(show, "files", name="list", effect="read", timeout=10),
        from_function(read, "files", effect="read", timeout=10),
    ]


def list_files(folder: Folder, path: str) -> Listing:
    """The entries of a folder below the root."""
    with folder.open(path) as descriptor:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise BadRequest(f"{path!r} is a file", field="path", hint="files.read reads it")
        with os.scandir(descriptor) as found:
            entries = sorted(
                (describe(entry) for entry in islice(found, SCANNED)), key=lambda each: each["name"]
            )
    return Listing(path=path, entries=entries[:SHOWN], more=max(0, len(entries) - SHOWN))


def describe(entry: os.DirEntry[str]) -> File:
    """What is told of an entry. Its name may hold bytes that are no text; they show as a replacement mark."""
    name = os.fsencode(entry.name).decode(errors="replace")
    if entry.is_symlink():
        return File(name=name, kind="link", size=None)
    if entry.is_dir(follow_symlinks=False):
        return File(name=name, kind="folder", size=None)
    if entry.is_file(follow_symlinks=False):
        with suppress(FileNotFoundError):  # it may go between two looks
            return File(name=name, kind="file", size=entry.stat(follow_symlinks=False).st_size)
    return File(name=name, kind="other", size=None)


def read_file(folder: Folder, path: str, *, offset: int, limit: int) -> Text:
    """A piece of a file below the root; BadRequest when it is no text in UTF-8."""
    with folder.open(path) as descriptor:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise BadRequest(f"{path!r} is a folder", field="path", hint="files.list lists it")
        raw = os.pread(descriptor, limit, offset)
    text = decode(raw, path, is_last=offset + len(raw) >= found.st_size)
    end = offset + len(text.encode())
    return Text(path=path, text=text, size=found.st_size, next_offset=end if end < found.st_size else None)


def decode(raw: bytes, path: str, *, is_last: bool) -> str:
    """The text of a piece; a character that its end cuts is left for the next piece."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        if not is_last and error.start >= len(raw) - 3 and error.reason == "unexpected end of data":
            return raw[: error.start].decode()
        raise BadRequest(f"{path!r} is no text in UTF-8 at this place", field="path") from None
