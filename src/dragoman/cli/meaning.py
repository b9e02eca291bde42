"""What a configuration means, in words and without any secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dragoman.config import Config, KeyConfig, McpServerConfig, ProviderConfig, key_places

DECISIONS = ("allow", "ask", "deny")
NARROWER = ("effect", "agent", "identity")


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
        "mcpServers": [
            mcp_server(name, server, environ=environ) for name, server in config.mcp_servers.items()
        ],
        "policy": list(policy(config)),
        "reach": reach(config),
    }


def mcp_server(name: str, server: McpServerConfig, *, environ: Mapping[str, str]) -> dict[str, Any]:
    """An MCP server: what is started or asked, what of it is taken, and where its secrets lie.

    A command is told without its arguments: they may hold secrets.
    """
    return {
        "name": name,
        "from": bare(server.url) if server.url else Path(server.command[0]).name,
        "state": "disabled" if not server.enabled else "lazy" if server.lazy else "started",
        "trust": server.trust,
        "tools": list(server.tools),
        "secrets": {field: f"the secret {entry}" for field, entry in server.secrets.items()},
        "missing": [variable for variable in server.env_from if variable not in environ],
    }


def policy(config: Config) -> Iterator[dict[str, Any]]:
    """The rules, and then what becomes of a call that none fits."""
    for rule in config.policy:
        decision = next(word for word in DECISIONS if getattr(rule, word))
        limits = {field: many(getattr(rule, field)) for field in NARROWER if getattr(rule, field)}
        yield {"decision": decision, "operations": many(getattr(rule, decision)), "for": limits}
    for name, agent in config.agents.items():
        if agent.policy is not None:
            yield {"decision": agent.policy, "operations": None, "for": {"agent": [name]}}
    yield {"decision": config.policy_default, "operations": None, "for": {}}


def reach(config: Config) -> dict[str, Any]:
    """What operations may reach, and who may bring some; None for what there is not."""
    web, spokes = config.web, config.spokes
    hosts = {
        "allow": list(web.allow_hosts),
        "deny": list(web.deny_hosts),
        "networks": list(web.allow_networks),
    }
    folders = {
        **({Path(config.files_root).name: config.files_root} if config.files_root else {}),
        **config.files,
    }
    granted = {owner: many(patterns) for owner, patterns in spokes.namespaces.items()}
    return {
        "web": {**hosts, "ports": list(web.ports)} if web.enabled else None,
        "files": folders or None,
        "spokes": {"namespaces": granted, "reserved": list(spokes.reserved)} if spokes.enabled else None,
    }


def many(said: str | tuple[str, ...]) -> list[str]:
    return [said] if isinstance(said, str) else list(said)


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
