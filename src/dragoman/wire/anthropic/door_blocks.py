"""Blocks that users and tools send to Anthropic's API, as texts and files: text, images, documents."""

from __future__ import annotations

import base64
from typing import TypeAlias

from dragoman.errors import BadRequest
from dragoman.messages import FilePart, ProviderMetadata, TextPart
from dragoman.wire.anthropic.door_fields import Fields, names, wrong
from dragoman.wire.sources import media_type

Piece: TypeAlias = TextPart | FilePart

KINDS = ("text", "image", "document", "search_result")
_NO_FILE_IDS = "send the file itself, as base64 or by URL"


def pieces(block: Fields) -> list[Piece]:
    """The texts and files in a block of one of `KINDS`; an empty text is none."""
    match block.text("type"):
        case "text":
            said = block.text("text", empty=True)
            return [TextPart(said, provider_metadata=block.metadata())] if said else []
        case "image":
            return [_image(block)]
        case "document":
            return _document(block)
        case "search_result":
            return [_search_result(block)]
        case kind:
            raise unknown(block, kind)


def unknown(block: Fields, kind: str) -> BadRequest:
    """The refusal of a block that has no neutral word."""
    return wrong(
        block.at("type"),
        f"a {kind!r:.60} block cannot be translated here; what can is {names(KINDS)}",
        hint="only Anthropic's own API takes such a block",
    )


def _image(block: Fields) -> FilePart:
    source, kept = block.fields("source"), block.metadata("transformations")
    match source.text("type"):
        case "base64":
            return _file(source, filename=None, kept=kept)
        case "url":
            url = _url(source)
            return FilePart(media_type(url), url, provider_metadata=kept)
        case kind:
            raise _foreign(source, kind)


def _document(block: Fields) -> list[Piece]:
    source, kept = block.fields("source"), block.metadata("title", "context", "citations")
    title = block.maybe_text("title") or None
    match source.text("type"):
        case "base64":
            return [_file(source, filename=title, kept=kept)]
        case "url":
            return [FilePart("application/pdf", _url(source), title, kept)]
        case "text":
            packed = base64.b64encode(source.text("data").encode()).decode()
            return [FilePart("text/plain", f"data:text/plain;base64,{packed}", title, kept)]
        case "content":
            return _content(source, title)
        case kind:
            raise _foreign(source, kind)


def _content(source: Fields, title: str | None) -> list[Piece]:
    """A document that is made of blocks, as these blocks below its title."""
    found: list[Piece] = [TextPart(f"{title}:")] if title else []
    for block in source.blocks("content"):
        if block.text("type") not in ("text", "image"):
            raise wrong(block.at("type"), "a document's content is made of text and image blocks")
        found += pieces(block)
    return found


def _search_result(block: Fields) -> TextPart:
    passages = [passage.text("text", empty=True) for passage in block.objects("content")]
    lines = [block.text("title", empty=True), block.text("source", empty=True), *passages]
    return TextPart("\n".join(line for line in lines if line), provider_metadata=block.metadata())


def _file(source: Fields, *, filename: str | None, kept: ProviderMetadata | None) -> FilePart:
    kind, data = source.text("media_type"), source.text("data")
    if "/" not in kind or "," in kind or ";" in kind:
        raise wrong(source.at("media_type"), f"must be a media type like 'image/png', got {kind!r:.40}")
    return FilePart(kind, f"data:{kind};base64,{data}", filename, kept)


def _url(source: Fields) -> str:
    url = source.text("url")
    if not url.startswith(("https://", "http://")):
        raise wrong(source.at("url"), f"must begin with https:// or http://, got {url!r:.60}")
    return url


def _foreign(source: Fields, kind: str) -> BadRequest:
    if kind == "file":
        problem = "ids of uploaded files are known to Anthropic only"
        return wrong(source.at("file_id"), problem, hint=_NO_FILE_IDS)
    return wrong(source.at("type"), f"the source {kind!r:.40} is not known", hint=_NO_FILE_IDS)
