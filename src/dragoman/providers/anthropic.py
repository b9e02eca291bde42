"""Anthropic's own API, and servers that speak it: `/v1/messages`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import msgspec

from dragoman.model_request import ModelRequest
from dragoman.providers.adapter import Family, answer_options, error_text
from dragoman.providers.endpoint import UpstreamServer
from dragoman.providers.prompt_cache_monitor import PromptCacheMonitor
from dragoman.providers.protocol_provider import ProtocolProvider
from dragoman.providers.rejected_fields import RejectedFields
from dragoman.wire.anthropic.decoder import AnthropicDecoder
from dragoman.wire.anthropic.request import check_request, rejected_field, write_request
from dragoman.wire.json_codec import BodyEncoder, encode_body

ANTHROPIC_URL = "https://api.anthropic.com"

__all__ = ["AnthropicAdapter", "AnthropicProvider", "AnthropicSettings"]

_BAD_REQUEST = 400
_PERMANENT = re.compile(r"deprecated|not supported|unsupported|does not support|Extra inputs", re.IGNORECASE)


class AnthropicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of Anthropic's API. `version` and `beta` are sent as headers.

    `max_tokens` is for requests that set none; if it is None, it depends on the model.
    """

    version: str = "2023-06-01"
    beta: tuple[str, ...] = ()
    max_tokens: int | None = None


DEFAULT_SETTINGS = AnthropicSettings()


class AnthropicAdapter:
    """The Messages protocol. Fields that a model does not support are not sent to it again."""

    family: Family = "anthropic"

    def __init__(self, name: str, settings: AnthropicSettings) -> None:
        self.settings = settings
        self.caching = PromptCacheMonitor()
        self._name = name
        self._rejected_fields = RejectedFields()

    def url(self, server: UpstreamServer) -> str:
        """See `ProviderAdapter.url`."""
        return server.url("/messages", root="/v1")

    def models_url(self, server: UpstreamServer) -> str:
        """See `ProviderAdapter.models_url`. Without a limit the list would have 20 models."""
        url = server.url("/models", root="/v1")
        return f"{url}{'&' if '?' in url else '?'}limit=1000"

    def headers(self, secret: str | None) -> Mapping[str, str]:
        """See `ProviderAdapter.headers`."""
        headers = {"content-type": "application/json", "anthropic-version": self.settings.version}
        if self.settings.beta:
            headers["anthropic-beta"] = ",".join(self.settings.beta)
        return {**headers, "x-api-key": secret} if secret else headers

    def encode(
        self, request: ModelRequest, *, drop: Collection[str], encode: BodyEncoder = encode_body
    ) -> bytes:
        """See `ProviderAdapter.encode`."""
        body = write_request(
            request,
            provider=self._name,
            max_tokens=self.settings.max_tokens,
            drop={*drop, *self._rejected_fields.of(request.model)},
        )
        if request.options.get("cache_control") and not drop:
            self.caching.compare(request, body)
        return encode(body)

    def decoder(self, request: ModelRequest) -> AnthropicDecoder:
        """See `ProviderAdapter.decoder`."""
        return AnthropicDecoder(**answer_options(self._name, request))

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""
        return check_request(request, provider=self._name)

    def rejected_options(self, request: ModelRequest) -> Sequence[str]:
        """See `ProviderAdapter.rejected_options`."""
        return self._rejected_fields.options_of(request)

    def learn_from_rejection(self, status: int, body: bytes) -> bool:
        """See `ProviderAdapter.learn_from_rejection`. The hub adds nothing to a relayed body."""
        return False

    def rejected_field(self, request: ModelRequest, *, status: int, body: bytes) -> str | None:
        """See `ProviderAdapter.rejected_field`.

        Models support different sampling and thinking fields. One that a model never supports is not sent to
        it again.
        """
        message = error_text(body) if status == _BAD_REQUEST else ""
        field = rejected_field(message)
        if field is not None and _PERMANENT.search(message):
            self._rejected_fields.add(request.model, field)
        return field


class AnthropicProvider(ProtocolProvider[AnthropicAdapter]):
    """Anthropic's API, or a server that speaks it; see `ProtocolProvider`.

    `caching.on_bust` is called when a cached prefix could not be used again.
    """

    DEFAULT_NAME = "anthropic"
    DEFAULT_URL = ANTHROPIC_URL

    @classmethod
    def make_adapter(cls, name: str, _: UpstreamServer, /) -> AnthropicAdapter:
        """See `ProtocolProvider.make_adapter`."""
        return AnthropicAdapter(name, DEFAULT_SETTINGS)

    @property
    def caching(self) -> PromptCacheMonitor:
        """The monitor of the prompt cache."""
        return self.adapter.caching
