"""Parse the content blocks of users and tools in an Anthropic request: text, images, documents."""

from __future__ import annotations

import base64
from typing import TypeAlias

from dragoman.errors import BadRequest
from dragoman.messages import FilePart, ProviderMetadata, TextPart
from dragoman.wire.anthropic.field_reader import RequestFields, invalid_field, quoted_list
from dragoman.wire.source_tracker import media_type_from_url

ContentPart: TypeAlias = TextPart | FilePart

BLOCK_TYPES = ("text", "image", "document", "search_result")
_FILE_HINT = "send the file itself, as base64 or by URL"


def parse_block(block: RequestFields) -> list[ContentPart]:
    """Parse a block of one of `BLOCK_TYPES` to texts and files; an empty text gives none."""
    match block.text("type"):
        case "text":
            text = block.text("text", empty=True)
            return [TextPart(text, provider_metadata=block.provider_metadata())] if text else []
        case "image":
            return [_parse_image(block)]
        case "document":
            return _parse_document(block)
        case "search_result":
            return [_parse_search_result(block)]
        case block_type:
            raise unsupported_block(block, block_type)


def unsupported_block(block: RequestFields, block_type: str) -> BadRequest:
    """Return the error for a block that has no neutral equivalent."""
    return invalid_field(
        block.path_of("type"),
        f"a {block_type!r:.60} block is not supported by this model's provider; "
        f"supported are {quoted_list(BLOCK_TYPES)}",
        hint="only Anthropic's own API accepts this block",
    )


def _parse_image(block: RequestFields) -> FilePart:
    source, metadata = block.nested("source"), block.provider_metadata("transformations")
    match source.text("type"):
        case "base64":
            return _file_part(source, filename=None, metadata=metadata)
        case "url":
            url = _parse_url(source)
            return FilePart(media_type_from_url(url), url, provider_metadata=metadata)
        case source_type:
            raise _unsupported_source(source, source_type)


def _parse_document(block: RequestFields) -> list[ContentPart]:
    source, metadata = block.nested("source"), block.provider_metadata("title", "context", "citations")
    title = block.optional_text("title") or None
    match source.text("type"):
        case "base64":
            return [_file_part(source, filename=title, metadata=metadata)]
        case "url":
            return [FilePart("application/pdf", _parse_url(source), title, metadata)]
        case "text":
            data = base64.b64encode(source.text("data").encode()).decode()
            return [FilePart("text/plain", f"data:text/plain;base64,{data}", title, metadata)]
        case "content":
            return _parse_document_content(source, title)
        case source_type:
            raise _unsupported_source(source, source_type)


def is_made_of_blocks(document: RequestFields) -> bool:
    """Return whether a document consists of blocks. Only these and its title are kept."""
    source = document.raw.get("source")
    return isinstance(source, dict) and source.get("type") == "content"


def _parse_document_content(source: RequestFields, title: str | None) -> list[ContentPart]:
    """Parse a document made of blocks: its title, then the blocks."""
    parts: list[ContentPart] = [TextPart(f"{title}:")] if title else []
    for block in source.content_blocks("content"):
        if block.text("type") not in ("text", "image"):
            raise invalid_field(
                block.path_of("type"), "a document's content must contain only text and image blocks"
            )
        parts += parse_block(block)
    return parts


def _parse_search_result(block: RequestFields) -> TextPart:
    passages = [passage.text("text", empty=True) for passage in block.objects("content")]
    lines = [block.text("title", empty=True), block.text("source", empty=True), *passages]
    return TextPart("\n".join(line for line in lines if line), provider_metadata=block.provider_metadata())


def _file_part(source: RequestFields, *, filename: str | None, metadata: ProviderMetadata | None) -> FilePart:
    media_type, data = source.text("media_type"), source.text("data")
    if "/" not in media_type or "," in media_type or ";" in media_type:
        raise invalid_field(
            source.path_of("media_type"), f"must be a media type like 'image/png', got {media_type!r:.40}"
        )
    return FilePart(media_type, f"data:{media_type};base64,{data}", filename, metadata)


def _parse_url(source: RequestFields) -> str:
    url = source.text("url")
    if not url.startswith(("https://", "http://")):
        raise invalid_field(source.path_of("url"), f"must begin with https:// or http://, got {url!r:.60}")
    return url


def _unsupported_source(source: RequestFields, source_type: str) -> BadRequest:
    if source_type == "file":
        problem = "this provider cannot read files uploaded to Anthropic"
        return invalid_field(source.path_of("file_id"), problem, hint=_FILE_HINT)
    return invalid_field(
        source.path_of("type"), f"the source {source_type!r:.40} is not supported", hint=_FILE_HINT
    )
