"""One response that is being made: what its request refers to, and where it is stored."""

from __future__ import annotations

import logging
from functools import partial

import msgspec
from starlette.types import Message, Receive

from dragoman.errors import StoreError, Unavailable
from dragoman.json_decoding import decode_fields
from dragoman.large_json import weigh
from dragoman.offload import offload
from dragoman.server.gateway.responses.dialect import ResponsesDialect
from dragoman.server.gateway.responses.state import (
    ExpandedRequest,
    RequestState,
    ResponseContext,
    ResponseObject,
    ResponseStates,
    raw_size,
    read_state,
    stored_response,
)
from dragoman.store.responses import ResponseOutput

log = logging.getLogger(__name__)
MAX_REMEMBERED = 8  # responses of a connection that are not stored


class ResponseMemory:
    """The last responses of a connection, which may be continued there without being stored."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._contexts: dict[str, ResponseContext] = {}

    def find(self, id: str) -> ResponseContext | None:
        """Return what a continuation of a response has before it; None if it is not remembered."""
        return self._contexts.get(id)

    def keep(self, id: str, context: ResponseContext) -> None:
        """Remember a response, and forget the oldest ones above the limits of count and bytes."""
        self._contexts[id] = context
        sizes = [raw_size(each.items) for each in self._contexts.values()]
        while len(sizes) > MAX_REMEMBERED or (sizes and sum(sizes) > self._max_size):
            del self._contexts[next(iter(self._contexts))]
            sizes.pop(0)


class DetachedResponse(Exception):
    """The request wants its response in the background: nobody answers it on this connection."""


class ResponseCreation:
    """Reads the state of one request, and stores the response."""

    def __init__(self, states: ResponseStates, *, owner: str, memory: ResponseMemory | None = None) -> None:
        self.dialect = ResponsesDialect()
        self.request: RequestState | None = None
        self.expanded: ExpandedRequest | None = None
        self._shortened: bytes | None = None
        self._states = states
        self._owner = owner
        self._memory = memory

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream."""
        return self.request is not None and self.request.stream

    @property
    def is_shortened(self) -> bool:
        """Whether the conversation was compacted."""
        return self._shortened is not None

    def shorten(self, body: bytes, compaction: str) -> None:
        """Have this request answered in place of the client's; the answer begins with the compaction."""
        self._shortened = body
        self.dialect.compaction, self.dialect.relays = compaction, False

    async def shortened(self, _: bytes) -> bytes:
        """Return the request to answer after `shorten`. See `Gateway.serve`."""
        return self._shortened or b"{}"

    async def prepare_or_detach(self, body: bytes) -> bytes:
        """Do as `prepare`. Raises DetachedResponse for a request in the background."""
        expanded = await self.prepare(body)
        if self.request is not None and self.request.background:
            raise DetachedResponse
        return expanded

    async def prepared(self, _: bytes) -> bytes:
        """Return the request as it was prepared before, for an answer as a stream."""
        body = self._shortened or (b"{}" if self.expanded is None else self.expanded.body)
        return await offload(len(body), lambda: msgspec.json.encode({**decode_fields(body), "stream": True}))

    async def prepare(self, body: bytes) -> bytes:
        """Return the request with the items that it refers to. See `Gateway.serve`."""
        self.request = request = await offload(weigh(body), partial(read_state, body))
        memory = self._memory
        local = None if memory is None or request.previous_id is None else memory.find(request.previous_id)
        self.expanded = await self._states.expand(request, owner=self._owner, local=local)
        return self.expanded.body

    async def record(self, raw: bytes) -> None:
        """Store the response, and remember it for its connection. See `ResponseRecorder`."""
        request, expanded = self.request, self.expanded
        if request is None or expanded is None:
            return
        if request.conversation_id is not None:
            try:
                await self._states.extend_conversation(
                    raw, expanded, owner=self._owner, id=request.conversation_id
                )
            except (StoreError, Unavailable) as error:  # the client gets its answer all the same
                log.warning("a response is not added to its conversation: %s", error.message)
        is_stored = False
        if request.store:
            make = partial(stored_response, raw, expanded, request=request, owner=self._owner)
            response = await offload(len(raw), make)
            is_stored = await self._states.save(response, request)
        if self._memory is not None:
            await self._remember(self._memory, raw, expanded=expanded, is_stored=is_stored)

    async def _remember(
        self, memory: ResponseMemory, raw: bytes, *, expanded: ExpandedRequest, is_stored: bool
    ) -> None:
        """Keep a response for the requests that continue it on this connection."""
        id = (await offload(len(raw), partial(msgspec.json.decode, raw, type=ResponseObject))).id
        output = await offload(len(raw), partial(copied_output, raw))
        context = expanded.context
        items = [*context.items, *expanded.items, *output]
        memory.keep(id, ResponseContext(context.root_id or id, items, is_stored and context.is_stored))


def copied_output(raw: bytes) -> list[msgspec.Raw]:
    """Return copies of a response object's output items, so that the rest of the object can be freed."""
    return [item.copy() for item in msgspec.json.decode(raw, type=ResponseOutput).output]


def empty_body(receive: Receive) -> Receive:
    """Return an ASGI `receive` of a request without a body, which passes on a disconnect."""
    pending = [True]

    async def receive_once() -> Message:
        if pending:
            pending.clear()
            return {"type": "http.request", "body": b"", "more_body": False}
        return await receive()

    return receive_once
