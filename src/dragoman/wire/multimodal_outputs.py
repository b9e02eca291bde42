"""Tool outputs with files, in MCP's content format.

An output with files is `{"content": [...]}` with MCP's content blocks: `{"type": "text", "text"}`, `{"type":
"image"|"audio", "data": base64, "mimeType"}`, `{"type": "resource_link", "uri", "mimeType"}`, `{"type":
"resource", "resource": {"uri", "mimeType", "blob": base64 or "text"}}`. Such blocks may also be anywhere else
in an output, as in the entries of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.messages import FilePart, Message, Part, TextPart, ToolPart
from dragoman.wire.files import (
    MAX_IMAGE_BYTES,
    base64_data,
    base64_size,
    base_media_type,
    file_note,
    size_text,
)
from dragoman.wire.json_codec import encode_json

FILE_TYPES = ("image", "audio", "resource", "resource_link")
MAX_CONTAINERS = 50_000  # objects and lists of an output that are searched for files


def read_multimodal_output(part: ToolPart) -> Sequence[TextPart | FilePart] | None:
    """Return the output's texts and files in order; None if the output contains no file.

    Files that are anywhere else than in `content` follow the output as JSON, without their bytes. An image
    that is too large for models is a text about it.
    """
    if part.state != "output-available" or not isinstance(part.output, Mapping | list):
        return None
    parts = _read_content(part.output)
    if parts is not None:
        return list(map(_within_limit, parts))
    shown, blocks = separate_files(part.output)
    files = [_within_limit(found) for found in map(_part_from_block, blocks) if found is not None]
    return [TextPart(encode_json(shown)), *files] if files else None


def _read_content(output: Any) -> Sequence[TextPart | FilePart] | None:
    """Return the parts of an output in MCP's format; None unless it is texts and at least one file."""
    content = output.get("content") if isinstance(output, Mapping) else None
    if not isinstance(content, list):
        return None
    parsed_parts = [_part_from_block(block) for block in content if isinstance(block, Mapping)]
    parts = [parsed for parsed in parsed_parts if parsed is not None]
    has_file = any(isinstance(parsed, FilePart) for parsed in parts)
    return parts if has_file and len(parts) == len(content) else None


def without_files(output: Any) -> Any:
    """Return an output with a text in place of each file: its type, and its size or URL."""
    if not _has_file(output):
        return output
    parts = _read_content(output)
    if parts is None:
        return _without_files(output, Files(file_text))
    return "\n".join(part.text if isinstance(part, TextPart) else file_note(part) for part in parts)


def without_tool_files(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages with texts in place of files in outputs of tools; the same list if it has none."""
    found = [index for index, message in enumerate(messages) if any(map(_has_file_output, message.parts))]
    if not found:
        return messages
    written = list(messages)
    for index in found:
        parts = [
            replace(part, output=without_files(part.output))
            if isinstance(part, ToolPart) and _has_file_output(part)
            else part
            for part in messages[index].parts
        ]
        written[index] = replace(messages[index], parts=tuple(parts))
    return written


def _has_file_output(part: Part) -> bool:
    return isinstance(part, ToolPart) and part.state == "output-available" and _has_file(part.output)


def write_multimodal_output(parts: Sequence[TextPart | FilePart]) -> dict[str, Any]:
    """Return an output that `read_multimodal_output` reads."""
    return {"content": [_block_from_part(part) for part in parts]}


def separate_files(output: Any) -> tuple[Any, list[Mapping[str, Any]]]:
    """Return an output without the bytes of its files, and the content blocks that hold them.

    A block is replaced by its type, its media type and its number among the files, `attached`.
    """
    if not _has_file(output):
        return output, []
    files = Files(_numbered_block)
    return _without_files(output, files), files.blocks


class Files:
    """Files that are removed from an output; `replacement` returns the value to put in place of each.

    It is called with the block and its number from 1.
    """

    def __init__(self, replacement: Callable[[Mapping[str, Any], int], Any]) -> None:
        self.blocks: list[Mapping[str, Any]] = []
        self._replacement = replacement

    def take(self, block: Mapping[str, Any]) -> Any:
        """Add a block; return its replacement."""
        self.blocks.append(block)
        return self._replacement(block, len(self.blocks))


def _numbered_block(block: Mapping[str, Any], number: int) -> dict[str, Any]:
    media_type = block.get("mimeType") or block.get("resource", {}).get("mimeType")
    return {"type": block["type"], "mimeType": media_type, "attached": number}


def file_text(block: Mapping[str, Any], _: int = 0) -> str:
    """Return a text that describes a file, for protocols that support only text."""
    part = _part_from_block(block)
    return file_note(part) if isinstance(part, FilePart) else ""


def _has_file(output: Any) -> bool:
    """Return whether there is a file in an output, among its first MAX_CONTAINERS objects and lists."""
    pending = [output]
    for _ in range(MAX_CONTAINERS):
        if not pending:
            return False
        item = pending.pop()
        if isinstance(item, dict):
            if _is_file(item):
                return True
            pending += [value for value in item.values() if isinstance(value, dict | list)]
        elif isinstance(item, list):
            pending += [value for value in item if isinstance(value, dict | list)]
    return False


def _without_files(value: Any, files: Files) -> Any:
    """Return a value without its files, which `files` takes."""
    if isinstance(value, list):
        return [_without_files(item, files) for item in value]
    if not isinstance(value, dict):
        return value
    if _is_file(value):
        return files.take(value)
    return {name: _without_files(item, files) for name, item in value.items()}


def _is_file(value: Mapping[str, Any]) -> bool:
    """Return whether an object in an output is the content block of a file."""
    return value.get("type") in FILE_TYPES and isinstance(_part_from_block(value), FilePart)


def _within_limit(part: TextPart | FilePart) -> TextPart | FilePart:
    """Return a part, or the text about an image that providers refuse for its size."""
    if isinstance(part, FilePart) and base_media_type(part).startswith("image/"):
        data = base64_data(part)
        if data is not None and base64_size(data) > MAX_IMAGE_BYTES:
            return TextPart(
                f"{file_note(part)} is too large for models: at most {size_text(MAX_IMAGE_BYTES)}"
            )
    return part


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
