"""Terminal output: results on stdout, notes and errors on stderr, tables, JSON, ages."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
import typer

if TYPE_CHECKING:
    from rich.console import Console

# What moves the cursor, rings, recolours or turns the direction of what follows: nobody but us does that to
# the user's terminal.
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
MINUTE, HOUR, DAY = 60, 3600, 86400


def prepare_streams() -> None:
    """Let nothing that is printed fail for the sake of the terminal's encoding."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def print_line(text: str) -> None:
    """A result, to stdout."""
    typer.echo(strip_controls(text))


def print_note(text: str) -> None:
    """A word about what happens, to stderr."""
    typer.echo(strip_controls(f"dragoman: {text}"), err=True)


def print_error(message: str, *, hint: str | None = None) -> None:
    """What went wrong, and on a second line what to do."""
    print_note(message)
    if hint:
        typer.echo(strip_controls(f"  {hint}"), err=True)


def print_json(value: Any) -> None:
    """A value as JSON, for programs."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns under a head; in a terminal a line too long is cut at its end."""
    cells = [[strip_controls(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for number, row in enumerate([list(headings), *cells]):
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        line = truncate("  ".join(padded).rstrip(), limit)
        typer.echo(typer.style(line, dim=True) if number == 0 else line)


def truncate(text: str, limit: int | None) -> str:
    """The text, at most `limit` characters of it; the cut shows as `…`."""
    return text if limit is None or len(text) <= limit else f"{text[: limit - 1]}…"


def strip_controls(text: str) -> str:
    """The text without control characters but tab and newline, and without those that turn its direction."""
    return CONTROL_CHARACTERS.sub("", text)


def format_age(moment: float) -> str:
    """How long a moment (unix seconds) has passed, in a word."""
    seconds = max(0, int(time.time() - moment))
    if seconds < MINUTE:
        return "just now"
    for unit, length in (("d", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return "just now"


def make_console(stream: TextIO) -> Console:
    """A stream that can be written to in colours, where it is a terminal."""
    from rich.console import Console  # late: 0.1 s that most commands do not need

    return Console(file=stream, highlight=False, emoji=False, markup=False, soft_wrap=True)


def examples(*pairs: tuple[str, str]) -> str:
    """The end of a command's help: commands to copy, each with what it is for."""
    shown = [f"[cyan]$ {command}[/cyan]\n  [dim]{words}[/dim]" for command, words in pairs]
    return "\n".join(["[bold]Examples[/bold]", *shown])


def reflow_help(app: typer.Typer) -> None:
    """Let the commands' help wrap as the terminal is wide, not as the source is."""
    for command in app.registered_commands:
        text = inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
