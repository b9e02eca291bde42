"""Transcripts: a session as it was said, for a terminal or as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.cli.screen import Screen, summary
from dragoman.cli.terminal import ago, printable
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
from dragoman.retell import retell

if TYPE_CHECKING:
    from rich.console import Console

SPEAKERS = {"user": "You", "assistant": "Assistant", "system": "System"}


def draw(session: Mapping[str, Any], messages: Sequence[Message], *, out: Console) -> None:
    """Print a session so that it reads well."""
    out.print(printable(session["title"] or session["id"]), style="bold")
    about = (("session", session["id"]), ("owner", session.get("owner")), ("agent", session["agent"]))
    out.print(" · ".join(f"{name} {printable(value)}" for name, value in about if value), style="dim")
    for message in messages:
        out.print()
        out.print(SPEAKERS[message.role], style="bold magenta" if message.role == "user" else "bold blue")
        screen = Screen(out, out, clock=None)
        screen.draw(retell(message))
        screen.end()
        metadata = message.metadata if isinstance(message.metadata, dict) else {}
        said = [f"{len(message.parts)} parts", ending(metadata), summary(metadata)]
        if message.role == "assistant":
            out.print(" · ".join(word for word in said if word), style="dim")


def draw_passage(passage: Mapping[str, Any], *, out: Console) -> None:
    """Print a place where something was said: the session, when, who, and words around what was found."""
    speaker = SPEAKERS.get(passage["role"], passage["role"])
    about = (passage["sessionId"], passage["title"], passage.get("owner"), ago(passage["createdAt"]), speaker)
    out.print(" · ".join(printable(word) for word in about if word), style="bold")
    out.print("  ", end="")
    for piece in passage["snippet"]:
        out.print(printable(piece["text"]), end="", style="reverse" if piece["hit"] else None)
    out.print("\n")


def ending(metadata: Mapping[str, Any]) -> str:
    """How the answer ended, where that is worth a word."""
    reason = metadata.get("finishReason", "")
    return "" if reason == "stop" else str(reason)


def to_markdown(session: Mapping[str, Any], messages: Sequence[Message]) -> str:
    """A session as a Markdown document."""
    lines = [f"# {session['title'] or session['id']}", ""]
    for message in messages:
        lines += [f"## {SPEAKERS[message.role]}", ""]
        for part in message.parts:
            lines += [*spell(part), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def spell(part: Part) -> Iterator[str]:
    """A part as lines of Markdown."""
    return SPELLINGS[type(part)](part)


def spell_text(part: TextPart) -> Iterator[str]:
    yield part.text


def spell_reasoning(part: ReasoningPart) -> Iterator[str]:
    yield from (f"> {line}".rstrip() for line in part.text.splitlines())


def spell_step(_: StepStartPart) -> Iterator[str]:
    yield from ()


def spell_file(part: FilePart) -> Iterator[str]:
    url = "embedded" if part.url.startswith("data:") else part.url
    yield f"*file {part.filename or ''} ({part.media_type}): {url}*"


def spell_source(part: SourceUrlPart | SourceDocumentPart) -> Iterator[str]:
    where = f"]({part.url})" if isinstance(part, SourceUrlPart) else "]"
    yield f"*source: [{part.title or part.source_id}{where}*"


def spell_call(part: ToolPart) -> Iterator[str]:
    yield f"**{part.name}** ({part.state})"
    yield from fenced(part.input)
    yield from fenced(part.output)
    if part.error_text:
        yield f"Error: {part.error_text}"


def spell_data(part: DataPart) -> Iterator[str]:
    yield f"*{part.type}*"
    yield from fenced(part.data)


def fenced(value: Any) -> Iterator[str]:
    if value is not msgspec.UNSET:
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        yield from ("", "```json", text, "```", "")


SPELLINGS: Mapping[type, Callable[[Any], Iterator[str]]] = {
    TextPart: spell_text,
    ReasoningPart: spell_reasoning,
    StepStartPart: spell_step,
    FilePart: spell_file,
    SourceUrlPart: spell_source,
    SourceDocumentPart: spell_source,
    ToolPart: spell_call,
    DataPart: spell_data,
}
