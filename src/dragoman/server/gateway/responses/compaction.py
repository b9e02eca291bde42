"""Compactions: by `/v1/responses/compact`, and before an answer to a request with `context_management`.

The endpoint takes the items of a conversation, and answers with the messages of its user and a compaction. A
server that speaks Responses gets the request as it is. Many of them do not have this endpoint: then, as for
all other families, the hub asks the model for a summary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.types import Message

from dragoman.accounts.request_size import token_factor
from dragoman.errors import BadRequest, ProviderError
from dragoman.events import Event
from dragoman.http.asgi_exchange import ClientDisconnected, Exchange
from dragoman.json_decoding import decode_fields
from dragoman.large_json import weigh
from dragoman.offload import offload
from dragoman.providers.endpoint import UpstreamServer
from dragoman.providers.remote import RemoteProvider
from dragoman.server.gateway.handlers import UNSUPPORTED_STATUSES, Gateway
from dragoman.server.gateway.responses.agents import PREFIX
from dragoman.server.gateway.responses.creation import ResponseCreation, empty_body
from dragoman.server.gateway.responses.dialect import ResponsesDialect
from dragoman.server.gateway.responses.state import ResponseStates
from dragoman.wire import json_codec
from dragoman.wire.client_request import ClientRequest, RawRequestBody
from dragoman.wire.openai.field_reader import decode_body
from dragoman.wire.responses.client_items import list_items
from dragoman.wire.responses.client_request import ResponsesRequest, parse_responses_request
from dragoman.wire.responses.compaction import (
    COMPACTION,
    PROMPT,
    WHOLE_PROMPT,
    has_history,
    left_out_items,
    seal_whole_summary,
    shorten_input,
)
from dragoman.wire.responses.encoder import compaction_document
from dragoman.wire.token_estimate import estimate_input

_encode = msgspec.json.Encoder().encode
OWN_FIELDS = ("background", "context_management", "max_output_tokens", "stream")  # of the answer's request


class ConversationTooLong(Exception):
    """The conversation of a request is to be compacted before it is answered."""


class CompactionDialect(ResponsesDialect):
    """The Responses API, where the answer to a request is a compaction of its items."""

    def url(self, server: UpstreamServer) -> str:
        """See `ClientDialect`."""
        return server.url("/responses/compact")

    def __init__(self, prompt: str = PROMPT) -> None:
        super().__init__()
        self._prompt = prompt

    def parse_request(self, raw: bytes) -> ResponsesRequest:
        """See `ClientDialect`."""
        self._parsed = parse_responses_request(raw, compacts=True, prompt=self._prompt)
        return self._parsed

    def encode_document(
        self, parsed: ClientRequest, events: Sequence[Event], *, id: str, model: str, input_tokens: int
    ) -> bytes:
        """See `ClientDialect`."""
        user_items: Sequence[Mapping[str, Any]] = () if self._parsed is None else self._parsed.user_items
        return json_codec.encode_document(
            compaction_document(events, head=self.head(model), user_items=user_items)
        )


class CompactionHandler:
    """Answers requests for a compaction."""

    def __init__(self, gateway: Gateway, states: ResponseStates) -> None:
        self._gateway = gateway
        self._states = states

    async def compact(self, exchange: Exchange) -> None:
        """Answer with the messages of the user and a compaction: what the client sends from then on."""
        creation = ResponseCreation(self._states, owner=exchange.identity.owner)
        dialect, prepared = CompactionDialect(), b""

        async def prepare(body: bytes) -> bytes:
            nonlocal prepared
            prepared = prepared or await self._prepare(creation, body)
            return prepared

        try:
            try:
                await self._gateway.serve(exchange, dialect, prepare=prepare)
            except ProviderError as error:
                if error.upstream_status not in UNSUPPORTED_STATUSES or exchange.response_started:
                    raise
                dialect.relays = False
                exchange.receive = empty_body(exchange.receive)
                await self._gateway.serve(exchange, dialect, prepare=prepare)
        except ProviderError as error:
            error.caller_may_retry = False  # see `ResponseHandlers.create`
            raise

    @staticmethod
    async def _prepare(creation: ResponseCreation, body: bytes) -> bytes:
        expanded = await creation.prepare(body)
        request = creation.request
        if request is None or request.stream or request.background:
            raise BadRequest("a compaction is one document: leave out stream and background", field="stream")
        if request.model.startswith(PREFIX):
            raise BadRequest("agents shorten their history themselves, by `context`", field="model")
        return expanded

    # ---- before an answer ----------------------------------------------------------------------------

    async def require_short(self, exchange: Exchange, creation: ResponseCreation) -> None:
        """Raise ConversationTooLong for a request whose input is above its `compact_threshold`.

        A server that speaks Responses compacts by itself. Raises as `Gateway.routes`, BadRequest.
        """
        if creation.request is None or creation.expanded is None or creation.is_shortened:
            return
        if bytes(creation.request.fields.get("context_management", b"null")) == b"null":
            return
        body = creation.expanded.body
        head = await offload(len(body), partial(RawRequestBody, body))
        route = self._gateway.routes(exchange, head, select=False).first
        if isinstance(route.provider, RemoteProvider) and route.provider.family == creation.dialect.family:
            return
        if await offload(weigh(body), partial(is_too_long, body, factor=token_factor(route))):
            raise ConversationTooLong

    async def shorten(self, exchange: Exchange, creation: ResponseCreation) -> None:
        """Put a summary in place of what is before the last message of the user.

        The summary is a request of its own, with its own cost. Raises ProviderError without a whole summary,
        ClientDisconnected.
        """
        body = b"" if creation.expanded is None else creation.expanded.body
        collected: list[bytes] = []

        async def collect(message: Message) -> None:
            collected.append(message.get("body", b""))

        async def prepare(_: bytes) -> bytes:
            return await offload(weigh(body), partial(summary_request, body))

        inner = Exchange(exchange.synthetic_scope, empty_body(exchange.receive), collect)
        inner.identity, inner.request_id = exchange.identity, exchange.request_id
        dialect = CompactionDialect(WHOLE_PROMPT)
        dialect.relays = False
        await self._gateway.serve(inner, dialect, prepare=prepare)
        if not inner.response_started:
            raise ClientDisconnected
        sealed = seal_whole_summary(read_compaction(b"".join(collected)))
        creation.shorten(await offload(weigh(body), partial(shortened_request, body, sealed)), sealed)


def is_too_long(body: bytes, *, factor: float) -> bool:
    """Return whether a request is above its threshold, and has something that can be summarised."""
    parsed = parse_responses_request(body)
    if parsed.compact_threshold is None or parsed.compacts:
        return False
    items = list_items(decode_body(body)["input"])
    is_above = estimate_input(parsed.request, factor=factor) > parsed.compact_threshold
    left_out = left_out_items(items)
    return is_above and has_history([item for index, item in enumerate(items) if index not in left_out])


def summary_request(body: bytes) -> bytes:
    """Return the request for a summary of the conversation of a request."""
    fields = decode_fields(body)
    return _encode({name: value for name, value in fields.items() if name not in OWN_FIELDS})


def read_compaction(document: bytes) -> str:
    """Return the content of the compaction in the answer to a request for one."""
    content: str = msgspec.json.decode(document)["output"][-1]["encrypted_content"]
    return content


def shortened_request(body: bytes, sealed: str) -> bytes:
    """Return a request with a compaction in place of what is before its last message of the user."""
    fields = decode_body(body)
    items = list_items(fields["input"])
    left_out = left_out_items(items)
    items = [item for index, item in enumerate(items) if index not in left_out]
    compaction = {"type": COMPACTION, "encrypted_content": sealed}
    return _encode({**fields, "input": shorten_input(items, compaction)})
