"""Any server that speaks OpenAI's chat.completions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from dragoman.model_request import ModelRequest
from dragoman.providers.adapter import Family, answer_options
from dragoman.providers.endpoint import UpstreamServer
from dragoman.providers.protocol_provider import ProtocolProvider
from dragoman.wire.json_codec import BodyEncoder, encode_body
from dragoman.wire.openai.decoder import OpenAIDecoder
from dragoman.wire.openai.quirks import Quirks
from dragoman.wire.openai.request import check_request, encode_request

OPENAI_URL = "https://api.openai.com/v1"

__all__ = ["OpenAIAdapter", "OpenAIProvider", "UpstreamServer", "quirks_of"]

_THINKING = Quirks(reasoning_field="reasoning_content", accepted_options=frozenset({"thinking"}))
_STRICT = Quirks(accepted_options=frozenset(), uses_max_completion_tokens=True)
VENDORS: Mapping[str, Quirks] = {
    "api.openai.com": _STRICT,
    "openai.azure.com": _STRICT,
    "api.deepseek.com": _THINKING,
    "api.moonshot.ai": replace(_THINKING, call_id_format="any"),
    "api.moonshot.cn": replace(_THINKING, call_id_format="any"),
    "api.z.ai": _THINKING,
    "open.bigmodel.cn": _THINKING,
    "openrouter.ai": Quirks(reasoning_field="reasoning"),
    "api.mistral.ai": Quirks(call_id_format="nine", accepted_options=frozenset()),
    "api.groq.com": Quirks(accepted_options=frozenset()),
    "api.x.ai": Quirks(accepted_options=frozenset()),
    "snowflakecomputing.com": Quirks(lenient_finish=True),
}


def quirks_of(server: UpstreamServer) -> Quirks:
    """Return the quirks of the vendor whose host this is; the defaults for other hosts."""
    host = server.host
    return next((quirks for end, quirks in VENDORS.items() if f".{host}".endswith(f".{end}")), Quirks())


class OpenAIAdapter:
    """The chat.completions protocol, with the quirks of one vendor."""

    family: Family = "openai"

    def __init__(self, name: str, quirks: Quirks) -> None:
        self.quirks = quirks
        self._name = name

    def url(self, server: UpstreamServer) -> str:
        """See `ProviderAdapter.url`."""
        return server.url("/chat/completions")

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
        return encode_request(request, quirks=self.quirks, provider=self._name, encode=encode)

    def decoder(self, request: ModelRequest) -> OpenAIDecoder:
        """See `ProviderAdapter.decoder`."""
        return OpenAIDecoder(self.quirks, **answer_options(self._name, request))

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""
        return check_request(request, self.quirks)

    def rejected_options(self, request: ModelRequest) -> Sequence[str]:
        """See `ProviderAdapter.rejected_options`. Only a field that the hub adds itself is ever omitted."""
        return ()

    def rejected_field(self, request: ModelRequest, *, status: int, body: bytes) -> str | None:
        """See `ProviderAdapter.rejected_field`. Some servers do not support `stream_options`."""
        if "stream_options" in request.options:  # set by the client, whose value may be wrong
            return None
        return "stream_options" if self.learn_from_rejection(status, body) else None

    def learn_from_rejection(self, status: int, body: bytes) -> bool:
        """See `ProviderAdapter.learn_from_rejection`. Usage is not requested again from this server."""
        if not self.quirks.include_usage or status not in (400, 422) or b"stream_options" not in body:
            return False
        self.quirks = replace(self.quirks, include_usage=False)
        return True


class OpenAIProvider(ProtocolProvider[OpenAIAdapter]):
    """Any server that speaks OpenAI's chat.completions, at the URL that ends before `/chat/completions`.

    See `ProtocolProvider`. The server's quirks are guessed by its host.
    """

    DEFAULT_NAME = "openai"
    DEFAULT_URL = OPENAI_URL

    @classmethod
    def make_adapter(cls, name: str, server: UpstreamServer, /) -> OpenAIAdapter:
        """See `ProtocolProvider.make_adapter`."""
        return OpenAIAdapter(name, quirks_of(server))
