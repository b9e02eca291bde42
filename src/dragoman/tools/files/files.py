"""Files to look at: `files.list`, `read`, `search` and `info` over some folders, read-only."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from pydantic import Field

from dragoman.errors import BadRequest
from dragoman.operations.function import from_function
from dragoman.operations.operation import Operation
from dragoman.tools.files.hunt import SECONDS, Hunt
from dragoman.tools.files.roots import Roots

SHOWN = 200  # entries of a folder
SCANNED = 10_000
PIECE = 16_384  # bytes of a file in one answer
LARGEST_PIECE = 65_536
FOUND = 50
MOST_FOUND = 200


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


class Info(TypedDict):
    """What is known of a file or folder; `modified` in UTC."""

    path: str
    kind: Literal["file", "folder"]
    size: int | None
    modified: str


class Found(TypedDict):
    """A file that was found; with the line, the byte and the text where it holds what was sought."""

    path: str
    line: int | None
    offset: int | None
    text: str | None


class Findings(TypedDict):
    """What a search found. Not `complete`: there was more than it may find or look through."""

    found: list[Found]
    complete: bool


def operations(root: Path | None = None, named: Mapping[str, Path] | None = None) -> list[Operation]:
    """`files.list`, `files.read`, `files.search` and `files.info`.

    Paths lead down from `root`; `named` folders, and the root if there are any, are the top of the tree.
    ConfigError when one is no folder.
    """
    roots = Roots(root, named)
    return [*looking(roots), reading(roots), searching(roots)]


def looking(roots: Roots) -> list[Operation]:
    """`files.list` and `files.info`."""

    def show(path: str = ".") -> Listing:
        """List the files of a folder, with their sizes.

        Args:
            path: The folder, from the top of the files that are shown; `.` is the top itself.
        """
        return list_files(roots, path)

    def info(path: str) -> Info:
        """Tell what a file or folder is, its size in bytes and when it was changed.

        Args:
            path: The file or folder, from the top of the files that are shown.
        """
        return tell(roots, path)

    return [
        from_function(show, "files", name="list", effect="read", timeout=10),
        from_function(info, "files", effect="read", timeout=10),
    ]


def reading(roots: Roots) -> Operation:
    """`files.read`."""

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
        return read_file(roots, path, offset=offset, limit=limit)

    return from_function(read, "files", effect="read", timeout=10)


def searching(roots: Roots) -> Operation:
    """`files.search`."""

    def search(
        text: Annotated[str | None, Field(min_length=1, max_length=200)] = None,
        *,
        name: Annotated[str, Field(min_length=1, max_length=200, examples=["*.md", "notes/*.txt"])] = "*",
        path: str = ".",
        exact: bool = False,
        limit: Annotated[int, Field(ge=1, le=MOST_FOUND)] = FOUND,
    ) -> Findings:
        """Find files by name, and lines in them by text, in a folder and all below it.

        Args:
            text: What lines must hold, word for word; without it, files are found by name alone.
            name: What files are called, with * and ?; with a / in it, their whole path.
            path: The folder to search.
            exact: Whether upper and lower case differ.
            limit: How many findings to give at most; five lines a file.
        """
        return search_files(Hunt(roots, name), text, path=path, exact=exact, limit=limit, roots=roots)

    return from_function(search, "files", effect="read", timeout=SECONDS + 20)


def list_files(roots: Roots, path: str) -> Listing:
    """The entries of a folder below the roots."""
    tops = roots.tops(path)
    if tops is not None:
        return Listing(path=path, entries=[File(name=top, kind="folder", size=None) for top in tops], more=0)
    with roots.open(path) as descriptor:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise BadRequest(f"{path!r} is a file", field="path", hint="files.read reads it")
        with os.scandir(descriptor) as found:
            entries = sorted(
                (describe(entry) for entry in islice(found, SCANNED)), key=lambda each: each["name"]
            )
    return Listing(path=path, entries=entries[:SHOWN], more=max(0, len(entries) - SHOWN))


def tell(roots: Roots, path: str) -> Info:
    """What a file or folder is."""
    with roots.open(path) as descriptor:
        found = os.fstat(descriptor)
    is_folder = stat.S_ISDIR(found.st_mode)
    return Info(
        path=path,
        kind="folder" if is_folder else "file",
        size=None if is_folder else found.st_size,
        modified=datetime.fromtimestamp(int(found.st_mtime), UTC).isoformat(),
    )


def search_files(
    hunt: Hunt, text: str | None, *, path: str, exact: bool, limit: int, roots: Roots
) -> Findings:
    """What a search finds, up to the limit."""
    list_files(roots, path)  # says what is wrong with the path, if anything is
    found: list[Found] = []
    if text is None:
        names = hunt.names(path)
        found = [Found(path=name, line=None, offset=None, text=None) for name in islice(names, limit + 1)]
    else:
        matches = islice(hunt.matches(path, text, exact=exact), limit + 1)
        found = [Found(path=name, line=at.line, offset=at.offset, text=at.text) for name, at in matches]
    return Findings(found=found[:limit], complete=hunt.complete and len(found) <= limit)


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


def read_file(roots: Roots, path: str, *, offset: int, limit: int) -> Text:
    """A piece of a file below the roots; BadRequest when it is no text in UTF-8."""
    with roots.open(path) as descriptor:
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
