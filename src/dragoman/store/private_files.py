"""Permissions of the data folder: it and the hub's files in it are for the hub's user only."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

FOLDER_MODE = 0o700
FILE_MODE = 0o600
PRIVATE_UMASK = 0o077
OWN_FILES = ("hub.db", "hub.db-*", "hub.lock", "keys.cache*", "usage.spool*", "*.log", "*.key")
"""What the hub writes there. A folder may hold other files, which are left as they are."""


def make_private_folder(folder: Path) -> None:
    """Create a data folder for this user only, or remove the permissions of others from one that exists.

    Files that cannot be changed, because they belong to somebody else, are logged and left as they are.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    paths = [folder, *(path for pattern in OWN_FILES for path in folder.glob(pattern))]
    changed = [path for path in paths if make_private(path)]
    if changed:
        names = ", ".join(path.name or str(path) for path in changed[:10])
        log.warning("other users could read %s in %s: their permissions were removed", names, folder)


def make_database_folder(file: Path) -> None:
    """Create the folder of a database for this user only; make an existing data folder private.

    A file of another name than `hub.db` may be in any folder, which keeps its permissions.
    """
    if any(file.match(pattern) for pattern in OWN_FILES):
        make_private_folder(file.parent)
    else:
        file.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)


def make_private(path: Path) -> bool:
    """Remove the permissions of group and others. Return whether there were any that could be removed."""
    try:
        found = path.lstat()
        wanted = FOLDER_MODE if stat.S_ISDIR(found.st_mode) else FILE_MODE
        if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
            return False  # of all users, such as /tmp: closing it would break their programs
        if stat.S_ISLNK(found.st_mode) or not stat.S_IMODE(found.st_mode) & ~wanted:
            return False
        path.chmod(stat.S_IMODE(found.st_mode) & wanted)
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("the permissions of %s cannot be changed: %s", path, error.strerror)
        return False
    return True


def set_private_umask() -> None:
    """Make this process create files for its own user only."""
    os.umask(os.umask(PRIVATE_UMASK) | PRIVATE_UMASK)
