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
from dragoman.wire.anthropic.door_blocks import KINDS, Piece, pieces, unknown
from dragoman.wire.anthropic.door_fields import Fields, names, wrong
from dragoman.wire.outputs import with_files

_ROLES: tuple[Role, ...] = ("user", "assistant", "system")
_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")


class _Turn(msgspec.Struct):
    """A message that still grows: results come later than their calls."""

    id: str
    role: Role
    parts: list[Part] = msgspec.field(default_factory=list)


class History:
    """Reads messages one after another. `ignored` names what has no neutral word and was left out."""

    def __init__(self) -> None:
        self.ignored: list[str] = []
        self._turns: list[_Turn] = []
        self._calls: dict[str, tuple[_Turn, int]] = {}  # the latest of each id

    def system(self, body: Fields) -> None:
        """Read the body's `system`, which stands before all messages."""
        self._turns.append(_Turn("system", "system", _instructions(body.blocks("system"))))

    def add(self, said: Fields) -> None:
        """Read a message."""
        role = said.text("role")
        turn = next((_Turn(said.path, known) for known in _ROLES if known == role), None)
        if turn is None:
            raise wrong(said.at("role"), f"must be one of {names(_ROLES)}, got {role!r:.40}")
        self._turns.append(turn)
        blocks = said.blocks("content")
        if turn.role == "system":
            turn.parts = _instructions(blocks)
        elif turn.role == "assistant":
            for block in blocks:
                self._say(turn, block)
        elif not said.raw["content"]:
            raise wrong(said.at("content"), "a user's message must say something")
        else:
            for block in blocks:
                self._hear(turn, block)

    def messages(self) -> tuple[Message, ...]:
        """All of them, but for those that say nothing."""
        return tuple(Message(turn.id, turn.role, tuple(turn.parts)) for turn in self._turns if turn.parts)

    def _hear(self, turn: _Turn, block: Fields) -> None:
        """A block of a user."""
        if block.text("type") == "tool_result":
            self._result(block)
        else:
            turn.parts += self._pieces(block)

    def _say(self, turn: _Turn, block: Fields) -> None:
        """A block of an assistant."""
        kind = block.text("type")
        if kind == "tool_use" or kind in _SERVER_CALLS:
            self._call(turn, block)
        elif kind == "tool_result":
            raise wrong(block.at("type"), "a tool's result stands in a user's message")
        elif kind.endswith("_tool_result"):
            self._server_result(block)
        else:
            turn.parts += _words(block, kind)

    def _pieces(self, block: Fields) -> list[Piece]:
        match block.text("type"):
            case "search_result":
                self.ignored.append(block.at("type"))  # its text goes, that it is a search result does not
            case "text" if block.raw.get("citations"):
                self.ignored.append(block.at("citations"))
            case _:
                pass
        return pieces(block)

    def _call(self, turn: _Turn, block: Fields) -> None:
        id, name = block.text("id"), block.text("name")
        known = self._calls.get(id)
        if known is not None and known[0] is turn:
            raise wrong(block.at("id"), f"the id {id!r:.60} is used twice in this message")
        kept = block.metadata("caller", "toolset_name")
        foreign = block.raw["type"] in _SERVER_CALLS
        self._calls[id] = (turn, len(turn.parts))
        turn.parts.append(
            ToolPart(
                f"tool-{name}",
                id,
                "input-available",
                input=block.fields("input").raw,
                provider_executed=True if foreign else None,
                call_provider_metadata={"anthropic": {"block": block.raw}} if foreign else kept,
            )
        )

    def _result(self, block: Fields) -> None:
        """Put a tool's result into its call."""
        turn, index, part = self._open(block)
        if part.provider_executed:
            raise wrong(
                block.at("tool_use_id"), "this tool ran on the provider's side: its result is not yours"
            )
        given = self._given(block)
        failed = block.flag("is_error")
        if failed and any(isinstance(piece, FilePart) for piece in given):
            raise wrong(block.at("content"), "a result with is_error is made of text blocks")
        turn.parts[index] = replace(
            part,
            state="output-error" if failed else "output-available",
            error_text=_joined(given) if failed else None,
            output=msgspec.UNSET if failed else _output(given),
            result_provider_metadata=block.metadata() or _last_mark(given),
        )

    def _given(self, block: Fields) -> list[Piece]:
        """The texts and files of a result, which may say nothing."""
        given: list[Piece] = []
        for inner in block.blocks("content") if block.has("content") else ():
            kind = inner.text("type")
            if kind not in KINDS:
                raise unknown(inner, kind)
            given += self._pieces(inner)
        return given

    def _server_result(self, block: Fields) -> None:
        """Put a server tool's result into its call, unread."""
        turn, index, part = self._open(block)
        if not part.provider_executed:
            raise wrong(block.at("tool_use_id"), "this tool did not run on the provider's side")
        turn.parts[index] = replace(
            part,
            state="output-available",
            output=block.raw.get("content"),
            result_provider_metadata={"anthropic": {"block": block.raw}},
        )

    def _open(self, block: Fields) -> tuple[_Turn, int, ToolPart]:
        """The call that a result is for, with its place; it must be there and have none yet."""
        id, path = block.text("tool_use_id"), block.at("tool_use_id")
        if id not in self._calls:
            raise wrong(path, f"no call before this has the id {id!r:.60}")
        turn, index = self._calls[id]
        part = turn.parts[index]
        if not isinstance(part, ToolPart) or part.state != "input-available":
            raise wrong(path, f"the call {id!r:.60} has a result already")
        return turn, index, part


def _instructions(blocks: list[Fields]) -> list[Part]:
    parts: list[Part] = []
    for block in blocks:
        if block.text("type") != "text":
            raise wrong(block.at("type"), "a system message is made of text blocks")
        parts += pieces(block)
    return parts


def _words(block: Fields, kind: str) -> list[Part]:
    """What an assistant says beside calls; a block that only Anthropic can read is kept as it came."""
    match kind:
        case "text":
            said = block.text("text", empty=True)
            return [TextPart(said, provider_metadata=block.metadata("citations"))] if said else []
        case "thinking":
            return [_thinking(block)]
        case "redacted_thinking":
            return [ReasoningPart("", None, {"anthropic": {"redactedData": block.text("data")}})]
        case _:
            return [DataPart("data-anthropic", block.raw)]


def _thinking(block: Fields) -> ReasoningPart:
    """The thought; its signature goes back as it came. One without was made by a model that signs nothing."""
    signature = block.maybe_text("signature")
    kept: ProviderMetadata | None = {"anthropic": {"signature": signature}} if signature else None
    return ReasoningPart(block.text("thinking", empty=True), None, kept)


def _output(given: list[Piece]) -> Any:
    """A text where there are no files, as most tools and all providers want it."""
    return with_files(given) if any(isinstance(piece, FilePart) for piece in given) else _joined(given)


def _joined(given: list[Piece]) -> str:
    return "\n".join(piece.text for piece in given if isinstance(piece, TextPart))


def _last_mark(given: list[Piece]) -> ProviderMetadata | None:
    """The last cache mark inside a result: it means everything up to here, as one on the result does."""
    marks = [(piece.provider_metadata or {}).get("anthropic", {}).get("cacheControl") for piece in given]
    last = next((mark for mark in reversed(marks) if mark), None)
    return {"anthropic": {"cacheControl": last}} if last else None
