"""The AI SDK's chat request in: what a `useChat` client wants, told apart. Source: wire notes, section d."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from dragoman.errors import BadRequest, TooLarge
from dragoman.messages import DataPart, FilePart, Message, TextPart, message_from
from dragoman.request import Tool


class NewTurn(msgspec.Struct, frozen=True):
    """A user message to answer. One that the session holds already is answered again (a retry or an edit)."""

    message: Message


class Edit(msgspec.Struct, frozen=True):
    """A user message takes the place of the stored one; what came after it goes."""

    message: Message


class Regenerate(msgspec.Struct, frozen=True):
    """Answer this user message once more; what came after it goes."""

    message: Message


class ToolOutput(msgspec.Struct, frozen=True):
    """What the front end says a client-side tool gave."""

    tool_call_id: str
    output: Any = None
    error_text: str | None = None


class ApprovalAnswer(msgspec.Struct, frozen=True):
    """What the front end says the user answered."""

    approval_id: str
    tool_call_id: str
    approved: bool
    reason: str | None = None


class Continue(msgspec.Struct, frozen=True):
    """Go on with this assistant message; outputs and answers are the client's word, to be checked."""

    message_id: str
    outputs: tuple[ToolOutput, ...] = ()
    answers: tuple[ApprovalAnswer, ...] = ()


Turn: TypeAlias = NewTurn | Edit | Regenerate | Continue


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A chat request: the session, what to do in it, and what the app set for this request."""

    session_id: str
    turn: Turn
    model: str | None = None
    agent: str | None = None
    tools: tuple[Tool, ...] = ()
    when_busy: Literal["refuse", "queue"] = "refuse"


class Body(msgspec.Struct, rename="camel"):
    """The JSON body as it comes."""

    id: str | None = None
    messages: list[dict[str, Any]] | None = None
    message: dict[str, Any] | None = None
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: str | None = None
    model: str | None = None
    agent: str | None = None
    tools: list[dict[str, Any]] | dict[str, dict[str, Any]] | None = None
    when_busy: Literal["refuse", "queue"] = "refuse"


_decoder = msgspec.json.Decoder(Body)
MAX_ID = 200


def parse_chat(raw: bytes, *, session_id: str | None = None, max_part: int = 1_000_000) -> ChatRequest:
    """The request in a body; BadRequest names the wrong field, TooLarge the part over `max_part` characters.

    `session_id` is the one of the path, if it has one; a different `id` in the body is refused.
    """
    try:
        body = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is no chat request: {error}", hint=_HINT) from None
    session = _session(body.id, session_id)
    sent = body.messages if body.messages is not None else [body.message] if body.message else []
    if not sent:
        raise BadRequest("the body holds no messages", field="messages", hint=_HINT)
    return ChatRequest(
        session_id=session,
        turn=_turn(body, sent, max_part=max_part),
        model=body.model,
        agent=body.agent,
        tools=client_tools(body.tools or ()),
        when_busy=body.when_busy,
    )


def client_tools(declared: Sequence[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Tools that run in the front end: a list of `{name, description, inputSchema}`, or a map by name."""
    named = (
        [{"name": name, **tool} for name, tool in declared.items()]
        if isinstance(declared, Mapping)
        else list(declared)
    )
    return tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(named))


def _tool(declared: Mapping[str, Any], field: str) -> Tool:
    name = declared.get("name")
    if not isinstance(name, str) or not name:
        raise BadRequest(f"{field}.name must be a string", field=f"{field}.name")
    schema = declared.get("inputSchema", declared.get("parameters", {"type": "object", "properties": {}}))
    if not isinstance(schema, dict):
        raise BadRequest(f"{field}.inputSchema must be a JSON Schema object", field=f"{field}.inputSchema")
    return Tool(name, str(declared.get("description") or ""), schema)


def _session(sent: str | None, path: str | None) -> str:
    if path is not None and sent is not None and sent != path:
        raise BadRequest(f"the body's id {sent!r} is not the session {path!r} of the address", field="id")
    session = path if path is not None else sent
    if not session or len(session) > MAX_ID or not session.isprintable():
        raise BadRequest(f"id must be a printable string of 1 to {MAX_ID} characters", field="id", hint=_HINT)
    return session


def _turn(body: Body, sent: Sequence[Mapping[str, Any]], *, max_part: int) -> Turn:
    at = len(sent) - 1
    if body.trigger == "regenerate-message":
        return Regenerate(_user_message(sent[at], f"messages[{at}]", max_part=max_part))
    if body.message_id is not None:
        at = _find(sent, body.message_id)
    if sent[at].get("role") == "assistant":
        return _continuation(sent[at], f"messages[{at}]")
    message = _user_message(sent[at], f"messages[{at}]", max_part=max_part)
    return NewTurn(message) if body.message_id is None else Edit(message)


def _find(sent: Sequence[Mapping[str, Any]], message_id: str) -> int:
    for index in range(len(sent) - 1, -1, -1):
        if sent[index].get("id") == message_id:
            return index
    raise BadRequest(f"messageId {message_id!r} is not among the messages", field="messageId")


def _user_message(sent: Mapping[str, Any], field: str, *, max_part: int) -> Message:
    message = message_from(sent, field=field)
    if message.role != "user":
        raise BadRequest(f"{field} must be a user message, got role {message.role!r}", field=f"{field}.role")
    if not message.parts or not message.id or len(message.id) > MAX_ID:
        raise BadRequest(f"{field} needs an id and at least one part", field=field)
    for index, part in enumerate(message.parts):
        where = f"{field}.parts[{index}]"
        if not isinstance(part, TextPart | FilePart | DataPart):
            raise BadRequest(f"{where}: a user message holds text, file and data parts only", field=where)
        if isinstance(part, FilePart) and not part.url.startswith(("data:", "https:", "http:")):
            raise BadRequest(f"{where}.url must be a data:, https: or http: URL", field=f"{where}.url")
        if _size(part) > max_part:
            raise TooLarge(f"{where} has {_size(part)} characters, {max_part} are allowed")
    return message


def _size(part: TextPart | FilePart | DataPart) -> int:
    match part:
        case TextPart(text=text):
            return len(text)
        case FilePart(url=url):
            return len(url)
        case DataPart(data=data):
            return len(msgspec.json.encode(data))


def _continuation(sent: Mapping[str, Any], field: str) -> Continue:
    key, parts = sent.get("id"), sent.get("parts")
    if not isinstance(key, str) or not isinstance(parts, list):
        raise BadRequest(f"{field} needs a string id and a list of parts", field=field)
    calls = [part for part in parts if isinstance(part, dict) and isinstance(part.get("toolCallId"), str)]
    outputs = [_output(part) for part in calls if part.get("state") in ("output-available", "output-error")]
    answers = [_answer(part) for part in calls if part.get("state") == "approval-responded"]
    return Continue(key, tuple(outputs), tuple(answer for answer in answers if answer))


def _output(part: Mapping[str, Any]) -> ToolOutput:
    if part["state"] == "output-error":
        return ToolOutput(part["toolCallId"], error_text=str(part.get("errorText") or "the tool failed"))
    return ToolOutput(part["toolCallId"], output=part.get("output"))


def _answer(part: Mapping[str, Any]) -> ApprovalAnswer | None:
    approval = part.get("approval")
    if not isinstance(approval, dict) or not isinstance(approval.get("approved"), bool):
        return None
    reason = approval.get("reason")
    return ApprovalAnswer(
        str(approval.get("id")),
        part["toolCallId"],
        approval["approved"],
        reason if isinstance(reason, str) else None,
    )


_HINT = (
    'send {"id": "<session>", "messages": [{"id": "m1", "role": "user", '
    '"parts": [{"type": "text", "text": "hi"}]}]}'
)
