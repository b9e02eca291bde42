"""The files by which git and others know a repository: names, and the folders of hooks that git is told of.

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
SHORT_NAME = re.compile(r"git~[0-9]+")  # what NTFS and FAT also call a `.git`


def plain_name(name: str) -> str:
    """Return the name that a file system may take a name for.

    Some ignore case, invisible characters (HFS+), dots and spaces at the end, or what follows a colon (NTFS).
    """
    visible = "".join(each for each in name if unicodedata.category(each) != "Cf")
    plain = unicodedata.normalize("NFKC", visible).casefold().partition(":")[0].rstrip(". ")
    return ".git" if SHORT_NAME.fullmatch(plain) else plain


def is_repository_name(name: str) -> bool:
    """Return whether a file or folder of this name makes a repository of the folder that it is in."""
    return plain_name(name) in REPOSITORY_NAMES


def hook_paths(folder: int) -> Iterator[Sequence[str]]:
    """Yield where the git repository in an open folder has its hooks, if that is below the folder."""
    for name in CONFIGURATIONS:
        for configured in HOOKS_PATH.findall(read_beginning(folder, name)):
            parts = PurePosixPath(posixpath.normpath(configured)).parts
            if parts and parts[0] not in ("/", "~", ".."):
                yield parts


def read_beginning(folder: int, name: str) -> str:
    """Return the beginning of a file in an open folder; nothing if it cannot be read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
            return file.read(MAX_CONFIGURATION).decode(errors="replace")
    except OSError:
        return ""
