"""Prints a stored session to the terminal, or writes it as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dragoman.cli.chat.renderer import describe_answer
from dragoman.cli.chat.renderer_choice import renderer_for
from dragoman.cli.terminal import format_age, strip_controls
from dragoman.messages import (
    Message,
)
from dragoman.server.sessions.session_markdown import to_markdown
from dragoman.session_ids import client_session_id
from dragoman.unfold import unfold
from dragoman.wire.session_export.html import ROLE_NAMES

__all__ = ["print_passage", "print_transcript", "to_markdown"]

if TYPE_CHECKING:
    from rich.console import Console


def print_transcript(session: Mapping[str, Any], messages: Sequence[Message], *, out: Console) -> None:
    """Print a session for reading."""
    id = client_session_id(session["id"])
    out.print(strip_controls(session["title"] or id), style="bold")
    about = (("session", id), ("owner", session.get("owner")), ("agent", session["agent"]))
    out.print(" · ".join(f"{name} {strip_controls(value)}" for name, value in about if value), style="dim")
    for message in messages:
        out.print()
        out.print(ROLE_NAMES[message.role], style="bold magenta" if message.role == "user" else "bold blue")
        screen = renderer_for(out.file, out.file, clock=None)
        screen.render(unfold(message))
        screen.end_line()
        metadata = message.metadata if isinstance(message.metadata, dict) else {}
        parts = [f"{len(message.parts)} parts", unusual_finish(metadata), describe_answer(metadata)]
        if message.role == "assistant":
            out.print(" · ".join(word for word in parts if word), style="dim")


def print_passage(passage: Mapping[str, Any], *, out: Console) -> None:
    """Print a search result: session, time, role, and the words around the match."""
    speaker = ROLE_NAMES.get(passage["role"], passage["role"])
    about = (
        client_session_id(passage["sessionId"]),
        passage["title"],
        passage.get("owner"),
        format_age(passage["createdAt"]),
        speaker,
    )
    out.print(" · ".join(strip_controls(word) for word in about if word), style="bold")
    out.print("  ", end="")
    for piece in passage["snippet"]:
        out.print(strip_controls(piece["text"]), end="", style="reverse" if piece["hit"] else None)
    out.print("\n")


def unusual_finish(metadata: Mapping[str, Any]) -> str:
    """Return how the answer ended, or an empty text for a normal end."""
    reason = metadata.get("finishReason", "")
    return "" if reason == "stop" else str(reason)
