"""History: the messages of a request in Anthropic's manner as UI messages, each call with its result.

An assistant's turn is one message; the results that the next user turn brings stand in its calls. What a user
says beside results is a message of its own. Blocks that only Anthropic can read are kept as they came.
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
from dragoman.wire.anthropic.client_content import BLOCK_TYPES, ContentPart, parse_block, unsupported_block
from dragoman.wire.anthropic.client_fields import RequestFields, invalid_field, quoted_list
from dragoman.wire.tool_outputs import write_multimodal_output

_ROLES: tuple[Role, ...] = ("user", "assistant", "system")
_SERVER_CALL_TYPES = ("server_tool_use", "mcp_tool_use")


class _AnthropicDraftMessage(msgspec.Struct):
    """A message that still grows: results come later than their calls."""

    id: str
    role: Role
    parts: list[Part] = msgspec.field(default_factory=list)


class AnthropicMessageParser:
    """Reads messages one after another. `ignored_fields` names what has no neutral word and was left out."""

    def __init__(self) -> None:
        self.ignored_fields: list[str] = []
        self._drafts: list[_AnthropicDraftMessage] = []
        self._call_positions: dict[str, tuple[_AnthropicDraftMessage, int]] = {}  # the latest of each id

    def add_system(self, body: RequestFields) -> None:
        """Read the body's `add_system`, which stands before all messages."""
        self._drafts.append(
            _AnthropicDraftMessage("system", "system", _parse_system(body.content_blocks("system")))
        )

    def add_message(self, message: RequestFields) -> None:
        """Read a message."""
        role = message.text("role")
        turn = next((_AnthropicDraftMessage(message.path, known) for known in _ROLES if known == role), None)
        if turn is None:
            raise invalid_field(
                message.path_of("role"), f"must be one of {quoted_list(_ROLES)}, got {role!r:.40}"
            )
        self._drafts.append(turn)
        blocks = message.content_blocks("content")
        if turn.role == "system":
            turn.parts = _parse_system(blocks)
        elif turn.role == "assistant":
            for block in blocks:
                self._add_assistant_block(turn, block)
        elif not message.raw["content"]:
            raise invalid_field(message.path_of("content"), "a user's message must say something")
        else:
            for block in blocks:
                self._add_user_block(turn, block)

    def messages(self) -> tuple[Message, ...]:
        """All of them, but for those that say nothing."""
        return tuple(Message(turn.id, turn.role, tuple(turn.parts)) for turn in self._drafts if turn.parts)

    def _add_user_block(self, draft: _AnthropicDraftMessage, block: RequestFields) -> None:
        """A block of a user."""
        if block.text("type") == "tool_result":
            self._add_result(block)
        else:
            draft.parts += self._parse_block(block)

    def _add_assistant_block(self, draft: _AnthropicDraftMessage, block: RequestFields) -> None:
        """A block of an assistant."""
        kind = block.text("type")
        if kind == "tool_use" or kind in _SERVER_CALL_TYPES:
            self._add_call(draft, block)
        elif kind == "tool_result":
            raise invalid_field(block.path_of("type"), "a tool's result stands in a user's message")
        elif kind.endswith("_tool_result"):
            self._add_server_result(block)
        else:
            draft.parts += _parse_assistant_block(block, kind)

    def _parse_block(self, block: RequestFields) -> list[ContentPart]:
        match block.text("type"):
            case "search_result":
                self.ignored_fields.append(
                    block.path_of("type")
                )  # its text goes, that it is a search result does not
            case "text" if block.raw.get("citations"):
                self.ignored_fields.append(block.path_of("citations"))
            case _:
                pass
        return parse_block(block)

    def _add_call(self, draft: _AnthropicDraftMessage, block: RequestFields) -> None:
        id, name = block.text("id"), block.text("name")
        known = self._call_positions.get(id)
        if known is not None and known[0] is draft:
            raise invalid_field(block.path_of("id"), f"the id {id!r:.60} is used twice in this message")
        kept = block.provider_metadata("caller", "toolset_name")
        foreign = block.raw["type"] in _SERVER_CALL_TYPES
        self._call_positions[id] = (draft, len(draft.parts))
        draft.parts.append(
            ToolPart(
                f"tool-{name}",
                id,
                "input-available",
                input=block.nested("input").raw,
                provider_executed=True if foreign else None,
                call_provider_metadata={"anthropic": {"block": block.raw}} if foreign else kept,
            )
        )

    def _add_result(self, block: RequestFields) -> None:
        """Put a tool's result into its call."""
        turn, index, part = self._open_call(block)
        if part.provider_executed:
            raise invalid_field(
                block.path_of("tool_use_id"), "this tool ran on the provider's side: its result is not yours"
            )
        given = self._parse_result_content(block)
        failed = block.flag("is_error")
        if failed and any(isinstance(piece, FilePart) for piece in given):
            raise invalid_field(block.path_of("content"), "a result with is_error is made of text blocks")
        turn.parts[index] = replace(
            part,
            state="output-error" if failed else "output-available",
            error_text=_join_text(given) if failed else None,
            output=msgspec.UNSET if failed else _tool_output(given),
            result_provider_metadata=block.provider_metadata() or _last_cache_control(given),
        )

    def _parse_result_content(self, block: RequestFields) -> list[ContentPart]:
        """The texts and files of a result, which may say nothing."""
        given: list[ContentPart] = []
        for inner in block.content_blocks("content") if block.has("content") else ():
            kind = inner.text("type")
            if kind not in BLOCK_TYPES:
                raise unsupported_block(inner, kind)
            given += self._parse_block(inner)
        return given

    def _add_server_result(self, block: RequestFields) -> None:
        """Put a server tool's result into its call, unread."""
        turn, index, part = self._open_call(block)
        if not part.provider_executed:
            raise invalid_field(block.path_of("tool_use_id"), "this tool did not run on the provider's side")
        turn.parts[index] = replace(
            part,
            state="output-available",
            output=block.raw.get("content"),
            result_provider_metadata={"anthropic": {"block": block.raw}},
        )

    def _open_call(self, block: RequestFields) -> tuple[_AnthropicDraftMessage, int, ToolPart]:
        """The call that a result is for, with its place; it must be there and have none yet."""
        id, path = block.text("tool_use_id"), block.path_of("tool_use_id")
        if id not in self._call_positions:
            raise invalid_field(path, f"no call before this has the id {id!r:.60}")
        turn, index = self._call_positions[id]
        part = turn.parts[index]
        if not isinstance(part, ToolPart) or part.state != "input-available":
            raise invalid_field(path, f"the call {id!r:.60} has a result already")
        return turn, index, part


def _parse_system(blocks: list[RequestFields]) -> list[Part]:
    parts: list[Part] = []
    for block in blocks:
        if block.text("type") != "text":
            raise invalid_field(block.path_of("type"), "a system message is made of text blocks")
        parts += parse_block(block)
    return parts


def _parse_assistant_block(block: RequestFields, kind: str) -> list[Part]:
    """What an assistant says beside calls; a block that only Anthropic can read is kept as it came."""
    match kind:
        case "text":
            said = block.text("text", empty=True)
            return [TextPart(said, provider_metadata=block.provider_metadata("citations"))] if said else []
        case "thinking":
            return [_parse_thinking(block)]
        case "redacted_thinking":
            return [ReasoningPart("", None, {"anthropic": {"redactedData": block.text("data")}})]
        case _:
            return [DataPart("data-anthropic", block.raw)]


def _parse_thinking(block: RequestFields) -> ReasoningPart:
    """The thought; its signature goes back as it came. One without was made by a model that signs nothing."""
    signature = block.optional_text("signature")
    kept: ProviderMetadata | None = {"anthropic": {"signature": signature}} if signature else None
    return ReasoningPart(block.text("thinking", empty=True), None, kept)


def _tool_output(parts: list[ContentPart]) -> Any:
    """A text where there are no files, as most tools and all providers want it."""
    return (
        write_multimodal_output(parts)
        if any(isinstance(piece, FilePart) for piece in parts)
        else _join_text(parts)
    )


def _join_text(parts: list[ContentPart]) -> str:
    return "\n".join(piece.text for piece in parts if isinstance(piece, TextPart))


def _last_cache_control(parts: list[ContentPart]) -> ProviderMetadata | None:
    """The last cache mark inside a result: it means everything up to here, as one on the result does."""
    marks = [(piece.provider_metadata or {}).get("anthropic", {}).get("cacheControl") for piece in parts]
    last = next((mark for mark in reversed(marks) if mark), None)
    return {"anthropic": {"cacheControl": last}} if last else None
