"""The endpoints of the Responses API: create, read, follow, cancel and delete responses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from dragoman.accounts.request_size import token_factor
from dragoman.errors import BadRequest, ProviderError
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.disconnect import DisconnectWatch
from dragoman.http.sse_keepalive import KeepAlive
from dragoman.json_decoding import parse_digits
from dragoman.large_json import weigh
from dragoman.offload import offload
from dragoman.server.gateway.handlers import Gateway
from dragoman.server.gateway.responses.agents import PREFIX, AgentRequested, AgentResponses, require_model
from dragoman.server.gateway.responses.background import BackgroundAnswer, BackgroundResponses
from dragoman.server.gateway.responses.compaction import CompactionHandler, ConversationTooLong
from dragoman.server.gateway.responses.conversations import ConversationHandlers
from dragoman.server.gateway.responses.creation import (
    DetachedResponse,
    ResponseCreation,
    ResponseMemory,
    empty_body,
)
from dragoman.server.gateway.responses.dialect import ResponsesDialect
from dragoman.server.gateway.responses.item_lists import list_page
from dragoman.server.gateway.responses.recorder import ResponseRecorder
from dragoman.server.gateway.responses.state import (
    ResponseStates,
    read_state,
)
from dragoman.server.streaming import send_large
from dragoman.store.responses import StoredResponse
from dragoman.wire.client_request import RawRequestBody
from dragoman.wire.encoder import KEEP_ALIVE, SSE_HEADERS
from dragoman.wire.responses.client_request import parse_responses_request
from dragoman.wire.responses.encoder import ResponsesStreamEncoder
from dragoman.wire.token_estimate import estimate_input

RESPONSES = ResponsesDialect()


class ResponseHandlers:
    """The handlers under `/v1/responses`."""

    def __init__(self, gateway: Gateway, states: ResponseStates, *, agents: AgentResponses) -> None:
        self._gateway = gateway
        self._states = states
        self._agents = agents
        self.conversations = ConversationHandlers(states, body_limit=gateway.body_limit)
        self.background = BackgroundResponses(states, agents)
        self._compactions = CompactionHandler(gateway, states)
        self.max_memory = states.limits.context
        """Bytes of the responses that a connection remembers."""

    async def create(
        self, exchange: Exchange, *, memory: ResponseMemory | None = None, warm_up: bool = False
    ) -> None:
        """Answer a request as JSON or as a stream.

        `memory` has what a connection remembers. A `warm_up` is answered without asking a model.
        """
        creation = ResponseCreation(self._states, owner=exchange.identity.owner, memory=memory)
        send = exchange.send
        exchange.send = ResponseRecorder(send, creation.record)
        if warm_up:
            await self._warm_up(exchange, creation)
            return

        try:
            await self._answer(exchange, creation)
        except AgentRequested as requested:
            exchange.send = send
            detached = await self._agents.create(
                exchange, requested.body, background=self.background, memory=memory
            )
            if detached is not None:
                await self._answer_detached(exchange, detached.response, streams=detached.streams)
        except DetachedResponse:
            exchange.send = send
            await self._detach(exchange, creation)
        except ProviderError as error:
            error.caller_may_retry = False  # several clients multiply the retries that they are allowed
            if exchange.response_started or not creation.streams:
                raise
            await send_failed_stream(exchange, error, dialect=creation.dialect)

    async def _answer(self, exchange: Exchange, creation: ResponseCreation) -> None:
        """Answer a request, after a compaction of a conversation that is too long.

        Raises AgentRequested, DetachedResponse.
        """

        async def prepare(body: bytes) -> bytes:
            body = await creation.prepare_or_detach(await offload(len(body), partial(require_model, body)))
            await self._compactions.require_short(exchange, creation)
            return body

        try:
            await self._gateway.serve(exchange, creation.dialect, prepare=prepare)
        except ConversationTooLong:
            await self._compactions.shorten(exchange, creation)
            exchange.receive = empty_body(exchange.receive)
            await self._gateway.serve(exchange, creation.dialect, prepare=creation.shortened)

    async def compact(self, exchange: Exchange) -> None:
        """Answer with a compaction of a conversation."""
        await self._compactions.compact(exchange)

    async def _detach(self, exchange: Exchange, creation: ResponseCreation) -> None:
        """Begin a response in the background, and answer with it."""
        request, expanded, dialect = creation.request, creation.expanded, creation.dialect
        if request is None or expanded is None:
            return
        self.background.check_room(request, owner=exchange.identity.owner)
        dialect.make_queued()
        await offload(weigh(expanded.body), partial(dialect.parse_request, expanded.body))
        answer = BackgroundAnswer(
            request=request,
            expanded=expanded,
            encoder=ResponsesStreamEncoder(dialect.head(request.model)),  # of the first events
            serve=partial(self._serve_in_background, creation=creation),
        )
        dialect.announced = True
        response = await self.background.start(exchange, answer)
        await self._answer_detached(exchange, response, streams=request.stream)

    async def _answer_detached(self, exchange: Exchange, response: StoredResponse, *, streams: bool) -> None:
        """Answer with a response that is made in the background; follow it if the client wants a stream."""
        if streams:
            await self._follow(exchange, response.id, after=-1)
        else:
            await exchange.respond(200, response.body.encode())

    async def _serve_in_background(self, exchange: Exchange, *, creation: ResponseCreation) -> None:
        try:
            await self._compactions.require_short(exchange, creation)
        except ConversationTooLong:
            await self._compactions.shorten(exchange, creation)
        exchange.receive = empty_body(exchange.receive)
        await self._gateway.serve(exchange, creation.dialect, prepare=creation.prepared)

    async def _follow(self, exchange: Exchange, id: str, *, after: int) -> None:
        """Send the events of a response after a sequence number, and its later ones as they come."""
        await exchange.start_response(200, SSE_HEADERS)
        with DisconnectWatch(exchange) as watch:
            comment = partial(exchange.send_chunk, KEEP_ALIVE)
            events = self.background.follow(id, owner=exchange.identity.owner, after=after)
            async with KeepAlive(comment, self._gateway.keep_alive) as keep_alive:
                async for chunk in events:
                    keep_alive.last_output = asyncio.get_running_loop().time()
                    await send_large(exchange, chunk, timer=keep_alive)
            watch.response_complete = True
            await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def cancel(self, exchange: Exchange) -> None:
        """End a response that is made in the background."""
        response = await self.background.cancel(exchange.path_params["id"], owner=exchange.identity.owner)
        await exchange.respond(200, response.body.encode())

    async def _warm_up(self, exchange: Exchange, creation: ResponseCreation) -> None:
        """Check a request, and remember its items for the next one."""
        body = await creation.prepare(await exchange.read_body(self._gateway.body_limit))
        head = await offload(len(body), partial(RawRequestBody, body))
        if head.model.startswith(PREFIX):
            self._agents.require_agent(head.model, identity=exchange.identity)
        else:
            self._gateway.routes(exchange, head, select=False)
        if creation.expanded is not None and creation.expanded.items:
            await offload(weigh(body), partial(creation.dialect.parse_request, body))
        frames = ResponsesStreamEncoder(creation.dialect.head(head.model)).end_unanswered()
        await exchange.start_response(200, SSE_HEADERS)
        await exchange.send({"type": "http.response.body", "body": frames, "more_body": False})

    async def get(self, exchange: Exchange) -> None:
        """Return a stored response."""
        id, query = exchange.path_params["id"], exchange.query
        response = await self.background.get(id, owner=exchange.identity.owner)
        if query.get("stream") != "true":
            await exchange.respond(200, response.body.encode())
            return
        wanted = query.get("starting_after", "-1")
        after = -1 if wanted == "-1" else parse_digits(wanted)
        if after is None:
            raise BadRequest(f"starting_after must be a number, got {wanted!r:.40}", field="starting_after")
        if not response.background:
            raise BadRequest("only background responses can be streamed again", field="stream")
        await self._follow(exchange, id, after=after)

    async def delete(self, exchange: Exchange) -> None:
        """Delete a stored response."""
        id = exchange.path_params["id"]
        await self._states.repository.delete(id, owner=exchange.identity.owner)
        await exchange.respond(200, {"id": id, "object": "response", "deleted": True})

    async def input_items(self, exchange: Exchange) -> None:
        """List the items that a response answers, with those of the responses before it."""
        id, owner = exchange.path_params["id"], exchange.identity.owner
        chain = await self._states.repository.chain(id, owner=owner, max_size=self._states.limits.context)
        size = sum(response.size for response in chain)
        page = await offload(size, partial(list_chain_page, chain, exchange.query))
        await exchange.respond(200, page)

    async def input_tokens(self, exchange: Exchange) -> None:
        """Estimate how many tokens a request has."""
        raw = await exchange.read_body(self._gateway.body_limit)
        request = await offload(weigh(raw), partial(read_state, raw))
        expanded = await self._states.expand(request, owner=exchange.identity.owner)
        body = expanded.body
        head = await offload(len(body), partial(RawRequestBody, body))
        factor = token_factor(self._gateway.routes(exchange, head, select=False).first)
        count = await offload(
            weigh(body), lambda: estimate_input(parse_responses_request(body).request, factor=factor)
        )
        counted = {"object": "response.input_tokens", "input_tokens": count}
        await exchange.respond(200, counted, headers={"x-dragoman-estimated": "true"})


def list_chain_page(chain: Sequence[StoredResponse], query: dict[str, str]) -> dict[str, Any]:
    """Return a page of the items that the last response of a chain answers. BadRequest."""
    items = [item for response in chain[:-1] for item in response.items] + chain[-1].input_items
    return list_page(items, query)


async def send_failed_stream(exchange: Exchange, error: ProviderError, *, dialect: ResponsesDialect) -> None:
    """Answer an upstream failure with a failed stream: after an HTTP error, clients would send it again."""
    await exchange.start_response(200, SSE_HEADERS)
    last = dialect.failed_stream(error)
    await exchange.send({"type": "http.response.body", "body": last, "more_body": False})
