"""Reads sessions from files: our JSON lines and JSON, OpenCode's export, ChatGPT's `conversations.json`.

A file comes from anywhere: what does not fit is refused with its place, and nothing in it is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.json_shape import check_shape
from dragoman.json_text import DECODE_ERRORS, decode_json
from dragoman.messages import Message, Part, ReasoningPart, TextPart, ToolPart, parse_message
from dragoman.wire.session_export.json_lines import FORMAT, VERSION, ExportedSession, ExportedSettings

MAX_MESSAGES = 100_000
MAX_ID_LENGTH = 200
HINT = "import JSON lines of `dragoman sessions export --format jsonl`, or an export of OpenCode or ChatGPT"
OPENCODE_STATES = {"completed": "output-available", "error": "output-error"}


def parse_export(raw: bytes, *, max_values: int) -> ExportedSession:
    """Parse a file. Raises BadRequest."""
    first, _, rest = raw.lstrip().partition(b"\n")
    if f'"{FORMAT}"'.encode() in first[:200]:
        return _parse_lines(first, rest.splitlines(), max_values=max_values)
    value = _decode(raw, "the file", max_values=max_values)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list):
        raise BadRequest(f"the file has {len(value)} conversations; import one at a time", hint=HINT)
    if not isinstance(value, dict):
        raise BadRequest("the file is not an exported session", hint=HINT)
    if isinstance(value.get("mapping"), dict):
        return _checked(_text(value.get("title")), _chatgpt_messages(value))
    if isinstance(value.get("info"), dict):
        return _checked(_text(value["info"].get("title")), _opencode_messages(value.get("messages")))
    messages = value.get("messages")
    if not isinstance(messages, list):
        raise BadRequest("the file is not an exported session", hint=HINT)
    return _with_settings(
        value, [parse_message(each, field=f"messages[{at}]") for at, each in enumerate(messages)]
    )


def _parse_lines(first: bytes, lines: Sequence[bytes], *, max_values: int) -> ExportedSession:
    settings = _decode(first, "line 1", max_values=max_values)
    if not isinstance(settings, dict) or settings.get("version") != VERSION:
        raise BadRequest(f"line 1 is not of version {VERSION}", hint=HINT)
    messages = [
        parse_message(_decode(line, f"line {at}", max_values=max_values), field=f"line {at}")
        for at, line in enumerate(lines, 2)
        if line.strip()
    ]
    return _with_settings(settings, messages)


def _with_settings(settings: Mapping[str, Any], messages: Sequence[Message]) -> ExportedSession:
    names = ("title", "agent", "model", "maxSteps", "labels", "createdAt")
    try:
        found = {name: settings[name] for name in names if settings.get(name) is not None}
        converted = msgspec.convert(found, ExportedSettings)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the session's settings do not fit: {error}") from None
    return ExportedSession(converted, _unique(messages))


def _checked(title: str | None, messages: Iterator[Message]) -> ExportedSession:
    return ExportedSession(ExportedSettings(title=title), _unique(list(messages)))


def _unique(messages: Sequence[Message]) -> Sequence[Message]:
    ids: set[str] = set()
    if len(messages) > MAX_MESSAGES:
        raise BadRequest(f"the file has {len(messages)} messages; {MAX_MESSAGES} are allowed")
    for message in messages:
        if not 1 <= len(message.id) <= MAX_ID_LENGTH:
            raise BadRequest(f"{message.id!r:.80} is not a valid id of a message", field="id")
        if message.id in ids:
            raise BadRequest(f"two messages have the id {message.id!r}", field="id")
        ids.add(message.id)
    return messages


def _decode(raw: bytes, field: str, *, max_values: int) -> Any:
    check_shape(raw, max_values=max_values)
    try:
        return decode_json(raw)
    except DECODE_ERRORS as error:
        raise BadRequest(f"{field} is not valid JSON: {error}", field=field, hint=HINT) from None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _chatgpt_messages(conversation: Mapping[str, Any]) -> Iterator[Message]:
    """Yield the messages of the branch that was shown last."""
    nodes, path, seen = conversation["mapping"], [], set()
    id = conversation.get("current_node")
    while isinstance(id, str) and id in nodes and id not in seen and isinstance(nodes[id], dict):
        seen.add(id)
        path.append(nodes[id])
        id = nodes[id].get("parent")
    for node in reversed(path):
        message = node.get("message")
        if isinstance(message, dict) and (read := _chatgpt_message(message)) is not None:
            yield read


def _chatgpt_message(message: Mapping[str, Any]) -> Message | None:
    author, content = message.get("author"), message.get("content")
    role = author.get("role") if isinstance(author, dict) else None
    pieces = content.get("parts") if isinstance(content, dict) else None
    texts = (
        [piece for piece in pieces if isinstance(piece, str) and piece] if isinstance(pieces, list) else []
    )
    if role not in ("user", "assistant") or not texts:
        return None
    return Message(str(message.get("id")), role, tuple(TextPart(text) for text in texts))


def _opencode_messages(messages: Any) -> Iterator[Message]:
    for at, message in enumerate(messages if isinstance(messages, list) else ()):
        info = message.get("info") if isinstance(message, dict) else None
        if not isinstance(info, dict) or info.get("role") not in ("user", "assistant"):
            raise BadRequest(f"messages[{at}] has no role", field=f"messages[{at}]", hint=HINT)
        raw = message.get("parts")
        parts = [
            _opencode_part(part) for part in (raw if isinstance(raw, list) else ()) if isinstance(part, dict)
        ]
        yield Message(str(info.get("id")), info["role"], tuple(part for part in parts if part is not None))


def _opencode_part(part: Mapping[str, Any]) -> Part | None:
    text = _text(part.get("text"))
    if part.get("type") == "text" and text:
        return TextPart(text)
    if part.get("type") == "reasoning" and text:
        return ReasoningPart(text)
    state = part.get("state")
    if part.get("type") != "tool" or not isinstance(state, dict):
        return None
    name, status = str(part.get("tool")), OPENCODE_STATES.get(str(state.get("status")), "output-error")
    is_error = status == "output-error"
    return ToolPart(
        f"tool-{name}",
        str(part.get("callID")),
        "output-error" if is_error else "output-available",
        input=state.get("input"),
        output=msgspec.UNSET if is_error else state.get("output"),
        error_text=(_text(state.get("error")) or "the call did not end") if is_error else None,
    )
