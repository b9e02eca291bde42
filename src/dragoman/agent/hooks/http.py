"""HTTP hooks: send the event as JSON to a URL and read the decision from the response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman.agent.hooks.events import (
    Ask,
    Block,
    Continue,
    Decision,
    HookEvent,
    Modify,
    PostModel,
    PreModel,
    UserPromptSubmit,
)
from dragoman.agent.hooks.runner import DEFAULT_TIMEOUT, HookResult
from dragoman.errors import BadRequest
from dragoman.http.per_loop_transport import LazyTransport
from dragoman.http.transport import Timeouts
from dragoman.http.webhook import Webhook
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.messages import parse_message, to_json
from dragoman.model_request import ModelRequest

MAX_REASON_LENGTH = 2_000


class HookEndpoint(Protocol):
    """Where an HTTP hook is sent; `http.webhook.Webhook` or a transport of your own."""

    async def ask(self, body: bytes) -> bytes | None:
        """Send a JSON body and return that of the response; None for a 204."""
        ...


class HookReply(msgspec.Struct, frozen=True):
    """The response body. `request` may change instructions, messages and options."""

    decision: str
    reason: str | None = None
    input: Any = UNSET
    output: Any = UNSET
    request: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)


_reply_decoder = msgspec.json.Decoder(HookReply)


class InvalidHookReply(Exception):
    """The response of an HTTP hook is not a valid decision."""


class HttpHook:
    """A hook that is decided over HTTP. `close` closes its connections; the next call opens new ones."""

    def __init__(
        self, endpoint: HookEndpoint, *, name: str, connections: LazyTransport | None = None
    ) -> None:
        self.__name__ = name
        self._endpoint = endpoint
        self._connections = connections

    def __repr__(self) -> str:
        return f"HttpHook({self.__name__!r})"

    async def __call__(self, event: HookEvent) -> HookResult:
        """Return the decision. Raises ProviderError, InvalidHookReply."""
        answer = await self._endpoint.ask(msgspec.json.encode(event_body(event), enc_hook=str))
        return None if answer is None else read_decision(answer, event)

    async def close(self) -> None:
        """Close the connections that the hook opened itself."""
        if self._connections is not None:
            await self._connections.close()


def http_hook(
    endpoint: str | HookEndpoint, *, secret: str | None = None, timeout: float = DEFAULT_TIMEOUT
) -> HttpHook:
    """Return a hook that sends events to a URL, or to a `Webhook` with settings of its own.

    `secret` signs the requests; several, separated by spaces, all sign. `timeout` is in seconds for the
    whole exchange. Connections are opened at the first call, and closed with the agent that uses the hook or
    by `close()`. Raises ConfigError for an invalid URL or secret.

        hooks = Hooks().on("pre_tool_use", http_hook("https://hooks.example.org/dragoman", secret=secret))
    """
    if not isinstance(endpoint, str):
        return HttpHook(endpoint, name="http_hook")
    connections = LazyTransport(Timeouts())
    webhook = Webhook(endpoint, connections, secret=secret, timeout=timeout)
    return HttpHook(webhook, name=webhook.host, connections=connections)


def event_body(event: HookEvent) -> dict[str, Any]:
    """Return an event as JSON fields in camel case, without empty ones."""
    match event:
        case PreModel(request=request):
            return {**plain_fields(event, "request"), "request": request_body(request)}
        case UserPromptSubmit(message=message) | PostModel(message=message):
            extra = {} if message is None else {"message": to_json(message)}
            return {**plain_fields(event, "message"), **extra}
        case _:
            return plain_fields(event)


def plain_fields(event: HookEvent, *excluded: str) -> dict[str, Any]:
    """Return the event's plain fields."""
    names = zip(event.__struct_fields__, event.__struct_encode_fields__, strict=True)
    fields = {wire_name: getattr(event, name) for name, wire_name in names if name not in excluded}
    kind = event.__struct_config__.tag
    return {"event": kind, **{name: value for name, value in fields.items() if value is not None}}


def request_body(request: ModelRequest) -> dict[str, Any]:
    return {
        "model": request.model,
        "instructions": request.instructions,
        "messages": [to_json(each) for each in request.messages],
        "tools": [tool.name for tool in request.tools],
        "options": request.options,
    }


def read_decision(answer: bytes, event: HookEvent) -> Decision:
    """Return the decision in a response body. Raises InvalidHookReply."""
    try:
        reply = decode_json(answer, _reply_decoder)
    except DECODE_ERRORS as error:
        raise InvalidHookReply(f"the response is not a valid decision: {error}") from None
    reason = (reply.reason or "")[:MAX_REASON_LENGTH]
    match reply.decision:
        case "continue":
            return Continue()
        case "block":
            return Block(reason or "blocked by a hook")
        case "ask":
            return Ask(reason or "a hook requires approval")
        case "modify":
            return Modify(
                input=reply.input,
                reason=reason or None,
                output=reply.output,
                request=changed_request(reply.request, event),
                metadata=reply.metadata,
            )
        case _:
            raise InvalidHookReply(
                f"{reply.decision[:40]!r} is not a decision; it must be continue, block, ask or modify"
            )


def changed_request(change: Mapping[str, Any] | None, event: HookEvent) -> ModelRequest | None:
    """Return the model request with the changes of a response."""
    if change is None or not isinstance(event, PreModel):
        return None
    unknown = set(change) - {"instructions", "messages", "options"}
    if unknown:
        raise InvalidHookReply(f"the request's {min(unknown)!r} cannot be changed")
    request = event.request
    try:
        if "messages" in change:
            request = replace(request, messages=tuple(parse_message(each) for each in change["messages"]))
        if "options" in change:
            request = replace(request, options=msgspec.convert(change["options"], dict[str, Any]))
        if "instructions" in change:
            request = replace(request, instructions=msgspec.convert(change["instructions"], str | None))
    except (BadRequest, TypeError, msgspec.ValidationError) as error:
        raise InvalidHookReply(f"the changed request is invalid: {error}") from None
    return request
