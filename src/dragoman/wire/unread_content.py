"""What of a gateway client's request the providers of another family do not read, by name.

Their writers leave it out without a word, since a conversation may well have been with another model before.
A client that sends it to such a model is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dragoman.messages import DataPart, FilePart, Part, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.wire.anthropic.block_decoders import RAW_BLOCK_TYPE
from dragoman.wire.anthropic.metadata import FAMILY

READS_IMAGE_DETAIL = ("openai", "responses")
CONTENT = "messages[].content[]"
_TOOL_FIELDS = {
    "allowedCallers": "allowed_callers",
    "deferLoading": "defer_loading",
    "eagerInputStreaming": "eager_input_streaming",
    "inputExamples": "input_examples",
}


def unread_content(request: ModelRequest, family: str) -> list[str]:
    """Return the names of what providers of this family leave out of tools and messages, each once."""
    names: dict[str, None] = {}
    if family != FAMILY:
        for tool in request.tools:
            metadata = (tool.metadata or {}).get(FAMILY, {})
            names |= {f"tools[].{name}": None for key, name in _TOOL_FIELDS.items() if metadata.get(key)}
    for message in request.messages:
        for part in message.parts:
            names |= dict.fromkeys(_unread_of_part(part, family))
    return list(names)


def _unread_of_part(part: Part, family: str) -> Iterator[str]:
    match part:
        case FilePart():
            yield from _unread_of_file(part, family)
        case DataPart(type=data_type, data=data) if data_type == RAW_BLOCK_TYPE and family != FAMILY:
            yield f"{CONTENT}.type.{_block_type(data)}"
        case ToolPart(provider_executed=True) if family != FAMILY:
            block = (part.call_provider_metadata or {}).get(FAMILY, {}).get("block")
            yield f"{CONTENT}.type.{_block_type(block)}"
        case ToolPart() if isinstance(part.raw_input, str):  # not JSON: no provider accepts it
            yield "messages[].tool_calls[].function.arguments"
        case _:
            pass


def _unread_of_file(part: FilePart, family: str) -> Iterator[str]:
    metadata = part.provider_metadata or {}
    own = metadata.get(FAMILY, {}) if family != FAMILY else {}
    citations = own.get("citations")
    if isinstance(citations, Mapping) and citations.get("enabled"):
        yield f"{CONTENT}.citations"
    yield from (f"{CONTENT}.{name}" for name in ("context", "transformations") if own.get(name))
    detail = metadata.get("openai", {}).get("imageDetail")
    if detail not in (None, "auto") and family not in READS_IMAGE_DETAIL:
        yield f"{CONTENT}.image_url.detail"


def _block_type(block: Any) -> str:
    block_type = block.get("type") if isinstance(block, Mapping) else None
    return block_type if isinstance(block_type, str) else "unknown"
