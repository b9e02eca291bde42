"""Results of MCP servers as results of operations. Files stay MCP content blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.errors import CallError
from dragoman.operations.sanitize import sanitize_text

MESSAGE_LIMIT = 2_000
PREVIEW_CHARS = 300
FETCHABLE_SCHEMES = ("https://", "http://", "data:")


def tool_value(raw: Mapping[str, Any]) -> Any:
    """Return the value of a tool result.

    This is its structured content, else its text: a string, or a list if there are several. With files it is
    `{"content": [blocks]}` and `structuredContent` beside it, if any. Raises CallError if the tool reports
    an error.
    """
    content = raw.get("content")
    if content is not None and not isinstance(content, list):
        raise CallError("the server's response does not follow MCP: its content is not a list")
    blocks = [block for each in content or [] for block in content_blocks(each)]
    structured = raw.get("structuredContent")
    if raw.get("isError"):
        raise CallError(joined_text(blocks) or "the tool failed without an error message")
    files = any(block["type"] != "text" for block in blocks)
    if files:
        return {"content": blocks} | ({} if structured is None else {"structuredContent": structured})
    return text_value(blocks) if structured is None else structured


def text_value(blocks: Sequence[Mapping[str, Any]]) -> Any:
    texts = [block["text"] for block in blocks]
    return None if not texts else texts[0] if len(texts) == 1 else texts


def resource_value(contents: Sequence[Any]) -> Any:
    """Return the value of a resource: its text, or `{"content": [blocks]}`. Raises CallError if invalid."""
    if not all(isinstance(each, dict) for each in contents):
        raise CallError("the server's response does not follow MCP: its contents are not objects")
    blocks = [resource_block(each) for each in contents]
    if all(block["type"] == "text" for block in blocks):
        return text_value(blocks)
    return {"content": blocks}


def prompt_value(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Return `{"description": ..., "messages": [{"role": ..., "content": block or blocks}]}`."""
    messages = [
        {"role": each.get("role"), "content": blocks[0] if len(blocks) == 1 else blocks}
        for each in prompt.get("messages", [])
        for blocks in [content_blocks(each.get("content"))]
    ]
    return {"description": prompt.get("description"), "messages": messages}


def content_blocks(block: Any) -> list[dict[str, Any]]:
    """Return a content block with its known fields; an unknown kind becomes a text that says so."""
    kind = block.get("type") if isinstance(block, dict) else None
    match block:
        case {"type": "text", "text": str(text)}:
            return [{"type": "text", "text": text}]
        case {"type": "image" | "audio", "data": str(data), "mimeType": str(media)}:
            return [{"type": kind, "data": data, "mimeType": media}]
        case {"type": "resource_link", "uri": str(uri)}:
            return [link_block(uri, block.get("mimeType"))]
        case {"type": "resource", "resource": dict(resource)}:
            return [resource_block(resource)]
        case _:
            return [text_block(f"(content of an unknown kind is left out: {sanitize_text(str(kind), 40)!r})")]


def resource_block(resource: Mapping[str, Any]) -> dict[str, Any]:
    text, blob, media = resource.get("text"), resource.get("blob"), resource.get("mimeType")
    if isinstance(text, str):
        return text_block(text)
    if not isinstance(blob, str):
        return text_block("(a resource without content)")
    media = media if isinstance(media, str) else "application/octet-stream"
    kind = media.partition("/")[0]
    if kind in ("image", "audio"):
        return {"type": kind, "data": blob, "mimeType": media}
    return {"type": "resource_link", "uri": f"data:{media};base64,{blob}", "mimeType": media}


def link_block(uri: str, media: Any) -> dict[str, Any]:
    """Return a link if a model's provider can fetch it, else a text: `resources.read` reads it."""
    if not uri.startswith(FETCHABLE_SCHEMES):
        return text_block(f"(a resource: {sanitize_text(uri, PREVIEW_CHARS)})")
    return {"type": "resource_link", "uri": uri, **({"mimeType": media} if isinstance(media, str) else {})}


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def joined_text(blocks: Sequence[Mapping[str, Any]]) -> str:
    return sanitize_text(
        "\n".join(block["text"] for block in blocks if block["type"] == "text"), MESSAGE_LIMIT
    )


def describe_question(method: str, params: Any) -> str:
    """Describe a request of a server to its client, such as one for input."""
    message = params.get("message") if isinstance(params, Mapping) else None
    if method == "elicitation/create":
        return f"input: {sanitize_text(message, PREVIEW_CHARS)!r}" if isinstance(message, str) else "input"
    return "a model's answer" if method == "sampling/createMessage" else "the client's folders"


def question_error(questions: Sequence[str]) -> CallError:
    """Return the error of a call whose server requested input instead of answering."""
    return CallError(
        f"the server asked for {'; '.join(questions)}, but nobody can answer in the middle of a call",
        hint="give what it asks for in the tool's input, if the tool takes it",
    )
