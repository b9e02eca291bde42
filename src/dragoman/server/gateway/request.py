"""An errand: one gateway request on its way, from the routes that it may take to its settlement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.errors import BadRequest, DragomanError, ProviderError, Unavailable
from dragoman.events import Event, FinishStep
from dragoman.providers.openai import OpenAIProvider
from dragoman.providers.provider import Provider
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.routing import Route
from dragoman.server.exchange import Exchange
from dragoman.server.gateway.answer import Framed, Relayed, Spoken, Voice
from dragoman.server.gateway.dialects import Reply, Tongue
from dragoman.server.gateway.record import Book, Ticket, in_header, price_of
from dragoman.server.streaming import Heart, Presence, wanted_dialect
from dragoman.store.usage import UsageRecord
from dragoman.tracing.tracing import UNSEEN, ModelSpan, Tracing
from dragoman.wire.dialect import SSE_HEADERS, Dialect
from dragoman.wire.head import Asked, Head

log = logging.getLogger(__name__)
JSON = {"content-type": "application/json"}


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done; `tokens` estimates the prompt, `fell` hears of each fallback."""

    tongue: Tongue
    raw: bytes
    head: Head
    routes: Sequence[Route]
    book: Book
    tokens: int
    tracing: Tracing
    keep_alive: float
    fell: Callable[[str, str], None]


class Errand:
    """Finds somebody who answers, and passes the answer on. `stop` ends it with a word to the client."""

    def __init__(self, task: Task, exchange: Exchange, *, ticket: Ticket) -> None:
        self._task = task
        self._exchange = exchange
        self._ticket = ticket
        self._dialect: Dialect | None = wanted_dialect(exchange)
        self._stream = task.head.stream or self._dialect is not None
        self._asked: Asked | None = None
        self._voice: Voice | None = None
        self._trying: Voice | None = None  # it has not begun, but something may be known of it
        self._running: asyncio.Task[object] | None = None
        self._span: ModelSpan = UNSEEN
        self._stopped = False
        self._dropped: Sequence[str] = ()

    async def run(self) -> None:
        """Do it. What goes wrong before the answer has begun is raised, later it is told in the stream."""
        self._running = asyncio.current_task()
        async with Presence(self._exchange) as presence:
            try:
                self._voice = await self._find()
                await self._tell(self._voice, presence)
            except asyncio.CancelledError:
                await self._broken(presence)
                if not self._stopped or presence.gone:
                    raise
            except DragomanError as error:
                await self._failed(self._mask(error), presence)
            except BaseException:
                self._settle("failed")
                raise
            finally:
                if self._voice is not None:
                    await self._voice.close()

    def stop(self) -> None:
        """The hub stops: end it now."""
        self._stopped = True
        if self._running is not None:
            self._running.cancel()

    # ---- finding somebody ----------------------------------------------------------------------------------

    async def _find(self) -> Voice:
        """The first route that answers."""
        routes = self._task.routes
        for route, other in zip(routes, [*routes[1:], None], strict=True):
            self._ticket.route = route
            try:
                return await self._try(route)
            except (ProviderError, BadRequest) as error:
                with self._span as span:
                    span.fail(self._mask(error))
                self._span = UNSEEN
                if other is None or not self._task.book.routing.falls(error):
                    raise
                log.warning(
                    "%s failed (%s), now asking %s", route.name, self._mask(error).message, other.name
                )
                self._task.fell(route.name, other.name)
        raise Unavailable("no provider is left to ask")

    async def _try(self, route: Route) -> Voice:
        provider = route.provider
        if isinstance(provider, RemoteProvider) and self._same(provider):
            return await self._relay(provider, route)
        return await self._speak(provider, route)

    def _same(self, provider: RemoteProvider) -> bool:
        return provider.family == self._task.tongue.family and self._dialect is None

    async def _relay(self, provider: RemoteProvider, route: Route) -> Voice:
        task, head = self._task, self._task.head
        language = provider.language if isinstance(provider, OpenAIProvider) else None
        lenient = language is not None and language.quirks.lenient_finish

        def asks() -> bool:  # until the server is known to refuse that
            return head.stream and language is not None and language.quirks.include_usage

        def write() -> bytes:
            options = task.book.options.get(provider.name, {})
            return head.write(route.model, options=options, ask_usage=asks())

        voice = self._trying = Relayed(
            task.tongue,
            stream=head.stream,
            tap=lambda: task.tongue.tap(hide_usage=asks() and not head.asks_usage, lenient=lenient),
        )
        said = self._exchange.headers
        passed = {name: said[name] for name in task.tongue.passed if name in said}
        self._span = task.tracing.model(route.model, provider)
        relaying = provider.relay(
            task.tongue.url(provider.server), write, headers=passed, listen=voice.listen
        )
        await self._span.during(relaying)
        await voice.begin()
        self._span.first()
        return voice if voice.odd is None else await self._retell(voice.odd, provider, route=route)

    async def _retell(self, raw: bytes, provider: RemoteProvider, *, route: Route) -> Voice:
        """A document where a stream was asked for, or the other way round: told as it was asked for."""
        task = self._task
        try:
            asked = task.tongue.read(task.raw)
            if asked.request.options.get("n") not in (None, 1):
                raise BadRequest("several answers are not told anew", field="n")
        except BadRequest:
            came = "a document, not with a stream" if self._stream else "a stream, not with a document"
            raise ProviderError(f"the provider answered with {came}", category="api_error") from None
        request = replace(asked.request, model=route.model)
        events = once(provider.read(request, raw))
        voice = self._trying = Spoken(events, request.model, reply=self._reply(asked))
        await voice.begin()
        return voice

    def _reply(self, asked: Asked) -> Reply | None:
        task, id = self._task, self._ticket.request_id
        if self._dialect is not None:
            return Framed(self._dialect, message_id=f"msg_{id}")
        if self._stream:
            return task.tongue.reply(asked, id=id, model=task.head.model, tokens=task.tokens)
        return None

    async def _speak(self, provider: Provider, route: Route) -> Voice:
        task = self._task
        asked = self._asked = self._asked or task.tongue.read(task.raw)
        options = {**task.book.options.get(provider.name, {}), **asked.request.options}
        request = replace(asked.request, model=route.model, options=options)
        self._dropped = [*asked.ignored, *provider.check(request)]
        if self._dropped:
            log.warning("%s has no word for %s: left out", route.name, ", ".join(self._dropped))
        batches = task.tracing.stream(request, provider)
        voice = self._trying = Spoken(batches, request.model, reply=self._reply(asked))
        await voice.begin()
        return voice

    # ---- passing it on -------------------------------------------------------------------------------------

    async def _tell(self, voice: Voice, presence: Presence) -> None:
        self._ticket.heard()
        if self._stream:
            await self._tell_stream(voice, presence)
            return
        document = voice.document
        if document is None and isinstance(voice, Spoken):
            model = voice.account.model or self._task.head.model
            id, tokens = self._ticket.request_id, self._task.tokens
            document = self._task.tongue.whole(voice.events, id=id, model=model, tokens=tokens)
        record = self._settle("finished")
        cost = {} if record.cost is None else {"x-dragoman-cost": price_of(record.cost)}
        presence.over = True
        await self._exchange.answer(200, document, headers={**JSON, **self._headers(), **cost})

    async def _tell_stream(self, voice: Voice, presence: Presence) -> None:
        exchange = self._exchange
        spoken = SSE_HEADERS if self._dialect is None else self._dialect.headers
        await exchange.begin(200, {**spoken, **self._headers()})
        with Heart(exchange, self._task.keep_alive) as heart:
            while (piece := await voice.next()) is not None:
                if piece:
                    heart.beat()
                    await exchange.send({"type": "http.response.body", "body": piece, "more_body": True})
        last = voice.end()
        record = self._settle("finished")
        if record.cost is not None:
            last += b": x-dragoman-cost %s\n\n" % price_of(record.cost).encode()
        await self._send_last(last, presence)

    async def _send_last(self, last: bytes, presence: Presence) -> None:
        presence.over = True
        await self._exchange.send({"type": "http.response.body", "body": last, "more_body": False})

    def _headers(self) -> Mapping[str, str]:
        said = self._ticket.headers()
        return {**said, "x-dragoman-dropped": in_header(",".join(self._dropped))} if self._dropped else said

    # ---- when it goes wrong --------------------------------------------------------------------------------

    async def _failed(self, error: DragomanError, presence: Presence) -> None:
        self._settle("failed", error)
        if not self._exchange.begun:
            self._exchange.said |= self._ticket.headers()
            raise error from None
        log.warning("request %s broke off: %s", self._ticket.request_id, error.message)
        await self._send_last(self._fail(error), presence)

    async def _broken(self, presence: Presence) -> None:
        """The client has gone, or the hub stops."""
        if self._voice is not None:
            await self._voice.leave()
        self._settle("aborted")
        if not self._stopped or presence.gone:
            return
        if self._running is not None:
            self._running.uncancel()
        if not self._exchange.begun:
            raise Unavailable("the hub is stopping", hint="ask again in a moment")
        await self._send_last(self._fail(Unavailable("the hub is stopping; ask again")), presence)

    def _fail(self, error: DragomanError) -> bytes:
        voice = self._voice
        if isinstance(voice, Spoken) and voice.reply is not None:
            return voice.reply.fail(error)
        return self._task.tongue.fail(error, self._ticket.request_id)

    def _settle(self, status: str, error: DragomanError | None = None) -> UsageRecord:
        voice = self._voice or self._trying
        account = voice.account if voice is not None else None
        with self._span as span:  # left without a word it counts as cancelled
            if error is not None:
                span.fail(error)
            elif status == "finished" and account is not None:
                span.finish(FinishStep(usage=account.usage, model=account.model))
        return self._ticket.settle(status, account, error=error)

    def _mask(self, error: DragomanError) -> DragomanError:
        """The error without the provider's keys."""
        provider = self._ticket.route.provider if self._ticket.route is not None else None
        if isinstance(error, ProviderError) and isinstance(provider, RemoteProvider):
            return provider.masked(error)
        return error


async def once(batch: Sequence[Event]) -> AsyncGenerator[Sequence[Event], None]:
    """An answer that has come at once."""
    yield batch
