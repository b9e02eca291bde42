"""A provider over HTTP: key selection, retries, streaming and relaying for all families."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Self, TypeVar

from msgspec.structs import replace

from dragoman import identity
from dragoman.errors import ProviderError
from dragoman.events import DeltaHandler, Event
from dragoman.http.per_loop_transport import LazyTransport
from dragoman.http.transport import Response, Sender
from dragoman.large_json import SMALL
from dragoman.model_request import ModelRequest, request_size
from dragoman.offload import offload
from dragoman.providers.adapter import AnswerLimits, Family, ProviderAdapter
from dragoman.providers.decoded_response import DecodedResponse, decode_stored, read_answer
from dragoman.providers.endpoint import UpstreamServer
from dragoman.providers.error_classification import rejects_all_files, rejects_files
from dragoman.providers.key_pool import KeyLease, KeyPool, ProviderKey
from dragoman.providers.model import Model
from dragoman.providers.rejected_fields import remember_model
from dragoman.providers.relayed_response import RelayedResponse
from dragoman.providers.retry import DEFAULTS, RetryPolicy, classify_response, with_retries
from dragoman.providers.tool_names import ToolNames
from dragoman.providers.unknown_model import ModelList, read_model_names
from dragoman.redaction import MIN_SECRET, redact, redact_json
from dragoman.wire.answer_decoder import AnswerDecoder
from dragoman.wire.json_codec import encode_body, encode_large_body
from dragoman.wire.multimodal_outputs import without_tool_files

log = logging.getLogger(__name__)
MAX_ERROR_BYTES = 1024 * 1024
MAX_LIST_BYTES = 8 * 1024 * 1024
LIST_SECONDS = 2.0  # to wait for a list of models, while a client waits for its error
BETA_HEADER = "anthropic-beta"
MAX_DROPPED_FIELDS = 3  # rejected fields that one request may be retried without
KEY_ERRORS = ("auth", "rate_limit", "overloaded")  # errors that another key may avoid

T = TypeVar("T")


class RemoteProvider:
    """A server and its keys. The caller owns the transport.

    `on_retry` is called with the provider's name for each further attempt, `on_failure` with the name and the
    error's category for each failed one.
    """

    def __init__(
        self,
        name: str,
        server: UpstreamServer,
        *,
        adapter: ProviderAdapter,
        transport: Sender,
        keys: KeyPool | None = None,
        policy: RetryPolicy = DEFAULTS,
    ) -> None:
        self.name = name
        self.server = server
        self.keys = keys or KeyPool([ProviderKey("default", server.api_key)] if server.api_key else [])
        self.on_retry: Callable[[str], None] = lambda _: None
        self.on_failure: Callable[[str, str], None] = lambda _, __: None
        self.limits = AnswerLimits()
        self._adapter = adapter
        self._transport = transport
        self._policy = policy
        self._fixed_headers = {name.lower(): value for name, value in server.headers.items()}
        self._models = ModelList()
        self._text_only_models: dict[str, None] = {}
        self._headers_by_key: dict[ProviderKey, Mapping[str, str]] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.server!r})"

    @property
    def family(self) -> Family:
        """The family of the server's protocol."""
        return self._adapter.family

    def stream(
        self, request: ModelRequest, *, on_delta: DeltaHandler | None = None
    ) -> AsyncGenerator[Sequence[Event], None]:
        """See `Provider.stream`, and `read_answer` for `on_delta`."""
        names = ToolNames.of(request.tools, self.family)
        if names is None:
            return read_answer(
                lambda: self._with_retries(lambda lease: self._open(request, lease)),
                redact=self.redact_error,
                on_delta=on_delta,
            )

        async def open_renamed(lease: KeyLease) -> DecodedResponse:
            sent = await offload(request_size(request), partial(names.apply, request))
            return await self._open(sent, lease)

        return names.restore(
            read_answer(lambda: self._with_retries(open_renamed), redact=self.redact_error, on_delta=on_delta)
        )

    def decode_answer(self, request: ModelRequest, raw: bytes) -> AsyncGenerator[Sequence[Event], None]:
        """Yield the batches of a complete answer, a document or a stream. Raises ProviderError."""
        return decode_stored(self._decoder(request), raw, redact=self.redact_error)

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""
        return [*self._adapter.check(request), *self.rejected_options(request)]

    def rejected_options(self, request: ModelRequest) -> Sequence[str]:
        """Return the options of a request that are not sent, since its model has rejected them before."""
        return self._adapter.rejected_options(request)

    async def relay(
        self,
        url: str,
        write_body: Callable[[], bytes],
        *,
        size: int = 0,
        headers: Mapping[str, str],
        handle: Callable[[RelayedResponse], Awaitable[None]],
        is_amended: bool = False,
    ) -> None:
        """Send a body in the server's own protocol, and pass the response to `handle`.

        Each attempt calls both: `write_body` returns the body, of about `size` bytes; `handle` gets a
        response with a status of success, and raises errors that another attempt may avoid. `is_amended`: the
        hub has added fields to the body, which the server may not support. Raises ProviderError, with our
        keys redacted.
        """
        try:
            await self._with_retries(
                lambda lease: self._relay_once(
                    url,
                    BodyWriter(size, write_body, is_amended),
                    headers=headers,
                    handle=handle,
                    lease=lease,
                )
            )
        except ProviderError as error:
            raise self.redact_error(error) from None

    async def list_models(self) -> Sequence[str]:
        """Return the names of the server's models; () if it does not list them within two seconds.

        The list is cached for a minute.
        """
        return await self._models.get(self._fetch_models)

    def model(self, name: str, **options: Any) -> Model:
        """Return a model by the provider's own name for it; `options` are sent with each request."""
        return Model(self, name, options)

    async def close(self) -> None:
        """Close the provider's own connections. Those of a transport that the caller owns stay open."""
        if isinstance(self._transport, LazyTransport):
            await self._transport.close()

    async def aclose(self) -> None:
        """The same as `close`, for `contextlib.aclosing`."""
        await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _secrets(self) -> list[str]:
        """Our keys, except placeholders such as `x`, whose redaction would garble any text."""
        secrets = (*self.server.secrets, *self.keys.secrets)
        return [secret for secret in secrets if len(secret) >= MIN_SECRET]

    def redact_error(self, error: ProviderError) -> ProviderError:
        """Redact our keys in an error: some servers repeat them."""
        secrets = self._secrets()
        message = redact(error.message, secrets)
        details = redact_details(error.details, secrets)
        if message == error.message and details == error.details:
            return error
        redacted = ProviderError(
            message,
            category=error.category,
            upstream_status=error.upstream_status,
            transient=error.transient,
            retry_after=error.retry_after,
            hint=error.hint,
        )
        redacted.details, redacted.caller_may_retry = details, error.caller_may_retry
        redacted.cost, redacted.usage = error.cost, error.usage
        redacted.cut_length = error.cut_length
        return redacted

    def _with_retries(self, attempt: Callable[[KeyLease], Awaitable[T]]) -> Awaitable[T]:
        """Retry by the policy, and with other keys where that may help, before any output is passed on.

        The policy's `retries` are all further requests, whichever key they use.
        """
        attempts = KeyAttempts(self, attempt, retries=self._policy.retries)
        return with_retries(attempts.run, policy=self._policy, requests=lambda: attempts.requests)

    async def _open(self, request: ModelRequest, lease: KeyLease) -> DecodedResponse:
        """Send the request and read until the first event; a failure before that may be retried."""
        size = request_size(request)
        decoder = await offload(size, partial(self._decoder, request))  # it reads the ids in the history
        response = await self._send_request(request, lease.key, size=size)
        answer = DecodedResponse(
            response,
            decoder,
            lease=lease,
            limits=self.limits,
            json_lines=self.family == "ollama",
        )
        await answer.start()
        return answer

    def _decoder(self, request: ModelRequest) -> AnswerDecoder[Any]:
        decoder = self._adapter.decoder(request)
        decoder.limit_arguments(self.limits.arguments)
        return decoder

    async def _relay_once(
        self,
        url: str,
        writer: BodyWriter,
        *,
        headers: Mapping[str, str],
        handle: Callable[[RelayedResponse], Awaitable[None]],
        lease: KeyLease,
    ) -> None:
        """Send a relayed request with one key, and pass the accepted response to `handle`."""
        merged = merge_headers(self._request_headers(lease.key), headers)
        while True:
            size, write, is_amended = writer
            body = write() if size <= SMALL else await offload(size, write)
            response = await self._transport.send("POST", url, headers=merged, body=body)
            if is_success(response.status):
                break
            error, answer = await self._read_error(response)
            if not (is_amended and self._adapter.learn_from_rejection(response.status, answer)):
                raise error
        relay = RelayedResponse(response, lease=lease, limits=self.limits)
        try:
            await handle(relay)
        except BaseException:
            relay.close()
            raise

    async def _send_request(self, request: ModelRequest, key: ProviderKey, *, size: int) -> Response:
        """Send a request, retrying without fields that the server rejects; return the accepted response.

        Once a model has refused images and files, those in results of tools are replaced by texts about them.
        """
        drop: set[str] = set()
        if request.model in self._text_only_models:
            messages = await offload(size, partial(without_tool_files, request.messages))
            request = replace(request, messages=messages)
        encode = encode_body if size <= SMALL else encode_large_body
        while True:
            body = await offload(size, partial(self._adapter.encode, request, drop=drop, encode=encode))
            response = await self._transport.send(
                "POST",
                self._adapter.url(self.server),
                headers=self._request_headers(key),
                body=body,
            )
            if is_success(response.status):
                return response
            error, answer = await self._read_error(response)
            messages = request.messages
            if rejects_files(error):
                messages = await offload(size, partial(without_tool_files, messages))
            if messages is not request.messages:
                if rejects_all_files(error):
                    remember_model(self._text_only_models, request.model, value=None)
                request = replace(request, messages=messages)
                continue
            field = self._adapter.rejected_field(request, status=response.status, body=answer)
            if field is None or field in drop or len(drop) >= MAX_DROPPED_FIELDS:
                raise error
            drop.add(field)

    async def probe(self) -> str | None:
        """Request the server's models; return the `Date` header of the response.

        Raises ProviderError if the server cannot be reached or refuses.
        """
        lease = self.keys.acquire()
        try:
            async with await self._request_models(lease) as response:
                if response.status != 200:
                    error, _ = await self._read_error(response)
                    raise self.redact_error(error)
                await response.read(MAX_LIST_BYTES)
                return response.headers.get("date")
        finally:
            lease.release()

    def _request_models(self, lease: KeyLease) -> Awaitable[Response]:
        url = self._adapter.models_url(self.server)
        return self._transport.send("GET", url, headers=self._request_headers(lease.key))

    async def _fetch_models(self) -> Sequence[str]:
        lease = self.keys.acquire()
        try:
            async with asyncio.timeout(LIST_SECONDS):
                async with await self._request_models(lease) as response:
                    body = await response.read(MAX_LIST_BYTES) if response.status == 200 else b""
        except (ProviderError, TimeoutError) as error:
            log.debug("%s does not list its models: %r", self.name, error)
            return ()
        finally:
            lease.release()
        names = await offload(len(body), lambda: read_model_names(body))
        secrets = self._secrets()
        return [name for name in names if redact(name, secrets) == name]

    async def _read_error(self, response: Response) -> tuple[ProviderError, bytes]:
        try:
            body = await response.read(MAX_ERROR_BYTES)
        except ProviderError:
            body = b""  # classify by the status alone
        error = classify_response(response.status, response.headers, body=body, secrets=self._secrets())
        return (self._name_provider(error) if error.category == "auth" else error), body

    def _name_provider(self, error: ProviderError) -> ProviderError:
        """Name the provider in its refusal of our key, so that clients do not blame their key of the hub."""
        message = f"the provider {self.name} refused the hub's key for it: {error.message}"
        named = ProviderError(
            message,
            category=error.category,
            upstream_status=error.upstream_status,
            transient=error.transient,
            retry_after=error.retry_after,
        )
        named.details = _with_message(error.details, message)
        return named

    def _request_headers(self, key: ProviderKey) -> Mapping[str, str]:
        headers = self._headers_by_key.get(key)
        if headers is None:
            headers = self._headers_by_key[key] = {**self._adapter.headers(key.secret), **self._fixed_headers}
        parent = identity.traceparent.get()
        return headers if parent is None else {**headers, "traceparent": parent}


class BodyWriter(NamedTuple):
    """Writes the body of a relayed request, of about `size` bytes, for each attempt."""

    size: int
    write: Callable[[], bytes]
    is_amended: bool


class KeyAttempts(Generic[T]):
    """The attempts at one request with the keys of a provider; `requests` counts them."""

    __slots__ = ("_attempt", "_provider", "_retries", "requests")

    def __init__(
        self, provider: RemoteProvider, attempt: Callable[[KeyLease], Awaitable[T]], *, retries: int
    ) -> None:
        self.requests = 0
        self._provider = provider
        self._attempt = attempt
        self._retries = retries

    async def run(self, _: int) -> T:
        """Make one attempt; while retries are left, another one at once with each other key that may help."""
        provider = self._provider
        tried: list[ProviderKey] = []
        while True:
            lease = provider.keys.acquire(exclude=tried)
            tried.append(lease.key)
            if self.requests:
                provider.on_retry(provider.name)
            self.requests += 1
            try:
                return await self._attempt(lease)
            except ProviderError as error:
                lease.mark_failed(error)
                provider.on_failure(provider.name, error.category)
                helps = error.category in KEY_ERRORS and provider.keys.has_untried(tried)
                if not helps or self.requests > self._retries:
                    raise
            except BaseException:
                lease.release()
                raise


def _with_message(details: Mapping[str, Any] | None, message: str) -> Mapping[str, Any] | None:
    """Return the provider's error object with another message."""
    if details is not None and isinstance(details.get("error"), Mapping):
        return {**details, "error": {**details["error"], "message": message}}
    return None if details is None else {**details, "message": message}


def is_success(status: int) -> bool:
    """Return whether a response has an answer. Not only 200: proxies that modify it use other statuses."""
    return 200 <= status < 300


def merge_headers(ours: Mapping[str, str], theirs: Mapping[str, str]) -> Mapping[str, str]:
    """Merge the headers of a relayed request: the client's win, beta features are joined."""
    if not theirs:
        return ours
    merged = {**ours, **theirs}
    if BETA_HEADER in ours and BETA_HEADER in theirs:
        merged[BETA_HEADER] = ",".join(dict.fromkeys(f"{ours[BETA_HEADER]},{theirs[BETA_HEADER]}".split(",")))
    return merged


def redact_details(
    details: Mapping[str, object] | None, secrets: Sequence[str]
) -> Mapping[str, object] | None:
    """Redact all strings in a provider's error object."""
    redacted: Mapping[str, object] | None = None if details is None else redact_json(details, secrets)
    return redacted
