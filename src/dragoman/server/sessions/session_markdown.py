"""A session as a Markdown document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.agent.meta_tool_calls import part_title
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
from dragoman.wire.session_export.html import ROLE_NAMES

SPECIAL = re.compile(r"[\\`*_\[\]<>#|~&]")
WEB_URL = re.compile(r"https?://[^\s<>]+")


def to_markdown(session: Mapping[str, Any], messages: Sequence[Message]) -> str:
    """Format a session as a Markdown document."""
    title = session["title"] or client_session_id(session["id"])
    text = "".join([f"# {escape(title)}\n", *map(message_to_markdown, messages)])
    return text.rstrip() + "\n"


def message_to_markdown(message: Message) -> str:
    """Format a message, with an empty line before it."""
    lines = ["", f"## {ROLE_NAMES[message.role]}", ""]
    for part in message.parts:
        lines += [*part_to_markdown(part), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


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
    where = "embedded" if part.url.startswith("data:") else link(part.url)
    yield f"*file {escape(part.filename or '')} ({escape(part.media_type)}): {where}*"


def source_to_markdown(part: SourceUrlPart | SourceDocumentPart) -> Iterator[str]:
    title = escape(part.title or part.source_id)
    yield f"*source: {f'{title} {link(part.url)}' if isinstance(part, SourceUrlPart) else title}*"


def call_to_markdown(part: ToolPart) -> Iterator[str]:
    yield f"**{escape(part_title(part))}** ({part.state})"
    yield from fenced_json(part.input)
    yield from fenced_json(part.output)
    if part.error_text:
        yield f"Error: {escape(part.error_text)}"


def data_to_markdown(part: DataPart) -> Iterator[str]:
    yield f"*{escape(part.type)}*"
    yield from fenced_json(part.data)


def escape(text: str) -> str:
    """Return a text on one line with everything escaped that would be Markdown or HTML."""
    return SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))


def link(url: str) -> str:
    """Return a web URL as a link, any other URL as text."""
    return f"<{url}>" if WEB_URL.fullmatch(url) else escape(url)


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
