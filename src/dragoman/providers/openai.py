"""Any server that speaks OpenAI's chat.completions: asks it, and yields its answer as batches of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from dragoman.errors import ProviderError
from dragoman.events import Event
from dragoman.ids import new_id
from dragoman.messages import Message, ToolPart
from dragoman.providers.http import Response, Transport
from dragoman.providers.retry import (
    DEFAULTS,
    READABLE,
    RetryPolicy,
    classify,
    clean,
    read_page,
    redact,
    with_retries,
)
from dragoman.request import ModelRequest
from dragoman.wire.openai import Decoder
from dragoman.wire.openai_quirks import Quirks
from dragoman.wire.openai_request import encode_request

LARGEST = 256 * 1024 * 1024  # bytes of one answer
LARGEST_ERROR = 1024 * 1024
PATIENCE = 0.25  # seconds that the end of the body may come behind the end of the answer
_SECRET = ("key", "token", "auth", "secret", "cookie")

VENDORS: Mapping[str, Quirks] = {
    "api.deepseek.com": Quirks(reasoning_field="reasoning_content"),
    "api.moonshot.ai": Quirks(reasoning_field="reasoning_content", call_ids="any"),
    "api.moonshot.cn": Quirks(reasoning_field="reasoning_content", call_ids="any"),
    "api.z.ai": Quirks(reasoning_field="reasoning_content"),
    "open.bigmodel.cn": Quirks(reasoning_field="reasoning_content"),
    "openrouter.ai": Quirks(reasoning_field="reasoning"),
    "api.mistral.ai": Quirks(call_ids="nine"),
    "snowflakecomputing.com": Quirks(lenient_finish=True),
}


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Where the models are, and what opens the door. `base_url` ends where `/chat/completions` begins."""

    base_url: str
    api_key: str | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Server({self.url!r})"

    @property
    def url(self) -> str:
        """The URL that is posted to; a query (Azure's `api-version`) stays at its end."""
        path, mark, query = self.base_url.partition("?")
        path = path.rstrip("/")
        ending = "" if path.endswith("/chat/completions") else "/chat/completions"
        return f"{path}{ending}{mark}{query}"

    @property
    def secrets(self) -> list[str]:
        """What must never be shown."""
        named = [
            value for name, value in self.headers.items() if any(word in name.lower() for word in _SECRET)
        ]
        return [secret for secret in (self.api_key, *named) if secret]

    @property
    def quirks(self) -> Quirks:
        """Those of the vendor whose host this is."""
        host = urlsplit(self.base_url).hostname or ""
        return next((quirks for end, quirks in VENDORS.items() if f".{host}".endswith(f".{end}")), Quirks())


class OpenAIProvider:
    """A provider that speaks chat.completions. The transport belongs to whoever gave it.

    `quirks` are guessed by the server's host unless given.
    """

    def __init__(
        self,
        name: str,
        server: Server,
        *,
        transport: Transport,
        policy: RetryPolicy = DEFAULTS,
        quirks: Quirks | None = None,
        limit: int = LARGEST,
    ) -> None:
        self.name = name
        self._server = server
        self._transport = transport
        self._policy = policy
        self._quirks = quirks or server.quirks
        self._limit = limit
        self._headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if server.api_key:
            self._headers["authorization"] = f"Bearer {server.api_key}"
        self._headers |= {name.lower(): value for name, value in server.headers.items()}

    def __repr__(self) -> str:
        return f"OpenAIProvider({self.name!r}, {self._server!r})"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Event], None]:
        """See `Provider.stream`."""
        exchange: Exchange | None = None
        try:
            exchange = await with_retries(lambda _: self._open(request), policy=self._policy)
            while (batch := await exchange.next()) is not None:
                yield batch
        except ProviderError as error:
            raise self._masked(error) from None
        finally:
            if exchange is not None:
                exchange.close()

    async def close(self) -> None:
        """Nothing: what stays open between two answers is the transport's."""

    async def _open(self, request: ModelRequest) -> Exchange:
        """Ask, and read until there is something to tell; a failure before that may be tried again."""
        response = await self._ask(request)
        decoder = Decoder(
            self._quirks,
            provider=self.name,
            model=request.model,
            new_id=lambda: new_id("call"),
            taken=call_ids(request.messages),
        )
        exchange = Exchange(response, decoder, limit=self._limit)
        await exchange.begin()
        return exchange

    async def _ask(self, request: ModelRequest) -> Response:
        """The response to a request that was not refused."""
        response = await self._post(request)
        if response.status in (200, 201):
            return response
        error, body = await self._refusal(response)
        if not (self._quirks.include_usage and response.status in (400, 422) and b"stream_options" in body):
            raise error
        self._quirks = replace(
            self._quirks, include_usage=False
        )  # this server does not know it, now or later
        response = await self._post(request)
        if response.status in (200, 201):
            return response
        raise (await self._refusal(response))[0]

    async def _post(self, request: ModelRequest) -> Response:
        body = encode_request(request, quirks=self._quirks, provider=self.name)
        return await self._transport.send("POST", self._server.url, headers=self._headers, body=body)

    async def _refusal(self, response: Response) -> tuple[ProviderError, bytes]:
        try:
            body = await response.read(LARGEST_ERROR)
        except ProviderError:
            body = b""  # the status says enough
        return classify(response.status, response.headers, body=body, secrets=self._server.secrets), body

    def _masked(self, error: ProviderError) -> ProviderError:
        """The error without our keys: some servers say them back."""
        message = redact(error.message, self._server.secrets)
        if message == error.message:
            return error
        return ProviderError(
            message,
            category=error.category,
            upstream_status=error.upstream_status,
            transient=error.transient,
            retry_after=error.retry_after,
            hint=error.hint,
        )


class Exchange:
    """One answer on its way in: bytes from the response, batches out of the decoder."""

    def __init__(self, response: Response, decoder: Decoder, *, limit: int) -> None:
        self._response = response
        self._decoder = decoder
        self._limit = limit
        self._size = 0
        self._document: list[bytes] | None = None  # the answer, when it is JSON and no stream
        self._first: Sequence[Event] = ()
        self._failure: ProviderError | None = None
        self._over = False

    async def begin(self) -> None:
        """Read until the first event. ProviderError when nothing came, or the server is too busy."""
        try:
            while not (self._first or self._over):
                self._first = await self._next()
        except ProviderError as error:
            if self._size == 0 or (error.transient and error.category in ("overloaded", "rate_limit")):
                self._response.abort()
                raise
            self._failure = error
        except BaseException:
            self._response.abort()
            raise

    async def next(self) -> Sequence[Event] | None:
        """The next batch; None at the end. Raises what broke the answer off, after what came before it."""
        batch, self._first = self._first, ()
        while not (batch or self._over or self._failure):
            batch = await self._next()
        if batch:
            return batch
        if self._failure is not None:
            raise self._failure
        await self._drain()
        return None

    def close(self) -> None:
        """Be done: the socket is closed at once, unless the answer is over."""
        self._response.abort()

    async def _next(self) -> Sequence[Event]:
        """What one read brings; a failure behind it is noted."""
        raw = await self._response.more()
        if not raw:
            return self._end()
        if not self._size:
            self._look(raw)
        self._size += len(raw)
        if self._size > self._limit:
            raise ProviderError(f"the answer is longer than {self._limit} bytes", category="api_error")
        if self._document is not None:
            self._document.append(raw)
            return ()
        batch = self._decoder.feed(raw)
        self._failure = self._decoder.failure
        self._over = self._decoder.done
        return batch

    def _end(self) -> Sequence[Event]:
        self._over = True
        if self._document is not None:
            return self._decoder.whole(b"".join(self._document))
        try:
            return self._decoder.close()
        except ProviderError as error:
            self._failure = error  # also when the body is empty: the server has answered, if with nothing
            return ()

    def _look(self, raw: bytes) -> None:
        """Tell a stream from a document and a web page by how it begins; content types often lie."""
        start = raw.lstrip()[:1]
        if start in (b"{", b"["):
            self._document = []
        elif start == b"<" or self._response.headers.get("content-type", "").startswith("text/html"):
            raise ProviderError(
                f"the server answered with a web page, not with a model's answer: {title(raw)}",
                category="api_error",
                hint="base_url must be that of the API; it often ends in /v1",
            )

    async def _drain(self) -> None:
        """Wait a little for the end of the body, so that the connection can serve again."""
        if self._response.complete:
            return
        with suppress(TimeoutError, ProviderError):
            async with asyncio.timeout(PATIENCE):
                while await self._response.more():
                    pass


def title(page: bytes) -> str:
    return repr(clean(read_page(page[:READABLE].decode(errors="replace"))))


def call_ids(history: Sequence[Message]) -> set[str]:
    return {part.tool_call_id for message in history for part in message.parts if isinstance(part, ToolPart)}
