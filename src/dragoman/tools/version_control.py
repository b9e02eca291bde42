"""How version control systems recognise a repository, and where git's configuration puts its hooks.

Hooks and configuration name programs that are run for whoever works in the folder of the repository.
"""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

REPOSITORY_NAMES = frozenset({".git", ".hg", ".jj", ".sl"})
CONFIGURATIONS = (".git/config", ".git/config.worktree")
MAX_CONFIGURATION = 100_000  # bytes
HOOKS_PATH = re.compile(r"^\s*hookspath\s*=\s*\"?([^\s\"#;]+)", re.IGNORECASE | re.MULTILINE)
SHORT_NAME = re.compile(r"git~[0-9]+")  # the 8.3 name of `.git` on NTFS and FAT


def plain_name(name: str) -> str:
    """Return the plain form of a name: names with the same one may be the same file.

    File systems ignore case, invisible characters (HFS+), dots and spaces at the end, or everything after a
    colon (NTFS).
    """
    visible = "".join(character for character in name if unicodedata.category(character) != "Cf")
    plain = unicodedata.normalize("NFKC", visible).casefold().partition(":")[0].rstrip(". ")
    return ".git" if SHORT_NAME.fullmatch(plain) else plain


def is_repository_name(name: str) -> bool:
    """Return whether a file or folder of this name makes its parent folder a repository."""
    return plain_name(name) in REPOSITORY_NAMES


def hook_paths(folder: int) -> Iterator[Sequence[str]]:
    """Yield the `core.hooksPath` of the repository in an open folder, as names below it, if it is inside."""
    for name in CONFIGURATIONS:
        for configured in HOOKS_PATH.findall(read_beginning(folder, name)):
            parts = PurePosixPath(posixpath.normpath(configured)).parts
            if parts and parts[0] not in ("/", "~", ".."):
                yield parts


def read_beginning(folder: int, name: str) -> str:
    """Return the beginning of a file in an open folder; an empty text if it cannot be read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
            return file.read(MAX_CONFIGURATION).decode(errors="replace")
    except OSError:
        return ""
