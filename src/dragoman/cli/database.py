"""`dragoman database`: inspect the hub's database, move it, back it up and shrink it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from dragoman.cli.options import DEFAULT_DATA, AsJson, ConfigFile, Data
from dragoman.cli.terminal import examples, format_period, print_json, print_line, print_note, print_table

if TYPE_CHECKING:
    from dragoman.store.maintenance.backup import BackupManifest
    from dragoman.store.maintenance.folder_files import ReplacedFiles
    from dragoman.store.maintenance.location import DatabaseLocation
    from dragoman.store.maintenance.progress import Progress
    from dragoman.store.maintenance.status import DatabaseStatus, TableStatus

DatabaseUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="DRAGOMAN_DATABASE",
        metavar="URL",
        show_envvar=True,
        help="postgresql://… or sqlite:PATH, instead of the one of the configuration or the data folder.",
    ),
]
Replace: TypeAlias = Annotated[
    bool, typer.Option("--replace", help="Delete what the target holds; without it, it must be empty.")
]
UNITS = ("bytes", "kB", "MB", "GB", "TB")

database = typer.Typer(no_args_is_help=True, help="The hub's database: status, copies, backups, size.")


@database.command(
    "status",
    epilog=examples(
        ("dragoman database status", "the database of ./dragoman.yaml, or of .dragoman"),
        ("dragoman database status --database postgresql://hub@db/hub --json", "another one, for programs"),
    ),
)
def print_status(
    *, data: Data = DEFAULT_DATA, config: ConfigFile = None, url: DatabaseUrl = None, json: AsJson = False
) -> None:
    """Print what the database holds.

    Its address (without the password), the server's version, the revision of its tables and that of this
    program, its size, the rows of each table and the age of the oldest, and how many rows retention would
    delete now. Reads only; a hub may be running.
    """
    from dragoman.cli.config_discovery import read_config_if_any  # late: YAML and SQLAlchemy take 0.3 s
    from dragoman.store.maintenance.status import read_status  # late: as above

    status = read_status(locate(data, config, url=url), read_config_if_any(config).retention_periods)
    if json:
        print_json(status)
        return
    print_server(status)
    print_tables(status.tables)


@database.command(
    "migrate",
    epilog=examples(
        ("dragoman database migrate", "prints the old and new revision"),
        ("dragoman database backup before.db && dragoman database migrate", "with a way back"),
    ),
)
def migrate_tables(*, data: Data = DEFAULT_DATA, config: ConfigFile = None, url: DatabaseUrl = None) -> None:
    """Migrate the tables to the revision of this program.

    A hub migrates its database at startup; use this command to migrate beforehand. In an empty Postgres
    database it creates the tables. It fails while a hub uses the database.
    """
    from dragoman.store.maintenance.migration import migrate  # late: SQLAlchemy takes 0.2 s

    location = locate(data, config, url=url)
    report = migrate(location)
    if report.before == report.after:
        print_line(f"{location.name} is of revision {report.after}: nothing to do")
    elif report.before is None:
        print_line(f"{location.name} was empty: its tables, of revision {report.after}, were created")
    else:
        print_line(f"{location.name} was migrated from revision {report.before} to {report.after}")


@database.command(
    "backup",
    epilog=examples(
        ("dragoman database backup hub-$(date +%F).db", "a consistent copy, while the hub runs"),
        ("dragoman database backup --without-key off-site.db", "without the key of the data folder"),
    ),
)
def make_backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    *,
    data: Data = DEFAULT_DATA,
    config: ConfigFile = None,
    url: DatabaseUrl = None,
    without_key: Annotated[
        bool, typer.Option("--without-key", help="Leave out the key of the data folder; keep it elsewhere.")
    ] = False,
) -> None:
    """Write a backup of the database, SQLite or Postgres, into one file while the hub runs.

    The backup is a consistent snapshot of all rows. It includes the data folder's key, and answers and usage
    that are not yet in the database, but not the master key of `dragoman secrets`. Only you can read it
    (mode 0600). The file appears after its row counts have been verified.
    """
    from dragoman.store.maintenance.backup import back_up  # late: SQLAlchemy takes 0.2 s

    location = locate(data, config, url=url)
    with showing_progress() as progress:
        manifest = back_up(location, file, progress=progress, with_key=not without_key)
    print_line(f"{file}: {describe_rows(manifest.rows)}, {format_size(file.stat().st_size)}")
    print_manifest_notes(manifest)


@database.command(
    "restore",
    epilog=examples(
        ("dragoman database restore hub.db --data ./new", "into a new data folder"),
        ("dragoman database restore hub.db --replace", "instead of what is there"),
        ("dragoman database restore hub.db --database postgresql://hub@db/hub", "into Postgres"),
    ),
)
def restore_backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup, or a database file of SQLite.")],
    *,
    data: Data = DEFAULT_DATA,
    config: ConfigFile = None,
    url: DatabaseUrl = None,
    replace: Replace = False,
) -> None:
    """Restore a backup into SQLite or Postgres, whichever it was made from.

    Fails while a hub uses the target, or if the target contains rows and --replace is not given. The target
    is changed once the backup is verified: SQLite at the end, in one step; Postgres row by row, and no hub
    starts on it before the end. Backups of older versions are migrated.
    """
    from dragoman.store.maintenance.backup import restore  # late: SQLAlchemy takes 0.2 s

    location = locate(data, config, url=url, is_new=True)
    with showing_progress() as progress:
        report = restore(file, location, progress=progress, replace=replace)
    manifest = report.manifest
    made = f" of {format_day(manifest.created_at)}" if manifest.created_at else ""
    print_line(f"{location.name}: restored the backup{made}, {describe_rows(manifest.rows)}")
    print_manifest_notes(manifest)
    print_replaced(report.replaced)


@database.command(
    "copy",
    epilog=examples(
        (
            "dragoman database copy --from sqlite:.dragoman --to postgresql://hub@db/hub",
            "while the hub runs; then stop it, run this again, and start it on the target",
        ),
        ("dragoman database copy --from sqlite:a/hub.db --to sqlite:b/hub.db", "from one file to another"),
    ),
)
def copy_database(
    *,
    source: Annotated[
        str, typer.Option("--from", metavar="URL", help="sqlite:PATH (a folder, a file) or postgresql://…")
    ],
    target: Annotated[
        str, typer.Option("--to", metavar="URL", help="The same; an empty database, or an earlier copy.")
    ],
    replace: Replace = False,
) -> None:
    """Copy all rows from one database to another.

    The source is read from a snapshot, so a hub can keep writing to it. Run the command again to copy later
    changes: only differences are written. It also continues after an interruption, even kill -9. At the end,
    row counts and checksums of all tables are compared; until they match, no hub starts on the target. The
    search index is not copied: searches rebuild it.
    """
    from dragoman.store.maintenance.data_folder_copy import transfer  # late: as above
    from dragoman.store.maintenance.location import DatabaseLocation  # late: SQLAlchemy takes 0.2 s

    origin, destination = DatabaseLocation.parse(source), DatabaseLocation.parse(target)
    with showing_progress() as progress:
        report, replaced = transfer(origin, destination, progress=progress, replace=replace)
    print_line(
        f"{destination.name}: {describe_rows(report.rows)}, equal to {origin.name}"
        f" ({report.written:,} written, {report.deleted:,} deleted)"
    )
    if report.changed:
        new = ", ".join(f"{count:,} {name}" for name, count in report.new_rows.items())
        print_note(f"the source has changed meanwhile{f': {new} more' if new else ''}", level="warning")
        print_note("stop its hub and run the same command again: it copies what is missing", level="warning")
    print_replaced(replaced)
    if origin.folder is not None and destination.path is None:
        print_note(f"start the hub with the data folder {origin.folder}: its key is not in the database")
    if origin.path is None and destination.folder is not None and report.rows.get("mcp_servers"):
        print_note(
            f"copy hub.key of the hub's data folder to {destination.folder}: it is not in the database"
        )


@database.command(
    "compact",
    epilog=examples(
        ("dragoman database compact", "after retention has deleted much; stop the hub before"),
        ("dragoman database compact --database postgresql://hub@db/hub", "VACUUM, while hubs run"),
    ),
)
def compact_database(
    *,
    data: Data = DEFAULT_DATA,
    config: ConfigFile = None,
    url: DatabaseUrl = None,
    full: Annotated[
        bool, typer.Option("--full", help="Postgres: write all tables anew, which needs all hubs stopped.")
    ] = False,
) -> None:
    """Release the disk space of deleted rows, and print how much.

    For SQLite, stop the hub first; the disk needs free space of twice the file size. Postgres is vacuumed
    while hubs run, so that its tables reuse the space; --full returns it to the operating system.
    """
    from dragoman.store.maintenance.compact import compact  # late: SQLAlchemy takes 0.2 s

    location = locate(data, config, url=url)
    report = compact(location, full=full)
    freed = max(0, report.before - report.after)
    print_line(
        f"{location.name}: freed {format_size(freed)}, {format_size(report.before)} before,"
        f" {format_size(report.after)} now"
    )


def locate(data: Path, config: Path | None, *, url: str | None, is_new: bool = False) -> DatabaseLocation:
    """Return the database of a command: of `--database`, of the configuration, or of the data folder.

    NotFound when there is none in the data folder, unless `is_new`.
    """
    from dragoman.cli.data_folder import find_database, require_data_folder  # late: as below
    from dragoman.store.maintenance.location import DatabaseLocation  # late: SQLAlchemy takes 0.2 s

    address = url or find_database(config)
    if address:
        return DatabaseLocation.parse(address, folder=data)
    if not is_new:
        require_data_folder(data)
    return DatabaseLocation.of_folder(data)


@contextmanager
def showing_progress() -> Iterator[Progress]:
    """Draw the progress of the block on stderr, if that is a terminal."""
    from dragoman.cli.database_progress import ProgressBar  # late: rich takes 0.1 s

    with ProgressBar() as bar:
        yield bar


def print_server(status: DatabaseStatus) -> None:
    from dragoman.store.schema import is_known_revision, newer_schema  # late: SQLAlchemy takes 0.2 s

    size = "unknown" if status.size is None else format_size(status.size)
    hub = "no hub" if status.used_by is None else f"a hub, {status.used_by}"
    current = status.revision == status.program_revision
    of_program = "as this program" if current else f"this program has {status.program_revision}"
    rows = [
        ("database", status.database),
        ("server", status.server),
        ("revision", f"{status.revision} ({of_program})"),
        ("size", size),
        ("used by", hub),
    ]
    for name, value in rows:
        print_line(f"{name:<9} {value}")
    if status.revision is not None and not is_known_revision(status.revision):
        print_note(str(newer_schema(status.database, status.revision).hint))
    elif not current:
        print_note("`dragoman database migrate` brings an older database to this program's revision")


def print_replaced(replaced: ReplacedFiles) -> None:
    """Print where the former files of a data folder are."""
    if replaced.key is not None:
        print_note(f"the folder had another key, which is in {replaced.key} now")
    if replaced.spools is not None:
        print_note(
            f"usage and answers that waited for the former database are in {replaced.spools} now;"
            " if they belong to this one, move them back before a hub starts",
            level="warning",
        )


def print_tables(tables: list[TableStatus]) -> None:
    if not tables:
        return
    print_line("")
    rows = [
        (
            table.name,
            f"{table.rows:,}",
            format_day(table.oldest),
            format_period(table.kept_for),
            f"{table.expired:,}" if table.expired else "",
        )
        for table in tables
    ]
    print_table(("TABLE", "ROWS", "OLDEST", "KEPT", "EXPIRED"), rows)


def print_manifest_notes(manifest: BackupManifest) -> None:
    """Print what a restored hub needs besides the backup."""
    if not manifest.has_key and manifest.rows.get("mcp_servers"):
        print_note("without the data folder's hub.key, MCP servers added at run time cannot be read")
    for key in manifest.master_keys:
        print_note(f"its secrets need the master key {key}, which is not in the backup")


def describe_rows(rows: Mapping[str, int]) -> str:
    return f"{sum(rows.values()):,} rows in {len(rows)} tables, {rows.get('messages', 0):,} messages"


def format_size(size: float) -> str:
    """Format a number of bytes."""
    for unit in UNITS:
        if size < 1000 or unit == UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == UNITS[0] else f"{size:.1f} {unit}"
        size /= 1000
    return ""


def format_day(moment: float | None) -> str:
    return "" if moment is None else f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"
