"""Anthropic's own API, and servers that speak it: `/v1/messages`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Self

import msgspec

from dragoman.http.lazy_transport import LazyTransport
from dragoman.http.transport import Sender, Timeouts
from dragoman.ids import new_id
from dragoman.model_request import ModelRequest
from dragoman.providers.adapter import Family, call_ids, error_text
from dragoman.providers.key_pool import KeyPool
from dragoman.providers.prompt_cache import PromptCacheMonitor
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.retry import DEFAULTS, RetryPolicy
from dragoman.providers.upstream import UpstreamServer
from dragoman.wire.anthropic.decoder import AnthropicDecoder
from dragoman.wire.anthropic.request import check_request, rejected_field, write_request
from dragoman.wire.json_codec import BodyEncoder, encode_body

ANTHROPIC_URL = "https://api.anthropic.com"
DEFAULT_TIMEOUTS = Timeouts()

__all__ = ["AnthropicAdapter", "AnthropicProvider", "AnthropicSettings"]

_BAD_REQUEST = 400
_PERMANENT = re.compile(r"deprecated|not supported|unsupported|does not support|Extra inputs", re.IGNORECASE)


class AnthropicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`version` and `beta` are sent as headers; `max_tokens` is for requests without one, None: by model."""

    version: str = "2023-06-01"
    beta: tuple[str, ...] = ()
    max_tokens: int | None = None


DEFAULT_SETTINGS = AnthropicSettings()


class AnthropicAdapter:
    """The language Messages. What a model has refused once is not sent to it again."""

    family: Family = "anthropic"

    def __init__(self, name: str, settings: AnthropicSettings) -> None:
        self.settings = settings
        self.caching = PromptCacheMonitor()
        self._name = name
        self._rejected_fields: dict[str, frozenset[str]] = {}

    def url(self, server: UpstreamServer) -> str:
        """See `Language.url`."""
        return server.url("/messages", root="/v1")

    def models_url(self, server: UpstreamServer) -> str:
        """See `ProviderAdapter.models_url`: without a limit the list has 20."""
        url = server.url("/models", root="/v1")
        return f"{url}{'&' if '?' in url else '?'}limit=1000"

    def headers(self, secret: str | None) -> Mapping[str, str]:
        """See `Language.headers`."""
        reply = {"content-type": "application/json", "anthropic-version": self.settings.version}
        if self.settings.beta:
            reply["anthropic-beta"] = ",".join(self.settings.beta)
        return {**reply, "x-api-key": secret} if secret else reply

    def encode(
        self, request: ModelRequest, *, drop: Collection[str], encode: BodyEncoder = encode_body
    ) -> bytes:
        """See `Language.encode`."""
        body = write_request(
            request,
            provider=self._name,
            max_tokens=self.settings.max_tokens,
            drop={*drop, *self._rejected_fields.get(request.model, ())},
        )
        if request.options.get("cache_control") and not drop:
            self.caching.compare(request, body)
        return encode(body)

    def decoder(self, request: ModelRequest) -> AnthropicDecoder:
        """See `Language.decoder`."""
        return AnthropicDecoder(
            provider=self._name,
            model=request.model,
            new_id=lambda: new_id("call"),
            used_ids=call_ids(request.messages),
        )

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""
        return check_request(request, provider=self._name)

    def learn_from_rejection(self, status: int, body: bytes) -> bool:
        """See `Language.learn`: nothing was put in."""
        return False

    def rejected_field(self, request: ModelRequest, *, status: int, body: bytes) -> str | None:
        """See `Language.mend`. Models differ in which of the sampling and thinking fields they take; what a
        model never takes is not sent to it again.
        """
        words = error_text(body) if status == _BAD_REQUEST else ""
        field = rejected_field(words)
        if field is not None and _PERMANENT.search(words):
            self._rejected_fields[request.model] = self._rejected_fields.get(request.model, frozenset()) | {
                field
            }
        return field


class AnthropicProvider(RemoteProvider):
    """Anthropic's API, or a server that speaks it; see `OpenAIProvider`.

    `caching.on_bust` is called when a cached prefix could not be used again.
    """

    def __init__(
        self,
        *,
        base_url: str = ANTHROPIC_URL,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        retries: int | RetryPolicy = 0,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        name: str = "anthropic",
    ) -> None:
        server = UpstreamServer(base_url=base_url, api_key=api_key, headers=headers or {})
        self._set_up(name, server, transport=LazyTransport(timeouts), policy=RetryPolicy.of(retries))

    @classmethod
    def for_server(
        cls,
        name: str,
        server: UpstreamServer,
        *,
        transport: Sender,
        keys: KeyPool | None = None,
        policy: RetryPolicy = DEFAULTS,
        settings: AnthropicSettings = DEFAULT_SETTINGS,
    ) -> Self:
        """Make a provider on a transport that the caller owns, as a hub does for its configuration."""
        provider = cls.__new__(cls)
        cls._set_up(provider, name, server, transport=transport, keys=keys, policy=policy, settings=settings)
        return provider

    def _set_up(
        self,
        name: str,
        server: UpstreamServer,
        *,
        transport: Sender,
        keys: KeyPool | None = None,
        policy: RetryPolicy = DEFAULTS,
        settings: AnthropicSettings = DEFAULT_SETTINGS,
    ) -> None:
        self.adapter = AnthropicAdapter(name, settings)
        self.caching = self.adapter.caching
        super().__init__(name, server, adapter=self.adapter, transport=transport, keys=keys, policy=policy)
