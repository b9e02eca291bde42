"""An errand: one gateway request on its way, from the routes that it may take to its settlement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from dragoman.errors import BadRequest, DragomanError, ProviderError, Unavailable
from dragoman.events import Event, FinishStep
from dragoman.http.disconnect import DisconnectWatch
from dragoman.http.exchange import Exchange
from dragoman.http.keepalive import KeepAlive
from dragoman.providers.openai import OpenAIProvider
from dragoman.providers.provider import Provider
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.routing import Route
from dragoman.server.gateway.answer import GatewayAnswer, HubAnswerEncoder, RelayedAnswer, TranslatedAnswer
from dragoman.server.gateway.dialects import AnswerEncoder, ClientDialect
from dragoman.server.gateway.record import ModelCatalog, RequestRecord, format_cost, header_value
from dragoman.server.streaming import requested_dialect
from dragoman.store.usage import UsageRecord
from dragoman.tracing.interface import NULL_SPAN, ModelSpan, Tracing
from dragoman.wire.client_request import ClientRequest, RawRequestBody
from dragoman.wire.encoder import KEEP_ALIVE, SSE_HEADERS, StreamEncoder

log = logging.getLogger(__name__)
JSON_HEADERS = {"content-type": "application/json"}


class RequestPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done; `input_tokens` estimates the prompt, `on_fallback` hears of each fallback."""

    dialect: ClientDialect
    body: bytes
    head: RawRequestBody
    routes: Sequence[Route]
    catalog: ModelCatalog
    input_tokens: int
    tracing: Tracing
    keep_alive: float
    on_fallback: Callable[[str, str], None]


class GatewayRequest:
    """Finds somebody who answers, and passes the answer on. `stop` ends it with a word to the client."""

    def __init__(self, plan: RequestPlan, exchange: Exchange, *, record: RequestRecord) -> None:
        self._plan = plan
        self._exchange = exchange
        self._record = record
        self._hub_dialect: StreamEncoder | None = requested_dialect(exchange)
        self._stream = plan.head.stream or self._hub_dialect is not None
        self._parsed: ClientRequest | None = None
        self._answer: GatewayAnswer | None = None
        self._pending_answer: GatewayAnswer | None = (
            None  # it has not begun, but something may be known of it
        )
        self._handler_task: asyncio.Task[object] | None = None
        self._span: ModelSpan = NULL_SPAN
        self._stopped = False
        self._dropped_fields: Sequence[str] = ()

    async def run(self) -> None:
        """Do it. What goes wrong before the answer has begun is raised, later it is told in the stream."""
        self._handler_task = asyncio.current_task()
        async with DisconnectWatch(self._exchange) as presence:
            try:
                self._answer = await self._start_answer()
                await self._send_answer(self._answer, presence)
            except asyncio.CancelledError:
                await self._handle_cancellation(presence)
                if not self._stopped or presence.disconnected:
                    raise
            except DragomanError as error:
                await self._handle_error(self._redact(error), presence)
            except BaseException:
                self._settle("failed")
                raise
            finally:
                if self._answer is not None:
                    await self._answer.close()

    def stop(self) -> None:
        """The hub stops: end it now."""
        self._stopped = True
        if self._handler_task is not None:
            self._handler_task.cancel()

    # ---- finding somebody ----------------------------------------------------------------------------------

    async def _start_answer(self) -> GatewayAnswer:
        """The first route that answers."""
        routes = self._plan.routes
        for route, other in zip(routes, [*routes[1:], None], strict=True):
            self._record.route = route
            try:
                return await self._try_route(route)
            except (ProviderError, BadRequest) as error:
                with self._span as span:
                    span.fail(self._redact(error))
                self._span = NULL_SPAN
                if other is None or not self._plan.catalog.routing.allows_fallback(error):
                    raise
                log.warning(
                    "%s failed (%s), now asking %s", route.name, self._redact(error).message, other.name
                )
                self._plan.on_fallback(route.name, other.name)
        raise Unavailable("no provider is left to ask")

    async def _try_route(self, route: Route) -> GatewayAnswer:
        provider = route.provider
        if isinstance(provider, RemoteProvider) and self._can_relay(provider):
            return await self._relay(provider, route)
        return await self._translate(provider, route)

    def _can_relay(self, provider: RemoteProvider) -> bool:
        return provider.family == self._plan.dialect.family and self._hub_dialect is None

    async def _relay(self, provider: RemoteProvider, route: Route) -> GatewayAnswer:
        task, head = self._plan, self._plan.head
        language = provider.adapter if isinstance(provider, OpenAIProvider) else None
        lenient = language is not None and language.quirks.lenient_finish

        def asks() -> bool:  # until the server is known to refuse that
            return head.stream and language is not None and language.quirks.include_usage

        def write() -> bytes:
            options = task.catalog.options.get(provider.name, {})
            return head.rewrite(route.model, options=options, include_usage=asks())

        voice = self._pending_answer = RelayedAnswer(
            task.dialect,
            stream=head.stream,
            make_tap=lambda: task.dialect.tap(hide_usage=asks() and not head.include_usage, lenient=lenient),
        )
        said = self._exchange.headers
        passed = {name: said[name] for name in task.dialect.forwarded_headers if name in said}
        self._span = task.tracing.model_call(route.model, provider)
        relaying = provider.relay(
            task.dialect.url(provider.server), write, headers=passed, handle=voice.handle
        )
        await self._span.propagate(relaying)
        await voice.start()
        self._span.first_byte()
        return (
            voice
            if voice.unexpected_format is None
            else await self._convert(voice.unexpected_format, provider, route=route)
        )

    async def _convert(self, body: bytes, provider: RemoteProvider, *, route: Route) -> GatewayAnswer:
        """A document where a stream was asked for, or the other way round: told as it was asked for."""
        task = self._plan
        try:
            asked = task.dialect.parse_request(task.body)
            if asked.request.options.get("n") not in (None, 1):
                raise BadRequest("several answers are not told anew", field="n")
        except BadRequest:
            came = "a document, not with a stream" if self._stream else "a stream, not with a document"
            raise ProviderError(f"the provider answered with {came}", category="api_error") from None
        request = replace(asked.request, model=route.model)
        events = single_batch(provider.decode_answer(request, body))
        voice = self._pending_answer = TranslatedAnswer(events, request.model, encoder=self._encoder(asked))
        await voice.start()
        return voice

    def _encoder(self, parsed: ClientRequest) -> AnswerEncoder | None:
        task, id = self._plan, self._record.request_id
        if self._hub_dialect is not None:
            return HubAnswerEncoder(self._hub_dialect, message_id=f"msg_{id}")
        if self._stream:
            return task.dialect.stream_encoder(
                parsed, id=id, model=task.head.model, input_tokens=task.input_tokens
            )
        return None

    async def _translate(self, provider: Provider, route: Route) -> GatewayAnswer:
        task = self._plan
        asked = self._parsed = self._parsed or task.dialect.parse_request(task.body)
        options = {**task.catalog.options.get(provider.name, {}), **asked.request.options}
        request = replace(asked.request, model=route.model, options=options)
        self._dropped_fields = [*asked.ignored_fields, *provider.check(request)]
        if self._dropped_fields:
            log.warning("%s has no word for %s: left out", route.name, ", ".join(self._dropped_fields))
        batches = task.tracing.stream(request, provider)
        voice = self._pending_answer = TranslatedAnswer(batches, request.model, encoder=self._encoder(asked))
        await voice.start()
        return voice

    # ---- passing it on -------------------------------------------------------------------------------------

    async def _send_answer(self, answer: GatewayAnswer, watch: DisconnectWatch) -> None:
        self._record.mark_first_byte()
        if self._stream:
            await self._send_stream(answer, watch)
            return
        document = answer.document
        if document is None and isinstance(answer, TranslatedAnswer):
            model = answer.progress.model or self._plan.head.model
            id, tokens = self._record.request_id, self._plan.input_tokens
            document = self._plan.dialect.encode_document(
                answer.events, id=id, model=model, input_tokens=tokens
            )
        record = self._settle("finished")
        cost = {} if record.cost is None else {"x-dragoman-cost": format_cost(record.cost)}
        watch.response_complete = True
        await self._exchange.respond(
            200, document, headers={**JSON_HEADERS, **self._answer_headers(), **cost}
        )

    async def _send_stream(self, answer: GatewayAnswer, watch: DisconnectWatch) -> None:
        exchange = self._exchange
        spoken = SSE_HEADERS if self._hub_dialect is None else self._hub_dialect.headers
        await exchange.start_response(200, {**spoken, **self._answer_headers()})
        comment = partial(exchange.send_chunk, KEEP_ALIVE)
        async with KeepAlive(comment, self._plan.keep_alive) as keep_alive:
            while (piece := await answer.next()) is not None:
                if piece:
                    keep_alive.reset()
                    await exchange.send({"type": "http.response.body", "body": piece, "more_body": True})
        last = answer.closing_bytes()
        record = self._settle("finished")
        if record.cost is not None:
            last += b": x-dragoman-cost %s\n\n" % format_cost(record.cost).encode()
        await self._send_last(last, watch)

    async def _send_last(self, last: bytes, watch: DisconnectWatch) -> None:
        watch.response_complete = True
        await self._exchange.send({"type": "http.response.body", "body": last, "more_body": False})

    def _answer_headers(self) -> Mapping[str, str]:
        said = self._record.response_headers()
        return (
            {**said, "x-dragoman-dropped": header_value(",".join(self._dropped_fields))}
            if self._dropped_fields
            else said
        )

    # ---- when it goes wrong --------------------------------------------------------------------------------

    async def _handle_error(self, error: DragomanError, watch: DisconnectWatch) -> None:
        self._settle("failed", error)
        if not self._exchange.response_started:
            self._exchange.response_headers |= self._record.response_headers()
            raise error from None
        log.warning("request %s broke off: %s", self._record.request_id, error.message)
        await self._send_last(self._error_frame(error), watch)

    async def _handle_cancellation(self, watch: DisconnectWatch) -> None:
        """The client has gone, or the hub stops."""
        if self._answer is not None:
            await self._answer.client_gone()
        self._settle("aborted")
        if not self._stopped or watch.disconnected:
            return
        if self._handler_task is not None:
            self._handler_task.uncancel()
        if not self._exchange.response_started:
            raise Unavailable("the hub is stopping", hint="ask again in a moment")
        await self._send_last(self._error_frame(Unavailable("the hub is stopping; ask again")), watch)

    def _error_frame(self, error: DragomanError) -> bytes:
        voice = self._answer
        if isinstance(voice, TranslatedAnswer) and voice.encoder is not None:
            return voice.encoder.encode_error(error)
        return self._plan.dialect.error_frame(error, self._record.request_id)

    def _settle(self, status: str, error: DragomanError | None = None) -> UsageRecord:
        voice = self._answer or self._pending_answer
        account = voice.progress if voice is not None else None
        with self._span as span:  # left without a word it counts as cancelled
            if error is not None:
                span.fail(error)
            elif status == "finished" and account is not None:
                span.finish(FinishStep(usage=account.usage, model=account.model))
        return self._record.settle(status, account, error=error)

    def _redact(self, error: DragomanError) -> DragomanError:
        """The error without the provider's keys."""
        provider = self._record.route.provider if self._record.route is not None else None
        if isinstance(error, ProviderError) and isinstance(provider, RemoteProvider):
            return provider.redact_error(error)
        return error


async def single_batch(batch: Sequence[Event]) -> AsyncGenerator[Sequence[Event], None]:
    """An answer that has come at once."""
    yield batch
