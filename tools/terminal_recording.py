"""Recordings of a terminal: a program run in a pseudo-terminal, drawn as an animated SVG without a script.

Each version of a line of the screen is one element that is visible for its time. Readers who prefer reduced
motion see the last screen.
"""

import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import pyte
from pyte.screens import Char

CELL_WIDTH, LINE_HEIGHT, MARGIN, TITLE = 8.43, 18, 14, 30
MAX_PAUSE = 1.2  # seconds: longer ones are cut
LAST_PAUSE = 6.0  # before it begins again
FRAME = 0.08  # seconds between two screens at least
COLOURS = {
    "default": "#c9d1d9", "black": "#484f58", "red": "#ff7b72", "green": "#3fb950", "brown": "#d29922",
    "blue": "#58a6ff", "magenta": "#bc8cff", "cyan": "#39c5cf", "white": "#e6edf3",
}  # fmt: skip
STYLE = (
    "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
    ".l{visibility:hidden;animation-duration:%ss;animation-timing-function:step-end;"
    "animation-iteration-count:infinite}"
    "@media (prefers-reduced-motion:reduce){.l{animation:none!important}.z{visibility:visible}}"
)


@dataclass(frozen=True)
class Line:
    """A version of a line of the screen, and when it is seen."""

    row: int
    cells: tuple[Char, ...]
    begin: float
    end: float


def record(command: Sequence[str], *, columns: int, rows: int, until: str) -> list[tuple[float, bytes]]:
    """Run a program until it shows a text; what it wrote, with times from its beginning. It is ended then."""
    screen, inside = pty.openpty()
    termios.tcsetwinsize(inside, (rows, columns))
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
    process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env=env)
    os.close(inside)
    pieces: list[tuple[float, bytes]] = []
    start = time.monotonic()
    try:
        while until.encode() not in b"".join(piece for _, piece in pieces):
            if not select.select([screen], [], [], 120)[0]:
                raise SystemExit(f"recording: {command[-1]} did not show {until!r}")
            pieces.append((time.monotonic() - start, os.read(screen, 65_536)))
    finally:
        process.terminate()
        process.wait(30)
        os.close(screen)
    return without_pauses(pieces)


def without_pauses(pieces: Sequence[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """Cut pauses to MAX_PAUSE."""
    cut, last, shown = 0.0, 0.0, []
    for at, piece in pieces:
        cut += max(0.0, at - last - MAX_PAUSE)
        last = at
        shown.append((round(at - cut, 3), piece))
    return shown


def lines_of(pieces: Sequence[tuple[float, bytes]], *, columns: int, rows: int) -> tuple[list[Line], float]:
    """The versions of all lines, and how long the recording is."""
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    shown: dict[int, tuple[tuple[Char, ...], float]] = {}
    lines: list[Line] = []
    drawn, end = -FRAME, 0.0
    for index, (at, piece) in enumerate(pieces):
        stream.feed(piece)
        end = at
        if at - drawn < FRAME and index < len(pieces) - 1:
            continue
        drawn = at
        for row in range(rows):
            cells = tuple(screen.buffer[row][column] for column in range(columns))
            before = shown.get(row)
            if before is not None and before[0] != cells:
                lines.append(Line(row, *before, end=at))
            if before is None or before[0] != cells:
                shown[row] = (cells, at)
    total = end + LAST_PAUSE
    lines += [Line(row, cells, begin, total) for row, (cells, begin) in shown.items()]
    return [line for line in lines if any(cell.data.strip() for cell in line.cells)], total


def draw(pieces: Sequence[tuple[float, bytes]], *, columns: int, rows: int, title: str) -> str:
    """Draw a recording as an animated SVG."""
    lines, total = lines_of(pieces, columns=columns, rows=rows)
    used = max(line.row for line in lines) + 1
    width, height = columns * CELL_WIDTH + 2 * MARGIN, used * LINE_HEIGHT + TITLE + 2 * MARGIN
    frames, texts = [], []
    for number, line in enumerate(lines):
        begin, end = 100 * line.begin / total, 100 * line.end / total
        last = " z" if line.end == total else ""
        hidden = "" if last else f"{end:.2f}%{{visibility:hidden}}"
        frames.append(f"@keyframes k{number}{{{begin:.2f}%{{visibility:visible}}{hidden}}}")
        y = TITLE + MARGIN + line.row * LINE_HEIGHT + 13
        spans = "".join(spans_of(line.cells))
        texts.append(f'<text class="l{last}" style="animation-name:k{number}" y="{y}">{spans}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}"><style>{STYLE % f"{total:.2f}"}{"".join(frames)}</style>'
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>'
        f'<text x="50%" y="21" fill="#8b949e" text-anchor="middle">{escape(title)}</text>'
        f"{''.join(texts)}</svg>\n"
    )


def spans_of(cells: Sequence[Char]) -> Iterator[str]:
    """Yield the pieces of a line that look alike, each at its place."""
    begin = 0
    for column in range(1, len(cells) + 1):
        if column < len(cells) and look(cells[column]) == look(cells[begin]):
            continue
        text = "".join(cell.data for cell in cells[begin:column])
        if text.strip():
            x = MARGIN + begin * CELL_WIDTH
            yield f'<tspan x="{x:.1f}" {look(cells[begin])}>{escape(text.rstrip(), quote=False)}</tspan>'
        begin = column


def look(cell: Char) -> str:
    """The attributes of a character."""
    colour = COLOURS.get(cell.fg.removeprefix("bright"), f"#{cell.fg}")
    weight = ' font-weight="bold"' if cell.bold else ""
    slant = ' font-style="italic"' if cell.italics else ""
    return f'fill="{colour}"{weight}{slant}'
