"""The data folder of a command: which one it is, and whether a hub has used it."""

from __future__ import annotations

import os
from pathlib import Path

from dragoman.cli.options import DataOption
from dragoman.cli.terminal import print_note
from dragoman.errors import NotFound

CONFIG_FILE = Path("dragoman.yaml")
DATABASE_VARIABLES = ("DRAGOMAN_DATABASE", "DRAGOMAN__DATABASE")
WRONG_FOLDER_HINT = "run this in the folder in which the hub was started, or name its data folder with --data"


def require_data_folder(data: Path) -> Path:
    """Return the data folder, and print which one it is unless the command names it. NotFound.

    With a Postgres database the folder need not hold anything.
    """
    if note_database(find_database()):
        return data
    if not has_data(data):
        raise NotFound(f"there is no hub data in {str(data.absolute())!r}", hint=WRONG_FOLDER_HINT)
    if DataOption.source != "commandline":
        print_note(f"data folder: {data.absolute()}")
    return data


def create_data_folder(data: Path, *, config: Path | None = None) -> Path:
    """Return the data folder, and print which one it is. It need not exist yet if a hub could start there.

    That is if the command or the environment names it, or if there is a configuration. NotFound otherwise.
    """
    if note_database(find_database(config)):
        return data
    if has_data(data):
        print_note(f"data folder: {data.absolute()}")
        return data
    if DataOption.source == "default" and not is_configured(config):
        raise NotFound(
            f"there is no hub data in {str(data.absolute())!r}, and no configuration in this folder",
            hint=f"{WRONG_FOLDER_HINT}; to create a new one here: --data {data}",
        )
    print_note(f"data folder: {data.absolute()}, which is new")
    return data


def has_data(data: Path) -> bool:
    """Return whether a folder holds the data of a hub."""
    return (data / "hub.db").exists()


def find_database(config: Path | None = None) -> str | None:
    """Return the URL of the database in the environment or a configuration; None for SQLite. ConfigError."""
    named = [name for name in os.environ if name.upper() in DATABASE_VARIABLES]
    file = config or (CONFIG_FILE if CONFIG_FILE.exists() else None)
    if file is None and not named:
        return None
    from dragoman.config import read_database  # late: YAML takes 0.1 s, and most commands need none

    return read_database(file, os.environ)


def note_database(url: str | None) -> bool:
    """Print which Postgres database a command works on, without its password. False for SQLite."""
    if url is None:
        return False
    from dragoman.store.postgres.url import shown_url  # late: SQLAlchemy takes 0.2 s

    print_note(f"database: {shown_url(url)}")
    return True


def is_configured(config: Path | None) -> bool:
    """Return whether a hub that is started here would find a configuration."""
    # late: YAML takes 0.1 s, and --help should not
    from dragoman.cli.config_discovery import find_config_file
    from dragoman.config import config_variables  # late: as above

    return config is not None or find_config_file() is not None or bool(config_variables(os.environ))
