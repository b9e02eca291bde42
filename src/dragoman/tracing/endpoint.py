"""Places: whom a model request goes to, in the words of OpenTelemetry's GenAI conventions."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from dragoman.providers.provider import Provider
from dragoman.providers.remote import RemoteProvider

# The conventions have names of their own for these; other servers go by the protocol that they speak.
PROVIDER_NAMES = {
    "api.cohere.ai": "cohere",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.moonshot.ai": "moonshot_ai",
    "api.moonshot.cn": "moonshot_ai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "openai.azure.com": "azure.ai.openai",
}
DEFAULT_PORTS = {"http": 80, "https": 443}


class ModelEndpoint(msgspec.Struct, frozen=True):
    """The provider's name here, what it is, and where it is if that is another process."""

    provider: str
    family: str
    host: str | None = None
    port: int | None = None


def endpoint_of(provider: Provider) -> ModelEndpoint:
    """Where the provider's models are."""
    if not isinstance(provider, RemoteProvider):
        return ModelEndpoint(provider.name, provider.name)
    url = urlsplit(provider.server.base_url)
    host = url.hostname
    if not host:
        return ModelEndpoint(provider.name, provider.family)
    known = (name for end, name in PROVIDER_NAMES.items() if f".{host}".endswith(f".{end}"))
    return ModelEndpoint(
        provider.name, next(known, provider.family), host, url.port or DEFAULT_PORTS.get(url.scheme)
    )
