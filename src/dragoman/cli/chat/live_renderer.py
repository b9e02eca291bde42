"""Prints the events of a run at a terminal: Markdown as it grows, and a line for what takes time."""

from __future__ import annotations

import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Self

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from dragoman import events as e
from dragoman.cli.chat.markdown import AnswerMarkdown, GrowingMarkdown
from dragoman.cli.chat.renderer import EventRenderer, format_duration
from dragoman.cli.terminal import strip_controls

FRAMES_PER_SECOND = 10
RESERVED_ROWS = 3  # of the screen, which the open block leaves free
REASONING_STYLE = "dim italic"
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SHOW_TIME_AFTER = 1.0  # seconds


class RenderedLines:
    """Lines that are rendered already."""

    def __init__(self, lines: Sequence[Sequence[Segment]]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self._lines:
            yield from line
            yield Segment.line()


def render_block(text: str, console: Console) -> list[list[Segment]]:
    """Render Markdown, without empty lines before and after it."""
    lines = console.render_lines(AnswerMarkdown(text), pad=False)
    while lines and is_blank(lines[0]):
        del lines[0]
    while lines and is_blank(lines[-1]):
        del lines[-1]
    return lines


def is_blank(line: Sequence[Segment]) -> bool:
    return not any(segment.text.strip() for segment in line)


@contextmanager
def silent_keyboard() -> Iterator[None]:
    """Keep the terminal from showing typed keys, such as ^C, amid the output."""
    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):  # stdin is not a terminal
        yield
        return
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(descriptor, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class LiveRenderer(EventRenderer):
    """Prints a run to one terminal.

    Blocks that are complete are printed for good. In `with`, the open one is drawn below them and again as it
    grows, with a line that says what the answer waits for.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] | None = time.monotonic) -> None:
        super().__init__(console, console, clock=clock)
        self._console = console
        self._markdown = GrowingMarkdown()
        self._thought = ""  # the unfinished line of reasoning
        self._is_paragraph_due = False  # whether an empty line comes before the next block
        self._activity = ""
        self._active_since = 0.0
        self._live: Live | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._set_activity("waiting for the model")
        self._stack.enter_context(silent_keyboard())
        self._live = Live(
            console=self._console,
            get_renderable=lambda: self,
            refresh_per_second=FRAMES_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._activity = ""
        self.end_line()
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._stack.close()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the open block, the end of it if it is higher than the screen, and the activity."""
        room = max(1, console.height - RESERVED_ROWS)
        lines: list[list[Segment]] = []
        if self._thought:
            lines = console.render_lines(Text(self._thought, style=REASONING_STYLE), options, pad=False)
        elif self._markdown.open_text.strip():
            lines = render_block(self._markdown.tail(room), console)
            lines = [[], *lines] if self._is_paragraph_due else lines
        for line in lines[-room:]:
            yield from line
            yield Segment.line()
        if self._activity:
            sign = SPINNER[int(time.monotonic() * FRAMES_PER_SECOND) % len(SPINNER)]
            words = f"{sign} {self._activity}{self._elapsed()}"
            yield Text(words, style="dim", no_wrap=True, overflow="ellipsis")

    def render(self, batch: Sequence[e.Event]) -> None:
        """Print a batch of events."""
        for event in batch:
            super().render((event,))
            self._note_activity(event)

    def end_line(self) -> None:
        """Print the open block, and close it."""
        thought, self._thought = self._thought, ""
        rest = self._markdown.finish()
        if thought:
            self._print(Text(thought, style=REASONING_STYLE))
        self._print_markdown(rest)

    def _write_text(self, delta: str) -> None:
        if self._thought:
            self.end_line()
        self._set_activity("")
        self._print_markdown(self._markdown.add(strip_controls(delta)))

    def _write_reasoning(self, delta: str) -> None:
        if self._markdown.open_text:
            self.end_line()
        self._set_activity("thinking")
        whole, newline, rest = (self._thought + strip_controls(delta)).rpartition("\n")
        self._thought = rest
        if newline:
            self._print(Text(whole, style=REASONING_STYLE))

    def _note_activity(self, event: e.Event) -> None:
        match event:
            case e.StartStep():
                self._set_activity("waiting for the model")
            case e.ToolInputStart():
                self._set_activity(f"writing a call of {event.tool_name}")
            case e.ToolInputAvailable():
                self._set_activity(f"{self._find_call(event.tool_call_id).name} runs")
            case e.FinishStep() | e.Finish() | e.ToolApprovalRequest():
                self._set_activity("")
            case _:
                pass

    def _print_markdown(self, blocks: Sequence[str]) -> None:
        for block in blocks:
            if lines := render_block(block, self._console):
                self._print(RenderedLines([[], *lines] if self._is_paragraph_due else lines))

    def _print_line(self, line: Text) -> None:
        self.end_line()
        self._print(line, soft_wrap=True)

    def _print(self, shown: RenderableType, *, soft_wrap: bool = False) -> None:
        with self._console:  # what is drawn below goes and comes back in one write
            if self._live is not None:
                self._live.refresh()
            self._console.print(
                shown, end="" if isinstance(shown, RenderedLines) else "\n", soft_wrap=soft_wrap
            )
        self._is_paragraph_due = True

    def _set_activity(self, words: str) -> None:
        if words != self._activity:
            self._activity, self._active_since = strip_controls(words), time.monotonic()

    def _elapsed(self) -> str:
        seconds = time.monotonic() - self._active_since
        return f"  {format_duration(float(int(seconds)))}" if seconds >= SHOW_TIME_AFTER else ""
