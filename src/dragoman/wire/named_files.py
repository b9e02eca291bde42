"""Files that a request only names, by their URL or an id: the provider alone knows how large they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from dragoman.messages import FilePart, Message, Part, ToolPart
from dragoman.wire.multimodal_outputs import read_multimodal_output

_LISTS = ("content", "output")  # of a message, an item, or the result of a call
_MAX_DEPTH = 3  # a message has the result of a call, and this has parts


class NamedFiles(NamedTuple):
    """How many images and documents are named."""

    images: int = 0
    documents: int = 0


def may_name_files(body: bytes) -> bool:
    """Return whether a request may name files; its fields are then to be decoded and counted.

    Without calls: every request is asked.
    """
    return b"_url" in body or b'"url"' in body or b'"file_id"' in body or b"\\u00" in body


def count_named_files(conversation: Any) -> NamedFiles:
    """Count the files that a conversation names: `messages` (OpenAI, Anthropic) or `input` (Responses)."""
    kinds = [kind for block in _blocks(conversation) if (kind := _named_kind(block)) is not None]
    return NamedFiles(kinds.count("image"), kinds.count("document"))


def names_documents(messages: Iterable[Message]) -> bool:
    """Return whether messages name documents by their URL; images have no more tokens than their estimate."""
    parts = chain.from_iterable(message.parts for message in messages)
    return any(_is_named_document(part) for part in parts)


def _is_named_document(part: Part) -> bool:
    match part:
        case FilePart(media_type=kind, url=url):
            return not kind.startswith("image/") and _is_url(url)
        case ToolPart():
            return any(map(_is_named_document, read_multimodal_output(part) or ()))
        case _:
            return False


def _blocks(value: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    for each in value if isinstance(value, list) else ():
        if isinstance(each, Mapping):
            yield each
            for name in _LISTS if depth < _MAX_DEPTH else ():
                yield from _blocks(each.get(name), depth + 1)


def _named_kind(block: Mapping[str, Any]) -> str | None:
    """Return what a block names: an `image`, a `document` of any length, or nothing."""
    kind, source = block.get("type"), block.get("source")
    if isinstance(source, Mapping):
        is_named = source.get("type") in ("url", "file")
        return ("image" if kind == "image" else "document") if is_named else None
    if kind in ("image_url", "input_image"):
        return "image" if _is_url(block.get("image_url")) or block.get("file_id") else None
    if kind in ("file", "input_file"):
        file = block.get("file", block)
        fields = file if isinstance(file, Mapping) else {}
        return "document" if fields.get("file_id") or _is_url(fields.get("file_url")) else None
    if kind in ("document_url", "video_url"):
        return "document" if _is_url(block.get(kind)) else None
    return None


def _is_url(value: Any) -> bool:
    """Return whether a value, or its `url`, is a URL that does not hold the data itself."""
    url = value.get("url") if isinstance(value, Mapping) else value
    return isinstance(url, str) and bool(url) and url[:5].lower() != "data:"
