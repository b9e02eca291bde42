"""Resolve `provider/model` to a model, with keys and addresses from the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from dragoman.errors import ConfigError
from dragoman.providers.anthropic import ANTHROPIC_URL, AnthropicProvider
from dragoman.providers.claude_code.provider import ClaudeCodeProvider
from dragoman.providers.model import Model
from dragoman.providers.ollama import OLLAMA_URL, OllamaProvider
from dragoman.providers.openai import OPENAI_URL, OpenAIProvider
from dragoman.providers.provider import Provider
from dragoman.suggestions import find_similar_name

_OLLAMA_PORT = 11434
_SEPARATOR = re.compile(r"\s*[/:\\\s]\s*")  # characters that people write in place of the slash
_FAMILY_END = re.compile(r"(?<=[A-Za-z])[-_.\d]")  # the character after the family in a model's name


def resolve(name: str, environ: Mapping[str, str]) -> Model:
    """Return the model of a name such as `openai/gpt-5.1` or `claude-code/sonnet`.

    Raises ConfigError for an unknown name or a missing environment variable. The caller closes the model's
    provider.
    """
    provider, slash, model = name.partition("/")
    make = _FACTORIES.get(provider)
    if not slash or not model or make is None:
        similar = find_similar_model(name)
        suggestion = "write it like 'openai/gpt-5.1'" if similar is None else f"did you mean {similar!r}?"
        raise ConfigError(
            f"there is no model {name!r}; {suggestion}",
            hint=f"the providers that need no configuration are {', '.join(sorted(_FACTORIES))}",
        )
    return Model(make(environ, name), model)


def find_similar_model(name: str) -> str | None:
    """Return the name that was probably meant: of a similar provider, or with the provider added."""
    first, _, model = _SEPARATOR.sub("/", name.strip(), count=1).partition("/")
    provider = find_similar_name(first.strip(), _FACTORIES) if model else None
    if provider is not None:
        return f"{provider}/{model.strip()}"
    family = find_similar_name(_FAMILY_END.split(first.strip(), maxsplit=1)[0], _PROVIDER_OF_FAMILY)
    is_bare = "/" not in name and family is not None
    return f"{_PROVIDER_OF_FAMILY[str(family)]}/{name.strip()}" if is_bare else None


def _openai(environ: Mapping[str, str], name: str) -> Provider:
    url = environ.get("OPENAI_BASE_URL") or OPENAI_URL
    required = "OPENAI_API_KEY" if url == OPENAI_URL else None
    return OpenAIProvider(
        base_url=url, api_key=_key("OPENAI_API_KEY", name, environ=environ, required=required)
    )


def _anthropic(environ: Mapping[str, str], name: str) -> Provider:
    url = environ.get("ANTHROPIC_BASE_URL") or ANTHROPIC_URL
    required = "ANTHROPIC_API_KEY" if url == ANTHROPIC_URL else None
    return AnthropicProvider(
        base_url=url, api_key=_key("ANTHROPIC_API_KEY", name, environ=environ, required=required)
    )


def _ollama(environ: Mapping[str, str], _: str) -> Provider:
    url = _ollama_url(environ.get("OLLAMA_HOST", ""))
    return OllamaProvider(base_url=url, api_key=environ.get("OLLAMA_API_KEY") or None)


def _claude_code(environ: Mapping[str, str], _: str) -> Provider:
    return ClaudeCodeProvider(environ=environ)


_FACTORIES: Mapping[str, Callable[[Mapping[str, str], str], Provider]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "ollama": _ollama,
    "claude-code": _claude_code,
}
_PROVIDER_OF_FAMILY: Mapping[str, str] = {
    "gpt": "openai",
    "chatgpt": "openai",
    "claude": "anthropic",
    "sonnet": "claude-code",
    "opus": "claude-code",
    "haiku": "claude-code",
    "llama": "ollama",
    "qwen": "ollama",
    "mistral": "ollama",
    "gemma": "ollama",
}
"""Providers by the first word of a model's name, for suggestions only."""


def _key(variable: str, name: str, *, environ: Mapping[str, str], required: str | None) -> str | None:
    """Return the key in a variable, None if it is not set. Raises ConfigError if it is required."""
    key = environ.get(variable, "").strip()
    if not key and required:
        raise ConfigError(
            f"the model {name!r} needs the environment variable {required}, which is not set",
            hint=(
                f"set {required}, or {required.removesuffix('API_KEY')}BASE_URL to a server that needs no key"
            ),
        )
    return key or None


def _ollama_url(host: str) -> str:
    """Return the URL for `OLLAMA_HOST`, which may be a host, a port, a URL or a listen address."""
    host = host.strip().rstrip("/")
    if not host:
        return OLLAMA_URL
    scheme, separator, rest = host.partition("://")
    if not separator:
        scheme, rest = "http", host
    authority, slash, path = rest.partition("/")
    if authority.startswith(":"):
        authority = f"127.0.0.1{authority}"
    if separator == "" and ":" not in authority.rpartition("]")[2]:
        authority = f"{authority}:{_OLLAMA_PORT}"
    return f"{scheme}://{authority.replace('0.0.0.0', '127.0.0.1')}{slash}{path}"  # noqa: S104 - a listen address
