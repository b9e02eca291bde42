"""The prompt of the interactive chat: line editing, history and completion, by prompt-toolkit."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import DummyHistory, History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.defaults import create_output
from typing_extensions import override

from dragoman.cli.chat.slash_commands import COMMANDS, Choices
from dragoman.cli.terminal import strip_controls

LINES = 1_000
STYLE = "bold ansimagenta"

Choose = Callable[[Choices], Awaitable[Sequence[str]]]
"""Returns what the argument of a command may be."""


class Interrupted(Exception):
    """Ctrl-C at the prompt."""


class ChatPrompt:
    """Reads lines at the terminal. Alt-Enter begins a new line of the message, Tab completes."""

    def __init__(self, choose: Choose) -> None:
        # None is stdout, also at a terminal that cannot move its cursor
        output = None if sys.stdout.isatty() else create_output(always_prefer_tty=True)
        self._messages: PromptSession[str] = PromptSession(
            history=HistoryFile(history_path()),
            completer=CommandCompleter(choose),
            complete_while_typing=False,
            key_bindings=newline_bindings(),
            output=output,
        )
        self._answers: PromptSession[str] = PromptSession(history=DummyHistory(), output=output)

    async def read_message(self, prompt: str) -> str:
        """Read a message or a command. EOFError at Ctrl-D, Interrupted at Ctrl-C."""
        return await read(self._messages, prompt)

    async def read_answer(self, prompt: str) -> str:
        """Read an answer, which is not added to the history. EOFError at Ctrl-D, Interrupted at Ctrl-C."""
        return await read(self._answers, prompt)


async def read(session: PromptSession[str], prompt: str) -> str:
    """Read a line. EOFError, Interrupted."""
    try:
        return await session.prompt_async(FormattedText([(STYLE, strip_controls(prompt))]))
    except KeyboardInterrupt:  # an event loop would end with it
        raise Interrupted from None


def newline_bindings() -> KeyBindings:
    """Return the keys that begin a new line of a message."""
    bindings = KeyBindings()

    bindings.add("escape", "enter")(begin_line)
    return bindings


def begin_line(event: KeyPressEvent) -> None:
    """Begin a new line of the message."""
    event.current_buffer.insert_text("\n")


class HistoryFile(History):
    """Lines that were typed, in a file of the user's: the last ones, readable by the user alone.

    A chat continues without it if the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    @override
    def load_history_strings(self) -> Iterable[str]:
        """Return the lines, the newest first."""
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ()
        if len(lines) > 2 * LINES:
            lines = lines[-LINES:]
            with suppress(OSError):
                self._path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return [unescape_line(line) for line in reversed(lines[-LINES:])]

    @override
    def store_string(self, string: str) -> None:
        """Add a line."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path.touch(mode=0o600)
            with self._path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{escape_line(string)}\n")


def history_path() -> Path:
    """Return where lines are stored."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "dragoman" / "chat_history"


def escape_line(text: str) -> str:
    r"""Write a text of several lines as one, its line ends as `\n`."""
    return "\\n".join(text.replace("\\", "\\\\").splitlines())


def unescape_line(line: str) -> str:
    """Return the text that was written as a line."""
    return "\\".join(piece.replace("\\n", "\n") for piece in line.split("\\\\"))


class CommandCompleter(Completer):
    """Completes commands, and what they take: models, agents, sessions and files."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._files = PathCompleter(expanduser=True)

    @override
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Complete the name of a command."""
        text = document.text_before_cursor
        if not text.startswith("/") or " " in text:
            return
        for name, command in COMMANDS.items():
            if name.startswith(text):
                end = " " if command.argument else ""
                yield Completion(name + end, -len(text), display=name, display_meta=command.help)

    @override
    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Complete a command, or its argument."""
        word, space, typed = document.text_before_cursor.partition(" ")
        command = COMMANDS.get(word)
        if not space or command is None or command.choices is None:
            for each in self.get_completions(document, complete_event):
                yield each
        elif command.choices == "files":
            for each in self._files.get_completions(Document(typed), complete_event):
                yield each
        else:
            for name in await self._choose(command.choices):
                if name.startswith(typed):
                    yield Completion(name, -len(typed))
