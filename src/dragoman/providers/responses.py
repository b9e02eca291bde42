"""Any server that speaks OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.model_request import ModelRequest
from dragoman.providers.adapter import Family, answer_options
from dragoman.providers.endpoint import UpstreamServer
from dragoman.providers.openai import OPENAI_URL
from dragoman.providers.protocol_provider import ProtocolProvider
from dragoman.providers.rejected_fields import RejectedFields
from dragoman.wire.json_codec import BodyEncoder, encode_body
from dragoman.wire.provider_errors import find_error
from dragoman.wire.responses.decoder import ResponsesDecoder
from dragoman.wire.responses.request import (
    check_request,
    encode_request,
    is_about_value,
    rejected_field,
)

__all__ = ["ResponsesAdapter", "ResponsesProvider"]

_BAD_REQUEST = 400


class ResponsesAdapter:
    """The Responses API. Fields that a model does not support are not sent to it again."""

    family: Family = "responses"

    def __init__(self, name: str) -> None:
        self._name = name
        self._rejected_fields = RejectedFields()

    def url(self, server: UpstreamServer) -> str:
        """See `ProviderAdapter.url`."""
        return server.url("/responses")

    def models_url(self, server: UpstreamServer) -> str:
        """See `ProviderAdapter.models_url`."""
        return server.url("/models")

    def headers(self, secret: str | None) -> Mapping[str, str]:
        """See `ProviderAdapter.headers`."""
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        return {**headers, "authorization": f"Bearer {secret}"} if secret else headers

    def encode(
        self, request: ModelRequest, *, drop: Collection[str], encode: BodyEncoder = encode_body
    ) -> bytes:
        """See `ProviderAdapter.encode`."""
        dropped = {*drop, *self._rejected_fields.of(request.model)}
        return encode_request(request, provider=self._name, drop=dropped, encode=encode)

    def decoder(self, request: ModelRequest) -> ResponsesDecoder:
        """See `ProviderAdapter.decoder`."""
        return ResponsesDecoder(**answer_options(self._name, request))

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
        """See `ProviderAdapter.rejected_field`. Models differ in sampling, reasoning and encrypted items."""
        if status != _BAD_REQUEST:
            return None
        try:
            error = find_error(decode_json(body))
        except DECODE_ERRORS:
            return None
        field = rejected_field(error) if isinstance(error, Mapping) else None
        if field is not None and isinstance(error, Mapping) and not is_about_value(error, field):
            self._rejected_fields.add(request.model, field)
        return field


class ResponsesProvider(ProtocolProvider[ResponsesAdapter]):
    """A server that speaks the Responses API, at the URL that ends before `/responses`.

    See `ProtocolProvider`.
    """

    DEFAULT_NAME = "responses"
    DEFAULT_URL = OPENAI_URL

    @classmethod
    def make_adapter(cls, name: str, _: UpstreamServer, /) -> ResponsesAdapter:
        """See `ProtocolProvider.make_adapter`."""
        return ResponsesAdapter(name)
