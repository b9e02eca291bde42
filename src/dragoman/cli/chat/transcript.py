"""Prints a stored session to the terminal, or writes it as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.agent.inner_calls import part_title
from dragoman.cli.chat.renderer import EventRenderer, describe_answer
from dragoman.cli.terminal import format_age, strip_controls
from dragoman.messages import (
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    SourceDocumentPart,
    SourceUrlPart,
    StepStartPart,
    TextPart,
    ToolPart,
)
from dragoman.session_ids import client_session_id
from dragoman.unfold import unfold

if TYPE_CHECKING:
    from rich.console import Console

ROLE_NAMES = {"user": "You", "assistant": "Assistant", "system": "System"}


def print_transcript(session: Mapping[str, Any], messages: Sequence[Message], *, out: Console) -> None:
    """Print a session for reading."""
    id = client_session_id(session["id"])
    out.print(strip_controls(session["title"] or id), style="bold")
    about = (("session", id), ("owner", session.get("owner")), ("agent", session["agent"]))
    out.print(" · ".join(f"{name} {strip_controls(value)}" for name, value in about if value), style="dim")
    for message in messages:
        out.print()
        out.print(ROLE_NAMES[message.role], style="bold magenta" if message.role == "user" else "bold blue")
        screen = EventRenderer(out, out, clock=None)
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


def to_markdown(session: Mapping[str, Any], messages: Sequence[Message]) -> str:
    """Format a session as a Markdown document."""
    lines = [f"# {session['title'] or client_session_id(session['id'])}", ""]
    for message in messages:
        lines += [f"## {ROLE_NAMES[message.role]}", ""]
        for part in message.parts:
            lines += [*part_to_markdown(part), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def part_to_markdown(part: Part) -> Iterator[str]:
    """Yield a part as lines of Markdown."""
    return MARKDOWN_WRITERS[type(part)](part)


def text_to_markdown(part: TextPart) -> Iterator[str]:
    yield part.text


def reasoning_to_markdown(part: ReasoningPart) -> Iterator[str]:
    yield from (f"> {line}".rstrip() for line in part.text.splitlines())


def step_to_markdown(_: StepStartPart) -> Iterator[str]:
    yield from ()


def file_to_markdown(part: FilePart) -> Iterator[str]:
    url = "embedded" if part.url.startswith("data:") else part.url
    yield f"*file {part.filename or ''} ({part.media_type}): {url}*"


def source_to_markdown(part: SourceUrlPart | SourceDocumentPart) -> Iterator[str]:
    where = f"]({part.url})" if isinstance(part, SourceUrlPart) else "]"
    yield f"*source: [{part.title or part.source_id}{where}*"


def call_to_markdown(part: ToolPart) -> Iterator[str]:
    yield f"**{part_title(part)}** ({part.state})"
    yield from fenced_json(part.input)
    yield from fenced_json(part.output)
    if part.error_text:
        yield f"Error: {part.error_text}"


def data_to_markdown(part: DataPart) -> Iterator[str]:
    yield f"*{part.type}*"
    yield from fenced_json(part.data)


def fenced_json(value: Any) -> Iterator[str]:
    if value is not msgspec.UNSET:
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        yield from ("", "```json", text, "```", "")


MARKDOWN_WRITERS: Mapping[type, Callable[[Any], Iterator[str]]] = {
    TextPart: text_to_markdown,
    ReasoningPart: reasoning_to_markdown,
    StepStartPart: step_to_markdown,
    FilePart: file_to_markdown,
    SourceUrlPart: source_to_markdown,
    SourceDocumentPart: source_to_markdown,
    ToolPart: call_to_markdown,
    DataPart: data_to_markdown,
}
