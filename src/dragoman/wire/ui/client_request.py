"""Parse the AI SDK's chat request: what a `useChat` client asks for. Source: wire notes, section d."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from dragoman.errors import BadRequest, TooLarge
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.json_limits import MAX_VALUES, check_shape
from dragoman.messages import DataPart, FilePart, Message, TextPart, parse_message
from dragoman.model_request import Tool
from dragoman.session_ids import MAX_ID_LENGTH, is_session_id
from dragoman.wire.client_request import MAX_ITEMS, MAX_TOOLS, check_count


class NewMessage(msgspec.Struct, frozen=True):
    """A user message to answer. If the session has its id, it is a repetition of an equal one, or an edit."""

    message: Message


class EditMessage(msgspec.Struct, frozen=True):
    """A user message that replaces the stored one, which stays in an earlier branch with what follows."""

    message: Message


class RegenerateAnswer(msgspec.Struct, frozen=True):
    """Answer this user message again; later messages stay in an earlier branch."""

    message: Message


class ClientToolOutput(msgspec.Struct, frozen=True):
    """The output of a client-side tool, as the front end reports it."""

    tool_call_id: str
    output: Any = None
    error_text: str | None = None


class ClientApprovalAnswer(msgspec.Struct, frozen=True):
    """The user's answer to an approval, as the front end reports it."""

    approval_id: str
    tool_call_id: str
    approved: bool
    reason: str | None = None


class ContinueAnswer(msgspec.Struct, frozen=True):
    """Continue this assistant message. Outputs and answers are the client's claims and must be checked.

    `steps` is how many steps of the message the client has.
    """

    message_id: str
    outputs: tuple[ClientToolOutput, ...] = ()
    answers: tuple[ClientApprovalAnswer, ...] = ()
    steps: int = 0


WhenBusy: TypeAlias = Literal["refuse", "queue", "steer", "interrupt"]
"""How to handle a message that arrives while its session has an active run."""
ChatAction: TypeAlias = NewMessage | EditMessage | RegenerateAnswer | ContinueAnswer


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A chat request: the session, the action, and the app's settings for this request.

    `when_busy` None is the agent's default. In the `background`, the answer continues while no client follows
    it; its end is posted to the URL `webhook`. `queued_id` is the id of a message that was queued, which
    becomes the id of its run. A conversation of more than `compact_threshold` tokens is summarised first.
    `is_first`: the session was created for this request, and is empty unless another client has changed it.
    The run makes at most `max_tool_calls` calls. `output_format` is a `response_format` of Chat Completions,
    as JSON.
    """

    session_id: str
    action: ChatAction
    model: str | None = None
    agent: str | None = None
    tools: tuple[Tool, ...] = ()
    when_busy: WhenBusy | None = None
    background: bool = False
    webhook: str | None = None
    queued_id: str | None = None
    compact_threshold: int | None = None
    max_tool_calls: int | None = None
    output_format: str | None = None
    is_first: bool = False


class ChatBody(msgspec.Struct, rename="camel"):
    """The JSON body."""

    id: str | None = None
    messages: list[msgspec.Raw] | None = None
    message: msgspec.Raw = msgspec.Raw()
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: str | None = None
    model: str | None = None
    agent: str | None = None
    tools: msgspec.Raw = msgspec.Raw()
    when_busy: WhenBusy | None = None
    background: bool = False
    webhook: str | None = None
    channel_type: Annotated[str, Meta(max_length=MAX_ID_LENGTH)] | None = None
    channel_id: Annotated[str, Meta(max_length=MAX_ID_LENGTH)] | None = None

    @property
    def channel(self) -> Mapping[str, str | None]:
        """The metadata with the message's channel; empty if it has none."""
        if self.channel_type is None and self.channel_id is None:
            return {}
        return {"channelType": self.channel_type, "channelId": self.channel_id}


class ChatMessageHead(msgspec.Struct):
    """The field of a message of the history that is decoded: its id."""

    id: Any = None


DeclaredTools: TypeAlias = Sequence[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]]
_decoder = msgspec.json.Decoder(ChatBody)
_tools_decoder = msgspec.json.Decoder(list[dict[str, Any]] | dict[str, dict[str, Any]] | None)
_head_decoder = msgspec.json.Decoder(ChatMessageHead)
MAX_WEBHOOK_URL = 2_000
MAX_PARTS = 1_000  # of a user message: each is stored, and read by the model


def parse_chat_request(
    raw: bytes,
    *,
    session_id: str | None = None,
    max_part: int = 1_000_000,
    max_values: int = MAX_VALUES,
) -> ChatRequest:
    """Parse a body. Raises BadRequest, with the invalid field, and TooLarge.

    Of the messages, only the one that the request is about is decoded: it may have `max_values` JSON values,
    and `max_part` characters in a part. The others are history, which the session has. A message of a channel
    gets the channel as metadata, and is queued by default if its session is busy. `session_id` is that of the
    path; a different `id` in the body is rejected.
    """
    try:
        body = decode_json(raw, _decoder)
    except DECODE_ERRORS as error:
        raise BadRequest(f"the body is not a valid chat request: {error}", hint=_HINT) from None
    session = _session_id(body.id, session_id)
    messages = body.messages if body.messages is not None else [body.message] if bytes(body.message) else []
    tools = _decode_tools(bytes(body.tools), max_values=max_values)
    if not messages:
        raise BadRequest("the body has no messages", field="messages", hint=_HINT)
    return ChatRequest(
        session_id=session,
        action=_parse_action(body, messages, max_part=max_part, max_values=max_values),
        model=body.model,
        agent=body.agent,
        tools=parse_client_tools(tools),
        when_busy=body.when_busy or ("queue" if body.channel else None),
        background=body.background,
        webhook=parse_webhook_url(body.webhook),
    )


def parse_webhook_url(url: str | None) -> str | None:
    """Return the URL of a webhook. Raises BadRequest. Its address is checked when it is requested."""
    if url is None:
        return None
    if len(url) > MAX_WEBHOOK_URL or not url.startswith(("https://", "http://")) or not url.isprintable():
        raise BadRequest(
            f"webhook must be an http(s) URL of at most {MAX_WEBHOOK_URL} characters", field="webhook"
        )
    return url


def parse_client_tools(declared: DeclaredTools) -> tuple[Tool, ...]:
    """Parse tools of the front end: a list of `{name, description, inputSchema}`, or an object by name."""
    tools = (
        [{"name": name, **tool} for name, tool in declared.items()]
        if isinstance(declared, Mapping)
        else list(declared)
    )
    return tuple(_parse_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools))


def _decode_tools(raw: bytes, *, max_values: int) -> DeclaredTools:
    if not raw:
        return ()
    check_shape(raw, max_values=max_values)
    try:
        tools = decode_json(raw, _tools_decoder) or ()
    except DECODE_ERRORS as error:
        raise BadRequest(f"the body is not a valid chat request: tools: {error}", hint=_HINT) from None
    check_count(len(tools), "tools", limit=MAX_TOOLS)
    return tools


def _parse_tool(declared: Mapping[str, Any], field: str) -> Tool:
    name = declared.get("name")
    if not isinstance(name, str) or not name:
        raise BadRequest(f"{field}.name must be a string", field=f"{field}.name")
    schema = declared.get("inputSchema", declared.get("parameters", {"type": "object", "properties": {}}))
    if not isinstance(schema, dict):
        raise BadRequest(f"{field}.inputSchema must be a JSON Schema object", field=f"{field}.inputSchema")
    return Tool(name, str(declared.get("description") or ""), schema)


def _session_id(body_id: str | None, path_id: str | None) -> str:
    if path_id is not None and body_id is not None and body_id != path_id:
        raise BadRequest(
            f"the body's id {body_id!r} does not match the session {path_id!r} in the path", field="id"
        )
    session = path_id if path_id is not None else body_id
    if session is None or not is_session_id(session):
        raise BadRequest(
            f"id must be a printable string of 1 to {MAX_ID_LENGTH} characters", field="id", hint=_HINT
        )
    return session


def _parse_action(
    body: ChatBody, messages: Sequence[msgspec.Raw], *, max_part: int, max_values: int
) -> ChatAction:
    index = len(messages) - 1
    if body.message_id is not None and body.trigger != "regenerate-message":
        index = _message_index(messages, body.message_id)
    field = f"messages[{index}]"
    raw_message = _decode_message(messages[index], field, max_values=max_values)
    if body.trigger == "regenerate-message":
        message = _parse_user_message(raw_message, field, max_part=max_part)
        return RegenerateAnswer(with_channel(message, body.channel))
    if raw_message.get("role") == "assistant":
        return _parse_continuation(raw_message, field)
    message = with_channel(_parse_user_message(raw_message, field, max_part=max_part), body.channel)
    return NewMessage(message) if body.message_id is None else EditMessage(message)


def with_channel(message: Message, channel: Mapping[str, str | None]) -> Message:
    """Return the message with its channel in the metadata."""
    if not channel:
        return message
    metadata = message.metadata if isinstance(message.metadata, Mapping) else {}
    return msgspec.structs.replace(message, metadata={**metadata, **channel})


def _decode_message(raw: msgspec.Raw, field: str, *, max_values: int) -> Mapping[str, Any]:
    check_shape(bytes(raw), max_values=max_values)
    try:
        message = decode_json(bytes(raw))
    except DECODE_ERRORS as error:
        raise BadRequest(f"{field} is not valid JSON: {error}", field=field) from None
    if not isinstance(message, dict):
        raise BadRequest(f"{field} must be an object", field=field, hint=_HINT)
    return message


def _message_index(messages: Sequence[msgspec.Raw], message_id: str) -> int:
    for index in range(len(messages) - 1, -1, -1):
        try:
            head = decode_json(bytes(messages[index]), _head_decoder)
        except DECODE_ERRORS:
            continue
        if head.id == message_id:
            return index
    raise BadRequest(f"messageId {message_id!r} is not among the messages", field="messageId")


def _parse_user_message(raw_message: Mapping[str, Any], field: str, *, max_part: int) -> Message:
    parts = raw_message.get("parts")
    check_count(len(parts) if isinstance(parts, list) else 0, f"{field}.parts", limit=MAX_PARTS)
    message = parse_message(raw_message, field=field)
    if message.role != "user":
        raise BadRequest(f"{field} must be a user message, got role {message.role!r}", field=f"{field}.role")
    if not message.parts or not message.id or len(message.id) > MAX_ID_LENGTH:
        raise BadRequest(f"{field} needs an id and at least one part", field=field)
    for index, part in enumerate(message.parts):
        part_field = f"{field}.parts[{index}]"
        if not isinstance(part, TextPart | FilePart | DataPart):
            raise BadRequest(
                f"{part_field}: a user message may contain only text, file and data parts", field=part_field
            )
        if isinstance(part, FilePart) and not part.url.startswith(("data:", "https:", "http:")):
            raise BadRequest(
                f"{part_field}.url must be a data:, https: or http: URL", field=f"{part_field}.url"
            )
        if _part_length(part) > max_part:
            raise TooLarge(f"{part_field} has {_part_length(part)} characters; the limit is {max_part}")
    return message


def _part_length(part: TextPart | FilePart | DataPart) -> int:
    match part:
        case TextPart(text=text):
            return len(text)
        case FilePart(url=url):
            return len(url)
        case DataPart(data=data):
            return len(msgspec.json.encode(data))


def _parse_continuation(raw_message: Mapping[str, Any], field: str) -> ContinueAnswer:
    message_id, parts = raw_message.get("id"), raw_message.get("parts")
    if not isinstance(message_id, str) or not isinstance(parts, list):
        raise BadRequest(f"{field} needs a string id and a list of parts", field=field)
    check_count(len(parts), f"{field}.parts", limit=MAX_ITEMS)
    calls = [part for part in parts if isinstance(part, dict) and isinstance(part.get("toolCallId"), str)]
    outputs = [
        _parse_tool_output(part)
        for part in calls
        if part.get("state") in ("output-available", "output-error")
    ]
    answers = [_parse_approval_answer(part) for part in calls if part.get("state") == "approval-responded"]
    steps = sum(isinstance(part, dict) and part.get("type") == "step-start" for part in parts)
    return ContinueAnswer(message_id, tuple(outputs), tuple(answer for answer in answers if answer), steps)


def _parse_tool_output(part: Mapping[str, Any]) -> ClientToolOutput:
    if part["state"] == "output-error":
        return ClientToolOutput(
            part["toolCallId"], error_text=str(part.get("errorText") or "the tool failed")
        )
    return ClientToolOutput(part["toolCallId"], output=part.get("output"))


def _parse_approval_answer(part: Mapping[str, Any]) -> ClientApprovalAnswer | None:
    approval = part.get("approval")
    if not isinstance(approval, dict) or not isinstance(approval.get("approved"), bool):
        return None
    reason = approval.get("reason")
    return ClientApprovalAnswer(
        str(approval.get("id")),
        part["toolCallId"],
        approval["approved"],
        reason if isinstance(reason, str) else None,
    )


_HINT = (
    'send {"id": "<session>", "messages": [{"id": "m1", "role": "user", '
    '"parts": [{"type": "text", "text": "hi"}]}]}'
)
