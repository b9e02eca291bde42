"""Blocks that users and tools send to Anthropic's API, as texts and files: text, images, documents."""

from __future__ import annotations

import base64
from typing import TypeAlias

from dragoman.errors import BadRequest
from dragoman.messages import FilePart, ProviderMetadata, TextPart
from dragoman.wire.anthropic.client_fields import RequestFields, invalid_field, quoted_list
from dragoman.wire.sources import media_type_from_url

ContentPart: TypeAlias = TextPart | FilePart

BLOCK_TYPES = ("text", "image", "document", "search_result")
_FILE_HINT = "send the file itself, as base64 or by URL"


def parse_block(block: RequestFields) -> list[ContentPart]:
    """The texts and files in a block of one of `BLOCK_TYPES`; an empty text is none."""
    match block.text("type"):
        case "text":
            said = block.text("text", empty=True)
            return [TextPart(said, provider_metadata=block.provider_metadata())] if said else []
        case "image":
            return [_parse_image(block)]
        case "document":
            return _parse_document(block)
        case "search_result":
            return [_parse_search_result(block)]
        case kind:
            raise unsupported_block(block, kind)


def unsupported_block(block: RequestFields, kind: str) -> BadRequest:
    """The refusal of a block that has no neutral word."""
    return invalid_field(
        block.path_of("type"),
        f"a {kind!r:.60} block cannot be translated here; what can is {quoted_list(BLOCK_TYPES)}",
        hint="only Anthropic's own API takes such a block",
    )


def _parse_image(block: RequestFields) -> FilePart:
    source, kept = block.nested("source"), block.provider_metadata("transformations")
    match source.text("type"):
        case "base64":
            return _file_part(source, filename=None, metadata=kept)
        case "url":
            url = _parse_url(source)
            return FilePart(media_type_from_url(url), url, provider_metadata=kept)
        case kind:
            raise _unsupported_source(source, kind)


def _parse_document(block: RequestFields) -> list[ContentPart]:
    source, kept = block.nested("source"), block.provider_metadata("title", "context", "citations")
    title = block.optional_text("title") or None
    match source.text("type"):
        case "base64":
            return [_file_part(source, filename=title, metadata=kept)]
        case "url":
            return [FilePart("application/pdf", _parse_url(source), title, kept)]
        case "text":
            packed = base64.b64encode(source.text("data").encode()).decode()
            return [FilePart("text/plain", f"data:text/plain;base64,{packed}", title, kept)]
        case "content":
            return _parse_document_content(source, title)
        case kind:
            raise _unsupported_source(source, kind)


def _parse_document_content(source: RequestFields, title: str | None) -> list[ContentPart]:
    """A document that is made of blocks, as these blocks below its title."""
    found: list[ContentPart] = [TextPart(f"{title}:")] if title else []
    for block in source.content_blocks("content"):
        if block.text("type") not in ("text", "image"):
            raise invalid_field(
                block.path_of("type"), "a document's content is made of text and image blocks"
            )
        found += parse_block(block)
    return found


def _parse_search_result(block: RequestFields) -> TextPart:
    passages = [passage.text("text", empty=True) for passage in block.objects("content")]
    lines = [block.text("title", empty=True), block.text("source", empty=True), *passages]
    return TextPart("\n".join(line for line in lines if line), provider_metadata=block.provider_metadata())


def _file_part(source: RequestFields, *, filename: str | None, metadata: ProviderMetadata | None) -> FilePart:
    kind, data = source.text("media_type"), source.text("data")
    if "/" not in kind or "," in kind or ";" in kind:
        raise invalid_field(
            source.path_of("media_type"), f"must be a media type like 'image/png', got {kind!r:.40}"
        )
    return FilePart(kind, f"data:{kind};base64,{data}", filename, metadata)


def _parse_url(source: RequestFields) -> str:
    url = source.text("url")
    if not url.startswith(("https://", "http://")):
        raise invalid_field(source.path_of("url"), f"must begin with https:// or http://, got {url!r:.60}")
    return url


def _unsupported_source(source: RequestFields, kind: str) -> BadRequest:
    if kind == "file":
        problem = "ids of uploaded files are known to Anthropic only"
        return invalid_field(source.path_of("file_id"), problem, hint=_FILE_HINT)
    return invalid_field(source.path_of("type"), f"the source {kind!r:.40} is not known", hint=_FILE_HINT)
