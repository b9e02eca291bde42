"""Rules: what must hold between the fields of a configuration, beyond their types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from urllib.parse import urlsplit

import msgspec

from dragoman.config.agents import broken_agents
from dragoman.config.callable import broken_operations
from dragoman.config.faults import Fault, Path, listed, looks_secret, shorten
from dragoman.config.routes import broken_routes
from dragoman.config.sections import Config, KeyConfig, LimitsConfig, ProviderConfig
from dragoman.limits import Limits

SOURCES = ("api_key_env", "api_key_file", "api_key_secret")
# Fields that only some types of provider know. Set for another they would do nothing, unnoticed.
_OF = {
    "script": ("scripted",),
    "model_path": ("local",),
    "version": ("anthropic",),
    "beta": ("anthropic",),
    "max_tokens": ("anthropic",),
    "num_ctx": ("ollama",),
    "keep_alive": ("ollama",),
    "think": ("ollama",),
    "reasoning_field": ("openai",),
    "lenient_finish": ("openai",),
    "thinking": ("openai",),
    "call_ids": ("openai",),
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_NEEDED = {"openai": ("base_url", "such as https://api.openai.com/v1"), "scripted": ("script", "a YAML file")}


def broken_rules(config: Config) -> Iterator[Fault]:
    """Everything in a configuration that cannot be, though its types fit."""
    for name, provider in config.providers.items():
        for rule in _PROVIDER_RULES:
            yield from rule(name, provider)
    yield from _limits(config.limits)
    yield from _telemetry(config)
    yield from _variable(config.master_key_env, path=("master_key_env",))
    yield from broken_routes(config)
    yield from broken_operations(config)
    yield from broken_agents(config)


def _place(name: str, provider: ProviderConfig) -> Iterator[Fault]:
    path = ("providers", name)
    if not name or "/" in name:
        yield Fault(path, "a provider's name is a word without a slash")
    field, example = _NEEDED.get(provider.type, ("", ""))
    if field and not getattr(provider, field):
        yield Fault((*path, field), f"is missing: {example}")
    if provider.base_url is not None:
        yield from _address(provider.base_url, path=(*path, "base_url"))
    for header, value in provider.headers.items():
        if not _HEADER.fullmatch(header) or not value.isprintable():
            yield Fault((*path, "headers", header), "no header that HTTP could carry")


def _address(url: str, *, path: Path) -> Iterator[Fault]:
    """The URL itself is not shown: it may hold a password."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        yield Fault(path, "expected a URL such as https://host/v1, with http:// or https://")


def _foreign(name: str, provider: ProviderConfig) -> Iterator[Fault]:
    for field in msgspec.structs.fields(provider):
        known = _OF.get(field.name, (provider.type,))
        if provider.type not in known and getattr(provider, field.name) != field.default:
            advice = "; in options it would go along" if field.name == "max_tokens" else ""
            yield Fault(
                ("providers", name, field.name),
                f"is for type {listed(known)}, and this is {provider.type}{advice}",
            )


def _keys(name: str, provider: ProviderConfig) -> Iterator[Fault]:
    path = ("providers", name)
    yield from _sources(provider, path=path)
    if provider.keys and any(getattr(provider, source) for source in SOURCES):
        yield Fault((*path, "keys"), f"either several keys here, or one in {listed(SOURCES)}")
    seen: set[str] = set()
    for place, key in enumerate(provider.keys):
        below: Path = (*path, "keys", place)
        if not any(getattr(key, source) for source in SOURCES):
            yield Fault(below, f"expected one of {listed(SOURCES)}")
        yield from _sources(key, path=below)
        if key.name in seen:
            yield Fault((*below, "name"), "another key of this provider has this name")
        seen |= {key.name} if key.name else set()


def _sources(holder: ProviderConfig | KeyConfig, *, path: Path) -> Iterator[Fault]:
    said = [source for source in SOURCES if getattr(holder, source)]
    if len(said) > 1:
        yield Fault((*path, said[1]), f"only one of {listed(said)}")
    yield from _variable(holder.api_key_env, path=(*path, "api_key_env"))
    if holder.api_key_secret and looks_secret(holder.api_key_secret):
        yield Fault(
            (*path, "api_key_secret"), "expected a name in the table of secrets, not the secret itself"
        )


def _variable(name: str | None, *, path: Path) -> Iterator[Fault]:
    if name is not None and (not _VARIABLE.fullmatch(name) or looks_secret(name)):
        yield Fault(path, "expected the name of an environment variable, not the key itself")


def _limits(limits: LimitsConfig) -> Iterator[Fault]:
    named: dict[Path, Limits] = {("key",): limits.key, ("owner",): limits.owner}
    named |= {("owners", owner): held for owner, held in limits.owners.items()}
    yield from chain.from_iterable(_negative(held, path=("limits", *path)) for path, held in named.items())


def _negative(limits: Limits, *, path: Path) -> Iterator[Fault]:
    for field in limits.__struct_fields__:
        value = getattr(limits, field)
        if value is not None and value < 0:
            yield Fault((*path, field), f"expected a number >= 0, got {value}")


def _telemetry(config: Config) -> Iterator[Fault]:
    endpoint = config.telemetry.otlp_endpoint
    if endpoint is not None:
        yield from _address(endpoint, path=("telemetry", "otlp_endpoint"))
    for origin in config.cors.origins:
        if origin != "*" and "://" not in origin:
            place = config.cors.origins.index(origin)
            yield Fault(
                ("cors", "origins", place), f"expected an origin such as https://host, got {shorten(origin)}"
            )


_PROVIDER_RULES: tuple[Callable[[str, ProviderConfig], Iterator[Fault]], ...] = (_place, _foreign, _keys)
