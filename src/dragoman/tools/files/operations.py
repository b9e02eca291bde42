"""`files.list`, `files.read`, `files.search` and `files.info` over some folders, read-only."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, TypedDict

import msgspec
from pydantic import Field

from dragoman.errors import BadRequest
from dragoman.operations.context import Context
from dragoman.operations.definitions.decorator import from_function
from dragoman.operations.operation import Operation
from dragoman.tools.files.folder_search import MAX_SECONDS, FileSearch
from dragoman.tools.files.roots import Roots
from dragoman.tools.files.scope import FileScope, FileScopes, OneScope

MAX_SHOWN_ENTRIES = 200  # entries of a folder that are listed
MAX_SCANNED_ENTRIES = 10_000
DEFAULT_PIECE_BYTES = 16_384  # bytes of a file in one answer
MAX_PIECE_BYTES = 65_536
DEFAULT_MATCHES = 50
MAX_MATCHES = 200


class FolderEntry(TypedDict):
    """An entry of a folder; `size` is in bytes, and only for files."""

    name: str
    kind: Literal["file", "folder", "link", "other"]
    size: int | None


class FolderListing(TypedDict):
    """A folder's entries by name; `more` counts those that are not shown."""

    path: str
    entries: list[FolderEntry]
    more: int


class FilePiece(TypedDict):
    """A piece of a file; `next_offset` is where the rest starts, null at its end."""

    path: str
    text: str
    size: int
    next_offset: int | None


class FileDetails(TypedDict):
    """The type, size and modification time (UTC) of a file or folder."""

    path: str
    kind: Literal["file", "folder"]
    size: int | None
    modified: str


class FileMatch(TypedDict):
    """A matching file; with the line, the byte offset and the text of the match."""

    path: str
    line: int | None
    offset: int | None
    text: str | None


class FileMatches(TypedDict):
    """The matches. Not `complete` if there are more, or not everything was searched."""

    found: list[FileMatch]
    complete: bool


def operations(root: Path | None = None, folders: Mapping[str, Path] | None = None) -> list[Operation]:
    """Return `files.list`, `files.read`, `files.search` and `files.info`.

    Paths are relative to `root`; with named `folders`, these and the root are the top of the tree. Raises
    ConfigError if one is not a folder.
    """
    return reading_operations(OneScope(FileScope(Roots(root, folders))), identity_aware=False)


def reading_operations(scopes: FileScopes, *, identity_aware: bool) -> list[Operation]:
    """Return the operations that read, over the files of each caller."""
    operations = [*listing_operations(scopes), read_operation(scopes), search_operation(scopes)]
    return [msgspec.structs.replace(operation, identity_aware=identity_aware) for operation in operations]


def listing_operations(scopes: FileScopes) -> list[Operation]:
    """Return `files.list` and `files.info`."""

    def show(path: str = ".", *, context: Context) -> FolderListing:
        """List the files of a folder, with their sizes.

        Args:
            path: The folder, relative to the top of the shared files; `.` is the top itself.
        """
        return list_files(scopes.scope(context).roots, path)

    def info(path: str, *, context: Context) -> FileDetails:
        """Get the type of a file or folder, its size in bytes and when it was changed.

        Args:
            path: The file or folder, relative to the top of the shared files.
        """
        return file_details(scopes.scope(context).roots, path)

    return [
        from_function(show, "files", name="list", effect="read", timeout=10),
        from_function(info, "files", effect="read", timeout=10),
    ]


def read_operation(scopes: FileScopes) -> Operation:
    """Return `files.read`."""

    def read(
        path: str,
        *,
        offset: Annotated[int, Field(ge=0)] = 0,
        limit: Annotated[int, Field(ge=16, le=MAX_PIECE_BYTES)] = DEFAULT_PIECE_BYTES,
        context: Context,
    ) -> FilePiece:
        """Read a text file, or a piece of it.

        Args:
            path: The file as files.list shows it, with its folder: notes/today.txt.
            offset: The byte to start at; next_offset of the previous piece.
            limit: How many bytes to read at most.
        """
        return read_file(scopes.scope(context).roots, path, offset=offset, limit=limit)

    return from_function(read, "files", effect="read", timeout=10)


def search_operation(scopes: FileScopes) -> Operation:
    """Return `files.search`."""

    def search(
        text: Annotated[str | None, Field(min_length=1, max_length=200)] = None,
        *,
        name: Annotated[str, Field(min_length=1, max_length=200, examples=["*.md", "notes/*.txt"])] = "*",
        path: str = ".",
        exact: bool = False,
        limit: Annotated[int, Field(ge=1, le=MAX_MATCHES)] = DEFAULT_MATCHES,
        context: Context,
    ) -> FileMatches:
        """Find files by name, and lines in them by text, in a folder and all below it.

        Args:
            text: The text that lines must contain, literally; without it, files are found by name alone.
            name: The file name, with * and ?; with a / in it, the whole path.
            path: The folder to search.
            exact: Whether the search is case-sensitive.
            limit: How many matches to return at most; five lines a file.
        """
        roots = scopes.scope(context).roots
        return search_files(FileSearch(roots, name), text, path=path, exact=exact, limit=limit, roots=roots)

    return from_function(search, "files", effect="read", timeout=MAX_SECONDS + 20)


def list_files(roots: Roots, path: str) -> FolderListing:
    """Return the entries of a folder."""
    top_names = roots.top_names(path)
    if top_names is not None:
        return FolderListing(
            path=path,
            entries=[FolderEntry(name=name, kind="folder", size=None) for name in top_names],
            more=0,
        )
    with roots.open(path) as descriptor:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise BadRequest(f"{path!r} is a file.", field="path", hint="Read it with files.read.")
        with os.scandir(descriptor) as scan:
            entries = sorted(
                (folder_entry(entry) for entry in islice(scan, MAX_SCANNED_ENTRIES)),
                key=lambda entry: entry["name"],
            )
    return FolderListing(
        path=path, entries=entries[:MAX_SHOWN_ENTRIES], more=max(0, len(entries) - MAX_SHOWN_ENTRIES)
    )


def file_details(roots: Roots, path: str) -> FileDetails:
    """Return the details of a file or folder."""
    with roots.open(path) as descriptor:
        status = os.fstat(descriptor)
    is_folder = stat.S_ISDIR(status.st_mode)
    return FileDetails(
        path=path,
        kind="folder" if is_folder else "file",
        size=None if is_folder else status.st_size,
        modified=datetime.fromtimestamp(int(status.st_mtime), UTC).isoformat(),
    )


def search_files(
    file_search: FileSearch, text: str | None, *, path: str, exact: bool, limit: int, roots: Roots
) -> FileMatches:
    """Return the matches of a search, up to the limit."""
    list_files(roots, path)  # raises for an invalid path
    matches_found: list[FileMatch] = []
    if text is None:
        names = file_search.find_paths(path)
        matches_found = [
            FileMatch(path=path_found, line=None, offset=None, text=None)
            for path_found in islice(names, limit + 1)
        ]
    else:
        matches = islice(file_search.find_matches(path, text, exact=exact), limit + 1)
        matches_found = [
            FileMatch(path=path_found, line=match.line, offset=match.offset, text=match.text)
            for path_found, match in matches
        ]
    return FileMatches(
        found=matches_found[:limit], complete=file_search.complete and len(matches_found) <= limit
    )


def folder_entry(entry: os.DirEntry[str]) -> FolderEntry:
    """Return one entry. Bytes of its name that are not UTF-8 show as replacement characters."""
    name = os.fsencode(entry.name).decode(errors="replace")
    if entry.is_symlink():
        return FolderEntry(name=name, kind="link", size=None)
    if entry.is_dir(follow_symlinks=False):
        return FolderEntry(name=name, kind="folder", size=None)
    if entry.is_file(follow_symlinks=False):
        with suppress(FileNotFoundError):  # it may be deleted meanwhile
            return FolderEntry(name=name, kind="file", size=entry.stat(follow_symlinks=False).st_size)
    return FolderEntry(name=name, kind="other", size=None)


def read_file(roots: Roots, path: str, *, offset: int, limit: int) -> FilePiece:
    """Return a piece of a file. Raises BadRequest if it is not UTF-8 text."""
    with roots.open(path) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadRequest(f"{path!r} is a folder.", field="path", hint="List it with files.list.")
        raw = os.pread(descriptor, limit, min(offset, status.st_size))
    text = decode_piece(raw, path, is_last=offset + len(raw) >= status.st_size)
    end = offset + len(text.encode())
    return FilePiece(
        path=path, text=text, size=status.st_size, next_offset=end if end < status.st_size else None
    )


def decode_piece(raw: bytes, path: str, *, is_last: bool) -> str:
    """Decode a piece; a character that its end cuts is left for the next piece."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        if not is_last and error.start >= len(raw) - 3 and error.reason == "unexpected end of data":
            return raw[: error.start].decode()
        raise BadRequest(f"{path!r} is not UTF-8 text at this offset.", field="path") from None
