"""A session as an HTML page: everything escaped, no script, nothing loaded from elsewhere."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from html import escape
from typing import Any

import msgspec

from dragoman.messages import FilePart, Message, Part, ReasoningPart, SourceUrlPart, TextPart, ToolPart

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem}"
    "h2{font-size:1rem;margin:2rem 0 .5rem;color:#666}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;font:inherit;margin:0}"
    "details pre{font:14px/1.4 ui-monospace,monospace}img{max-width:100%}"
)
STYLE_HASH = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox"
)
IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+")
ROLE_NAMES = {"user": "You", "assistant": "Assistant", "system": "System"}


def html_start(title: str) -> str:
    """Return the beginning of a page."""
    name = escape(title)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="robots" content="noindex">'
        f'<meta name="viewport" content="width=device-width"><title>{name}</title>'
        f"<style>{STYLE}</style></head>\n"
        f"<body><h1>{name}</h1>\n"
    )


def html_end() -> str:
    """Return the end of a page."""
    return "</body></html>\n"


def message_to_html(message: Message, *, redact: Callable[[str], str] = str) -> str:
    """Return a message as HTML; `redact` is applied to each text before it is escaped."""
    lines = [f"<h2>{ROLE_NAMES[message.role]}</h2>"]
    for part in message.parts:
        lines += _part_to_html(part, redact)
    return "\n".join(lines) + "\n"


def _part_to_html(part: Part, redact: Callable[[str], str]) -> Iterator[str]:
    match part:
        case TextPart(text=text):
            yield f"<pre>{escape(redact(text))}</pre>"
        case ReasoningPart(text=text):
            yield f"<details><summary>Reasoning</summary><pre>{escape(redact(text))}</pre></details>"
        case ToolPart():
            yield from _call_to_html(part, redact)
        case FilePart(url=url) if IMAGE.fullmatch(url):
            yield f'<p><img src="{url}" alt="{escape(part.filename or "")}"></p>'
        case FilePart():
            yield f"<p>File: {escape(redact(part.filename or part.media_type))}</p>"
        case SourceUrlPart(url=url):
            yield f"<p>Source: {escape(redact(part.title or url))} {escape(redact(url))}</p>"
        case _:
            pass


def _call_to_html(part: ToolPart, redact: Callable[[str], str]) -> Iterator[str]:
    yield f"<details><summary>{escape(redact(part.name))} ({escape(part.state)})</summary>"
    for value in (part.input, part.output, part.error_text or msgspec.UNSET):
        if value is not msgspec.UNSET:
            yield f"<pre>{escape(redact(json_text(value)))}</pre>"
    yield "</details>"


def json_text(value: Any) -> str:
    """Return a JSON value as indented text; a string as it is."""
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
