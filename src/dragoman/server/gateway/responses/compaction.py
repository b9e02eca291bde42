"""`/v1/responses/compact`: the items of a conversation in, the messages of its user and a compaction out.

A server that speaks Responses gets the request as it is. Many of them do not have this endpoint: then, as for
all other families, the hub asks the model for a summary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.errors import BadRequest, ProviderError
from dragoman.events import Event
from dragoman.http.exchange import Exchange
from dragoman.providers.upstream import UpstreamServer
from dragoman.server.gateway.responses.agents import PREFIX
from dragoman.server.gateway.responses.creation import ResponseCreation, empty_body
from dragoman.server.gateway.responses.dialect import ResponsesDialect
from dragoman.server.gateway.responses.state import ResponseStates
from dragoman.server.gateway.routes import UNSUPPORTED_STATUSES, Gateway
from dragoman.wire import json_codec
from dragoman.wire.responses.client_request import ResponsesRequest, parse_responses_request
from dragoman.wire.responses.encoder import compaction_document


class CompactionDialect(ResponsesDialect):
    """The Responses API, where the answer to a request is a compaction of its items."""

    def url(self, server: UpstreamServer) -> str:
        """See `ClientDialect`."""
        return server.url("/responses/compact")

    def parse_request(self, raw: bytes) -> ResponsesRequest:
        """See `ClientDialect`."""
        self._parsed = parse_responses_request(raw, compacts=True)
        return self._parsed

    def encode_document(self, events: Sequence[Event], *, id: str, model: str, input_tokens: int) -> bytes:
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
        """Answer with the messages of the user and a compaction, which the client sends in their place."""
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
