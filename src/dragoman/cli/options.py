"""Command-line options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

DEFAULT_DATA = Path(".dragoman")
DEFAULT_HUB = "http://127.0.0.1:8000"

Data: TypeAlias = Annotated[Path, typer.Option(envvar="DRAGOMAN_DATA", help="The hub's data folder.")]
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
