"""What of a request the providers of another family do not read, and of an answer its clients, by name.

Their writers leave it out without a word, since a conversation may well have been with another model before.
A client that sends it to such a model is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dragoman import events as e
from dragoman.messages import DataPart, FilePart, Part, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.wire.anthropic.block_decoders import RAW_BLOCK_TYPE
from dragoman.wire.anthropic.provider_metadata import FAMILY
from dragoman.wire.responses.provider_calls import RAW_ITEM_TYPE

READS_IMAGE_DETAIL = ("openai", "responses")
CONTENT = "messages[].content[]"
_TOOL_FIELDS = {
    "allowedCallers": "allowed_callers",
    "deferLoading": "defer_loading",
    "eagerInputStreaming": "eager_input_streaming",
    "inputExamples": "input_examples",
}
UNCERTAIN_EVENTS = frozenset(
    {e.File, e.SourceUrl, e.SourceDocument, e.ToolInputAvailable, e.ToolInputError, e.Data}
)
"""Types of events that some clients' protocols have no place for."""


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


def omitted_content(events: Iterable[e.Event], family: str) -> list[str]:
    """Return the names of what the answers of this family may have no place for.

    They are those of the events; calls are those that the provider ran itself. Sources have a place where
    there is a text that can cite them.
    """
    return [_name_of(event) for event in events if _is_omitted(event, family)]


def unshown_options(request: ModelRequest) -> list[str]:
    """Return the options whose effect is in no event of an answer: a translated one lacks it."""
    return [name for name in ("logprobs", "top_logprobs") if request.options.get(name)]


def _name_of(event: e.Event) -> str:
    match event:
        case e.ToolInputAvailable() | e.ToolInputError():
            return "tool-call"
        case e.Data(type=data_type, data={"item": {"type": str(kind)}}) if data_type == RAW_ITEM_TYPE:
            return f"output[].type.{kind[:60]}"
        case e.Data(type=data_type, data={"part": {"type": str(kind)}}) if data_type == RAW_ITEM_TYPE:
            return f"output[].content[].type.{kind[:60]}"
        case _:
            return event.type


def _is_omitted(event: e.Event, family: str) -> bool:
    match event:
        case e.File(media_type=media_type, url=url):
            shows_image = family == "openai" or (family == "responses" and url.startswith("data:"))
            return not (shows_image and media_type.startswith("image/"))
        case e.SourceUrl():
            return family != "openai"
        case e.SourceDocument(provider_metadata=metadata):
            return family != FAMILY or bool(metadata)  # a text of its own cites its documents
        case e.Data(type=data_type):  # what only its own protocol has
            return data_type == RAW_ITEM_TYPE or (data_type == RAW_BLOCK_TYPE and family != FAMILY)
        case e.ToolInputAvailable(provider_executed=True) | e.ToolInputError(provider_executed=True):
            own = (event.provider_metadata or {}).get(FAMILY, {})
            return family != "responses" and not (family == FAMILY and "block" in own)
        case _:
            return False


def _unread_of_part(part: Part, family: str) -> Iterator[str]:
    match part:
        case FilePart():
            yield from _unread_of_file(part, family)
        case DataPart(type=data_type, data=data) if data_type == RAW_BLOCK_TYPE and family != FAMILY:
            yield f"{CONTENT}.type.{_block_type(data)}"
        case ToolPart(provider_executed=True) if family != FAMILY:
            block = (part.call_provider_metadata or {}).get(FAMILY, {}).get("block")
            yield f"{CONTENT}.type.{_block_type(block)}"
        case ToolPart():
            if isinstance(part.raw_input, str):  # not JSON: no provider accepts it
                yield "messages[].tool_calls[].function.arguments"
            if part.state == "output-error" and family != FAMILY:  # the text of the error is sent
                yield f"{CONTENT}.is_error"
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
