"""Models by name: `provider/model`, with the keys and addresses that the environment has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dragoman.errors import ConfigError
from dragoman.providers.claude_code.provider import ClaudeCodeProvider
from dragoman.providers.direct import DEFAULT_URLS, AnthropicProvider, OllamaProvider, OpenAIProvider
from dragoman.providers.model import Model
from dragoman.providers.provider import Provider

_OLLAMA_PORT = 11434  # Ollama's


def resolve(name: str, environ: Mapping[str, str]) -> Model:
    """The model of this name, such as `openai/gpt-5.1` or `claude-code/sonnet`.

    ConfigError names the variable that is missing. Who asks owns the model's provider, and closes it.
    """
    place, mark, model = name.partition("/")
    make = _FACTORIES.get(place)
    if not mark or not model or make is None:
        raise ConfigError(
            f"there is no model {name!r}: it should read like 'openai/gpt-5.1'",
            hint=f"the providers that need no configuration are {', '.join(sorted(_FACTORIES))}",
        )
    return Model(make(environ, name), model)


def _openai(environ: Mapping[str, str], name: str) -> Provider:
    url = environ.get("OPENAI_BASE_URL") or DEFAULT_URLS["openai"]
    needed = "OPENAI_API_KEY" if url == DEFAULT_URLS["openai"] else None
    return OpenAIProvider(
        base_url=url, api_key=_key("OPENAI_API_KEY", name, environ=environ, required=needed)
    )


def _anthropic(environ: Mapping[str, str], name: str) -> Provider:
    url = environ.get("ANTHROPIC_BASE_URL") or DEFAULT_URLS["anthropic"]
    needed = "ANTHROPIC_API_KEY" if url == DEFAULT_URLS["anthropic"] else None
    return AnthropicProvider(
        base_url=url, api_key=_key("ANTHROPIC_API_KEY", name, environ=environ, required=needed)
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


def _key(variable: str, name: str, *, environ: Mapping[str, str], required: str | None) -> str | None:
    """The key, if there is one; a server of one's own may do without."""
    key = environ.get(variable, "").strip()
    if not key and required:
        raise ConfigError(
            f"the model {name!r} needs the variable {required}, which is not set",
            hint=(
                f"set {required}, or {required.removesuffix('API_KEY')}BASE_URL to a server that needs no key"
            ),
        )
    return key or None


def _ollama_url(host: str) -> str:
    """What `OLLAMA_HOST` names, which is written in many ways: a host, a port, a URL, where to listen."""
    host = host.strip().rstrip("/")
    if not host:
        return DEFAULT_URLS["ollama"]
    scheme, mark, rest = host.partition("://")
    if not mark:
        scheme, rest = "http", host
    place, slash, path = rest.partition("/")
    if place.startswith(":"):
        place = f"127.0.0.1{place}"
    if mark == "" and ":" not in place.rpartition("]")[2]:
        place = f"{place}:{_OLLAMA_PORT}"
    return f"{scheme}://{place.replace('0.0.0.0', '127.0.0.1')}{slash}{path}"  # noqa: S104 - where it listens
