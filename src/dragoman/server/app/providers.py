"""Builds the providers of one configuration with their transports. A reload builds new ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dragoman.config import Config, ProviderConfig, key_sources, read_key
from dragoman.config.problems import blame_field
from dragoman.http.connection import Timeouts
from dragoman.http.transport import Transport
from dragoman.http.url_and_proxy import proxies_from
from dragoman.providers.adapter import AnswerLimits
from dragoman.providers.anthropic import AnthropicAdapter, AnthropicProvider, AnthropicSettings
from dragoman.providers.claude_code.provider import ClaudeCodeProvider
from dragoman.providers.endpoint import UpstreamServer
from dragoman.providers.key_pool import Cooldown, KeyPool, ProviderKey
from dragoman.providers.local.provider import LocalProvider
from dragoman.providers.ollama import OllamaAdapter, OllamaProvider, OllamaSettings
from dragoman.providers.openai import OpenAIAdapter, OpenAIProvider, quirks_of
from dragoman.providers.provider import Provider, close_provider
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.responses import ResponsesProvider
from dragoman.providers.retry import RetryPolicy
from dragoman.providers.scripted import ScriptedProvider, read_script

log = logging.getLogger(__name__)
QUIRKS = ("reasoning_field", "lenient_finish", "thinking", "call_ids")


class ProviderSet:
    """Providers by name. `secrets` are the entries of the encrypted table that the configuration names."""

    def __init__(self, config: Config, environ: Mapping[str, str], *, secrets: Mapping[str, str]) -> None:
        self.providers: dict[str, Provider] = {}
        self.transports: list[Transport] = []
        for name, provider in config.providers.items():
            transport = build_transport(provider, environ)
            self.transports.append(transport)
            keys = build_key_pool(name, provider, environ=environ, secrets=secrets)
            with blame_field(f"providers.{name}{'.script' if provider.type == 'scripted' else ''}"):
                built = build_provider(name, provider, keys=keys, transport=transport, environ=environ)
            if isinstance(built, RemoteProvider):
                built.limits = answer_limits(config)
            self.providers[name] = built

    def remote_providers(self) -> Mapping[str, RemoteProvider]:
        """Return the providers that are remote servers with keys."""
        return {name: each for name, each in self.providers.items() if isinstance(each, RemoteProvider)}

    async def close_when_idle(self) -> None:
        """Close the providers when no request is active any more."""
        for transport in self.transports:
            await transport.wait_idle()
        await self.close()

    async def close(self) -> None:
        """Close the providers and their transports now."""
        try:
            for provider in self.providers.values():
                await close_provider(provider)
        finally:
            for transport in self.transports:
                await transport.close()


def answer_limits(config: Config) -> AnswerLimits:
    """Return the limits of providers' answers."""
    return AnswerLimits(document=config.limits.document, arguments=config.limits.arguments)


def secret_names(config: Config) -> set[str]:
    """Return the names of the encrypted table that the configuration uses."""
    return {
        key.api_key_secret
        for provider in config.providers.values()
        for key in key_sources(provider).values()
        if key.api_key_secret
    }


def build_key_pool(
    name: str, provider: ProviderConfig, *, environ: Mapping[str, str], secrets: Mapping[str, str]
) -> KeyPool:
    """Build the pool of available keys; without any, the provider sends requests without a key."""
    found = {
        label: read_key(place, name=name, environ=environ, secrets=secrets)
        for label, place in key_sources(provider).items()
    }
    cooldown = Cooldown(
        failures=provider.cooldown.failures,
        window=provider.cooldown.window,
        seconds=provider.cooldown.seconds,
    )
    keys = [ProviderKey(label, secret) for label, secret in found.items() if secret]
    return KeyPool(keys, cooldown=cooldown)


def build_provider(
    name: str,
    provider: ProviderConfig,
    *,
    keys: KeyPool,
    transport: Transport,
    environ: Mapping[str, str],
) -> Provider:
    """Build one provider."""
    server = UpstreamServer(base_url=provider.url or "", headers=provider.headers)
    common: dict[str, Any] = {
        "transport": transport,
        "keys": keys,
        "policy": RetryPolicy(retries=provider.retries),
    }
    match provider.type:
        case "scripted":
            return ScriptedProvider(read_script(Path(provider.script or "")), name=name)
        case "local":
            return LocalProvider(name, transport=transport, model_path=provider.model_path)
        case "claude-code":
            return build_claude_code(name, provider, environ=environ)
        case "openai":
            overrides = {word: value for word in QUIRKS if (value := getattr(provider, word)) is not None}
            adapter = OpenAIAdapter(name, replace(quirks_of(server), **overrides))
            return OpenAIProvider.for_server(name, server, adapter=adapter, **common)
        case "responses":
            return ResponsesProvider.for_server(name, server, **common)
        case "anthropic":
            anthropic = AnthropicSettings(
                version=provider.version, beta=provider.beta, max_tokens=provider.max_tokens
            )
            return AnthropicProvider.for_server(
                name, server, adapter=AnthropicAdapter(name, anthropic), **common
            )
        case "ollama":
            ollama = OllamaSettings(
                num_ctx=provider.num_ctx, keep_alive=provider.keep_alive, think=provider.think
            )
            return OllamaProvider.for_server(name, server, adapter=OllamaAdapter(name, ollama), **common)


def build_claude_code(
    name: str, provider: ProviderConfig, *, environ: Mapping[str, str]
) -> ClaudeCodeProvider:
    """Build the provider that runs the Claude Code CLI."""
    return ClaudeCodeProvider(
        provider.executable,
        name=name,
        permission_mode=provider.permission_mode,
        agent=provider.agent,
        cwd=provider.cwd,
        allowed_tools=provider.allowed_tools,
        disallowed_tools=provider.disallowed_tools,
        max_turns=provider.max_turns,
        mcp_config=provider.mcp_config,
        arguments=provider.arguments,
        environ=environ,
    )


def build_transport(provider: ProviderConfig, environ: Mapping[str, str]) -> Transport:
    """Build the transport of a provider's requests."""
    timeouts = Timeouts(
        connect=provider.connect_timeout,
        first_byte=provider.first_byte_timeout,
        idle=provider.idle_timeout,
        total=provider.total_timeout,
    )
    return Transport(
        timeouts=timeouts, max_connections_per_host=provider.connections, proxies=proxies_from(environ)
    )
