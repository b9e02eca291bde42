"""Tool outputs with files, in MCP's content format.

An output with files is `{"content": [...]}` with MCP's content blocks: `{"type": "text", "text"}`, `{"type":
"image"|"audio", "data": base64, "mimeType"}`, `{"type": "resource_link", "uri", "mimeType"}`, `{"type":
"resource", "resource": {"uri", "mimeType", "blob": base64 or "text"}}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.messages import FilePart, TextPart, ToolPart


def read_multimodal_output(part: ToolPart) -> Sequence[TextPart | FilePart] | None:
    """Return the output's texts and files in order; None if the output contains no file.

    The files in the results of a batch (`hub_call`) follow the entries as JSON, without their bytes.
    """
    if part.state == "output-available" and isinstance(part.output, list):
        shown, blocks = separate_files(part.output)
        files = [found for found in map(_part_from_block, blocks) if found is not None]
        return [TextPart(msgspec.json.encode(shown).decode()), *files] if files else None
    content = part.output.get("content") if isinstance(part.output, Mapping) else None
    if part.state != "output-available" or not isinstance(content, list):
        return None
    parsed_parts = [_part_from_block(block) for block in content if isinstance(block, Mapping)]
    parts = [parsed for parsed in parsed_parts if parsed is not None]
    if len(parts) != len(content) or not any(isinstance(parsed, FilePart) for parsed in parts):
        return None
    return parts


def write_multimodal_output(parts: Sequence[TextPart | FilePart]) -> dict[str, Any]:
    """Return an output that `read_multimodal_output` reads."""
    return {"content": [_block_from_part(part) for part in parts]}


def separate_files(output: Any) -> tuple[Any, list[Mapping[str, Any]]]:
    """Return an output without the bytes of its files, and the content blocks that hold them.

    `output` is a result with files, or the entries of a batch, each with such a `result`. A block is replaced
    by its type, its media type and its number among the files, `attached`.
    """
    files: list[Mapping[str, Any]] = []
    if isinstance(output, list):
        entries = [
            {**entry, "result": _without_files(entry["result"], files)}
            if isinstance(entry, Mapping) and "result" in entry
            else entry
            for entry in output
        ]
        return (entries if files else output), files
    return _without_files(output, files), files


def _without_files(result: Any, files: list[Mapping[str, Any]]) -> Any:
    """Return a result without its files, which are added to `files`."""
    content = result.get("content") if isinstance(result, Mapping) else None
    if not isinstance(content, list):
        return result
    found = [isinstance(_file_from_block(block), FilePart) for block in content]
    if not any(found):
        return result
    blocks = []
    for block, is_file in zip(content, found, strict=True):
        if is_file:
            files.append(block)
            media_type = block.get("mimeType") or block.get("resource", {}).get("mimeType")
            blocks.append({"type": block["type"], "mimeType": media_type, "attached": len(files)})
        else:
            blocks.append(block)
    return {**result, "content": blocks}


def _file_from_block(block: Any) -> TextPart | FilePart | None:
    return _part_from_block(block) if isinstance(block, Mapping) else None


def _part_from_block(block: Mapping[str, Any]) -> TextPart | FilePart | None:
    block_type, media_type = block.get("type"), block.get("mimeType")
    if block_type == "text" and isinstance(block.get("text"), str):
        return TextPart(block["text"])
    if (
        block_type in ("image", "audio")
        and isinstance(block.get("data"), str)
        and isinstance(media_type, str)
    ):
        return FilePart(media_type, f"data:{media_type};base64,{block['data']}")
    if block_type == "resource_link" and isinstance(block.get("uri"), str):
        return FilePart(
            media_type if isinstance(media_type, str) else "application/octet-stream", block["uri"]
        )
    return _part_from_resource(block["resource"]) if isinstance(block.get("resource"), Mapping) else None


def _part_from_resource(resource: Mapping[str, Any]) -> TextPart | FilePart | None:
    """Convert an embedded resource."""
    blob, text = resource.get("blob"), resource.get("text")
    media_type, uri = resource.get("mimeType"), resource.get("uri")
    if isinstance(text, str):
        return TextPart(f"{uri}:\n{text}" if isinstance(uri, str) else text)
    if not isinstance(blob, str):
        return None
    file_type = media_type if isinstance(media_type, str) else "application/octet-stream"
    name = uri.rstrip("/").rpartition("/")[2] if isinstance(uri, str) else None
    return FilePart(file_type, f"data:{file_type};base64,{blob}", name or None)


def _block_from_part(part: TextPart | FilePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    main_type = part.media_type.partition("/")[0]
    head, comma, data = part.url.partition(";base64,")
    if comma and head.startswith("data:") and main_type in ("image", "audio"):
        return {"type": main_type, "data": data, "mimeType": part.media_type}
    return {"type": "resource_link", "uri": part.url, "mimeType": part.media_type}
