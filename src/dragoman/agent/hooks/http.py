"""HTTP hooks: events as JSON for somebody else to decide about, and the decision read from the answer."""

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
from dragoman.http.transport import Timeouts
from dragoman.http.webhook import Webhook
from dragoman.messages import parse_message, to_json
from dragoman.model_request import ModelRequest
from dragoman.providers.direct import LazyTransport

MAX_REASON_LENGTH = 2_000


class HookEndpoint(Protocol):
    """Whoever is asked over HTTP; see `providers.hook_http.Webhook`."""

    async def ask(self, body: bytes) -> bytes | None:
        """The answer to a JSON body; None where there is nothing to say."""
        ...


class HookReply(msgspec.Struct, frozen=True):
    """An answer as JSON. `request` may say instructions, messages and options."""

    decision: str
    reason: str | None = None
    input: Any = UNSET
    output: Any = UNSET
    request: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)


class InvalidHookReply(Exception):
    """The answer of an HTTP hook cannot be understood."""


class HttpHook:
    """A hook that asks over HTTP. `close` closes its connections; asked again, it opens new ones."""

    def __init__(
        self, endpoint: HookEndpoint, *, name: str, connections: LazyTransport | None = None
    ) -> None:
        self.__name__ = name
        self._endpoint = endpoint
        self._connections = connections

    def __repr__(self) -> str:
        return f"HttpHook({self.__name__!r})"

    async def __call__(self, event: HookEvent) -> HookResult:
        """What they decide. ProviderError, ReplyUnread."""
        answer = await self._endpoint.ask(msgspec.json.encode(event_body(event), enc_hook=str))
        return None if answer is None else read_decision(answer, event)

    async def close(self) -> None:
        """Close the connections that are its own."""
        if self._connections is not None:
            await self._connections.close()


def http_hook(
    endpoint: str | HookEndpoint, *, secret: str | None = None, timeout: float = DEFAULT_TIMEOUT
) -> HttpHook:
    """A hook that asks somebody's address; a `Webhook` has all of it in itself.

    `secret` signs what is sent, several with spaces between them all do. `timeout` is in seconds, for all of
    it. Its connections are opened when it is first asked, and closed with the agent whose hooks it is one of,
    or by `close()`. ConfigError for an address or a secret that cannot be used.

        hooks = Hooks().on("pre_tool_use", http_hook("https://hooks.example.org/dragoman", secret=secret))
    """
    if not isinstance(endpoint, str):
        return HttpHook(endpoint, name="http_hook")
    connections = LazyTransport(Timeouts())
    webhook = Webhook(endpoint, connections, secret=secret, timeout=timeout)
    return HttpHook(webhook, name=webhook.host, connections=connections)


def event_body(event: HookEvent) -> dict[str, Any]:
    """An event as JSON: its fields, in camel case, those left out that say nothing."""
    match event:
        case PreModel(request=request):
            return {**plain_fields(event, "request"), "request": request_body(request)}
        case UserPromptSubmit(message=message) | PostModel(message=message):
            told = {} if message is None else {"message": to_json(message)}
            return {**plain_fields(event, "message"), **told}
        case _:
            return plain_fields(event)


def plain_fields(event: HookEvent, *excluded: str) -> dict[str, Any]:
    """The event's plain fields."""
    names = zip(event.__struct_fields__, event.__struct_encode_fields__, strict=True)
    said = {shown: getattr(event, name) for name, shown in names if name not in excluded}
    kind = event.__struct_config__.tag
    return {"event": kind, **{name: value for name, value in said.items() if value is not None}}


def request_body(request: ModelRequest) -> dict[str, Any]:
    return {
        "model": request.model,
        "instructions": request.instructions,
        "messages": [to_json(each) for each in request.messages],
        "tools": [tool.name for tool in request.tools],
        "options": request.options,
    }


def read_decision(answer: bytes, event: HookEvent) -> Decision:
    """The decision in an answer. ReplyUnread when there is none."""
    try:
        reply = msgspec.json.decode(answer, type=HookReply)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidHookReply(f"the answer is no decision: {error}") from None
    reason = (reply.reason or "")[:MAX_REASON_LENGTH]
    match reply.decision:
        case "continue":
            return Continue()
        case "block":
            return Block(reason or "a hook said so")
        case "ask":
            return Ask(reason or "a hook asks for it")
        case "modify":
            return Modify(
                input=reply.input,
                reason=reason or None,
                output=reply.output,
                request=changed_request(reply.request, event),
                metadata=reply.metadata,
            )
        case _:
            raise InvalidHookReply(f"{reply.decision[:40]!r} is no decision: continue, block, ask or modify")


def changed_request(change: Mapping[str, Any] | None, event: HookEvent) -> ModelRequest | None:
    """The model's request with what an answer says instead."""
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
        raise InvalidHookReply(f"the request is changed to none: {error}") from None
    return request
