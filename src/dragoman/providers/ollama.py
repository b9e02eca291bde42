"""Ollama's own API: `/api/chat`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.http.transport import Sender
from dragoman.ids import new_id
from dragoman.providers.keyring import KeyRing
from dragoman.providers.language import Family, call_ids, said
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.retry import DEFAULTS, RetryPolicy
from dragoman.providers.server import Server
from dragoman.request import ModelRequest
from dragoman.wire.ollama.decoder import Decoder
from dragoman.wire.ollama.request import check, encode_request, refused_field

__all__ = ["Ollama", "OllamaHabits", "OllamaProvider"]

_MENDABLE = 400


class OllamaHabits(msgspec.Struct, frozen=True, kw_only=True):
    """What goes along with each request unless it says otherwise; `num_ctx` in tokens.

    Without `num_ctx` Ollama takes a small context and drops old messages in silence.
    """

    num_ctx: int | None = None
    keep_alive: str | float | None = None
    think: bool | str | None = None


USUAL = OllamaHabits()


class Ollama:
    """The language of `/api/chat`. What a model has refused once is not sent to it again."""

    family: Family = "ollama"

    def __init__(self, name: str, habits: OllamaHabits) -> None:
        self.habits = habits
        self._name = name
        self._refused: dict[str, frozenset[str]] = {}

    def url(self, server: Server) -> str:
        """See `Language.url`."""
        return server.at("/chat", root="/api")

    def headers(self, secret: str | None) -> Mapping[str, str]:
        """See `Language.headers`."""
        said = {"content-type": "application/json", "accept": "application/x-ndjson"}
        return {**said, "authorization": f"Bearer {secret}"} if secret else said

    def encode(self, request: ModelRequest, *, drop: Collection[str]) -> bytes:
        """See `Language.encode`."""
        return encode_request(
            self._usual(request),
            provider=self._name,
            num_ctx=self.habits.num_ctx,
            drop={*drop, *self._refused.get(request.model, ())},
        )

    def decoder(self, request: ModelRequest) -> Decoder:
        """See `Language.decoder`."""
        return Decoder(
            provider=self._name,
            model=request.model,
            new_id=lambda: new_id("call"),
            taken=call_ids(request.messages),
        )

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""
        return check(request)

    def learn(self, status: int, body: bytes) -> bool:
        """See `Language.learn`: nothing was put in."""
        return False

    def mend(self, request: ModelRequest, *, status: int, body: bytes) -> str | None:
        """See `Language.mend`: a model that cannot think says so, and will not learn it."""
        field = refused_field(said(body)) if status == _MENDABLE else None
        if field is not None:
            self._refused[request.model] = self._refused.get(request.model, frozenset()) | {field}
        return field

    def _usual(self, request: ModelRequest) -> ModelRequest:
        usual: dict[str, Any] = {}
        if self.habits.keep_alive is not None:
            usual["keep_alive"] = self.habits.keep_alive
        if self.habits.think is not None and "reasoning_effort" not in request.options:
            usual["think"] = self.habits.think
        return replace(request, options={**usual, **request.options}) if usual else request


class OllamaProvider(RemoteProvider):
    """A provider that speaks Ollama's language."""

    def __init__(
        self,
        name: str,
        server: Server,
        *,
        transport: Sender,
        keys: KeyRing | None = None,
        policy: RetryPolicy = DEFAULTS,
        habits: OllamaHabits = USUAL,
    ) -> None:
        self.language = Ollama(name, habits)
        super().__init__(name, server, language=self.language, transport=transport, keys=keys, policy=policy)
