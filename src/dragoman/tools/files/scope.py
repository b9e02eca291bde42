"""FileScope: the files that one caller may read and write."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeAlias

from dragoman.errors import Forbidden, TooLarge
from dragoman.operations.context import Context
from dragoman.tools.files.protected_files import ProtectedFiles
from dragoman.tools.files.rooted_folder import FileText, decode_whole, read_whole, replace_file
from dragoman.tools.files.roots import Roots

MAX_WRITE_BYTES = 4_000_000  # bytes of a file that is written or edited

WriteGuard: TypeAlias = Callable[[str, Context], Awaitable[None]]
"""Called with each text before it is written to a file. Raises Forbidden for one that contains a secret."""


async def allow_any_text(text: str, context: Context) -> None:
    """Allow every text: the write guard of a hub that keeps no secrets for its callers."""


class FileScope:
    """Files of one caller: the folders it sees, and those of them that it may write to.

    `writable` names top folders of the roots; `.` stands for a single root. What `protected` covers is not
    written, whatever path leads to it. Writes in one scope happen one at a time.
    """

    def __init__(
        self,
        roots: Roots,
        *,
        writable: Iterable[str] = (),
        protected: ProtectedFiles | None = None,
        write_guard: WriteGuard = allow_any_text,
    ) -> None:
        self.roots = roots
        self.write_guard = write_guard
        self._writable = frozenset(writable)
        self._protected = protected or ProtectedFiles()
        self._lock = threading.Lock()

    def change(self, path: str, new_text: Callable[[str | None], str]) -> tuple[str | None, str]:
        """Replace the text of a file by `new_text(old_text)`. Return the old and the new text.

        The old text is None for a new file. The file is replaced atomically: a reader sees the old or the new
        one, and hard links to the old one keep it. Raises Forbidden, NotFound, BadRequest, TooLarge.
        """
        folder, inner_path = self.roots.resolve(path)
        self._check_writable(path)
        opened = folder.open_parent(inner_path, display_path=path, protected=self._protected)
        with self._lock, opened as (parent, name):
            old = read_whole(parent, name, path=path, protected=self._protected, limit=MAX_WRITE_BYTES)
            text = new_text(None if old is None else old.text)
            body = text.encode()
            if len(body) > MAX_WRITE_BYTES:
                raise TooLarge(f"The file would have {len(body)} bytes; the limit is {MAX_WRITE_BYTES}.")
            content = FileText(text, old.mode if old else None)
            replace_file(parent, name, content=content, path=path)
        return (None if old is None else old.text), text

    def read(self, path: str) -> str:
        """Return the text of a file that may be written. Raises NotFound, Forbidden, BadRequest, TooLarge."""
        self._check_writable(path)
        with self.roots.open(path) as descriptor:
            return decode_whole(descriptor, path=path, limit=MAX_WRITE_BYTES).text

    def _check_writable(self, path: str) -> None:
        if self.roots.top_folder(path) not in self._writable:
            names = " and ".join(f"{name}/" for name in sorted(self._writable)) or "no folder"
            raise Forbidden(f"{path!r} is read-only.", hint=f"Write to {names}.")


class FileScopes(Protocol):
    """Finds the files of a caller."""

    def scope(self, context: Context) -> FileScope:
        """Return the files of the caller. Raises CallError for a caller that has none."""


class OneScope:
    """The same files for every caller."""

    def __init__(self, scope: FileScope) -> None:
        self._scope = scope

    def scope(self, context: Context) -> FileScope:
        """Return the files."""
        return self._scope
