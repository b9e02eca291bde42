"""The gateway's endpoints: any provider for clients of OpenAI and Anthropic, with limits and usage."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec
from starlette.types import Receive, Scope, Send

from dragoman.accounts.call_origin import CallOrigin
from dragoman.accounts.meter import Meter
from dragoman.accounts.payment import Payment
from dragoman.accounts.request_size import CHARACTERS_PER_TOKEN, token_factor
from dragoman.errors import (
    BadRequest,
    DragomanError,
    NotFound,
    ProviderError,
    Unavailable,
    UnknownThread,
    release_frames,
)
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.disconnect import DisconnectWatch
from dragoman.http.in_flight import InFlightRequests
from dragoman.identity import Identity
from dragoman.large_json import FEW_FIELDS, SMALL, weigh
from dragoman.offload import offload
from dragoman.providers.adapter import AnswerLimits
from dragoman.providers.relayed_response import RelayedResponse
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.routing import ModelRoutes, Route, require_advisor_access, require_model_access
from dragoman.server.gateway.dialects import (
    ChatCompletionsDialect,
    ClientDialect,
    EmbeddingsDialect,
    MessagesDialect,
)
from dragoman.server.gateway.model_catalog import ModelCatalog
from dragoman.server.gateway.request import JSON_HEADERS, GatewayRequest, RequestPlan, is_relayed
from dragoman.server.gateway.response_headers import request_id_headers
from dragoman.server.http.endpoint import unknown_address
from dragoman.server.http.request_log import assign_request_id
from dragoman.server.metrics.metrics import Metrics
from dragoman.suggestions import suggest
from dragoman.tracing.interface import Tracing
from dragoman.wire.anthropic.client_request import parse_count_tokens_request
from dragoman.wire.client_request import ClientRequest, RawRequestBody
from dragoman.wire.named_files import NamedFiles, may_name_files
from dragoman.wire.openai.document_tap import read_document
from dragoman.wire.token_estimate import MAX_IMAGE_TOKENS, estimate_input

log = logging.getLogger(__name__)
SMALL_BODY = 64 * 1024  # bytes; the tokens of a longer body are estimated by its content
UNSUPPORTED_STATUSES = (404, 405, 501)  # of a server that cannot count tokens
MAX_EMBEDDING_VALUES = 2_000_000  # tokens as numbers, which are relayed as they are
PrepareBody: TypeAlias = Callable[[bytes], Awaitable[bytes]]
MAX_RETRY_AFTER = 60  # seconds; some clients sleep as long as `retry-after` says


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """`body_limit` in bytes, `keep_alive` in seconds; `answer_limits` are those of collected answers."""

    body_limit: int
    keep_alive: float
    answer_limits: AnswerLimits = AnswerLimits()


class Gateway:
    """The endpoints under `/v1`."""

    def __init__(
        self,
        catalog: ModelCatalog,
        meter: Meter,
        *,
        tracing: Tracing,
        metrics: Metrics,
        settings: GatewaySettings,
    ) -> None:
        self.catalog = catalog
        self.draining = False
        self._meter = meter
        self._tracing = tracing
        self._metrics = metrics
        self._settings = settings
        self._in_flight = InFlightRequests()
        self._started = int(time.time())

    @property
    def active(self) -> int:
        """How many requests are under way."""
        return len(self._in_flight)

    def chat(self, exchange: Exchange) -> Awaitable[None]:
        """OpenAI's chat.completions."""
        return self.serve(exchange, CHAT_COMPLETIONS)

    def embeddings(self, exchange: Exchange) -> Awaitable[None]:
        """OpenAI's embeddings."""
        return self.serve(exchange, EMBEDDINGS)

    def messages(self, exchange: Exchange) -> Awaitable[None]:
        """Anthropic's Messages."""
        return self.serve(exchange, MESSAGES)

    async def count_tokens(self, exchange: Exchange) -> None:
        """Respond with the tokens of a Messages request: the provider's count, or an estimate."""
        exchange.response_headers |= request_id_headers(exchange.request_id)
        with self._meter.enter(exchange.identity):
            await self._count_tokens(exchange)

    async def _count_tokens(self, exchange: Exchange) -> None:
        raw = await exchange.read_body(self._settings.body_limit)
        head = await offload(len(raw), lambda: RawRequestBody(raw))
        route = self.routes(exchange, head, select=False).first
        with DisconnectWatch(exchange) as watch:
            counted = await count_upstream(route, head, headers=exchange.headers)
        if watch.disconnected:
            return
        if counted is not None:
            await exchange.respond(200, counted, headers=JSON_HEADERS)
            return
        factor = token_factor(route)
        tokens = await offload(
            weigh(raw), lambda: estimate_input(parse_count_tokens_request(raw), factor=factor)
        )
        await exchange.respond(200, {"input_tokens": tokens}, headers={"x-dragoman-estimated": "true"})

    async def models(self, exchange: Exchange) -> None:
        """Respond with the models that the key may use, in a form that both families' clients read."""
        names = self.catalog.allowed_models(exchange.identity)
        data = [self._model_object(name) for name in names]
        body = {"object": "list", "data": data, "has_more": False}
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
        await exchange.respond(200, {**body, **ends})

    async def model(self, exchange: Exchange) -> None:
        """Respond with one model."""
        name = exchange.path_params["id"]
        self.catalog.routing.entry_routes(name)  # NotFound, also for a key that may ask for anything
        require_model_access(exchange.identity.models, name, routing=self.catalog.routing)
        await exchange.respond(200, self._model_object(name))

    async def drain(self, seconds: float) -> None:
        """Refuse new requests; give those in flight up to `seconds` to end, then close their streams."""
        self.draining = True
        aborted = await self._in_flight.drain(seconds)
        if aborted:
            log.warning("%d responses did not end within %g seconds and were closed", aborted, seconds)

    @property
    def body_limit(self) -> int:
        """The most bytes of a request's body."""
        return self._settings.body_limit

    @property
    def keep_alive(self) -> float:
        """Seconds between two comments in a stream without events."""
        return self._settings.keep_alive

    async def serve(
        self, exchange: Exchange, dialect: ClientDialect, *, prepare: PrepareBody | None = None
    ) -> None:
        """Answer a model request. `prepare` returns the body to answer in place of the client's."""
        with self._tracing.request("POST", exchange.path, headers=exchange.headers) as span:
            try:
                await self._serve(exchange, dialect, prepare=prepare)
            except DragomanError as error:
                span.set_status(dialect.error_status(error))
                raise
            span.set_status(200)

    async def _serve(
        self, exchange: Exchange, dialect: ClientDialect, *, prepare: PrepareBody | None
    ) -> None:
        request_id = exchange.request_id
        exchange.response_headers |= request_id_headers(request_id)
        if self.draining:
            raise Unavailable("the hub is shutting down", hint="retry the request in a moment")
        with self._meter.enter(exchange.identity) as entry:
            max_values = MAX_EMBEDDING_VALUES if dialect is EMBEDDINGS else None
            body = await exchange.read_body(self._settings.body_limit, max_values=max_values)
            if prepare is not None:
                body = await prepare(body)
            plan = await self._plan(exchange, dialect, body=body)
            if plan.head.continues_thread and isinstance(dialect, MessagesDialect):
                self._check_thread(exchange.identity)
            origin = CallOrigin(identity=exchange.identity, endpoint=dialect.endpoint, request_id=request_id)
            payment = Payment(origin, price=self.catalog.price, meter=self._meter)
            request = GatewayRequest(plan, exchange, payment=payment)
            await request.admit(entry)
        self._metrics.request_started(dialect.endpoint)
        try:
            with self._in_flight.track(request.stop):
                await request.run()
        finally:
            self._metrics.request_ended(dialect.endpoint)

    def _check_thread(self, identity: Identity) -> None:
        """Raise UnknownThread, after which clients send the whole conversation, if it has to be counted."""
        if self._meter.counts_prompts(identity):
            raise UnknownThread(
                "a key or owner with a limit of tokens or money continues no threads",
                field="thread",
                hint="send all messages, without `thread`: the hub cannot count what it does not see",
            )

    async def _plan(self, exchange: Exchange, dialect: ClientDialect, *, body: bytes) -> RequestPlan:
        size = len(body)
        head = RawRequestBody(body) if size <= SMALL else await offload(size, lambda: RawRequestBody(body))
        routes = self.routes(exchange, head)
        limits_prompts = may_name_files(body) and self._meter.counts_prompts(exchange.identity)
        named = await offload(weigh(body), head.count_named_files) if limits_prompts else NamedFiles()
        parsed = None
        if size > FEW_FIELDS and dialect is not EMBEDDINGS and needs_parsing(dialect, body, routes=routes):
            parsed = await offload(weigh(body), lambda: parse_request(dialect, body, route=routes.first))
        return RequestPlan(
            dialect=dialect,
            body=body,
            head=head,
            routes=routes,
            parsed=parsed.request if isinstance(parsed, ParsedBody) else parsed,
            input_tokens=parsed.tokens
            if isinstance(parsed, ParsedBody)
            else max(1, size // CHARACTERS_PER_TOKEN),
            unseen_tokens=round(named.images * MAX_IMAGE_TOKENS)
            + (self._meter.limits.named_documents if named.documents else 0),
            tracing=self._tracing,
            keep_alive=self._settings.keep_alive,
            limits=self._settings.answer_limits,
        )

    def routes(self, exchange: Exchange, head: RawRequestBody, *, select: bool = True) -> ModelRoutes:
        """Return the routes of the model that a request names. NotFound, Forbidden."""
        allowed, catalog = exchange.identity.models, self.catalog
        try:
            routes = catalog.routing.model_routes(
                head.model,
                options=catalog.options,
                on_fallback=self._metrics.provider_fell_back,
                select=select,
            )
        except NotFound:
            if allowed is None:
                raise
            raise NotFound(
                f"there is no model {head.model!r}{suggest(head.model, allowed)}",
                hint=f"this key may use {list(allowed)}",
            ) from None
        require_model_access(allowed, head.model, routing=catalog.routing)
        for advisor in head.advisors:
            for route in routes.routes:
                name = f"{route.provider.name}/{advisor.model}"
                require_advisor_access(allowed, name, routing=catalog.routing)
        return routes

    def _model_object(self, name: str) -> dict[str, Any]:
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


class ParsedBody(NamedTuple):
    """A long request, and an estimate of its prompt by what is in it."""

    request: ClientRequest
    tokens: int


def needs_parsing(dialect: ClientDialect, body: bytes, *, routes: ModelRoutes) -> bool:
    """Return whether a body is parsed before its model call begins, which may do it in a thread.

    A long one is, since its tokens are estimated by its content; one with many fields if it is translated.
    """
    if len(body) > SMALL_BODY or weigh(body) <= SMALL:
        return len(body) > SMALL_BODY
    return not all(is_relayed(route.provider, dialect) for route in routes.routes)


def parse_request(dialect: ClientDialect, body: bytes, *, route: Route) -> ParsedBody | BadRequest:
    """Parse a long body. Return the error of an invalid one, which a server of the same family may accept."""
    try:
        parsed = dialect.parse_request(body)
    except BadRequest as error:
        release_frames(error)
        return error
    return ParsedBody(parsed, estimate_input(parsed.request, factor=token_factor(route)))


async def count_upstream(route: Route, head: RawRequestBody, *, headers: Mapping[str, str]) -> bytes | None:
    """Return the provider's token count as a JSON document; None if it does not count."""
    provider = route.provider
    if not isinstance(provider, RemoteProvider) or provider.family != MESSAGES.family:
        return None
    documents: list[bytes] = []

    async def listen(relay: RelayedResponse) -> None:
        document = await relay.read()
        if "input_tokens" in read_document(document, "input_tokens"):
            documents.append(document)
            relay.mark_succeeded()
        relay.close()

    forwarded = {name: headers[name] for name in MESSAGES.forwarded_headers if name in headers}
    url = provider.server.url("/messages/count_tokens", root="/v1")
    try:
        await provider.relay(
            url,
            lambda: head.rewrite(route.model, options={}, replaced=MESSAGES.replaced_fields(head)),
            size=head.size,
            headers=forwarded,
            handle=listen,
        )
    except ProviderError as error:
        if error.upstream_status not in UNSUPPORTED_STATUSES:
            raise
    return documents[0] if documents else None


async def send_error(exchange: Exchange, error: DragomanError, *, dialect: ClientDialect) -> None:
    """Respond with an error in the format of a dialect."""
    if exchange.response_started:
        log.error("%s %s failed after its answer began: %s", exchange.method, exchange.path, error.message)
        raise error
    request_id = exchange.request_id
    headers = request_id_headers(request_id)
    headers["x-should-retry"] = "true" if may_retry(error) else "false"
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, min(MAX_RETRY_AFTER, round(error.retry_after))))
    if error.status == 401:
        headers["www-authenticate"] = 'Bearer realm="dragoman"'
    await exchange.respond(
        dialect.error_status(error), dialect.error_body(error, request_id), headers=headers
    )


class UnknownClientPath:
    """The ASGI app of unknown paths under `/v1`: a 404 in the client's dialect.

    Anthropic's clients send a version, OpenAI's do not.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        exchange.request_id = assign_request_id(exchange.headers)
        is_anthropic = exchange.path.startswith("/v1/messages") or "anthropic-version" in exchange.headers
        dialect = MESSAGES if is_anthropic else CHAT_COMPLETIONS
        await send_error(exchange, unknown_address(exchange), dialect=dialect)


def may_retry(error: DragomanError) -> bool:
    """Return whether the client may retry by itself: not where the hub has retried already."""
    return error.caller_may_retry if isinstance(error, ProviderError) else error.transient


CHAT_COMPLETIONS = ChatCompletionsDialect()
EMBEDDINGS = EmbeddingsDialect()
MESSAGES = MessagesDialect()
