"""Reads sessions from files: our JSON lines and JSON, OpenCode's export, ChatGPT's `conversations.json`.

Files are not trusted: errors name the invalid place, and no URL in a file is requested.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from dragoman.errors import BadRequest, TooLarge
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.json_limits import check_shape
from dragoman.messages import Message, Part, ReasoningPart, TextPart, ToolPart, parse_message
from dragoman.wire.session_export.json_lines import FORMAT, VERSION, ExportedSession, ExportedSettings
from dragoman.wire.session_export.stream_splitter import (
    MessageSplitter,
    read_head,
    split_array,
    split_lines,
    split_messages,
)

MAX_MESSAGES = 100_000
MAX_CONVERSATIONS = 20_000
MAX_VALUE = 32_000_000  # bytes of a line, or of a message
MAX_NODES = 500_000  # of a conversation of ChatGPT, on all of its branches
MAX_ID_LENGTH = 200
HINT = "import JSON lines of `dragoman sessions export --format jsonl`, or an export of OpenCode or ChatGPT"
OPENCODE_STATES = {"completed": "output-available", "error": "output-error"}


def read_export(
    open_chunks: Callable[[], Iterator[bytes]], *, digest: str, max_values: int
) -> Iterator[ExportedSession]:
    """Read a file, which can be read in chunks from its beginning; yield its sessions.

    The messages of JSON lines, and of a JSON object above `MAX_VALUE` bytes, are read lazily. Several
    conversations are a JSON array, each of up to `MAX_VALUE` bytes unless it is ChatGPT's. `digest` is that
    of the whole file. Raises BadRequest and TooLarge.
    """
    chunks = open_chunks()
    head = next((stripped for chunk in chunks if (stripped := chunk.lstrip())), b"")
    whole = chain([head], chunks)
    if f'"{FORMAT}"'.encode() in head[:200]:
        yield _read_lines(split_lines(whole, max_size=MAX_VALUE), digest=digest, max_values=max_values)
    elif head[:1] == b"[":
        yield from _read_array(split_array(whole), max_values=max_values)
    else:
        parts, size = list[bytes](), 0
        for chunk in whole:
            parts.append(chunk)
            size += len(chunk)
            if size > MAX_VALUE:
                yield _read_long(open_chunks, digest=digest, max_values=max_values)
                return
        yield _parse_conversation(b"".join(parts).rstrip(), max_values=max_values)


def _read_array(parts: Iterator[tuple[bytes, bool]], *, max_values: int) -> Iterator[ExportedSession]:
    """Read several conversations, each of which comes in parts."""
    number, size = 1, 0
    pending: list[bytes] = []
    long: LongConversation | None = None
    for part, is_last in parts:
        size += len(part)
        if long is not None:
            long.feed(part)
        else:
            pending.append(part)
        if size > MAX_VALUE and long is None:
            long = LongConversation(max_values=max_values)
            for each in pending:
                long.feed(each)
            pending = []
        if not is_last:
            continue
        if number > MAX_CONVERSATIONS:
            raise TooLarge(f"the file has more than {MAX_CONVERSATIONS} conversations")
        yield long.end() if long else _parse_conversation(b"".join(pending), max_values=max_values)
        number, size, pending, long = number + 1, 0, [], None


class LongConversation:
    """Reads a conversation of ChatGPT that comes in parts. Of its messages, only the texts are kept.

    All branches are kept until the end, which names the one that was shown.
    """

    def __init__(self, *, max_values: int) -> None:
        self._max_values = max_values
        self._splitter = MessageSplitter(max_size=MAX_VALUE)
        self._digest = hashlib.sha256()
        self._parents: dict[str, Any] = {}
        self._messages: dict[str, Message] = {}
        self._size = 0

    def feed(self, part: bytes) -> None:
        """Read the next part. Raises BadRequest and TooLarge."""
        self._digest.update(part)
        for id, raw in self._splitter.feed(part):
            node = _decode(raw, f"mapping.{id[:80]}", max_values=self._max_values)
            if len(self._parents) >= MAX_NODES:
                raise TooLarge(f"a conversation of the file has more than {MAX_NODES:,} messages")
            self._parents[id] = node.get("parent")
            message = node.get("message")
            if isinstance(message, dict) and (read := _chatgpt_message(message)) is not None:
                self._messages[id] = read
                self._size += sum(len(part.text) for part in read.parts if isinstance(part, TextPart))
            if self._size > MAX_VALUE:
                raise TooLarge(
                    f"the texts of a conversation of the file have more than {MAX_VALUE:,} characters, the "
                    "limit",
                    hint="remove it from the file: the others can be imported without it",
                )

    def end(self) -> ExportedSession:
        """Return the conversation. Raises BadRequest."""
        self._splitter.end()
        head = _decode(self._splitter.head, "the conversation", max_values=self._max_values)
        if not isinstance(head, dict) or not isinstance(head.get("mapping"), dict):
            raise TooLarge(
                f"a conversation of the file has more than {MAX_VALUE:,} bytes, the limit",
                hint="remove it from the file, and import it as a file of its own",
            )
        shown = _shown_branch(self._parents, head.get("current_node"))
        messages = (self._messages[id] for id in shown if id in self._messages)
        return _checked(_text(head.get("title")), messages, digest=self._digest.hexdigest())


def _read_long(
    open_chunks: Callable[[], Iterator[bytes]], *, digest: str, max_values: int
) -> ExportedSession:
    """Read a conversation that is too long to be decoded as a whole: first its head, then its messages."""
    value = _decode(read_head(open_chunks(), max_size=MAX_VALUE), "the file", max_values=max_values)
    if isinstance(value, dict) and isinstance(value.get("mapping"), dict):
        conversation = LongConversation(max_values=max_values)
        for chunk in open_chunks():
            conversation.feed(chunk)
        return conversation.end()
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        raise BadRequest("the file is not an exported session", hint=HINT)
    decoded = (
        _decode(raw, f"messages[{at}]", max_values=max_values)
        for at, raw in enumerate(split_messages(open_chunks(), max_size=MAX_VALUE))
    )
    if isinstance(value.get("info"), dict):
        settings = ExportedSettings(title=_text(value["info"].get("title")))
        return ExportedSession(settings, digest, _unique(_opencode_messages(decoded)))
    parsed = (parse_message(each, field=f"messages[{at}]") for at, each in enumerate(decoded))
    return ExportedSession(_read_settings(value), digest, _unique(parsed))


def _parse_conversation(raw: bytes, *, max_values: int) -> ExportedSession:
    value = _decode(raw, "the file", max_values=max_values)
    if not isinstance(value, dict):
        raise BadRequest("the file is not an exported session", hint=HINT)
    digest = hashlib.sha256(raw).hexdigest()
    if isinstance(value.get("mapping"), dict):
        return _checked(_text(value.get("title")), _chatgpt_messages(value), digest=digest)
    if isinstance(value.get("info"), dict):
        found = value.get("messages")
        title = _text(value["info"].get("title"))
        messages = _opencode_messages(found if isinstance(found, list) else ())
        return _checked(title, messages, digest=digest)
    raw_messages = value.get("messages")
    if not isinstance(raw_messages, list):
        raise BadRequest("the file is not an exported session", hint=HINT)
    parsed = [parse_message(each, field=f"messages[{at}]") for at, each in enumerate(raw_messages)]
    return ExportedSession(_read_settings(value), digest, iter(list(_unique(parsed))))


def _read_lines(lines: Iterator[bytes], *, digest: str, max_values: int) -> ExportedSession:
    settings = _decode(next(lines), "line 1", max_values=max_values)
    if not isinstance(settings, dict) or settings.get("version") != VERSION:
        raise BadRequest(f"line 1 is not of version {VERSION}", hint=HINT)
    messages = (
        parse_message(_decode(line, f"line {at}", max_values=max_values), field=f"line {at}")
        for at, line in enumerate(lines, 2)
        if line.strip()
    )
    return ExportedSession(_read_settings(settings), digest, _unique(messages))


def _read_settings(settings: Mapping[str, Any]) -> ExportedSettings:
    names = ("title", "agent", "model", "maxSteps", "labels", "createdAt")
    try:
        found = {name: settings[name] for name in names if settings.get(name) is not None}
        return msgspec.convert(found, ExportedSettings)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the session's settings are invalid: {error}") from None


def _checked(title: str | None, messages: Iterator[Message], *, digest: str) -> ExportedSession:
    return ExportedSession(ExportedSettings(title=title), digest, iter(list(_unique(messages))))


def _unique(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield the messages. Raises BadRequest for an invalid id, for one that two have, and for too many."""
    ids: set[str] = set()
    for message in messages:
        if not 1 <= len(message.id) <= MAX_ID_LENGTH:
            raise BadRequest(f"{message.id!r:.80} is not a valid id of a message", field="id")
        if message.id in ids:
            raise BadRequest(f"two messages have the id {message.id!r}", field="id")
        if len(ids) >= MAX_MESSAGES:
            raise BadRequest(f"the file has more than {MAX_MESSAGES} messages")
        ids.add(message.id)
        yield message


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
    nodes = {id: node for id, node in conversation["mapping"].items() if isinstance(node, dict)}
    parents = {id: node.get("parent") for id, node in nodes.items()}
    for id in _shown_branch(parents, conversation.get("current_node")):
        message = nodes[id].get("message")
        if isinstance(message, dict) and (read := _chatgpt_message(message)) is not None:
            yield read


def _shown_branch(parents: Mapping[str, Any], last: Any) -> Iterator[str]:
    """Return the ids of the nodes that lead to the last one, the first one first."""
    path: dict[str, None] = {}
    while isinstance(last, str) and last in parents and last not in path:
        path[last] = None
        last = parents[last]
    return reversed(path)


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


def _opencode_messages(messages: Iterable[Any]) -> Iterator[Message]:
    for at, message in enumerate(messages):
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
