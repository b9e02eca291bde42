"""The gateway's doors: OpenAI's and Anthropic's clients in, any provider behind, all of it accounted for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.accounts.meter import Meter
from dragoman.errors import BadRequest, DragomanError, NotFound, ProviderError, Unavailable
from dragoman.providers.relay import Relay
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.routing import Route, permit
from dragoman.server.exchange import Exchange
from dragoman.server.gateway.dialects import Completions, Embeddings, Messages, Tongue
from dragoman.server.gateway.record import Asking, Book, Ticket, named
from dragoman.server.gateway.request import JSON, Errand, Task
from dragoman.server.metrics import Metrics
from dragoman.server.streaming import Presence
from dragoman.tracing.tracing import Tracing
from dragoman.wire.anthropic.door import read_count
from dragoman.wire.estimate import ANTHROPIC, estimate_input
from dragoman.wire.head import Head
from dragoman.wire.openai.tap import read_document

log = logging.getLogger(__name__)
SMALL = 64 * 1024  # bytes of a body whose tokens are guessed by its length
CHARACTERS = 4  # of a body, for one token
UNKNOWN = (404, 405, 501)  # of a server that counts no tokens
LONGEST_WAIT = 60  # seconds that a client is asked to wait: some sleep as long as they are told


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """`body` in bytes, `keep_alive` in seconds."""

    body: int
    keep_alive: float


class Gateway:
    """The doors under `/v1`."""

    def __init__(
        self, book: Book, meter: Meter, *, tracing: Tracing, metrics: Metrics, settings: GatewaySettings
    ) -> None:
        self.book = book
        self.draining = False
        self._meter = meter
        self._tracing = tracing
        self._metrics = metrics
        self._settings = settings
        self._errands: set[Errand] = set()
        self._idle = asyncio.Event()
        self._started = int(time.time())

    @property
    def busy(self) -> int:
        """How many requests are under way."""
        return len(self._errands)

    async def chat(self, exchange: Exchange) -> None:
        """OpenAI's chat.completions."""
        await self._traced(exchange, COMPLETIONS)

    async def embeddings(self, exchange: Exchange) -> None:
        """OpenAI's embeddings."""
        await self._traced(exchange, EMBEDDINGS)

    async def messages(self, exchange: Exchange) -> None:
        """Anthropic's Messages."""
        await self._traced(exchange, MESSAGES)

    async def count_tokens(self, exchange: Exchange) -> None:
        """How many tokens a Messages request has: as its provider counts, or an estimate."""
        exchange.said |= named(exchange.request_id)
        raw = await exchange.body(self._settings.body)
        head = Head(raw)
        route = self._routes(exchange, head)[0]
        async with Presence(exchange) as presence:
            counted = await count(route, head, headers=exchange.headers)
        if presence.gone:
            return
        if counted is not None:
            await exchange.answer(200, counted, headers=JSON)
            return
        tokens = estimate_input(read_count(raw), factor=factor_of(route))
        await exchange.answer(200, {"input_tokens": tokens}, headers={"x-dragoman-estimated": "true"})

    async def models(self, exchange: Exchange) -> None:
        """The models that the key may ask, in a form that both families' clients read."""
        names = [name for name in self.book.models if self._may(exchange, name)]
        data = [self._model(name) for name in names]
        body = {"object": "list", "data": data, "has_more": False}
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
        await exchange.answer(200, {**body, **ends})

    async def model(self, exchange: Exchange) -> None:
        """One model."""
        name = exchange.params["id"]
        self.book.routing.first(name)  # NotFound, also for a key that may ask for anything
        permit(exchange.identity.models, name, routing=self.book.routing)
        await exchange.answer(200, self._model(name))

    async def drain(self, seconds: float) -> None:
        """Take no new requests; those under way get so many seconds, and are then ended with a word."""
        self.draining = True
        try:
            async with asyncio.timeout(seconds):
                while self._errands:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            log.warning("%d answers were not over in time and are ended", len(self._errands))
        for errand in list(self._errands):
            errand.stop()

    async def _traced(self, exchange: Exchange, tongue: Tongue) -> None:
        with self._tracing.door("POST", exchange.path, headers=exchange.headers) as door:
            try:
                await self._serve(exchange, tongue)
            except DragomanError as error:
                door.answered(tongue.status(error))
                raise
            door.answered(200)

    async def _serve(self, exchange: Exchange, tongue: Tongue) -> None:
        request_id = exchange.request_id
        exchange.said |= named(request_id)
        if self.draining:
            raise Unavailable("the hub is stopping", hint="ask again in a moment")
        raw = await exchange.body(self._settings.body)
        head = Head(raw)
        routes = self._routes(exchange, head)
        tokens = self._tokens(tongue, raw, route=routes[0])
        admission = await self._meter.admit(
            exchange.identity,
            price=self.book.price(routes[0]),
            input_tokens=tokens,
            max_output=head.max_output,
            model=head.model,
        )
        asking = Asking(
            identity=exchange.identity,
            request_id=request_id,
            door=tongue.door,
            model=head.model,
            tokens=tokens,
            price=self.book.price,
        )
        task = Task(
            tongue=tongue,
            raw=raw,
            head=head,
            routes=routes,
            book=self.book,
            tokens=tokens,
            tracing=self._tracing,
            keep_alive=self._settings.keep_alive,
            fell=self._metrics.fell_back,
        )
        await self._run(task, exchange, ticket=Ticket(admission, asking))

    async def _run(self, task: Task, exchange: Exchange, *, ticket: Ticket) -> None:
        try:
            errand = Errand(task, exchange, ticket=ticket)
        except DragomanError:
            ticket.refuse()
            raise
        self._errands.add(errand)
        self._metrics.began(task.tongue.door)
        try:
            await errand.run()
        finally:
            self._metrics.ended(task.tongue.door)
            self._errands.discard(errand)
            self._idle.set()

    def _routes(self, exchange: Exchange, head: Head) -> Sequence[Route]:
        allowed = exchange.identity.models
        try:
            routes = self.book.routing.find(head.model)
        except NotFound:
            if allowed is None:
                raise
            raise NotFound(
                f"there is no model {head.model!r}", hint=f"this key may ask {list(allowed)}"
            ) from None
        permit(allowed, head.model, routing=self.book.routing)
        return routes

    def _tokens(self, tongue: Tongue, raw: bytes, *, route: Route) -> int:
        """An estimate of the prompt: a short body by its length, a long one by what is in it."""
        if len(raw) <= SMALL or tongue is EMBEDDINGS:
            return max(1, len(raw) // CHARACTERS)
        try:
            return estimate_input(tongue.read(raw).request, factor=factor_of(route))
        except BadRequest:  # a server of the same family may know better
            return len(raw) // CHARACTERS

    def _may(self, exchange: Exchange, name: str) -> bool:
        try:
            permit(exchange.identity.models, name, routing=self.book.routing)
        except DragomanError:
            return False
        return True

    def _model(self, name: str) -> dict[str, Any]:
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started))
        return {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": self._started,
            "created_at": created,
            "owned_by": name.partition("/")[0] if "/" in name else "dragoman",
        }


async def count(route: Route, head: Head, *, headers: Mapping[str, str]) -> bytes | None:
    """What the provider counts; None when it does not."""
    provider = route.provider
    if not isinstance(provider, RemoteProvider) or provider.family != MESSAGES.family:
        return None
    heard: list[bytes] = []

    async def listen(relay: Relay) -> None:
        document = await relay.read()
        if "input_tokens" in read_document(document, "input_tokens"):
            heard.append(document)
            relay.worked()
        relay.close()

    passed = {name: headers[name] for name in MESSAGES.passed if name in headers}
    url = provider.server.at("/messages/count_tokens", root="/v1")
    try:
        await provider.relay(url, lambda: head.write(route.model, options={}), headers=passed, listen=listen)
    except ProviderError as error:
        if error.upstream_status not in UNKNOWN:
            raise
    return heard[0] if heard else None


def factor_of(route: Route) -> float:
    """How much more a family counts than others do."""
    return ANTHROPIC if route.provider.family == "anthropic" else 1.0


async def refuse(exchange: Exchange, error: DragomanError, *, tongue: Tongue) -> None:
    """Answer an error in the door's own words."""
    if exchange.begun:
        log.error("%s %s failed after its answer began: %s", exchange.method, exchange.path, error.message)
        raise error
    request_id = exchange.request_id
    headers = named(request_id)
    headers["x-should-retry"] = "true" if may_retry(error) else "false"
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, min(LONGEST_WAIT, round(error.retry_after))))
    if error.status == 401:
        headers["www-authenticate"] = 'Bearer realm="dragoman"'
    await exchange.answer(tongue.status(error), tongue.body(error, request_id), headers=headers)


def may_retry(error: DragomanError) -> bool:
    """Whether the client may ask again by itself: not where the hub has tried often enough."""
    return error.again if isinstance(error, ProviderError) else error.transient


COMPLETIONS = Completions()
EMBEDDINGS = Embeddings()
MESSAGES = Messages()
