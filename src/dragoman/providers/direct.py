"""Providers for scripts and tests: a server and a key, with connections of their own.

They are those of the hub (`openai.py`, `anthropic.py`, `ollama.py`), made without a configuration. Nothing is
opened before the first request; a provider that was closed opens again when it is asked again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from dragoman.http.transport import Response, Timeouts, Transport, proxies_from
from dragoman.providers import anthropic, ollama, openai
from dragoman.providers.retry import RetryPolicy
from dragoman.providers.upstream import UpstreamServer

__all__ = ["DEFAULT_URLS", "AnthropicProvider", "LazyTransport", "OllamaProvider", "OpenAIProvider"]

DEFAULT_URLS: Mapping[str, str] = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "ollama": "http://127.0.0.1:11434",
}
DEFAULT_TIMEOUTS = Timeouts()


class LazyTransport:
    """A transport that is made when it is first needed, and anew in each event loop."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._transport: Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeouts: Timeouts | None = None,
    ) -> Response:
        """See `Transport.send`."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._loop is not loop:
            self._transport, self._loop = self._open(), loop
        return await self._transport.send(method, url, headers=headers, body=body, timeouts=timeouts)

    async def close(self) -> None:
        """Close what this event loop has opened."""
        transport, self._transport = self._transport, None
        if transport is not None and self._loop is asyncio.get_running_loop():
            await transport.close()

    def _open(self) -> Transport:
        return Transport(timeouts=self._timeouts, proxies=proxies_from(os.environ))


class OpenAIProvider(openai.OpenAIProvider):
    """Any server that speaks OpenAI's chat.completions, at the URL that ends before `/chat/completions`.

    `retries` is 0: whoever runs the agent decides about another attempt. Use it in `async with`, or end it
    with `aclose()`.
    """

    def __init__(
        self,
        *,
        base_url: str = DEFAULT_URLS["openai"],
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        retries: int | RetryPolicy = 0,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        name: str = "openai",
    ) -> None:
        self._connections = LazyTransport(timeouts)
        super().__init__(
            name, _server(base_url, api_key, headers=headers), **_options(self._connections, retries)
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._connections.close()


class AnthropicProvider(anthropic.AnthropicProvider):
    """Anthropic's API, or a server that speaks it; see `OpenAIProvider`."""

    def __init__(
        self,
        *,
        base_url: str = DEFAULT_URLS["anthropic"],
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        retries: int | RetryPolicy = 0,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        name: str = "anthropic",
    ) -> None:
        self._connections = LazyTransport(timeouts)
        super().__init__(
            name, _server(base_url, api_key, headers=headers), **_options(self._connections, retries)
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._connections.close()


class OllamaProvider(ollama.OllamaProvider):
    """An Ollama server, by its own API; see `OpenAIProvider`. It mostly needs no key."""

    def __init__(
        self,
        *,
        base_url: str = DEFAULT_URLS["ollama"],
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        retries: int | RetryPolicy = 0,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        name: str = "ollama",
    ) -> None:
        self._connections = LazyTransport(timeouts)
        super().__init__(
            name, _server(base_url, api_key, headers=headers), **_options(self._connections, retries)
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._connections.close()


def _server(base_url: str, api_key: str | None, *, headers: Mapping[str, str] | None) -> UpstreamServer:
    return UpstreamServer(base_url=base_url, api_key=api_key, headers=headers or {})


def _options(connections: LazyTransport, retries: int | RetryPolicy) -> dict[str, Any]:
    return {"transport": connections, "policy": RetryPolicy.of(retries)}
