"""Responses in the background: made by asyncio tasks without a connection, followed through the database.

The events of a response are written as they come, so that any host can send them, beginning at any event. The
process that makes a response updates its row every `WRITE_INTERVAL`; a response that was not updated for
`LOST_AFTER` has failed with its process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace
from starlette.types import Message

from dragoman.errors import (
    BadRequest,
    DragomanError,
    LimitReached,
    ResponseNotFound,
    StoreError,
    Unavailable,
)
from dragoman.http.asgi_exchange import Exchange, handle
from dragoman.http.key_revocation import KeyValidity
from dragoman.offload import offload
from dragoman.revocable_work import ActiveWork
from dragoman.server.gateway.responses.recorder import LastEvent, is_last
from dragoman.server.gateway.responses.state import (
    ExpandedRequest,
    RequestState,
    ResponseObject,
    ResponseStates,
    item_places,
    stored_response,
)
from dragoman.store.responses import ACTIVE_STATUSES, StoredResponse
from dragoman.wire.responses.encoder import ResponsesStreamEncoder, failure_of
from dragoman.wire.sse import NamedFrame, SSEParser, encode_frame

log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
WRITE_INTERVAL = 0.5  # seconds between two writes of events
ROW_SIZE = 1_000_000  # bytes of events that are written and read at once
POLL_INTERVAL = 0.2  # seconds between two queries for new events
LOST_AFTER = 20.0  # seconds without an update by the process that makes a response
CANCEL_SECONDS = 5.0  # that a cancel request waits for the process that makes the response
MAX_REFUSALS = 20  # failed attempts to store the end of a response while the database is up
MAX_ACTIVE = 1_000  # responses of this process at once
MAX_OWNER_ACTIVE = 250  # of one owner

Serve = Callable[[Exchange], Awaitable[None]]


class BackgroundAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How a request is answered in the background: by `serve`, on an exchange whose client never disconnects.

    `encoder` encodes the first events. `stop` ends an answer that continues without this process, such as an
    agent's run: its response is left as it is when the process stops, and found again.
    """

    request: RequestState
    expanded: ExpandedRequest
    encoder: ResponsesStreamEncoder
    serve: Serve
    stop: Callable[[], Awaitable[None]] | None = None


class LastingAnswers(Protocol):
    """The answers that continue without the process that began them: those of agents."""

    async def find(self, response: StoredResponse) -> bytes | None:
        """Return the response object of an answer that has ended; None while it continues. ResponseNotFound
        if nothing answers it any more.
        """
        ...

    async def stop(self, response: StoredResponse) -> None:
        """Stop the answer."""
        ...

    def owns(self, response: StoredResponse) -> bool:
        """Return whether a response has such an answer."""
        ...


class BackgroundResponses:
    """Makes responses in the background, and follows those of all hosts."""

    def __init__(self, states: ResponseStates, lasting: LastingAnswers) -> None:
        self.work = ActiveWork()
        """The responses by API key: they end when their key does."""
        self._states = states
        self._lasting = lasting
        self._active: dict[str, asyncio.Task[None]] = {}
        self._active_by_owner: Counter[str] = Counter()
        self._ending: set[str] = set()  # ids of responses that have ended and are being stored
        self._is_closed = False

    def check_room(self, request: RequestState, *, owner: str) -> None:
        """Raise BadRequest for a request that is not to be stored, LimitReached when too many are made."""
        if not request.store:
            raise BadRequest("background needs store: its response is read later", field="background")
        if len(self._active) >= MAX_ACTIVE:
            raise LimitReached(f"the hub already makes {MAX_ACTIVE} background responses")
        if self._active_by_owner[owner] >= MAX_OWNER_ACTIVE:
            raise LimitReached(f"{MAX_OWNER_ACTIVE} background responses of yours are in progress already")

    async def start(self, exchange: Exchange, answer: BackgroundAnswer) -> StoredResponse:
        """Begin a response that continues by itself; return it as it is now. BadRequest, LimitReached."""
        owner, encoder = exchange.identity.owner, answer.encoder
        self.check_room(answer.request, owner=owner)
        make = partial(stored_response, expanded=answer.expanded, request=answer.request, owner=owner)
        queued = make(_encode(encoder.response))
        first_events = encoder.start()
        response = make(_encode(encoder.response))  # in progress, as these events say
        await self._states.repository.save(response, [])
        await self._states.trim(owner, response.size)
        writer = BackgroundWriter(self._states, response, answer=answer)
        await writer({"type": "http.response.body", "body": first_events})
        task = asyncio.ensure_future(self._make(exchange, answer, writer=writer))
        self._active[response.id] = task
        self._active_by_owner[owner] += 1
        task.add_done_callback(lambda _: self._forget(response.id, owner=owner))
        return queued

    def _forget(self, id: str, *, owner: str) -> None:
        del self._active[id]
        self._ending.discard(id)
        self._active_by_owner[owner] -= 1
        if not self._active_by_owner[owner]:
            del self._active_by_owner[owner]

    async def get(self, id: str, *, owner: str) -> StoredResponse:
        """Return a stored response; one whose process is gone has failed. Raises ResponseNotFound."""
        response = await self._states.repository.get(id, owner=owner)
        if not response.is_active or id in self._active:
            return response
        if response.updated_at > time.time() - LOST_AFTER:
            return response
        if self._lasting.owns(response):
            with suppress(ResponseNotFound):
                return await self._find_lasting(response)
        error = Unavailable("the process of the hub that made this response has ended")
        await self._end(response, status="failed", error=failure_of(error))
        return await self._states.repository.get(id, owner=owner)

    async def _find_lasting(self, response: StoredResponse) -> StoredResponse:
        """Return a response whose answer continued without the process that began it. ResponseNotFound."""
        raw = await self._lasting.find(response)
        if raw is None:
            return response
        text = raw.decode()
        status = msgspec.json.decode(raw, type=ResponseObject).status
        ended = replace(
            response,
            status=status,
            body=text,
            size=len(text) + len(response.input),
            updated_at=time.time(),
        )
        await self._states.repository.finish(ended, item_places(None, ended))
        return await self._states.repository.get(response.id, owner=response.owner)

    async def cancel(self, id: str, *, owner: str) -> StoredResponse:
        """End a response; return it as it is then. Raises ResponseNotFound, BadRequest."""
        response = await self.get(id, owner=owner)
        if not response.background:
            raise BadRequest("only background responses can be cancelled", field="id")
        if response.is_active:
            await self._states.repository.request_cancel(id, owner=owner)
            task = self._active.get(id)
            if task is not None and id not in self._ending:
                task.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    response = await self._wait_for_end(id, owner=owner)
        if response.is_active and self._lasting.owns(response):  # its process is gone
            await self._lasting.stop(response)
            await self._end(response, status="cancelled")
            return await self.get(id, owner=owner)
        return response

    async def _wait_for_end(self, id: str, *, owner: str) -> StoredResponse:
        while True:
            response = await self._find_ended(id, owner=owner)
            if response is not None:
                return response
            await asyncio.sleep(POLL_INTERVAL / 4)

    async def _find_ended(self, id: str, *, owner: str) -> StoredResponse | None:
        """Return a response once it has ended; until then its items, which may be megabytes, are not read.

        Raises ResponseNotFound.
        """
        status, updated_at = await self._states.repository.progress(id, owner=owner)
        is_made = id in self._active or updated_at > time.time() - LOST_AFTER
        if status in ACTIVE_STATUSES and is_made:
            return None
        response = await self.get(id, owner=owner)
        return None if response.is_active else response

    async def follow(self, id: str, *, owner: str, after: int) -> AsyncIterator[bytes]:
        """Yield the events of a response after a sequence number until its last one.

        Nothing after the last one, or beyond it.
        """
        while True:
            response = await self._find_ended(id, owner=owner)
            rows = await self._states.repository.events(id, after=after)
            for first, last, body in rows:
                cut = partial(cut_events, body, seen=max(0, after + 1 - first))
                after = last
                chunk, has_ended = await offload(len(body), cut)
                yield chunk
                if has_ended:
                    return
            if not rows and response is not None:
                number = await self._number_of_end(id)
                if number is not None and after < number:
                    yield await offload(response.size, partial(last_frame, response, number))
                return
            if not rows:
                await asyncio.sleep(POLL_INTERVAL)

    async def _number_of_end(self, id: str) -> int | None:
        """Return the number of the last event of a response that ended without one; None if it has one."""
        row = await self._states.repository.last_events(id)
        if row is None:
            return 0
        number, body = row
        _, has_ended = await offload(len(body), partial(cut_events, body, seen=0))
        return None if has_ended else number + 1

    async def close(self) -> None:
        """End all responses of this process, but for those whose answers continue without it."""
        self._is_closed = True
        tasks = list(self._active.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, request: Exchange, answer: BackgroundAnswer, *, writer: BackgroundWriter) -> None:
        exchange = Exchange(request.synthetic_scope, writer.receive, writer)
        exchange.identity, exchange.request_id = request.identity, request.request_id
        error: dict[str, str] | None = None

        async def serve(_: Exchange) -> None:
            with KeyValidity(exchange, self.work):
                await answer.serve(exchange)

        async def fail(_: Exchange, raised: DragomanError) -> None:
            nonlocal error
            error = failure_of(raised)

        writing = asyncio.ensure_future(writer.write_until_cancelled(asyncio.current_task()))
        try:
            await handle(exchange, serve, on_error=fail)
        except asyncio.CancelledError:
            writing.cancel()
            await self._cancelled(answer, writer)
            raise
        finally:
            writing.cancel()
        self._ending.add(writer.response.id)
        if error is None and writer.last is not None:
            await self._store_end(writer.response.id, writer.finish)
        elif error is not None or answer.stop is None:
            end = partial(self._end, writer.response, status="failed", error=error, items=writer.items)
            await self._store_end(writer.response.id, end)
        # An answer that continues elsewhere is stored by the `get` that first finds it ended.

    async def _store_end(self, id: str, write: Callable[[], Awaitable[None]]) -> None:
        """Write the end of a response, which is paid for. Retries for as long as the database is down."""
        refusals = 0
        while refusals < MAX_REFUSALS:
            try:
                await write()
                return
            except (StoreError, Unavailable) as failure:
                refusals += self._states.repository.is_up
                log.warning("the end of response %s is not stored yet: %s", id, failure.message)
            await asyncio.sleep(WRITE_INTERVAL)
        log.error("the end of response %s is lost: the database does not take it", id)

    async def _cancelled(self, answer: BackgroundAnswer, writer: BackgroundWriter) -> None:
        """End a response that was cancelled, with what answers it."""
        if self._is_closed and answer.stop is not None:
            return
        try:
            await self._end(writer.response, status="cancelled", items=writer.items)
        finally:  # also while the database is down
            if answer.stop is not None:
                await answer.stop()

    async def _end(
        self,
        response: StoredResponse,
        *,
        status: str,
        error: dict[str, str] | None = None,
        items: list[msgspec.Raw] | None = None,
    ) -> None:
        """Write the end of a response that has none of its own."""
        body = {**msgspec.json.decode(response.body), "status": status, "error": error}
        body["output"] = items or body["output"]
        text = _encode(body).decode()
        ended = replace(response, status=status, body=text, updated_at=time.time())
        await self._states.repository.finish(ended, [])


class BackgroundWriter:
    """An ASGI `send` that writes the events of a response to the database."""

    def __init__(self, states: ResponseStates, response: StoredResponse, *, answer: BackgroundAnswer) -> None:
        self.response = response
        self.items: list[msgspec.Raw] = []
        """The output items that are complete."""
        self.last: bytes | None = None
        """The whole response object, once its last event was sent."""
        self._states = states
        self._answer = answer
        self._parser = SSEParser()
        self._frames: list[bytes] = []
        self._last_frame = b""  # written with the response, so that who reads it finds the response ended
        self._written = 0

    async def receive(self) -> Message:
        """Wait: the client of this request never disconnects. See `Exchange.receive`."""
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def __call__(self, message: Message) -> None:
        if message["type"] != "http.response.body":
            return
        body = message.get("body", b"")
        await offload(self._parser.pending_size + len(body), partial(self._read, body))

    def _read(self, body: bytes) -> None:
        for frame in self._parser.feed(body):
            if is_last(frame):
                self.last = bytes(msgspec.json.decode(frame, type=LastEvent).response)
                self._last_frame = encode_frame(frame)
                continue
            self._frames.append(encode_frame(frame))
            if isinstance(frame, NamedFrame) and frame.event == "response.output_item.done":
                self.items.append(msgspec.json.decode(frame, type=ItemDone).item)

    async def write_until_cancelled(self, task: asyncio.Task[Any] | None) -> None:
        """Write events as they come; cancel the `task` when another process has ended the response."""
        while True:
            with suppress(StoreError, Unavailable):
                if not await self._write() and task is not None:
                    task.cancel()
                    return
            await asyncio.sleep(WRITE_INTERVAL)

    async def finish(self) -> None:
        """Write the last events, and the whole response. Raises StoreError, Unavailable."""
        await self._write()
        request, expanded = self._answer.request, self._answer.expanded
        if self.last is None:
            return
        owner = self.response.owner
        make = partial(stored_response, self.last, expanded, request=request, owner=owner)
        response = await offload(len(self.last), make)
        if request.conversation_id is not None:  # before a client may see that the response has ended
            await self._states.extend_conversation(
                self.last, expanded, owner=owner, id=request.conversation_id
            )
        places = await offload(response.size, partial(item_places, request, response))
        events = None
        if request.stream:
            body = await offload(len(self._last_frame), self._last_frame.decode)
            events = {"first": self._written, "last": self._written, "body": body}
        await self._states.repository.finish(response, places, events=events)
        await self._states.trim(owner, len(self.last))

    async def _write(self) -> bool:
        """Write the events that are not in the database yet; return whether the response is active."""
        response, repository = self.response, self._states.repository
        if not self._answer.request.stream:
            self._frames.clear()
        while True:
            events, frames = None, self._next_frames()
            if frames:
                body = await offload(sum(map(len, frames)), partial(join_frames, frames))
                events = {"first": self._written, "last": self._written + len(frames) - 1, "body": body}
            is_active = await repository.touch(response.id, owner=response.owner, events=events)
            del self._frames[: len(frames)]
            self._written += len(frames)
            if not is_active or not self._frames:
                return is_active

    def _next_frames(self) -> list[bytes]:
        """Return the frames of the next row: about a megabyte, or one longer frame."""
        sizes = accumulate(map(len, self._frames))
        return self._frames[: 1 + sum(size <= ROW_SIZE for size in sizes)]


def join_frames(frames: Sequence[bytes]) -> str:
    return b"".join(frames).decode()


class ItemDone(msgspec.Struct):
    """The event at the end of an output item."""

    item: msgspec.Raw


def cut_events(body: str, *, seen: int) -> tuple[bytes, bool]:
    """Return stored events without those that were seen, and whether the last one of all is among them."""
    frames = SSEParser().feed(body.encode())
    return b"".join(map(encode_frame, frames[seen:])), is_last(frames[-1])


def last_frame(response: StoredResponse, number: int) -> bytes:
    """Return the last event of a response that ended without one of its own."""
    kind = "response.failed" if response.status == "failed" else "response.incomplete"
    if response.status == "completed":
        kind = "response.completed"
    event = {"type": kind, "sequence_number": number, "response": msgspec.Raw(response.body.encode())}
    return encode_frame(NamedFrame(_encode(event), kind))
