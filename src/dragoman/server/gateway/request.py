"""One gateway request: its model call, and the response to its client."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeGuard

import msgspec
from msgspec.structs import replace

from dragoman.accounts.meter import Entry
from dragoman.accounts.model_call import ModelCall
from dragoman.accounts.payment import Payment
from dragoman.accounts.price import DEFAULT_OUTPUT_TOKENS
from dragoman.accounts.request_size import AnswerBounds, PlannedPrompt
from dragoman.accounts.upstream_answer import EventAnswer
from dragoman.errors import BadRequest, DragomanError, ProviderError, Unavailable, release_frames
from dragoman.http.asgi_exchange import Exchange, header_value
from dragoman.http.disconnect import DisconnectWatch
from dragoman.http.sse_keepalive import KeepAlive
from dragoman.ids import new_id
from dragoman.large_json import weigh
from dragoman.model_request import ModelRequest, request_size
from dragoman.offload import offload
from dragoman.providers.adapter import AnswerLimits
from dragoman.providers.openai import OpenAIProvider
from dragoman.providers.provider import Provider
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.routing import ModelRoutes, Route
from dragoman.server.gateway.answer import HubAnswerEncoder, RelayedAnswer, TranslatedAnswer
from dragoman.server.gateway.dialects import AnswerEncoder, ClientDialect
from dragoman.server.gateway.response_headers import format_cost, format_names
from dragoman.server.streaming import encode_batch, requested_dialect, send_end, send_large
from dragoman.tracing.interface import ModelSpan, Tracing
from dragoman.wire.client_request import ClientRequest, RawRequestBody
from dragoman.wire.encoder import KEEP_ALIVE, SSE_HEADERS, StreamEncoder
from dragoman.wire.tap import AnswerDefaults
from dragoman.wire.unsupported_content import unread_content, unshown_options

log = logging.getLogger(__name__)
JSON_HEADERS = {"content-type": "application/json"}


class RequestPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a client's request: its body, routes, and estimates.

    `input_tokens` estimates the prompt; `unseen_tokens` bounds the tokens of files that it only names, where
    the client's limits need that; `parsed` is the parsed request of a long body, or the error in it;
    `keep_alive` is in seconds.
    """

    dialect: ClientDialect
    body: bytes
    head: RawRequestBody
    routes: ModelRoutes
    input_tokens: int
    unseen_tokens: int = 0
    parsed: ClientRequest | BadRequest | None = None
    tracing: Tracing
    keep_alive: float
    limits: AnswerLimits


class GatewayRequest:
    """A request of a gateway client. `admit()` it, then `run()` it; `stop()` ends it with an error."""

    def __init__(self, plan: RequestPlan, exchange: Exchange, *, payment: Payment) -> None:
        self._plan = plan
        self._exchange = exchange
        self._hub_dialect: StreamEncoder | None = requested_dialect(exchange)
        self._stream = plan.head.stream or self._hub_dialect is not None
        self._parsed = plan.parsed
        self._handler_task: asyncio.Task[object] | None = None
        self._stop_error: DragomanError | None = None
        self._dropped_fields: Sequence[str] = ()
        self._rejected_options: Callable[[], Sequence[str]] = tuple
        options = plan.routes.options.get(plan.routes.routes[0].provider.name, {})
        self._call: ModelCall[bytes] = ModelCall(
            payment,
            plan.routes,
            open_answer=self._open_answer,
            prompt=PlannedPrompt(lambda: plan.input_tokens, unseen=plan.unseen_tokens),
            answer_bounds=AnswerBounds(
                plan.head.max_output_tokens(options, default=DEFAULT_OUTPUT_TOKENS),
                plan.head.max_searches() if plan.head.may_search else 0,
                plan.head.advisors,
                is_document=not self._stream and plan.dialect.endpoint != "embeddings",
            ),
        )

    def admit(self, entry: Entry | None) -> Awaitable[None]:
        """Admit the request, as `Meter.enter` has counted it. LimitReached, BudgetExhausted, BadRequest."""
        return self._call.admit(entry)

    async def run(self) -> None:
        """Answer the request. An error before the response has started is raised, a later one is streamed."""
        self._exchange.on_key_ended = self.stop
        with DisconnectWatch(self._exchange) as watch:
            self._handler_task = watch.task
            try:
                first = await self._call.begin()
                await self._send_answer(first, watch)
            except asyncio.CancelledError:
                await self._handle_cancellation(watch)
                if self._stop_error is None or watch.disconnected:
                    raise
            except DragomanError as error:
                await self._handle_error(error, watch)
                release_frames(error)
            except Exception:
                self._call.fail(DragomanError("an internal error of the hub"))
                raise
            finally:
                self._exchange.on_key_ended = None  # no reference cycles for the garbage collector
                try:
                    await self._call.leave()
                finally:
                    del self._call  # as above: the call refers to the answer

    def stop(self, error: DragomanError | None = None) -> None:
        """End the request now with this error; without one, because the hub is shutting down."""
        if self._stop_error is None:
            self._stop_error = error or Unavailable(
                "the hub is shutting down", hint="retry the request in a moment"
            )
            if self._handler_task is not None:
                self._handler_task.cancel()

    # ---- the answer of a route -----------------------------------------------------------------------------

    def _open_answer(self, route: Route) -> RelayedAnswer | TranslatedAnswer:
        """Return the answer of a route: relayed where the client speaks the provider's own protocol."""
        provider, dialect = route.provider, self._plan.dialect
        self._dropped_fields, self._rejected_options = (), tuple
        if is_relayed(provider, dialect) and self._hub_dialect is None:
            return self._relay(provider, route)
        return self._translate(route)

    def _relay(self, provider: RemoteProvider, route: Route) -> RelayedAnswer:
        plan, head, dialect = self._plan, self._plan.head, self._plan.dialect
        adapter = provider.adapter if isinstance(provider, OpenAIProvider) else None
        lenient = adapter is not None and adapter.quirks.lenient_finish

        def requests_usage() -> bool:  # until the server is known to refuse that
            return head.stream and adapter is not None and adapter.quirks.include_usage

        def write() -> bytes:
            options = plan.routes.options.get(provider.name, {})
            return head.rewrite(
                route.model,
                options=options,
                include_usage=requests_usage(),
                replaced=dialect.replaced_fields(head),
            )

        headers = self._exchange.headers
        forwarded = {name: headers[name] for name in dialect.forwarded_headers if name in headers}
        span = plan.tracing.model_call(route.model, provider)
        defaults = AnswerDefaults(
            id=f"chatcmpl-{self._exchange.request_id}",
            created=int(time.time()),
            model=route.model,
            new_id=new_call_id,
        )
        return RelayedAnswer(
            lambda handle: provider.relay(
                dialect.url(provider.server),
                write,
                size=head.size,
                headers=forwarded,
                handle=handle,
                is_amended=requests_usage() and not head.raw_field("stream_options"),
            ),
            span=span,
            stream=head.stream,
            make_tap=lambda: dialect.tap(
                defaults, hide_usage=requests_usage() and not head.include_usage, lenient=lenient
            ),
            parse_document=partial(dialect.parse_document, defaults=defaults),
            translate=None
            if dialect.endpoint == "embeddings"
            else lambda body: self._convert(body, provider, model=route.model, span=span),
        )

    def _convert(
        self, body: bytes, provider: RemoteProvider, *, model: str, span: ModelSpan
    ) -> TranslatedAnswer:
        """Return a document as the stream that the client asked for, or a stream as a document."""
        try:
            parsed = self._parse()
            if parsed.request.options.get("n") not in (None, 1):
                raise BadRequest("several answers cannot be converted", field="n")
        except BadRequest:
            format = "a document, not with a stream" if self._stream else "a stream, not with a document"
            raise ProviderError(f"the provider answered with {format}", category="api_error") from None
        self._dropped_fields = unshown_options(parsed.request)
        batches = provider.decode_answer(replace(parsed.request, model=model), body)
        answer = EventAnswer(batches, span, model=model)
        return TranslatedAnswer(
            answer, encoder=self._encoder(parsed), family=self._plan.dialect.family, limits=self._plan.limits
        )

    def _translate(self, route: Route) -> TranslatedAnswer:
        plan, provider = self._plan, route.provider
        parsed = self._parse()
        if self._hub_dialect is not None and parsed.request.options.get("n") not in (None, 1):
            raise BadRequest("n: the stream dialects of the hub show one answer", field="n")
        request = plan.routes.request_for(parsed.request, route)
        if isinstance(provider, RemoteProvider):
            self._rejected_options = partial(provider.rejected_options, request)
        span = plan.tracing.model_call(request, provider)
        answer = EventAnswer(provider.stream(request), span, model=route.model)
        return TranslatedAnswer(
            answer,
            check=partial(self._check, parsed, request, route=route),
            encoder=self._encoder(parsed),
            family=plan.dialect.family,
            limits=plan.limits,
        )

    async def _check(self, parsed: ClientRequest, request: ModelRequest, *, route: Route) -> None:
        """Record the fields that a route drops. Raises BadRequest for one that cannot be dropped."""
        provider = route.provider

        def find_dropped() -> list[str]:
            dropped = [
                *parsed.ignored_fields,
                *unread_content(request, provider.family),
                *unshown_options(request),
                *provider.check(request),
            ]
            return list(dict.fromkeys(dropped))

        self._dropped_fields = await offload(request_size(request), find_dropped)
        if self._dropped_fields:
            log.warning("%s does not support %s: dropped", route.name, format_names(self._dropped_fields))

    def _parse(self) -> ClientRequest:
        """Return the parsed request. BadRequest."""
        if self._parsed is None:
            self._parsed = self._plan.dialect.parse_request(self._plan.body)
        if isinstance(self._parsed, BadRequest):
            raise self._parsed
        return self._parsed

    def _encoder(self, parsed: ClientRequest) -> AnswerEncoder | None:
        plan, id = self._plan, self._exchange.request_id
        if self._hub_dialect is not None:
            return HubAnswerEncoder(self._hub_dialect, message_id=f"msg_{id}")
        if self._stream:
            return plan.dialect.stream_encoder(
                parsed, id=id, model=plan.head.model, input_tokens=plan.input_tokens
            )
        return None

    # ---- the response --------------------------------------------------------------------------------------

    async def _send_answer(self, first: bytes | None, watch: DisconnectWatch) -> None:
        if self._stream:
            await self._send_stream(first, watch)
            return
        document = await self._document()
        record = self._call.end()
        cost = {} if record.cost is None else {"x-dragoman-cost": format_cost(record.cost)}
        headers = {**JSON_HEADERS, **self._answer_headers(), **cost}
        if isinstance(self._call.answer, TranslatedAnswer) and (omitted := self._omitted(self._call.answer)):
            headers["x-dragoman-omitted"] = omitted
        watch.response_complete = True
        await self._exchange.respond(200, document, headers=headers)

    async def _document(self) -> bytes | None:
        answer = self._call.answer
        if isinstance(answer, TranslatedAnswer):
            encode = partial(
                self._plan.dialect.encode_document,
                self._parse(),
                answer.events,
                id=self._exchange.request_id,
                model=answer.progress.model or self._plan.head.model,
                input_tokens=self._plan.input_tokens,
            )
            return await offload(answer.size + weigh(self._plan.body), encode)  # some repeat the request
        return answer.document if isinstance(answer, RelayedAnswer) else None

    async def _send_stream(self, first: bytes | None, watch: DisconnectWatch) -> None:
        exchange, call = self._exchange, self._call
        stream_headers = SSE_HEADERS if self._hub_dialect is None else self._hub_dialect.headers
        await exchange.start_response(200, {**stream_headers, **self._answer_headers()})
        comment = partial(exchange.send_chunk, KEEP_ALIVE)
        async with KeepAlive(comment, self._plan.keep_alive) as keep_alive:
            chunk, now = first, asyncio.get_running_loop().time
            while chunk is not None:
                if chunk:
                    keep_alive.last_output = now()
                    await send_large(exchange, chunk, timer=keep_alive)
                chunk = await call.next()
        encoder = self._stream_encoder()
        last = b"" if encoder is None else await encode_batch(encoder, None)
        record = call.end()
        if record.cost is not None:
            last += b": x-dragoman-cost %s\n\n" % format_cost(record.cost).encode()
        if isinstance(call.answer, TranslatedAnswer) and (omitted := self._omitted(call.answer)):
            last += b": x-dragoman-omitted %s\n\n" % omitted.encode()
        await self._send_last(last, watch)

    def _omitted(self, answer: TranslatedAnswer) -> str:
        """Return the names of events that the client's protocol cannot carry; "" for none."""
        if omitted := answer.omitted:
            log.warning(
                "an answer was sent without %s: %s cannot carry it",
                ", ".join(omitted),
                self._plan.dialect.endpoint,
            )
        return format_names(omitted)

    def _stream_encoder(self) -> AnswerEncoder | None:
        """Return the encoder of a translated answer; None for a relayed one, which ends by itself."""
        answer = self._call.answer
        return answer.encoder if isinstance(answer, TranslatedAnswer) else None

    async def _send_last(self, last: bytes, watch: DisconnectWatch) -> None:
        watch.response_complete = True
        await send_end(self._exchange, last)

    def _answer_headers(self) -> Mapping[str, str]:
        headers: dict[str, str] = {}
        if self._call.route is not None:
            headers["x-dragoman-model"] = header_value(self._call.route.name)
        if dropped := [*self._dropped_fields, *self._rejected_options()]:  # some are known only by now
            headers["x-dragoman-dropped"] = format_names(dropped)
        return headers

    # ---- errors --------------------------------------------------------------------------------------------

    async def _handle_error(self, error: DragomanError, watch: DisconnectWatch) -> None:
        self._call.fail(error)
        if not self._exchange.response_started:
            self._dropped_fields, self._rejected_options = (), tuple  # they belong to an answer
            self._exchange.response_headers |= self._answer_headers()
            raise error from None
        log.warning("the answer to request %s failed: %s", self._exchange.request_id, error.message)
        await self._send_last(self._error_frame(error), watch)

    async def _handle_cancellation(self, watch: DisconnectWatch) -> None:
        """End a request whose client has gone, whose key has ended, or because the hub is shutting down."""
        await self._call.leave()
        error = self._stop_error
        if error is None or watch.disconnected:
            return
        if self._handler_task is not None:
            self._handler_task.uncancel()
        if not self._exchange.response_started:
            raise error from None
        await self._send_last(self._error_frame(error), watch)

    def _error_frame(self, error: DragomanError) -> bytes:
        encoder = self._stream_encoder()
        if encoder is not None:
            return encoder.encode_error(error)
        return self._plan.dialect.error_frame(error, self._exchange.request_id)


def is_relayed(provider: Provider, dialect: ClientDialect) -> TypeGuard[RemoteProvider]:
    """Return whether a provider gets the requests of a dialect as they are."""
    return isinstance(provider, RemoteProvider) and provider.family == dialect.family and dialect.relays


def new_call_id() -> str:
    """Return an id for a tool call that its server has not named."""
    return new_id("call")
