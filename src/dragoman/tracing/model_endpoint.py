"""The endpoint of a model request, as OpenTelemetry's GenAI conventions name it."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from dragoman.providers.provider import Provider
from dragoman.providers.remote import RemoteProvider

# Names that the conventions define, by host suffix; other servers are named by their protocol family.
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
    """A provider's configured name, its name in the conventions, and its address if it is remote."""

    provider: str
    family: str
    host: str | None = None
    port: int | None = None


def endpoint_of(provider: Provider) -> ModelEndpoint:
    """Return the endpoint of the provider's models."""
    if not isinstance(provider, RemoteProvider):
        return ModelEndpoint(provider.name, provider.name)
    url = urlsplit(provider.server.base_url)
    host = url.hostname
    if not host:
        return ModelEndpoint(provider.name, provider.family)
    names = (name for suffix, name in PROVIDER_NAMES.items() if f".{host}".endswith(f".{suffix}"))
    return ModelEndpoint(
        provider.name, next(names, provider.family), host, url.port or DEFAULT_PORTS.get(url.scheme)
    )
