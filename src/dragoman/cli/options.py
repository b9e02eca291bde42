"""Command-line options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

DEFAULT_DATA = Path(".dragoman")
DEFAULT_HUB = "http://127.0.0.1:8000"


class DataOption:
    """Where the value of `--data` comes from: `commandline`, `environment` or `default`."""

    source = "commandline"


def note_data_source(context: typer.Context, value: Path) -> Path:
    """Remember where the value of `--data` comes from."""
    source = context.get_parameter_source("data")
    DataOption.source = "commandline" if source is None else source.name.lower()
    return value


Data: TypeAlias = Annotated[
    Path,
    typer.Option(envvar="DRAGOMAN_DATA", callback=note_data_source, help="The hub's data folder."),
]
Database: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="DRAGOMAN_DATABASE",
        metavar="URL",
        help="A Postgres database, postgresql://…",
    ),
]
Hub: TypeAlias = Annotated[
    str | None,
    typer.Option(envvar="DRAGOMAN_HUB", metavar="URL", help=f"A running hub, such as {DEFAULT_HUB}."),
]
Key: TypeAlias = Annotated[
    str | None, typer.Option(envvar="DRAGOMAN_KEY", help="A key of that hub (better in the variable).")
]
ConfigFile: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The configuration; ./dragoman.yaml if there is one.")
]
Places: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--operations", metavar="PATH", help="Further operations: a Python file or module. May be repeated."
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
