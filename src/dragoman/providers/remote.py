"""A provider that is a server somewhere: asked over HTTP, with one of its keys, in the language it speaks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from msgspec.structs import replace

from dragoman import identity
from dragoman.errors import ProviderError
from dragoman.events import Event, FinishStep
from dragoman.http.transport import Response, Sender
from dragoman.model_request import ModelRequest
from dragoman.providers.adapter import Family, ProviderAdapter
from dragoman.providers.decoded_response import MAX_ANSWER_BYTES, DecodedResponse
from dragoman.providers.key_pool import NO_KEY, KeyLease, KeyPool, ProviderKey
from dragoman.providers.model import Model
from dragoman.providers.relayed_response import RelayedResponse
from dragoman.providers.retry import (
    DEFAULTS,
    MIN_SECRET,
    RetryPolicy,
    classify_response,
    redact,
    with_retries,
)
from dragoman.providers.upstream import UpstreamServer

MAX_ERROR_BYTES = 1024 * 1024
BETA_HEADER = "anthropic-beta"
MAX_DROPPED_FIELDS = 3  # fields that are left out of one request
KEY_ERRORS = ("auth", "rate_limit", "overloaded")  # what another key may mend

T = TypeVar("T")


class RemoteProvider:
    """A server and its keys. The transport belongs to whoever gave it.

    `on_retry` hears of each further attempt, `on_failure` of each that failed, with its category.
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
        self.limit = MAX_ANSWER_BYTES
        self._adapter = adapter
        self._transport = transport
        self._policy = policy
        self._fixed_headers = {name.lower(): value for name, value in server.headers.items()}
        self._headers_by_key: dict[ProviderKey, Mapping[str, str]] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.server!r})"

    @property
    def family(self) -> Family:
        """The language that it speaks."""
        return self._adapter.family

    @property
    def resting(self) -> bool:
        """See `Provider.resting`: all of its keys rest."""
        return self.keys.exhausted

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Event], None]:
        """See `Provider.stream`."""
        answer: DecodedResponse | None = None
        try:
            answer = await self._with_retries(lambda held: self._open(request, held))
            while (batch := await answer.next_batch()) is not None:
                yield (
                    batch
                    if type(batch[-1]) is not FinishStep
                    else with_key_name(batch, batch[-1], key=answer.key)
                )
        except ProviderError as error:
            raise self.redact_error(error) from None
        finally:
            if answer is not None:
                answer.close()

    def decode_answer(self, request: ModelRequest, raw: bytes) -> Sequence[Event]:
        """The events of an answer that is all there, as a document or a stream. Raises ProviderError."""
        decoder = self._adapter.decoder(request)
        if raw.lstrip()[:1] in (b"{", b"["):
            return decoder.decode_document(raw)
        return [*decoder.feed(raw), *decoder.close()]

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""
        return self._adapter.check(request)

    async def relay(
        self,
        url: str,
        write: Callable[[], bytes],
        *,
        headers: Mapping[str, str],
        handle: Callable[[RelayedResponse], Awaitable[None]],
    ) -> None:
        """Send a body that is in the server's own language, and have somebody listen to the answer.

        Both are asked again for each attempt: `write` gives the body, `listen` hears an answer that was not
        refused, and raises what another attempt may mend. Raises ProviderError, without our keys.
        """

        async def attempt(held: KeyLease) -> None:
            relay = RelayedResponse(
                await self._send_relayed(url, write, headers=headers, key=held.key),
                lease=held,
                limit=self.limit,
            )
            try:
                await handle(relay)
            except BaseException:
                relay.close()
                raise

        try:
            await self._with_retries(attempt)
        except ProviderError as error:
            raise self.redact_error(error) from None

    def model(self, name: str, **options: Any) -> Model:
        """One of its models, by the provider's own name for it; `options` go along with each request."""
        return Model(self, name, options)

    async def close(self) -> None:
        """Nothing: what stays open between two answers is the transport's."""

    async def aclose(self) -> None:
        """The same, by the name that scripts know."""
        await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _secrets(self) -> list[str]:
        """Our keys. Not what is given where a server wants none, such as `x`: it would blot out any text."""
        held = (*self.server.secrets, *self.keys.secrets)
        return [secret for secret in held if len(secret) >= MIN_SECRET]

    def redact_error(self, error: ProviderError) -> ProviderError:
        """The error without our keys: some servers say them back."""
        secrets = self._secrets()
        message = redact(error.message, secrets)
        details = redact_details(error.details, secrets)
        if message == error.message and details == error.details:
            return error
        hidden = ProviderError(
            message,
            category=error.category,
            upstream_status=error.upstream_status,
            transient=error.transient,
            retry_after=error.retry_after,
            hint=error.hint,
        )
        hidden.details, hidden.caller_may_retry = details, error.caller_may_retry
        return hidden

    async def _with_retries(self, attempt: Callable[[KeyLease], Awaitable[T]]) -> T:
        """Retries as the policy says, and other keys where that may help, before anything is passed on."""

        async def numbered(number: int) -> T:
            if number:
                self.on_retry(self.name)
            return await self._with_keys(attempt)

        try:
            return await with_retries(numbered, policy=self._policy)
        except ProviderError as error:
            soon = (error.retry_after or 0.0) <= self._policy.max_wait
            error.caller_may_retry = error.transient and soon and not self._policy.retries
            raise

    async def _with_keys(self, attempt: Callable[[KeyLease], Awaitable[T]]) -> T:
        tried: list[ProviderKey] = []
        while True:
            held = self.keys.acquire(exclude=tried)
            tried.append(held.key)
            try:
                return await attempt(held)
            except ProviderError as error:
                held.mark_failed(error)
                self.on_failure(self.name, error.category)
                if error.category not in KEY_ERRORS or not self.keys.has_untried(tried):
                    raise
            except BaseException:
                held.release()
                raise

    async def _open(self, request: ModelRequest, lease: KeyLease) -> DecodedResponse:
        """Ask, and read until there is something to tell; a failure before that may be tried again."""
        response = await self._send_request(request, lease.key)
        answer = DecodedResponse(
            response,
            self._adapter.decoder(request),
            lease=lease,
            limit=self.limit,
            json_lines=self.family == "ollama",
        )
        await answer.start()
        return answer

    async def _send_relayed(
        self, url: str, write: Callable[[], bytes], *, headers: Mapping[str, str], key: ProviderKey
    ) -> Response:
        said = merge_headers(self._request_headers(key), headers)
        while True:
            response = await self._transport.send("POST", url, headers=said, body=write())
            if response.status in (200, 201):
                return response
            error, body = await self._read_error(response)
            if not self._adapter.learn_from_rejection(response.status, body):
                raise error

    async def _send_request(self, request: ModelRequest, key: ProviderKey) -> Response:
        """The response to a request that was not refused; what the server does not know is left out."""
        drop: set[str] = set()
        while True:
            response = await self._transport.send(
                "POST",
                self._adapter.url(self.server),
                headers=self._request_headers(key),
                body=self._adapter.encode(request, drop=drop),
            )
            if response.status in (200, 201):
                return response
            error, body = await self._read_error(response)
            field = self._adapter.rejected_field(request, status=response.status, body=body)
            if field is None or field in drop or len(drop) >= MAX_DROPPED_FIELDS:
                raise error
            drop.add(field)

    async def _read_error(self, response: Response) -> tuple[ProviderError, bytes]:
        try:
            body = await response.read(MAX_ERROR_BYTES)
        except ProviderError:
            body = b""  # the status says enough
        return classify_response(response.status, response.headers, body=body, secrets=self._secrets()), body

    def _request_headers(self, key: ProviderKey) -> Mapping[str, str]:
        headers = self._headers_by_key.get(key)
        if headers is None:
            headers = self._headers_by_key[key] = {**self._adapter.headers(key.secret), **self._fixed_headers}
        parent = identity.traceparent.get()
        return headers if parent is None else {**headers, "traceparent": parent}


def with_key_name(batch: Sequence[Event], finish: FinishStep, *, key: str) -> Sequence[Event]:
    """The last batch of an answer, with the name of the key that paid for it."""
    return [*batch[:-1], replace(finish, key=key)] if key != NO_KEY.name else batch


def merge_headers(ours: Mapping[str, str], theirs: Mapping[str, str]) -> Mapping[str, str]:
    """The headers of a relayed request: the client's go before ours, lists of features are joined."""
    said = {**ours, **theirs}
    if BETA_HEADER in ours and BETA_HEADER in theirs:
        said[BETA_HEADER] = ",".join(dict.fromkeys(f"{ours[BETA_HEADER]},{theirs[BETA_HEADER]}".split(",")))
    return said


def redact_details(
    details: Mapping[str, object] | None, secrets: Sequence[str]
) -> Mapping[str, object] | None:
    """A provider's error object without secrets; its strings only, one level deep and below."""
    if details is None:
        return None
    return {name: _redact_value(value, secrets) for name, value in details.items()}


def _redact_value(value: object, secrets: Sequence[str]) -> object:
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {name: _redact_value(item, secrets) for name, item in value.items()}
    if isinstance(value, list):
        return [_redact_value(item, secrets) for item in value]
    return value
