"""Parse the messages of an Anthropic request to UI messages, each call with its result.

An assistant turn becomes one message; the results in the next user turn are put into its calls. What a user
says besides results becomes a message of its own. Blocks that only Anthropic can read are kept unchanged.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.messages import (
    DataPart,
    FilePart,
    Message,
    Part,
    ProviderMetadata,
    ReasoningPart,
    Role,
    TextPart,
    ToolPart,
)
from dragoman.wire.anthropic.client_content import (
    BLOCK_TYPES,
    ContentPart,
    is_made_of_blocks,
    parse_block,
    unsupported_block,
)
from dragoman.wire.anthropic.field_reader import RequestFields, invalid_field, quoted_list
from dragoman.wire.anthropic.foreign_reasoning import (
    decode_opaque_reasoning,
    openai_metadata,
    own_citations,
)
from dragoman.wire.multimodal_outputs import write_multimodal_output

_ROLES: tuple[Role, ...] = ("user", "assistant", "system")
_CONTENT = "messages[].content[]"
_BLOCK_FIELDS = {  # of users and tools
    "text": ("type", "text", "cache_control", "citations"),
    "image": ("type", "source", "cache_control", "transformations"),
    "document": ("type", "source", "cache_control", "title", "context", "citations"),
    "search_result": ("type", "source", "cache_control", "title", "content", "citations"),
}
_SERVER_CALL_TYPES = ("server_tool_use", "mcp_tool_use")


class _AnthropicDraftMessage(msgspec.Struct):
    """A message that is still incomplete: results come later than their calls."""

    id: str
    role: Role
    parts: list[Part] = msgspec.field(default_factory=list)


class AnthropicMessageParser:
    """Parses messages one by one. `ignored_fields` names dropped fields, which have no neutral equivalent."""

    def __init__(self) -> None:
        self.ignored_fields: list[str] = []
        self._drafts: list[_AnthropicDraftMessage] = []
        self._call_positions: dict[str, tuple[_AnthropicDraftMessage, int]] = {}  # the latest call of each id
        self._opaque_calls: dict[str, ProviderMetadata] = {}  # by call id: metadata of another family

    def add_system(self, body: RequestFields) -> None:
        """Parse the body's `system`, which comes before all messages."""
        self._drafts.append(
            _AnthropicDraftMessage("system", "system", _parse_system(body.content_blocks("system")))
        )

    def add_message(self, message: RequestFields) -> None:
        """Parse a message."""
        role = message.text("role")
        draft = next(
            (_AnthropicDraftMessage(message.path, allowed) for allowed in _ROLES if allowed == role), None
        )
        if draft is None:
            raise invalid_field(
                message.path_of("role"), f"must be one of {quoted_list(_ROLES)}, got {role!r:.40}"
            )
        self.ignored_fields += message.unknown_fields(("role", "content"), place="messages[]")
        self._drafts.append(draft)
        blocks = message.content_blocks("content")
        if draft.role == "system":
            draft.parts = _parse_system(blocks)
        elif draft.role == "assistant":
            for block in blocks:
                self._add_assistant_block(draft, block)
        elif not message.raw["content"]:
            raise invalid_field(message.path_of("content"), "a user message must not be empty")
        else:
            for block in blocks:
                self._add_user_block(draft, block)

    def messages(self) -> tuple[Message, ...]:
        """All messages that are not empty."""
        return tuple(
            Message(draft.id, draft.role, tuple(draft.parts)) for draft in self._drafts if draft.parts
        )

    def _add_user_block(self, draft: _AnthropicDraftMessage, block: RequestFields) -> None:
        """Add a block of a user message."""
        if block.text("type") == "tool_result":
            self._add_result(block)
        else:
            draft.parts += self._parse_block(block)

    def _add_assistant_block(self, draft: _AnthropicDraftMessage, block: RequestFields) -> None:
        """Add a block of an assistant message."""
        block_type = block.text("type")
        if block_type == "tool_use" or block_type in _SERVER_CALL_TYPES:
            self._add_call(draft, block)
        elif block_type == "tool_result":
            raise invalid_field(block.path_of("type"), "a tool_result block belongs in a user message")
        elif block_type.endswith("_tool_result"):
            self._add_server_result(block)
        elif block_type == "redacted_thinking":
            draft.parts += self._parse_redacted_thinking(draft, block)
        else:
            draft.parts += _parse_assistant_block(block, block_type)

    def _parse_redacted_thinking(self, draft: _AnthropicDraftMessage, block: RequestFields) -> list[Part]:
        """Parse hidden thinking; the opaque part of a call goes into the call, before or after it."""
        data = block.text("data")
        opaque = decode_opaque_reasoning(data, "")
        if opaque is None:
            return [ReasoningPart("", None, {"anthropic": {"redactedData": data}})]
        call_id = opaque.get("call_id")
        if not isinstance(call_id, str):
            metadata = openai_metadata(opaque)
            return [ReasoningPart("", None, metadata)] if metadata else []
        call_metadata: dict[str, Any] = {
            name: opaque[name] for name in ("extra_content", "provider") if name in opaque
        }
        call_draft, index = self._call_positions.get(call_id, (None, 0))
        if call_draft is draft:
            part = draft.parts[index]
            if isinstance(part, ToolPart):
                metadata = {**(part.call_provider_metadata or {}), "openai": call_metadata}
                draft.parts[index] = replace(part, call_provider_metadata=metadata)
        else:
            self._opaque_calls[call_id] = {"openai": call_metadata}
        return []

    def _parse_block(self, block: RequestFields) -> list[ContentPart]:
        block_type = block.text("type")
        self.ignored_fields += block.unknown_fields(_BLOCK_FIELDS.get(block_type, block.raw), place=_CONTENT)
        match block_type:
            case "document" if is_made_of_blocks(block):
                names = ("context", "citations")
                self.ignored_fields += [f"{_CONTENT}.{name}" for name in names if block.raw.get(name)]
            case "search_result":
                self.ignored_fields.append(f"{_CONTENT}.type.search_result")  # only its text is kept
            case "text" if block.raw.get("citations"):
                self.ignored_fields.append(f"{_CONTENT}.citations")
            case _:
                pass
        return parse_block(block)

    def _add_call(self, draft: _AnthropicDraftMessage, block: RequestFields) -> None:
        id, name = block.text("id"), block.text("name")
        position = self._call_positions.get(id)
        if position is not None and position[0] is draft:
            raise invalid_field(block.path_of("id"), f"the id {id!r:.60} is used twice in this message")
        opaque = self._opaque_calls.pop(id, None)
        metadata = block.provider_metadata("caller", "toolset_name")
        if opaque is not None:
            metadata = {**(metadata or {}), **opaque}
        provider_executed = block.raw["type"] in _SERVER_CALL_TYPES
        self._call_positions[id] = (draft, len(draft.parts))
        draft.parts.append(
            ToolPart(
                f"tool-{name}",
                id,
                "input-available",
                input=block.nested("input").raw,
                provider_executed=True if provider_executed else None,
                call_provider_metadata={"anthropic": {"block": block.raw}} if provider_executed else metadata,
            )
        )

    def _add_result(self, block: RequestFields) -> None:
        """Put a tool result into its call."""
        draft, index, part = self._open_call(block)
        if part.provider_executed:
            raise invalid_field(
                block.path_of("tool_use_id"),
                "this tool ran on the provider's side; send its result in the assistant message",
            )
        content = self._parse_result_content(block)
        failed = block.flag("is_error")
        if failed and any(isinstance(content_part, FilePart) for content_part in content):
            raise invalid_field(
                block.path_of("content"), "a result with is_error must contain only text blocks"
            )
        draft.parts[index] = replace(
            part,
            state="output-error" if failed else "output-available",
            error_text=_join_text(content) if failed else None,
            output=msgspec.UNSET if failed else _tool_output(content),
            result_provider_metadata=block.provider_metadata() or _last_cache_control(content),
        )

    def _parse_result_content(self, block: RequestFields) -> list[ContentPart]:
        """Parse the content of a result, which may be absent."""
        parts: list[ContentPart] = []
        for content_block in block.content_blocks("content") if block.has("content") else ():
            block_type = content_block.text("type")
            if block_type not in BLOCK_TYPES:
                raise unsupported_block(content_block, block_type)
            parts += self._parse_block(content_block)
        return parts

    def _add_server_result(self, block: RequestFields) -> None:
        """Put a server tool's result into its call, unchanged."""
        draft, index, part = self._open_call(block)
        if not part.provider_executed:
            raise invalid_field(block.path_of("tool_use_id"), "this tool did not run on the provider's side")
        draft.parts[index] = replace(
            part,
            state="output-available",
            output=block.raw.get("content"),
            result_provider_metadata={"anthropic": {"block": block.raw}},
        )

    def _open_call(self, block: RequestFields) -> tuple[_AnthropicDraftMessage, int, ToolPart]:
        """Find the call of a result, with its position; it must exist and have no result yet."""
        id, path = block.text("tool_use_id"), block.path_of("tool_use_id")
        if id not in self._call_positions:
            raise invalid_field(path, f"no earlier tool call has the id {id!r:.60}")
        draft, index = self._call_positions[id]
        part = draft.parts[index]
        if not isinstance(part, ToolPart) or part.state != "input-available":
            raise invalid_field(path, f"the call {id!r:.60} already has a result")
        return draft, index, part


def _parse_system(blocks: list[RequestFields]) -> list[Part]:
    parts: list[Part] = []
    for block in blocks:
        if block.text("type") != "text":
            raise invalid_field(block.path_of("type"), "a system message must contain only text blocks")
        parts += parse_block(block)
    return parts


def _parse_assistant_block(block: RequestFields, block_type: str) -> list[Part]:
    """Parse an assistant block other than a call; one that only Anthropic can read is kept unchanged."""
    match block_type:
        case "text":
            text = block.text("text", empty=True)
            return [TextPart(text, provider_metadata=_text_metadata(block))] if text else []
        case "thinking":
            return [_parse_thinking(block)]
        case _:
            return [DataPart("data-anthropic", block.raw)]


def _text_metadata(block: RequestFields) -> ProviderMetadata | None:
    """Return Anthropic's own fields of a text, without citations that the hub made of other models'."""
    fields = (block.provider_metadata("citations") or {}).get("anthropic", {})
    citations = fields.get("citations")
    own = own_citations(citations) if isinstance(citations, list) else citations
    fields = {name: value for name, value in {**fields, "citations": own}.items() if value}
    return {"anthropic": fields} if fields else None


def _parse_thinking(block: RequestFields) -> ReasoningPart:
    """Parse a thinking block with its signature. One without a signature comes from another model."""
    signature, text = block.optional_text("signature"), block.text("thinking", empty=True)
    opaque = decode_opaque_reasoning(signature, text)
    if opaque is not None:
        return ReasoningPart(text, None, openai_metadata(opaque))
    metadata: ProviderMetadata | None = {"anthropic": {"signature": signature}} if signature else None
    return ReasoningPart(text, None, metadata)


def _tool_output(parts: list[ContentPart]) -> Any:
    """Join the texts unless there are files, as most tools and all providers expect."""
    return (
        write_multimodal_output(parts)
        if any(isinstance(part, FilePart) for part in parts)
        else _join_text(parts)
    )


def _join_text(parts: list[ContentPart]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def _last_cache_control(parts: list[ContentPart]) -> ProviderMetadata | None:
    """Return the last cache breakpoint inside a result: it covers the same prefix as one on the result."""
    cache_controls = [
        (part.provider_metadata or {}).get("anthropic", {}).get("cacheControl") for part in parts
    ]
    last = next((cache_control for cache_control in reversed(cache_controls) if cache_control), None)
    return {"anthropic": {"cacheControl": last}} if last else None
