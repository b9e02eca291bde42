"""What was typed in the interactive chat: kept in a file of the user's, and completed at the prompt."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

LINES = 1_000


def history_file() -> Path:
    """Return where lines are kept."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "dragoman" / "chat_history"


@contextmanager
def line_editing(words: Sequence[str]) -> Iterator[None]:
    """Let `input` edit lines, with the history of earlier chats, and complete `words` at Tab.

    Where Python has no readline, lines are read without these.
    """
    try:
        import readline  # late: it changes input(), and only here
    except ImportError:
        yield
        return
    file = history_file()
    with suppress(OSError):
        readline.read_history_file(file)
    readline.set_completer_delims(" ")
    readline.set_completer(lambda text, state: completion(words, text, state=state))
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(None)
        readline.set_history_length(LINES)
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.touch(mode=0o600)
            readline.write_history_file(file)


def completion(words: Sequence[str], text: str, *, state: int) -> str | None:
    """Return the completion of `text` with this number, None after the last one."""
    found = [f"{word} " for word in words if text and word.startswith(text)]
    return found[state] if state < len(found) else None
