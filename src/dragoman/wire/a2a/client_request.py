"""Parse A2A requests: the JSON-RPC envelope, and the parameters of each method, which REST has as well.

Source: wire notes on A2A, sections B0 and B1.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import A2aError, BadRequest, TooLarge
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.messages import FilePart, Message, Part, TextPart
from dragoman.session_ids import MAX_ID_LENGTH, is_session_id
from dragoman.wire.client_request import check_count

VERSION = "1.0"
MAX_PARTS = 1_000
MAX_PAGE = 100
DEFAULT_PAGE = 50
MEDIA_TYPE = re.compile(r"[\w.+*-]{1,100}/[\w.+*-]{1,100}", re.ASCII)
HistoryLength: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
T = TypeVar("T")


class A2aParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The base of parameters; unknown fields are ignored, as ProtoJSON clients of later versions expect."""


class SentPart(A2aParams, frozen=True):
    """A part as a client sends it: one of `text`, `raw` (base64), `url` and `data`."""

    text: str | None = None
    raw: str | None = None
    url: str | None = None
    data: Any = UNSET
    media_type: str = ""
    filename: str = ""


class SentMessage(A2aParams, frozen=True):
    """A message as a client sends it."""

    message_id: str
    parts: list[SentPart]
    role: str | int = "ROLE_USER"
    context_id: str = ""
    task_id: str = ""


class PushAuthentication(A2aParams, frozen=True):
    """What the receiver of push notifications wants in their `authorization` header."""

    scheme: str = ""
    credentials: str = ""

    def __repr__(self) -> str:
        return f"PushAuthentication({self.scheme!r})"


class PushConfigParams(A2aParams, frozen=True):
    """Where the state of a task is posted to."""

    url: str = ""
    id: str = ""
    task_id: str = ""
    token: str = ""
    authentication: PushAuthentication | None = None

    def __repr__(self) -> str:
        return f"PushConfigParams({self.id!r})"


class SendConfiguration(A2aParams, frozen=True):
    """How a message is answered."""

    return_immediately: bool = False
    history_length: HistoryLength | None = None
    task_push_notification_config: PushConfigParams | None = None


class SendParams(A2aParams, frozen=True):
    """SendMessage and SendStreamingMessage."""

    message: SentMessage
    configuration: SendConfiguration | None = None


class TaskParams(A2aParams, frozen=True):
    """GetTask, CancelTask, SubscribeToTask."""

    id: str
    history_length: HistoryLength | None = None


class ListTasksParams(A2aParams, frozen=True):
    """ListTasks."""

    context_id: str = ""
    status: str = ""
    page_size: int | None = None
    page_token: str = ""
    history_length: HistoryLength | None = None
    include_artifacts: bool = False
    status_timestamp_after: str = ""


class PushConfigId(A2aParams, frozen=True):
    """GetTaskPushNotificationConfig and DeleteTaskPushNotificationConfig."""

    task_id: str
    id: str


class PushConfigTask(A2aParams, frozen=True):
    """ListTaskPushNotificationConfigs."""

    task_id: str


class JsonRpcRequest(A2aParams, frozen=True, rename=None):
    """A JSON-RPC request."""

    method: str
    jsonrpc: str = ""
    id: str | int | float | None = None
    params: msgspec.Raw | UnsetType = UNSET


_rpc_decoder = msgspec.json.Decoder(JsonRpcRequest)


def parse_rpc(raw: bytes) -> JsonRpcRequest:
    """Parse a JSON-RPC request. Raises A2aError."""
    try:
        request = decode_json(raw, _rpc_decoder)
    except msgspec.ValidationError as error:
        raise A2aError(f"the body is not a JSON-RPC request: {error}", "INVALID_REQUEST") from None
    except DECODE_ERRORS as error:
        raise A2aError(f"the body is not valid JSON: {error}", "PARSE_ERROR") from None
    if request.jsonrpc != "2.0":
        raise A2aError("the body is not a JSON-RPC 2.0 request", "INVALID_REQUEST")
    return request


def parse_params(raw: bytes, kind: type[T]) -> T:
    """Parse parameters in JSON; none are an empty object. Raises BadRequest."""
    try:
        return decode_json(raw or b"{}", msgspec.json.Decoder(kind))
    except DECODE_ERRORS as error:
        raise BadRequest(f"the parameters are not valid: {error}") from None


def convert_params(fields: Mapping[str, Any], kind: type[T]) -> T:
    """Return parameters of a path and a query, whose values are all text. Raises BadRequest."""
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the parameters are not valid: {error}") from None


def check_version(header: str) -> None:
    """Raise A2aError unless a client speaks this version; one that names none speaks 0.3."""
    if header.strip().split(".")[:2] != VERSION.split("."):
        spoken = header.strip() or "0.3, which a request without the header A2A-Version speaks,"
        text, hint = f"A2A {spoken:.60} is not supported", f"send A2A-Version: {VERSION}"
        raise A2aError(text, "VERSION_NOT_SUPPORTED", hint=hint)


def read_message(message: SentMessage, *, max_part: int) -> Message:
    """Return a client's message as a user message. Raises BadRequest, TooLarge."""
    check_count(len(message.parts), "message.parts", limit=MAX_PARTS)
    if message.role not in ("ROLE_USER", 1, "ROLE_UNSPECIFIED", 0):
        raise BadRequest(f"message.role must be ROLE_USER, not {message.role!r:.40}", field="message.role")
    if not message.parts or not 1 <= len(message.message_id) <= MAX_ID_LENGTH:
        raise BadRequest("the message needs a messageId and at least one part", field="message")
    for field, value in (("contextId", message.context_id), ("taskId", message.task_id)):
        if value and not is_session_id(value):
            raise BadRequest(
                f"message.{field} must be a printable string of at most {MAX_ID_LENGTH} characters",
                field=f"message.{field}",
            )
    parts = [read_part(part, f"message.parts[{index}]") for index, part in enumerate(message.parts)]
    for index, part in enumerate(parts):
        length = len(
            part.url if isinstance(part, FilePart) else part.text if isinstance(part, TextPart) else ""
        )
        if length > max_part:
            raise TooLarge(f"message.parts[{index}] has {length} characters; the limit is {max_part}")
    return Message(message.message_id, "user", tuple(parts))


def read_part(part: SentPart, field: str) -> Part:
    """Return a client's part. Data becomes a text that the model can read. Raises BadRequest."""
    contents = [part.text is not None, part.raw is not None, part.url is not None, part.data is not UNSET]
    if sum(contents) != 1:
        raise BadRequest(f"{field} needs one of text, raw, url and data", field=field)
    media_type = part.media_type.partition(";")[0].strip() or "application/octet-stream"
    if not MEDIA_TYPE.fullmatch(media_type):
        raise BadRequest(f"{field}.mediaType is not a media type", field=f"{field}.mediaType")
    if part.text is not None:
        return TextPart(part.text)
    if part.raw is not None:
        try:
            base64.b64decode(part.raw, validate=True)
        except (ValueError, binascii.Error):
            raise BadRequest(f"{field}.raw is not base64", field=f"{field}.raw") from None
        return FilePart(media_type, f"data:{media_type};base64,{part.raw}", part.filename or None)
    if part.url is not None:
        if not part.url.startswith(("https:", "http:")):
            raise BadRequest(f"{field}.url must be an https: or http: URL", field=f"{field}.url")
        return FilePart(media_type, part.url, part.filename or None)
    return TextPart(msgspec.json.encode(part.data).decode())
