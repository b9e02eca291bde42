"""Ollama's own API: `/api/chat`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.model_request import ModelRequest
from dragoman.providers.adapter import Family, answer_options, error_text
from dragoman.providers.endpoint import UpstreamServer
from dragoman.providers.protocol_provider import ProtocolProvider
from dragoman.providers.rejected_fields import RejectedFields
from dragoman.wire.json_codec import BodyEncoder, encode_body
from dragoman.wire.ollama.decoder import OllamaDecoder
from dragoman.wire.ollama.request import check_request, encode_request, rejected_field

OLLAMA_URL = "http://127.0.0.1:11434"

__all__ = ["OllamaAdapter", "OllamaProvider", "OllamaSettings"]

_BAD_REQUEST = 400


class OllamaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults of the options of each request; `num_ctx` is in tokens.

    Without `num_ctx` Ollama uses a small context and silently drops old messages.
    """

    num_ctx: int | None = None
    keep_alive: str | float | None = None
    think: bool | str | None = None


DEFAULT_SETTINGS = OllamaSettings()


class OllamaAdapter:
    """The protocol of `/api/chat`. Fields that a model has rejected once are not sent to it again."""

    family: Family = "ollama"

    def __init__(self, name: str, settings: OllamaSettings) -> None:
        self.settings = settings
        self._name = name
        self._rejected_fields = RejectedFields()

    def url(self, server: UpstreamServer) -> str:
        """See `ProviderAdapter.url`."""
        return server.url("/chat", root="/api")

    def models_url(self, server: UpstreamServer) -> str:
        """See `ProviderAdapter.models_url`."""
        return server.url("/tags", root="/api")

    def headers(self, secret: str | None) -> Mapping[str, str]:
        """See `ProviderAdapter.headers`."""
        headers = {"content-type": "application/json", "accept": "application/x-ndjson"}
        return {**headers, "authorization": f"Bearer {secret}"} if secret else headers

    def encode(
        self, request: ModelRequest, *, drop: Collection[str], encode: BodyEncoder = encode_body
    ) -> bytes:
        """See `ProviderAdapter.encode`."""
        return encode_request(
            self._with_defaults(request),
            provider=self._name,
            num_ctx=self.settings.num_ctx,
            drop={*drop, *self._rejected_fields.of(request.model)},
            encode=encode,
        )

    def decoder(self, request: ModelRequest) -> OllamaDecoder:
        """See `ProviderAdapter.decoder`."""
        return OllamaDecoder(**answer_options(self._name, request))

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""
        return check_request(request)

    def rejected_options(self, request: ModelRequest) -> Sequence[str]:
        """See `ProviderAdapter.rejected_options`."""
        return self._rejected_fields.options_of(request)

    def learn_from_rejection(self, status: int, body: bytes) -> bool:
        """See `ProviderAdapter.learn_from_rejection`. The hub adds nothing to a relayed body."""
        return False

    def rejected_field(self, request: ModelRequest, *, status: int, body: bytes) -> str | None:
        """See `ProviderAdapter.rejected_field`. A model that rejects `think` once never supports it."""
        field = rejected_field(error_text(body)) if status == _BAD_REQUEST else None
        if field is not None:
            self._rejected_fields.add(request.model, field)
        return field

    def _with_defaults(self, request: ModelRequest) -> ModelRequest:
        defaults: dict[str, Any] = {}
        if self.settings.keep_alive is not None:
            defaults["keep_alive"] = self.settings.keep_alive
        if self.settings.think is not None and "reasoning_effort" not in request.options:
            defaults["think"] = self.settings.think
        return replace(request, options={**defaults, **request.options}) if defaults else request


class OllamaProvider(ProtocolProvider[OllamaAdapter]):
    """An Ollama server, by its own API; see `ProtocolProvider`. It usually needs no key."""

    DEFAULT_NAME = "ollama"
    DEFAULT_URL = OLLAMA_URL

    @classmethod
    def make_adapter(cls, name: str, _: UpstreamServer, /) -> OllamaAdapter:
        """See `ProtocolProvider.make_adapter`."""
        return OllamaAdapter(name, DEFAULT_SETTINGS)
