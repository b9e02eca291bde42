"""Explains a configuration as JSON values without secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dragoman.agent.subagent import NAMESPACE
from dragoman.config import (
    AgentConfig,
    Config,
    KeyConfig,
    McpServerConfig,
    ProviderConfig,
    StopConfig,
    key_sources,
)
from dragoman.server.app.agents import build_agents, describe_stop
from dragoman.server.app.model_setup import build_prices, price_lookup

DECISIONS = ("allow", "ask", "deny")
RULE_FILTERS = ("effect", "agent", "identity")


def explain_config(config: Config, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the meaning of a configuration as JSON values, without secrets."""
    limits = config.limits
    return {
        "providers": [
            explain_provider(name, provider, environ=environ) for name, provider in config.providers.items()
        ],
        "model": config.model,
        "defaultProvider": config.default_provider,
        "aliases": {name: list(models) for name, models in config.routes.items()},
        "balance": {name: alias.balance for name, alias in config.balanced.items()},
        "fallbacks": {name: list(models) for name, models in config.fallbacks.items()},
        "fallbackOn": list(config.fallback_on),
        "limits": {
            "key": msgspec.to_builtins(limits.key),
            "owner": msgspec.to_builtins(limits.owner),
            "owners": msgspec.to_builtins(limits.owners),
        },
        "mcpServers": [
            explain_mcp_server(name, server, environ=environ) for name, server in config.mcp_servers.items()
        ],
        "agents": list(explain_agents(config)),
        "policy": list(explain_policy(config)),
        "reach": explain_reach(config),
    }


def explain_mcp_server(name: str, server: McpServerConfig, *, environ: Mapping[str, str]) -> dict[str, Any]:
    """Explain an MCP server: its command or URL, the tools it offers, and the sources of its secrets.

    A command is shown without its arguments: they may hold secrets.
    """
    return {
        "name": name,
        "from": url_without_secrets(server.url) if server.url else Path(server.command[0]).name,
        "state": "disabled" if not server.enabled else "lazy" if server.lazy else "started",
        "trust": server.trust,
        "tools": list(server.tools),
        "secrets": {field: f"the secret {entry}" for field, entry in server.secrets.items()},
        "missing": [variable for variable in server.env_from if variable not in environ],
    }


def explain_agents(config: Config) -> Iterator[dict[str, Any]]:
    """Explain the agents. ConfigError for a function or schema that does not exist.

    `unpriced` lists models without a known price, if the agent has a cost limit.
    """
    build_agents(config)
    price = price_lookup(config, build_prices(config))
    for name, agent in config.agents.items():
        model = agent.model or config.model
        yield {
            "name": name,
            "model": model,
            "callableAs": f"{NAMESPACE}.{name}" if agent.description is not None else None,
            "description": agent.description,
            "stopWhen": [describe_stop(stop) for stop in agent.stop_when],
            "onPrepareStep": agent.on_prepare_step,
            "output": describe_output(agent.output),
            "unpriced": [
                f"{place}/{served}"
                for place, served in (model_targets(model, config) if model and counts_money(agent) else ())
                if config.providers[place].type != "claude-code" and price(place, served) is None
            ],
        }


def counts_money(agent: AgentConfig) -> bool:
    """Whether an agent has a condition on cost."""
    return agent.max_usd is not None or any(map(is_cost, agent.stop_when))


def is_cost(stop: StopConfig) -> bool:
    return stop.cost is not None or any(map(is_cost, (*stop.all, *stop.any)))


def model_targets(model: str, config: Config) -> Iterator[tuple[str, str]]:
    """Yield the providers that serve a model name, each with its own name for the model."""
    if model in config.routes:
        for each in config.routes[model]:
            yield from model_targets(each, config)
        return
    place, slash, served = model.partition("/")
    if slash and place in config.providers:
        yield place, served
    elif config.default_provider is not None:
        yield config.default_provider, model


def describe_output(output: dict[str, Any] | str | None) -> str | None:
    """Describe the required output in a few words."""
    if not isinstance(output, dict):
        return output
    fields = output.get("properties")
    kind = str(output.get("type", "a value of its schema"))
    return f"{kind} with {', '.join(fields)}" if isinstance(fields, dict) else kind


def explain_policy(config: Config) -> Iterator[dict[str, Any]]:
    """Yield the rules, then the default for a call that matches none."""
    for rule in config.policy:
        decision = next(word for word in DECISIONS if getattr(rule, word))
        limits = {field: as_list(getattr(rule, field)) for field in RULE_FILTERS if getattr(rule, field)}
        yield {"decision": decision, "operations": as_list(getattr(rule, decision)), "for": limits}
    for name, agent in config.agents.items():
        if agent.policy is not None:
            yield {"decision": agent.policy, "operations": None, "for": {"agent": [name]}}
    yield {"decision": config.policy_default, "operations": None, "for": {}}


def explain_reach(config: Config) -> dict[str, Any]:
    """Explain what operations may access, and who may register operations; None for what is off."""
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
    granted = {owner: as_list(patterns) for owner, patterns in spokes.namespaces.items()}
    return {
        "web": {**hosts, "ports": list(web.ports)} if web.enabled else None,
        "files": folders or None,
        "spokes": {"namespaces": granted, "reserved": list(spokes.reserved)} if spokes.enabled else None,
    }


def as_list(value: str | tuple[str, ...]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def explain_provider(name: str, provider: ProviderConfig, *, environ: Mapping[str, str]) -> dict[str, Any]:
    """Explain a provider: its URL, keys and models."""
    return {
        "name": name,
        "type": provider.type,
        "url": url_without_secrets(provider.url) if provider.url else None,
        "keys": [
            {"name": key, "from": key_source(place), "state": key_state(place, environ)}
            for key, place in key_sources(provider).items()
        ],
        "models": list(provider.models),
    }


def url_without_secrets(url: str) -> str:
    """Return a URL without its password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def key_source(place: KeyConfig) -> str:
    """Describe where a key comes from."""
    if place.api_key_env is not None:
        return f"${place.api_key_env}"
    return place.api_key_file or f"the secret {place.api_key_secret}"


def key_state(place: KeyConfig, environ: Mapping[str, str]) -> str:
    """Return `present`, `missing`, or `unknown` for a key in the encrypted table, which is not opened."""
    if place.api_key_env is not None:
        return "present" if environ.get(place.api_key_env, "").strip() else "missing"
    if place.api_key_file is None:
        return "unknown"
    try:
        return "present" if Path(place.api_key_file).read_bytes().strip() else "missing"
    except OSError:
        return "missing"
