"""Terminal output: results on stdout, notes and errors on stderr, tables, JSON, ages."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# Characters that move the cursor, ring, recolour or change the text direction: outside text must not do that
# to the user's terminal.
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
MINUTE, HOUR, DAY = 60, 3600, 86400
BAR_WIDTH = 16
EIGHTHS = " ▏▎▍▌▋▊▉"


def prepare_streams() -> None:
    """Replace characters that the terminal's encoding lacks, instead of failing.

    A stream that is closed is the null device from now on: Python has None in its place, and the next file
    that is opened would get its number, and what child processes print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - it stays open
            os.set_inheritable(stream.fileno(), True)  # its number is that of the stream: the lowest free one
            setattr(sys, name, stream)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


class JsonLines:
    """Whether notes and results are printed as JSON lines with the fields of the log; see `--log-json`."""

    enabled = False


def use_json_lines() -> None:
    """Print everything as JSON lines from now on, so that a log collector can parse all of the output."""
    JsonLines.enabled = True


def print_line(text: str) -> None:
    """Print a result to stdout."""
    typer.echo(json_line(text) if JsonLines.enabled else strip_controls(text))


def print_note(text: str, *, level: str = "info") -> None:
    """Print a note to stderr."""
    typer.echo(json_line(text, level) if JsonLines.enabled else strip_controls(f"dragoman: {text}"), err=True)


def json_line(text: str, level: str = "info", **fields: str) -> str:
    """Return a line with the fields of the JSON log."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    event = {"timestamp": now, "level": level, "logger": "dragoman", "event": strip_controls(text)}
    return msgspec.json.encode(event | fields).decode()


def print_error(message: str, *, hint: str | None = None) -> None:
    """Print an error to stderr, and the hint on a second line."""
    if JsonLines.enabled:
        typer.echo(json_line(message, "error", **({"hint": strip_controls(hint)} if hint else {})), err=True)
        return
    print_note(message)
    if hint:
        typer.echo(strip_controls(f"  {hint}"), err=True)


def print_json(value: Any) -> None:
    """Print a value as JSON, for programs."""
    typer.echo(escape_controls(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


FREE_TEXT = frozenset(
    {
        "ADDRESS", "ANSWER", "BECAUSE OF", "COMMAND OR ADDRESS", "FOR", "GOES TO", "INPUT", "ITS ANSWER",
        "KEYS", "MAY", "MAY ASK", "REACH", "TITLE", "TOOLS", "WHAT IT DOES", "WHY",
    }
)  # fmt: skip
"""Headings of columns that explain a row. They may be cut; the others identify it."""
MIN_TEXT_WIDTH = 8  # of such a column


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under headings.

    In a terminal that is too narrow, columns of free text are cut, the widest first. What identifies a row
    is not: the terminal wraps a line that is still too long.
    """
    cells = [[strip_controls(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if limit is not None:
        widths = fit_widths(headings, widths, limit=limit)
    for number, row in enumerate([list(headings), *cells]):
        padded = [truncate(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True)]
        line = "  ".join(padded).rstrip()
        typer.echo(typer.style(line, dim=True) if number == 0 else line)


def fit_widths(headings: Sequence[str], widths: Sequence[int], *, limit: int) -> list[int]:
    """Return the widths of columns of which those of free text are narrowed, so that a line fits `limit`."""
    fitted = list(widths)
    free = [number for number, heading in enumerate(headings) if heading in FREE_TEXT]
    over = sum(fitted) + 2 * (len(fitted) - 1) - limit
    while over > 0 and free:
        widest = max(free, key=lambda number: fitted[number])
        if fitted[widest] <= max(MIN_TEXT_WIDTH, len(headings[widest])):
            break
        fitted[widest] -= 1
        over -= 1
    return fitted


def truncate(text: str, limit: int | None) -> str:
    """Return at most `limit` characters of the text; a cut ends with `…`."""
    return text if limit is None or len(text) <= limit else f"{text[: limit - 1]}…"


def strip_controls(text: str) -> str:
    """Remove control characters other than tab and newline, and characters that change the direction."""
    return CONTROL_CHARACTERS.sub("", text)


def escape_controls(json: str) -> str:
    """Escape in a JSON text what `strip_controls` would remove; its value stays the same."""
    return CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", json)


def format_age(moment: float) -> str:
    """Format how long ago a moment (unix seconds) was."""
    seconds = max(0, int(time.time() - moment))
    if seconds < MINUTE:
        return "just now"
    for unit, length in (("d", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return "just now"


def format_period(seconds: float | None) -> str:
    """Format for how long rows are stored; None is for ever."""
    if seconds is None:
        return "for ever"
    return f"{seconds / DAY:g} d" if seconds >= DAY else f"{seconds / HOUR:g} h"


def format_seconds(span: float | None) -> str:
    """Format a duration in seconds; `-` where there is none."""
    return "-" if span is None else f"{span:.2f} s"


def bar(value: float, maximum: float) -> str:
    """Return a bar for the share of `value` in `maximum`, in eighths of a character."""
    eighths = round(8 * BAR_WIDTH * value / maximum) if maximum else 0
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")


def make_console(stream: IO[str], *, soft_wrap: bool = True) -> Console:
    """Return a console for a stream, with colours if it is a terminal; `soft_wrap` breaks no line."""
    from rich.console import Console  # late: 0.1 s that most commands do not need

    return Console(file=stream, highlight=False, emoji=False, markup=False, soft_wrap=soft_wrap)


def join_styled(*pairs: tuple[str, str]) -> Text:
    """Return a line of texts, each with its style, without what would steer the terminal."""
    from rich.text import Text  # late: as above

    return Text.assemble(*((strip_controls(text), style) for text, style in pairs))


def examples(*pairs: tuple[str, str]) -> str:
    """Format the examples at the end of a command's help: commands, each with its purpose."""
    shown = [f"[cyan]$ {command}[/cyan]\n  [dim]{words}[/dim]" for command, words in pairs]
    return "\n".join(["[bold]Examples[/bold]", *shown])


def reflow_help(app: typer.Typer) -> None:
    """Wrap the help texts at the terminal's width instead of the source's line breaks."""
    for command in app.registered_commands:
        text = inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
