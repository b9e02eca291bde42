"""Parse the input of an AG-UI run: what a client asks for, and how much of the answer it has already.

A client sends its whole history each time. Only its end is read: the last user message and the messages after
it. The rest is in the session (docs/design.md §2.4). The client's `state` is shown to the model as
information from the user's app, like the `context`. Source: wire notes on AG-UI, section A.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from dragoman.errors import BadRequest, TooLarge
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.json_limits import MAX_VALUES, check_shape
from dragoman.messages import DataPart, FilePart, Message, Part, ProviderMetadata, TextPart
from dragoman.model_request import Tool
from dragoman.session_ids import MAX_ID_LENGTH, is_session_id
from dragoman.wire.ag_ui.received_answer import ReceivedAnswer
from dragoman.wire.ag_ui.state import is_same
from dragoman.wire.client_request import MAX_ITEMS, MAX_TOOLS, check_count
from dragoman.wire.ui.client_request import ClientToolOutput, parse_client_tools

MAX_PARTS = 1_000
MAX_CONTEXT = 100  # entries
CONTEXT_MARK: ProviderMetadata = {"dragoman": {"context": True}}
"""Marks a text part that holds the app's context or state: the user did not write it."""
STATE_HEADING = "State of the app that the user looks at, as JSON: "
MEDIA_TYPE = re.compile(r"[\w.+*-]{1,100}/[\w.+*-]{1,100}", re.ASCII)
MEDIA_TYPES = {"image": "image/*", "audio": "audio/*", "video": "video/*"}


class InterruptAnswer(msgspec.Struct, frozen=True):
    """The client's answer to an interrupt. `payload` is not checked yet against the interrupt's schema."""

    interrupt_id: str
    is_resolved: bool
    payload: Any = None


class AgUiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An AG-UI run: the thread, its last user message, and what the client reports and has received since.

    `outputs` are those of front-end tools, `answers` those to interrupts: the client's claims, to be checked.
    `regenerate`: answer the message again, although it has an answer. `state` is the app's, if it has any.
    """

    thread_id: str
    run_id: str
    message: Message | None
    outputs: tuple[ClientToolOutput, ...] = ()
    answers: tuple[InterruptAnswer, ...] = ()
    tools: tuple[Tool, ...] = ()
    received: ReceivedAnswer = ReceivedAnswer()
    regenerate: bool = False
    state: Any = None


class _Body(msgspec.Struct, frozen=True, rename="camel"):
    thread_id: Any = None
    run_id: Any = None
    messages: list[msgspec.Raw] | None = None
    tools: msgspec.Raw = msgspec.Raw()
    context: msgspec.Raw = msgspec.Raw()
    state: msgspec.Raw = msgspec.Raw()
    resume: msgspec.Raw = msgspec.Raw()
    forwarded_props: msgspec.Raw = msgspec.Raw()


class _MessageHead(msgspec.Struct, frozen=True):
    role: Any = None


class _ToolCallFunction(msgspec.Struct, frozen=True):
    name: str = ""
    arguments: str = ""


class _ToolCall(msgspec.Struct, frozen=True):
    id: str
    function: _ToolCallFunction = _ToolCallFunction()


class _TailMessage(msgspec.Struct, frozen=True, rename="camel"):
    """A message after the last user message."""

    id: str
    role: str
    content: Any = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    error: str | None = None


class _UserMessage(msgspec.Struct, frozen=True):
    id: str
    content: str | list[dict[str, Any]]


class _ContextEntry(msgspec.Struct, frozen=True):
    description: str
    value: Any


class _ResumeEntry(msgspec.Struct, frozen=True, rename="camel"):
    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class _DragomanProps(msgspec.Struct, frozen=True):
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"


class _ForwardedProps(msgspec.Struct, frozen=True):
    dragoman: _DragomanProps = _DragomanProps()


_body_decoder = msgspec.json.Decoder(_Body)
_head_decoder = msgspec.json.Decoder(_MessageHead)
_tail_decoder = msgspec.json.Decoder(_TailMessage)
_user_decoder = msgspec.json.Decoder(_UserMessage)
_context_decoder = msgspec.json.Decoder(list[_ContextEntry] | None)
_resume_decoder = msgspec.json.Decoder(list[_ResumeEntry] | None)
_state_decoder = msgspec.json.Decoder()
_tools_decoder = msgspec.json.Decoder(list[dict[str, Any]] | None)
_HINT = (
    'send a RunAgentInput: {"threadId": "t1", "runId": "r1", '
    '"messages": [{"id": "m1", "role": "user", "content": "hi"}]}'
)


def parse_ag_ui_request(
    raw: bytes, *, max_part: int = 1_000_000, max_values: int = MAX_VALUES
) -> AgUiRequest:
    """Parse a RunAgentInput. Raises BadRequest, with the invalid field, and TooLarge.

    `max_part` is the maximum of characters of a part of the user message and of bytes of the state,
    `max_values` that of JSON values in the decoded parts of the body.
    """
    try:
        body = decode_json(raw, _body_decoder)
    except DECODE_ERRORS as error:
        raise BadRequest(f"the body is not a valid RunAgentInput: {error}", hint=_HINT) from None
    messages = body.messages or []
    check_count(len(messages), "messages", limit=MAX_ITEMS)
    user_index, tail = _split(messages, max_values=max_values)
    context = _decode(body.context, _context_decoder, field="context", max_values=max_values) or ()
    message = None
    if user_index is not None:
        field = f"messages[{user_index}]"
        message = _parse_user_message(messages[user_index], field, context=context, max_values=max_values)
        _check_parts(message, field, max_part=max_part)
    resume = _decode(body.resume, _resume_decoder, field="resume", max_values=max_values) or ()
    tools = _decode(body.tools, _tools_decoder, field="tools", max_values=max_values) or ()
    check_count(len(tools), "tools", limit=MAX_TOOLS)
    check_count(len(resume), "resume", limit=MAX_PARTS)
    if message is None and not resume:
        raise BadRequest("the messages contain no user message", field="messages", hint=_HINT)
    return AgUiRequest(
        thread_id=_parse_id(body.thread_id, "threadId"),
        run_id=_parse_id(body.run_id, "runId"),
        message=message,
        outputs=_reported_outputs(tail),
        answers=tuple(InterruptAnswer(r.interrupt_id, r.status == "resolved", r.payload) for r in resume),
        tools=parse_client_tools(tools),
        received=_received(tail),
        regenerate=_is_regeneration(body.forwarded_props),
        state=_parse_state(body.state, max_part=max_part, max_values=max_values),
    )


def without_context(message: Message) -> tuple[Part, ...]:
    """Return the parts of a user message without the app's context, which may change between requests."""
    return tuple(
        part
        for part in message.parts
        if not (isinstance(part, TextPart) and part.provider_metadata == CONTEXT_MARK)
    )


def with_state(message: Message, state: Any, *, stored: Sequence[Message]) -> Message:
    """Return the message with the app's state as a part, unless the agent knows it from the thread."""
    if state is None or is_same(state, _last_state(stored)):
        return message
    text = STATE_HEADING + msgspec.json.encode(state).decode()
    return replace(message, parts=(*message.parts, TextPart(text, provider_metadata=CONTEXT_MARK)))


def _last_state(stored: Sequence[Message]) -> Any:
    """Return the last state in a thread that the agent has sent or received; None if there is none.

    It is None too if the part is not JSON, as another client of the session may have written it.
    """
    for message in reversed(stored):
        for part in reversed(message.parts):
            if isinstance(part, DataPart) and part.name == "state" and message.role == "assistant":
                return part.data
            if isinstance(part, TextPart) and _is_state(part):
                return _read_state(part.text.removeprefix(STATE_HEADING))
    return None


def _read_state(text: str) -> Any:
    try:
        return decode_json(text)
    except DECODE_ERRORS:
        return None


def _is_state(part: TextPart) -> bool:
    return part.provider_metadata == CONTEXT_MARK and part.text.startswith(STATE_HEADING)


def _parse_state(raw: msgspec.Raw, *, max_part: int, max_values: int) -> Any:
    """Return the app's state; None for an empty one."""
    if len(bytes(raw)) > max_part:
        raise TooLarge(f"the state has {len(bytes(raw))} bytes; the limit is {max_part}")
    return _decode(raw, _state_decoder, field="state", max_values=max_values) or None


def _parse_id(value: Any, field: str) -> str:
    if not isinstance(value, str) or not is_session_id(value):
        text = f"{field} must be a printable string of 1 to {MAX_ID_LENGTH} characters"
        raise BadRequest(text, field=field, hint=_HINT)
    return value


def _split(messages: Sequence[msgspec.Raw], *, max_values: int) -> tuple[int | None, Sequence[_TailMessage]]:
    """Return the index of the last user message, and the messages after it that are part of its answer."""
    tail: list[_TailMessage] = []
    for index in range(len(messages) - 1, -1, -1):
        raw = bytes(messages[index])
        field = f"messages[{index}]"
        try:
            role = decode_json(raw, _head_decoder).role
            if role == "user":
                return index, tail[::-1]
            if role in ("assistant", "tool", "reasoning"):
                check_shape(raw, max_values=max_values)
                tail.append(decode_json(raw, _tail_decoder))
        except DECODE_ERRORS as error:
            raise BadRequest(f"{field} is not a valid message: {error}", field=field) from None
    return None, tail[::-1]


def _decode(raw: msgspec.Raw, decoder: msgspec.json.Decoder[Any], *, field: str, max_values: int) -> Any:
    encoded = bytes(raw)
    if not encoded:
        return None
    check_shape(encoded, max_values=max_values)
    try:
        return decode_json(encoded, decoder)
    except DECODE_ERRORS as error:
        raise BadRequest(f"{field} is not valid: {error}", field=field, hint=_HINT) from None


def _is_regeneration(raw: msgspec.Raw) -> bool:
    """Return whether the app asks for a new answer; its other properties are its own."""
    try:
        props = decode_json(bytes(raw), msgspec.json.Decoder(_ForwardedProps)) if bytes(raw) else None
    except DECODE_ERRORS:
        return False
    return props is not None and props.dragoman.trigger == "regenerate-message"


def _reported_outputs(tail: Sequence[_TailMessage]) -> tuple[ClientToolOutput, ...]:
    """Return the results at the end of the history, which the model has not seen yet.

    Results that the client has received from the hub are included: they repeat the stored ones.
    """
    outputs: list[ClientToolOutput] = []
    for message in reversed(tail):
        if message.role != "tool":
            break
        if message.tool_call_id is not None:
            outputs.append(ClientToolOutput(message.tool_call_id, message.content, message.error))
    return tuple(outputs[::-1])


def _received(tail: Sequence[_TailMessage]) -> ReceivedAnswer:
    texts: dict[str, str] = {}
    arguments: dict[str, str] = {}
    results: set[str] = set()
    for message in tail:
        if message.role == "tool":
            results.add(message.tool_call_id or "")
            continue
        if isinstance(message.content, str):
            texts[message.id] = message.content
        for call in message.tool_calls or ():
            arguments[call.id] = call.function.arguments
    return ReceivedAnswer(texts, arguments, frozenset(results))


def _parse_user_message(
    raw: msgspec.Raw, field: str, *, context: Sequence[_ContextEntry], max_values: int
) -> Message:
    message: _UserMessage = _decode(raw, _user_decoder, field=field, max_values=max_values)
    content = message.content
    check_count(len(content) if isinstance(content, list) else 0, f"{field}.content", limit=MAX_PARTS)
    check_count(len(context), "context", limit=MAX_CONTEXT)
    parts: list[Part] = (
        [TextPart(content)]
        if isinstance(content, str)
        else [_parse_content(part, f"{field}.content[{index}]") for index, part in enumerate(content)]
    )
    if not parts or not message.id or len(message.id) > MAX_ID_LENGTH:
        raise BadRequest(f"{field} needs an id and content", field=field, hint=_HINT)
    if context:
        parts.append(TextPart(_context_text(context), provider_metadata=CONTEXT_MARK))
    return Message(message.id, "user", tuple(parts))


def _context_text(context: Sequence[_ContextEntry]) -> str:
    lines = [
        f"- {entry.description}: "
        + (entry.value if isinstance(entry.value, str) else msgspec.json.encode(entry.value).decode())
        for entry in context
    ]
    return "\n".join(["Context from the app that the user looks at:", *lines])


def _parse_content(part: dict[str, Any], field: str) -> Part:
    """Parse one part: `text`, `binary` of earlier versions, or media with a `source`."""
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return TextPart(part["text"])
    if kind == "binary":
        return _file(part.get("mimeType"), url=part.get("url"), data=part.get("data"), field=field)
    source = part.get("source")
    if kind in ("image", "audio", "video", "document") and isinstance(source, dict):
        value = source.get("value")
        media_type = source.get("mimeType") or MEDIA_TYPES.get(kind, "application/octet-stream")
        is_data = source.get("type") == "data"
        return _file(media_type, url=None if is_data else value, data=value if is_data else None, field=field)
    raise BadRequest(f"{field} is not a text, image, audio, video, document or binary part", field=field)


def _file(media_type: Any, *, url: Any, data: Any, field: str) -> FilePart:
    if not isinstance(media_type, str) or not MEDIA_TYPE.fullmatch(media_type):
        raise BadRequest(f"{field}.mimeType must be a media type", field=f"{field}.mimeType")
    address = f"data:{media_type};base64,{data}" if isinstance(data, str) else url
    if not isinstance(address, str) or not address.startswith(("data:", "https:", "http:")):
        raise BadRequest(f"{field} needs base64 data, or a data:, https: or http: URL", field=field)
    return FilePart(media_type, address)


def _check_parts(message: Message, field: str, *, max_part: int) -> None:
    for index, part in enumerate(message.parts):
        length = len(
            part.url if isinstance(part, FilePart) else part.text if isinstance(part, TextPart) else ""
        )
        if length > max_part:
            raise TooLarge(f"{field}.content[{index}] has {length} characters; the limit is {max_part}")
