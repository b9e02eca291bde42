"""Outputs: what a tool gave, as texts and files for a model. Files come in MCP's manner.

An output with files is `{"content": [...]}` with MCP's content blocks: `{"type": "text", "text"}`,
`{"type": "image"|"audio", "data": base64, "mimeType"}`, `{"type": "resource_link", "uri", "mimeType"}`,
`{"type": "resource", "resource": {"uri", "mimeType", "blob": base64 or "text"}}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.messages import FilePart, TextPart, ToolPart


def read_multimodal_output(part: ToolPart) -> Sequence[TextPart | FilePart] | None:
    """The output's pieces in order when there are files among them; None for any other output."""
    content = part.output.get("content") if isinstance(part.output, Mapping) else None
    if part.state != "output-available" or not isinstance(content, list):
        return None
    pieces = [_part_from_block(block) for block in content if isinstance(block, Mapping)]
    read = [piece for piece in pieces if piece is not None]
    if len(read) != len(content) or not any(isinstance(piece, FilePart) for piece in read):
        return None
    return read


def write_multimodal_output(parts: Sequence[TextPart | FilePart]) -> dict[str, Any]:
    """The pieces as an output that `read_multimodal_output` reads."""
    return {"content": [_block_from_part(piece) for piece in parts]}


def _part_from_block(block: Mapping[str, Any]) -> TextPart | FilePart | None:
    kind, media = block.get("type"), block.get("mimeType")
    if kind == "text" and isinstance(block.get("text"), str):
        return TextPart(block["text"])
    if kind in ("image", "audio") and isinstance(block.get("data"), str) and isinstance(media, str):
        return FilePart(media, f"data:{media};base64,{block['data']}")
    if kind == "resource_link" and isinstance(block.get("uri"), str):
        return FilePart(media if isinstance(media, str) else "application/octet-stream", block["uri"])
    return _part_from_resource(block["resource"]) if isinstance(block.get("resource"), Mapping) else None


def _part_from_resource(resource: Mapping[str, Any]) -> TextPart | FilePart | None:
    """What came along with its address."""
    blob, text = resource.get("blob"), resource.get("text")
    media, uri = resource.get("mimeType"), resource.get("uri")
    if isinstance(text, str):
        return TextPart(f"{uri}:\n{text}" if isinstance(uri, str) else text)
    if not isinstance(blob, str):
        return None
    kind = media if isinstance(media, str) else "application/octet-stream"
    name = uri.rstrip("/").rpartition("/")[2] if isinstance(uri, str) else None
    return FilePart(kind, f"data:{kind};base64,{blob}", name or None)


def _block_from_part(part: TextPart | FilePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    kind = part.media_type.partition("/")[0]
    head, comma, data = part.url.partition(";base64,")
    if comma and head.startswith("data:") and kind in ("image", "audio"):
        return {"type": kind, "data": data, "mimeType": part.media_type}
    return {"type": "resource_link", "uri": part.url, "mimeType": part.media_type}
