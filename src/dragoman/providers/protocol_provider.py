"""Base class of the providers of all HTTP protocols: from an address and a key, or from parts of a hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Generic, Self, TypeVar

from dragoman.http.per_loop_transport import LazyTransport
from dragoman.http.transport import Sender, Timeouts
from dragoman.providers.adapter import ProviderAdapter
from dragoman.providers.endpoint import UpstreamServer
from dragoman.providers.key_pool import KeyPool
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.retry import DEFAULTS, RetryPolicy

DEFAULT_TIMEOUTS = Timeouts()

AdapterT = TypeVar("AdapterT", bound=ProviderAdapter)


class ProtocolProvider(RemoteProvider, Generic[AdapterT]):
    """A server that speaks one protocol; subclasses define the protocol and the vendor's address.

    Connections are opened by the first request, separately in each event loop. By default there are no
    `retries`: the caller decides about another attempt. Use it in `async with`, or call `aclose()`.
    """

    DEFAULT_NAME: ClassVar[str]
    DEFAULT_URL: ClassVar[str]

    adapter: AdapterT

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        retries: int | RetryPolicy = 0,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        name: str | None = None,
    ) -> None:
        name = name or self.DEFAULT_NAME
        url = self.DEFAULT_URL if base_url is None else base_url
        server = UpstreamServer(base_url=url, api_key=api_key, headers=headers or {})
        self.adapter = self.make_adapter(name, server)
        transport, policy = LazyTransport(timeouts), RetryPolicy.of(retries)
        super().__init__(name, server, adapter=self.adapter, transport=transport, policy=policy)

    @classmethod
    def for_server(
        cls,
        name: str,
        server: UpstreamServer,
        *,
        transport: Sender,
        keys: KeyPool | None = None,
        policy: RetryPolicy = DEFAULTS,
        adapter: AdapterT | None = None,
    ) -> Self:
        """Return a provider that uses a transport of the caller, as a hub does for its configuration."""
        provider = cls.__new__(cls)
        provider.adapter = adapter or cls.make_adapter(name, server)
        RemoteProvider.__init__(
            provider, name, server, adapter=provider.adapter, transport=transport, keys=keys, policy=policy
        )
        return provider

    @classmethod
    def make_adapter(cls, name: str, server: UpstreamServer, /) -> AdapterT:
        """Return the adapter to the protocol, with default settings for a server."""
        raise NotImplementedError
