"""Anthropic's own API, and servers that speak it: `/v1/messages`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import msgspec

from dragoman.http.transport import Sender
from dragoman.ids import new_id
from dragoman.providers.caching import Caching
from dragoman.providers.keyring import KeyRing
from dragoman.providers.language import Family, call_ids, said
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.retry import DEFAULTS, RetryPolicy
from dragoman.providers.server import Server
from dragoman.request import ModelRequest
from dragoman.wire.anthropic.decoder import Decoder
from dragoman.wire.anthropic.request import check, encode_body, refused_field, write_request

__all__ = ["Anthropic", "AnthropicHabits", "AnthropicProvider"]

_MENDABLE = 400
_FOR_GOOD = re.compile(r"deprecated|not supported|unsupported|does not support|Extra inputs", re.IGNORECASE)


class AnthropicHabits(msgspec.Struct, frozen=True, kw_only=True):
    """`version` and `beta` are sent as headers; `max_tokens` is for requests without one, None: by model."""

    version: str = "2023-06-01"
    beta: tuple[str, ...] = ()
    max_tokens: int | None = None


USUAL = AnthropicHabits()


class Anthropic:
    """The language Messages. What a model has refused once is not sent to it again."""

    family: Family = "anthropic"

    def __init__(self, name: str, habits: AnthropicHabits) -> None:
        self.habits = habits
        self.caching = Caching()
        self._name = name
        self._refused: dict[str, frozenset[str]] = {}

    def url(self, server: Server) -> str:
        """See `Language.url`."""
        return server.at("/messages", root="/v1")

    def headers(self, secret: str | None) -> Mapping[str, str]:
        """See `Language.headers`."""
        said = {"content-type": "application/json", "anthropic-version": self.habits.version}
        if self.habits.beta:
            said["anthropic-beta"] = ",".join(self.habits.beta)
        return {**said, "x-api-key": secret} if secret else said

    def encode(self, request: ModelRequest, *, drop: Collection[str]) -> bytes:
        """See `Language.encode`."""
        body = write_request(
            request,
            provider=self._name,
            max_tokens=self.habits.max_tokens,
            drop={*drop, *self._refused.get(request.model, ())},
        )
        if request.options.get("cache_control") and not drop:
            self.caching.note(request, body)
        return encode_body(body)

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
        return check(request, provider=self._name)

    def learn(self, status: int, body: bytes) -> bool:
        """See `Language.learn`: nothing was put in."""
        return False

    def mend(self, request: ModelRequest, *, status: int, body: bytes) -> str | None:
        """See `Language.mend`. Models differ in which of the sampling and thinking fields they take; what a
        model never takes is not sent to it again.
        """
        words = said(body) if status == _MENDABLE else ""
        field = refused_field(words)
        if field is not None and _FOR_GOOD.search(words):
            self._refused[request.model] = self._refused.get(request.model, frozenset()) | {field}
        return field


class AnthropicProvider(RemoteProvider):
    """A provider that speaks Messages. `caching.on_bust` hears when what was cached is of no use."""

    def __init__(
        self,
        name: str,
        server: Server,
        *,
        transport: Sender,
        keys: KeyRing | None = None,
        policy: RetryPolicy = DEFAULTS,
        habits: AnthropicHabits = USUAL,
    ) -> None:
        self.language = Anthropic(name, habits)
        self.caching = self.language.caching
        super().__init__(name, server, language=self.language, transport=transport, keys=keys, policy=policy)
