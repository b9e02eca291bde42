"""Any server that speaks OpenAI's chat.completions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from dragoman.http.transport import Sender
from dragoman.ids import new_id
from dragoman.providers.keyring import KeyRing
from dragoman.providers.language import Family, call_ids
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.retry import DEFAULTS, RetryPolicy
from dragoman.providers.server import Server
from dragoman.request import ModelRequest
from dragoman.wire.openai.decoder import Decoder
from dragoman.wire.openai.quirks import Quirks
from dragoman.wire.openai.request import check, encode_request

__all__ = ["OpenAI", "OpenAIProvider", "Server", "quirks_of"]

_THINKS = Quirks(reasoning_field="reasoning_content", knows=frozenset({"thinking"}))
_STRICT = Quirks(knows=frozenset(), completion_limit=True)
VENDORS: Mapping[str, Quirks] = {
    "api.openai.com": _STRICT,
    "openai.azure.com": _STRICT,
    "api.deepseek.com": _THINKS,
    "api.moonshot.ai": replace(_THINKS, call_ids="any"),
    "api.moonshot.cn": replace(_THINKS, call_ids="any"),
    "api.z.ai": _THINKS,
    "open.bigmodel.cn": _THINKS,
    "openrouter.ai": Quirks(reasoning_field="reasoning"),
    "api.mistral.ai": Quirks(call_ids="nine", knows=frozenset()),
    "api.groq.com": Quirks(knows=frozenset()),
    "api.x.ai": Quirks(knows=frozenset()),
    "snowflakecomputing.com": Quirks(lenient_finish=True),
}


def quirks_of(server: Server) -> Quirks:
    """Those of the vendor whose host this is."""
    host = server.host
    return next((quirks for end, quirks in VENDORS.items() if f".{host}".endswith(f".{end}")), Quirks())


class OpenAI:
    """The language chat.completions, with the quirks of one vendor."""

    family: Family = "openai"

    def __init__(self, name: str, quirks: Quirks) -> None:
        self.quirks = quirks
        self._name = name

    def url(self, server: Server) -> str:
        """See `Language.url`."""
        return server.at("/chat/completions")

    def headers(self, secret: str | None) -> Mapping[str, str]:
        """See `Language.headers`."""
        said = {"content-type": "application/json", "accept": "text/event-stream"}
        return {**said, "authorization": f"Bearer {secret}"} if secret else said

    def encode(self, request: ModelRequest, *, drop: Collection[str]) -> bytes:
        """See `Language.encode`."""
        return encode_request(request, quirks=self.quirks, provider=self._name)

    def decoder(self, request: ModelRequest) -> Decoder:
        """See `Language.decoder`."""
        return Decoder(
            self.quirks,
            provider=self._name,
            model=request.model,
            new_id=lambda: new_id("call"),
            taken=call_ids(request.messages),
        )

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""
        return check(request, self.quirks)

    def mend(self, request: ModelRequest, *, status: int, body: bytes) -> str | None:
        """See `Language.mend`: some servers do not know `stream_options`, now or later."""
        return "stream_options" if self.learn(status, body) else None

    def learn(self, status: int, body: bytes) -> bool:
        """See `Language.learn`: whether it was for asking for usage, which will not be done again."""
        if not self.quirks.include_usage or status not in (400, 422) or b"stream_options" not in body:
            return False
        self.quirks = replace(self.quirks, include_usage=False)
        return True


class OpenAIProvider(RemoteProvider):
    """A provider that speaks chat.completions. `quirks` are guessed by the server's host unless given."""

    def __init__(
        self,
        name: str,
        server: Server,
        *,
        transport: Sender,
        keys: KeyRing | None = None,
        policy: RetryPolicy = DEFAULTS,
        quirks: Quirks | None = None,
    ) -> None:
        self.language = OpenAI(name, quirks or quirks_of(server))
        super().__init__(name, server, language=self.language, transport=transport, keys=keys, policy=policy)
