"""`files.write`, `files.edit`, `files.glob` and `files.grep`, over the files of each caller."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, TypedDict

from pydantic import BaseModel, Field

from dragoman.errors import Conflict, NotFound
from dragoman.operations.context import Context
from dragoman.operations.definitions.decorator import from_function
from dragoman.operations.operation import Operation
from dragoman.tools.files.content_search import ContentSearch
from dragoman.tools.files.folder_search import MAX_SECONDS, FileSearch
from dragoman.tools.files.operations import list_files
from dragoman.tools.files.path_patterns import PathPattern
from dragoman.tools.files.scope import MAX_WRITE_BYTES, FileScope, FileScopes
from dragoman.tools.files.text_edits import TextEdit, apply_edits, unified_diff

MAX_EDITS = 100
DEFAULT_PATHS = 200
MAX_PATHS = 1_000
DEFAULT_LINES = 100
MAX_LINES = 500


class Replacement(BaseModel):
    """One edit: `old` is replaced by `new`."""

    old: str = Field(min_length=1, description="The exact text to replace; it must occur exactly once.")
    new: str = Field(description="The new text.")
    everywhere: bool = Field(False, description="Replace every occurrence.")


class ChangedFile(TypedDict):
    """A file that was written: its size in bytes, whether it is new, and what changed as a unified diff."""

    path: str
    size: int
    created: bool
    diff: str


class PathsFound(TypedDict):
    """Paths that match, folder by folder. Not `complete` if there are more, or not all was searched."""

    paths: list[str]
    complete: bool


class FoundLine(TypedDict):
    """A line that matches; `line` counts from 1."""

    path: str
    line: int
    text: str


class FoundLines(TypedDict):
    """Lines that match. Not `complete` if there are more, or not everything was searched."""

    found: list[FoundLine]
    complete: bool


def writing_operations(scopes: FileScopes) -> list[Operation]:
    """Return `files.write` and `files.edit`."""

    async def write(
        path: str, text: Annotated[str, Field(max_length=MAX_WRITE_BYTES)], *, context: Context
    ) -> ChangedFile:
        """Write a text file: create it, or replace what is there. Missing folders are created.

        Args:
            path: The file, as files.list shows it: workspace/notes.md.
            text: The whole text of the file.
        """
        scope = scopes.scope(context)
        await scope.write_guard(text, context)
        return await change_file(scope, path, new_text=lambda _: text, context=context)

    async def edit(
        path: str,
        edits: Annotated[list[Replacement], Field(min_length=1, max_length=MAX_EDITS)],
        *,
        context: Context,
    ) -> ChangedFile:
        """Replace texts in a file: all edits, in their order, or none.

        Args:
            path: The file, as files.list shows it: workspace/notes.md.
            edits: The replacements; later edits see the result of earlier ones.
        """
        scope = scopes.scope(context)
        changes = [TextEdit(edit.old, edit.new, edit.everywhere) for edit in edits]

        def new_text(old: str | None) -> str:
            if old is None:
                raise NotFound(f"There is no {path!r}.", hint="files.write creates a file.")
            return apply_edits(old, changes, path=path)

        preview = await context.offload(lambda: new_text(scope.read(path)))
        await scope.write_guard(preview, context)  # a secret may come together out of several edits
        return await change_file(scope, path, new_text=same_or_conflict(preview, new_text), context=context)

    return [
        from_function(write, "files", effect="idempotent", timeout=30),
        from_function(edit, "files", effect="once", timeout=30),
    ]


def same_or_conflict(checked: str, new_text: Callable[[str | None], str]) -> Callable[[str | None], str]:
    """Return `new_text` with a check: it raises Conflict if the file has changed since `checked` was made."""

    def change(old: str | None) -> str:
        if new_text(old) != checked:
            raise Conflict("The file was changed meanwhile.", hint="Read it again and repeat the edit.")
        return checked

    return change


async def change_file(
    scope: FileScope, path: str, *, new_text: Callable[[str | None], str], context: Context
) -> ChangedFile:
    """Change a file and return what changed."""

    def change() -> ChangedFile:
        old, new = scope.change(path, new_text)
        return ChangedFile(
            path=path,
            size=len(new.encode()),
            created=old is None,
            diff=unified_diff(old or "", new, path=path),
        )

    return await context.offload(change)


def finding_operations(scopes: FileScopes, *, ripgrep: str | None = None) -> list[Operation]:
    """Return `files.glob` and `files.grep`.

    `ripgrep` is its program, empty for none; by default the one that is installed, if any.
    """
    program = shutil.which("rg") if ripgrep is None else ripgrep or None
    return [glob_operation(scopes), grep_operation(scopes, program)]


def glob_operation(scopes: FileScopes) -> Operation:
    """Return `files.glob`."""

    def glob(
        pattern: Annotated[str, Field(min_length=1, max_length=200, examples=["**/*.py", "docs/*.md"])],
        *,
        path: str = ".",
        limit: Annotated[int, Field(ge=1, le=MAX_PATHS)] = DEFAULT_PATHS,
        context: Context,
    ) -> PathsFound:
        """Find files by the pattern of their path below a folder.

        Args:
            pattern: The path below the folder: * and ? within a name, ** for any folders.
            path: The folder to search.
            limit: How many paths to return at most.
        """
        scope = scopes.scope(context)
        search = FileSearch(scope.roots, "*")
        list_files(scope.roots, path)  # raises for an invalid path
        paths = list(islice(matching_paths(search, pattern, path=path), limit + 1))
        return PathsFound(paths=paths[:limit], complete=search.complete and len(paths) <= limit)

    return from_function(glob, "files", effect="read", timeout=MAX_SECONDS + 20)


def grep_operation(scopes: FileScopes, ripgrep: str | None) -> Operation:
    """Return `files.grep`."""

    def grep(
        expression: Annotated[str, Field(min_length=1, max_length=500, examples=["def \\w+_test"])],
        *,
        path: str = ".",
        pattern: Annotated[str, Field(min_length=1, max_length=200, examples=["**/*.py"])] = "**",
        ignore_case: bool = False,
        limit: Annotated[int, Field(ge=1, le=MAX_LINES)] = DEFAULT_LINES,
        context: Context,
    ) -> FoundLines:
        """Find the lines of text files that match a regular expression; at most fifty a file.

        Args:
            expression: The expression, without look-arounds and references.
            path: The folder to search.
            pattern: Which files are searched, by their path below the folder, as in files.glob.
            ignore_case: Whether case is ignored.
            limit: How many lines to return at most.
        """
        roots = scopes.scope(context).roots
        list_files(roots, path)  # raises for an invalid path
        files = FileSearch(roots, "*")
        search = ContentSearch(roots, expression, ignore_case=ignore_case, ripgrep=ripgrep)
        lines = list(islice(search.find(files, matching_paths(files, pattern, path=path)), limit + 1))
        found = [FoundLine(path=line.path, line=line.line, text=line.text) for line in lines[:limit]]
        return FoundLines(found=found, complete=search.complete and files.complete and len(lines) <= limit)

    return from_function(grep, "files", effect="read", timeout=MAX_SECONDS + 20)


def matching_paths(search: FileSearch, pattern: str, *, path: str) -> Iterator[str]:
    """Return the files below a folder whose path relative to it matches a pattern."""
    path_pattern = PathPattern(pattern)
    prefix = "" if path in (".", "", "./") else f"{path.rstrip('/')}/"
    return (file for file in search.find_paths(path) if path_pattern.matches(file.removeprefix(prefix)))
