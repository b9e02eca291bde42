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
from dragoman.operations.decorator import from_function
from dragoman.operations.operation import Operation
from dragoman.tools.files.file_search import MAX_SECONDS, FileSearch
from dragoman.tools.files.roots import Roots

MAX_SHOWN_ENTRIES = 200  # entries of a folder
MAX_SCANNED_ENTRIES = 10_000
DEFAULT_PIECE_BYTES = 16_384  # bytes of a file in one answer
MAX_PIECE_BYTES = 65_536
DEFAULT_MATCHES = 50
MAX_MATCHES = 200


class FolderEntry(TypedDict):
    """An entry of a folder; `size` is in bytes, and given for files."""

    name: str
    kind: Literal["file", "folder", "link", "other"]
    size: int | None


class FolderListing(TypedDict):
    """A folder's entries by name; `more` counts those that are not shown."""

    path: str
    entries: list[FolderEntry]
    more: int


class FilePiece(TypedDict):
    """A piece of a file; `next_offset` is where the rest begins, null at its end."""

    path: str
    text: str
    size: int
    next_offset: int | None


class FileDetails(TypedDict):
    """What is known of a file or folder; `modified` in UTC."""

    path: str
    kind: Literal["file", "folder"]
    size: int | None
    modified: str


class FileMatch(TypedDict):
    """A file that was found; with the line, the byte and the text where it holds what was sought."""

    path: str
    line: int | None
    offset: int | None
    text: str | None


class FileMatches(TypedDict):
    """What a search found. Not `complete`: there was more than it may find or look through."""

    found: list[FileMatch]
    complete: bool


def operations(root: Path | None = None, folders: Mapping[str, Path] | None = None) -> list[Operation]:
    """`files.list`, `files.read`, `files.search` and `files.info`.

    Paths lead down from `root`; `named` folders, and the root if there are any, are the top of the tree.
    ConfigError when one is no folder.
    """
    roots = Roots(root, folders)
    return [*listing_operations(roots), read_operation(roots), search_operation(roots)]


def listing_operations(roots: Roots) -> list[Operation]:
    """`files.list` and `files.info`."""

    def show(path: str = ".") -> FolderListing:
        """List the files of a folder, with their sizes.

        Args:
            path: The folder, from the top of the files that are shown; `.` is the top itself.
        """
        return list_files(roots, path)

    def info(path: str) -> FileDetails:
        """Tell what a file or folder is, its size in bytes and when it was changed.

        Args:
            path: The file or folder, from the top of the files that are shown.
        """
        return file_details(roots, path)

    return [
        from_function(show, "files", name="list", effect="read", timeout=10),
        from_function(info, "files", effect="read", timeout=10),
    ]


def read_operation(roots: Roots) -> Operation:
    """`files.read`."""

    def read(
        path: str,
        *,
        offset: Annotated[int, Field(ge=0)] = 0,
        limit: Annotated[int, Field(ge=16, le=MAX_PIECE_BYTES)] = DEFAULT_PIECE_BYTES,
    ) -> FilePiece:
        """Read a text file, or a piece of it.

        Args:
            path: The file, as files.list shows it, behind its folder: notes/today.txt.
            offset: The byte to begin at; next_offset of the piece before.
            limit: How many bytes to read at most.
        """
        return read_file(roots, path, offset=offset, limit=limit)

    return from_function(read, "files", effect="read", timeout=10)


def search_operation(roots: Roots) -> Operation:
    """`files.search`."""

    def search(
        text: Annotated[str | None, Field(min_length=1, max_length=200)] = None,
        *,
        name: Annotated[str, Field(min_length=1, max_length=200, examples=["*.md", "notes/*.txt"])] = "*",
        path: str = ".",
        exact: bool = False,
        limit: Annotated[int, Field(ge=1, le=MAX_MATCHES)] = DEFAULT_MATCHES,
    ) -> FileMatches:
        """Find files by name, and lines in them by text, in a folder and all below it.

        Args:
            text: What lines must hold, word for word; without it, files are found by name alone.
            name: What files are called, with * and ?; with a / in it, their whole path.
            path: The folder to search.
            exact: Whether upper and lower case differ.
            limit: How many findings to give at most; five lines a file.
        """
        return search_files(FileSearch(roots, name), text, path=path, exact=exact, limit=limit, roots=roots)

    return from_function(search, "files", effect="read", timeout=MAX_SECONDS + 20)


def list_files(roots: Roots, path: str) -> FolderListing:
    """The entries of a folder below the roots."""
    tops = roots.top_names(path)
    if tops is not None:
        return FolderListing(
            path=path, entries=[FolderEntry(name=top, kind="folder", size=None) for top in tops], more=0
        )
    with roots.open(path) as descriptor:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise BadRequest(f"{path!r} is a file", field="path", hint="files.read reads it")
        with os.scandir(descriptor) as found:
            entries = sorted(
                (folder_entry(entry) for entry in islice(found, MAX_SCANNED_ENTRIES)),
                key=lambda each: each["name"],
            )
    return FolderListing(
        path=path, entries=entries[:MAX_SHOWN_ENTRIES], more=max(0, len(entries) - MAX_SHOWN_ENTRIES)
    )


def file_details(roots: Roots, path: str) -> FileDetails:
    """What a file or folder is."""
    with roots.open(path) as descriptor:
        found = os.fstat(descriptor)
    is_folder = stat.S_ISDIR(found.st_mode)
    return FileDetails(
        path=path,
        kind="folder" if is_folder else "file",
        size=None if is_folder else found.st_size,
        modified=datetime.fromtimestamp(int(found.st_mtime), UTC).isoformat(),
    )


def search_files(
    file_search: FileSearch, text: str | None, *, path: str, exact: bool, limit: int, roots: Roots
) -> FileMatches:
    """What a search finds, up to the limit."""
    list_files(roots, path)  # says what is wrong with the path, if anything is
    found: list[FileMatch] = []
    if text is None:
        names = file_search.find_paths(path)
        found = [FileMatch(path=name, line=None, offset=None, text=None) for name in islice(names, limit + 1)]
    else:
        matches = islice(file_search.find_matches(path, text, exact=exact), limit + 1)
        found = [FileMatch(path=name, line=at.line, offset=at.offset, text=at.text) for name, at in matches]
    return FileMatches(found=found[:limit], complete=file_search.complete and len(found) <= limit)


def folder_entry(entry: os.DirEntry[str]) -> FolderEntry:
    """What is told of an entry. Its name may hold bytes that are no text; they show as a replacement mark."""
    name = os.fsencode(entry.name).decode(errors="replace")
    if entry.is_symlink():
        return FolderEntry(name=name, kind="link", size=None)
    if entry.is_dir(follow_symlinks=False):
        return FolderEntry(name=name, kind="folder", size=None)
    if entry.is_file(follow_symlinks=False):
        with suppress(FileNotFoundError):  # it may go between two looks
            return FolderEntry(name=name, kind="file", size=entry.stat(follow_symlinks=False).st_size)
    return FolderEntry(name=name, kind="other", size=None)


def read_file(roots: Roots, path: str, *, offset: int, limit: int) -> FilePiece:
    """A piece of a file below the roots; BadRequest when it is no text in UTF-8."""
    with roots.open(path) as descriptor:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise BadRequest(f"{path!r} is a folder", field="path", hint="files.list lists it")
        raw = os.pread(descriptor, limit, offset)
    text = decode_piece(raw, path, is_last=offset + len(raw) >= found.st_size)
    end = offset + len(text.encode())
    return FilePiece(
        path=path, text=text, size=found.st_size, next_offset=end if end < found.st_size else None
    )


def decode_piece(raw: bytes, path: str, *, is_last: bool) -> str:
    """The text of a piece; a character that its end cuts is left for the next piece."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        if not is_last and error.start >= len(raw) - 3 and error.reason == "unexpected end of data":
            return raw[: error.start].decode()
        raise BadRequest(f"{path!r} is no text in UTF-8 at this place", field="path") from None
