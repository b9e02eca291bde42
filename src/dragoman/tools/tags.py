"""Tags: HTML cut into texts and tags, in one pass that never goes back.

No tree is built: a parser that mends what is wrong, as HTML 5 tells it to, makes gigabytes of some pages of a
few kilobytes. What a reader of text needs of the order is in the tags themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import TypeAlias

import msgspec

ATTRIBUTE = r"""([^\s/>][^\s/>=]*+)(?:\s*+=\s*+("[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+)?)?"""
ATTRIBUTES = re.compile(ATTRIBUTE)
TAG = re.compile(rf"<(/?)([a-z][^\s/>]*+)((?:[\s/]++|{ATTRIBUTE})*+)>", re.IGNORECASE | re.ASCII)
OPENER = re.compile(r"</?[a-z]|<[!?]|</", re.IGNORECASE | re.ASCII)
RAW = {"script", "style", "iframe", "noembed", "noframes", "xmp", "title", "textarea"}
END_OF_RAW = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE | re.ASCII) for name in RAW}
HUGE_REFERENCE = re.compile(r"&#[0-9]{9,};?")  # Python reads no number that long


class Open(msgspec.Struct, frozen=True):
    """The beginning of an element; `raw` is all that stands between its ends, where no tags are read."""

    name: str
    attributes: str = ""
    raw: str | None = None


class Close(msgspec.Struct, frozen=True):
    """The end of an element."""

    name: str


Token: TypeAlias = str | Open | Close


def tokens(html: str) -> Iterator[Token]:
    """The texts and tags of a page, in order; comments are left out, entities in texts are resolved."""
    at = 0
    while opener := OPENER.search(html, at):
        if opener.start() > at:
            yield plain(html[at : opener.start()])
        tag = TAG.match(html, opener.start())
        if tag is None:
            at = skip(html, opener.start())
            continue
        name = tag[2].lower()
        at = tag.end()
        if tag[1]:
            yield Close(name)
        elif name in RAW:
            end = END_OF_RAW[name].search(html, at)
            stop = end.start() if end else len(html)
            yield Open(name, tag[3], raw=html[at:stop])
            at = stop
        else:
            yield Open(name, tag[3])
    if at < len(html):
        yield plain(html[at:])


def skip(html: str, at: int) -> int:
    """Where the page goes on after a comment or a declaration; its end if that is never closed."""
    closing = "-->" if html.startswith("<!--", at) else "]]>" if html.startswith("<![CDATA[", at) else ">"
    end = html.find(closing, at)
    return end + len(closing) if end >= 0 else len(html)


def plain(text: str) -> str:
    """Text with its entities resolved."""
    return unescape(HUGE_REFERENCE.sub("\ufffd", text)) if "&" in text else text


def read_attributes(raw: str) -> dict[str, str]:
    """The attributes of a tag; of two with one name the first counts."""
    found: dict[str, str] = {}
    for each in ATTRIBUTES.finditer(raw):
        found.setdefault(each[1].lower(), plain((each[2] or "").strip("\"'")))
    return found
