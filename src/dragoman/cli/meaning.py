"""What a configuration means, in words and without any secret."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dragoman.config import Config, KeyConfig, ProviderConfig, key_places


def explain(config: Config, environ: Mapping[str, str]) -> dict[str, Any]:
    """What a configuration means, without any secret."""
    limits = config.limits
    return {
        "providers": [shown(name, provider, environ=environ) for name, provider in config.providers.items()],
        "model": config.model,
        "defaultProvider": config.default_provider,
        "aliases": {name: list(models) for name, models in config.routes.items()},
        "fallbacks": {name: list(models) for name, models in config.fallbacks.items()},
        "fallbackOn": list(config.fallback_on),
        "limits": {
            "key": msgspec.to_builtins(limits.key),
            "owner": msgspec.to_builtins(limits.owner),
            "owners": msgspec.to_builtins(limits.owners),
        },
    }


def shown(name: str, provider: ProviderConfig, *, environ: Mapping[str, str]) -> dict[str, Any]:
    """A provider: where it is, its keys, its models."""
    return {
        "name": name,
        "type": provider.type,
        "url": bare(provider.url) if provider.url else None,
        "keys": [
            {"name": key, "from": origin(place), "state": state(place, environ)}
            for key, place in key_places(provider).items()
        ],
        "models": list(provider.models),
    }


def bare(url: str) -> str:
    """An address without a password or query in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def origin(place: KeyConfig) -> str:
    """Where a key lies."""
    if place.api_key_env is not None:
        return f"${place.api_key_env}"
    return place.api_key_file or f"the secret {place.api_key_secret}"


def state(place: KeyConfig, environ: Mapping[str, str]) -> str:
    """Whether a key is there: `present`, `missing`, or `unknown` for one in the table, which stays closed."""
    if place.api_key_env is not None:
        return "present" if environ.get(place.api_key_env, "").strip() else "missing"
    if place.api_key_file is None:
        return "unknown"
    try:
        return "present" if Path(place.api_key_file).read_bytes().strip() else "missing"
    except OSError:
        return "missing"
