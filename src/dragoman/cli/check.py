"""`dragoman check`: whether a configuration is good, and what it means. No provider is asked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dragoman.agent.subagent import NAMESPACE
from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.terminal import examples, print_json, print_line, print_note, print_table
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

# ---- What a configuration means, in words and without any secret.

DECISIONS = ("allow", "ask", "deny")
RULE_FILTERS = ("effect", "agent", "identity")


def explain_config(config: Config, environ: Mapping[str, str]) -> dict[str, Any]:
    """What a configuration means, without any secret."""
    limits = config.limits
    return {
        "providers": [
            explain_provider(name, provider, environ=environ) for name, provider in config.providers.items()
        ],
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
            explain_mcp_server(name, server, environ=environ) for name, server in config.mcp_servers.items()
        ],
        "agents": list(explain_agents(config)),
        "policy": list(explain_policy(config)),
        "reach": explain_reach(config),
    }


def explain_mcp_server(name: str, server: McpServerConfig, *, environ: Mapping[str, str]) -> dict[str, Any]:
    """An MCP server: what is started or asked, what of it is taken, and where its secrets lie.

    A command is told without its arguments: they may hold secrets.
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
    """The agents, and what they say of their answers. ConfigError for a function or schema that is not there.

    `unpriced` are models without a known price, where that matters.
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
    """Whether an agent does something at a cost."""
    return agent.max_usd is not None or any(map(is_cost, agent.stop_when))


def is_cost(stop: StopConfig) -> bool:
    return stop.cost is not None or any(map(is_cost, (*stop.all, *stop.any)))


def model_targets(model: str, config: Config) -> Iterator[tuple[str, str]]:
    """The providers that a model's name leads to, each with its own name for it."""
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
    """What an answer has to be, in short."""
    if not isinstance(output, dict):
        return output
    fields = output.get("properties")
    kind = str(output.get("type", "a value of its schema"))
    return f"{kind} with {', '.join(fields)}" if isinstance(fields, dict) else kind


def explain_policy(config: Config) -> Iterator[dict[str, Any]]:
    """The rules, and then what becomes of a call that none fits."""
    for rule in config.policy:
        decision = next(word for word in DECISIONS if getattr(rule, word))
        limits = {field: as_list(getattr(rule, field)) for field in RULE_FILTERS if getattr(rule, field)}
        yield {"decision": decision, "operations": as_list(getattr(rule, decision)), "for": limits}
    for name, agent in config.agents.items():
        if agent.policy is not None:
            yield {"decision": agent.policy, "operations": None, "for": {"agent": [name]}}
    yield {"decision": config.policy_default, "operations": None, "for": {}}


def explain_reach(config: Config) -> dict[str, Any]:
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
    granted = {owner: as_list(patterns) for owner, patterns in spokes.namespaces.items()}
    return {
        "web": {**hosts, "ports": list(web.ports)} if web.enabled else None,
        "files": folders or None,
        "spokes": {"namespaces": granted, "reserved": list(spokes.reserved)} if spokes.enabled else None,
    }


def as_list(value: str | tuple[str, ...]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def explain_provider(name: str, provider: ProviderConfig, *, environ: Mapping[str, str]) -> dict[str, Any]:
    """A provider: where it is, its keys, its models."""
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
    """An address without a password or query in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def key_source(place: KeyConfig) -> str:
    """Where a key lies."""
    if place.api_key_env is not None:
        return f"${place.api_key_env}"
    return place.api_key_file or f"the secret {place.api_key_secret}"


def key_state(place: KeyConfig, environ: Mapping[str, str]) -> str:
    """Whether a key is there: `present`, `missing`, or `unknown` for one in the table, which stays closed."""
    if place.api_key_env is not None:
        return "present" if environ.get(place.api_key_env, "").strip() else "missing"
    if place.api_key_file is None:
        return "unknown"
    try:
        return "present" if Path(place.api_key_file).read_bytes().strip() else "missing"
    except OSError:
        return "missing"


EPILOG = examples(
    ("dragoman check", "check ./dragoman.yaml and the environment"),
    ("dragoman check --config hub.yaml && systemctl reload dragoman", "reload only what is good"),
    ("dragoman check --json", "what it means, for programs"),
)


def check(*, config: ConfigFile = None, json: AsJson = False) -> None:
    """Check a configuration.

    Says every error with its line and field, or else what the configuration means: providers and whether
    their keys are there (never the keys), aliases, fallbacks and limits; MCP servers, which agents others can
    call, when agents end their answers, the policy, and what operations may reach. The modules and files
    that agents name are loaded. Nothing is sent to any provider, and no program is started.
    """
    # late: as above
    from dragoman.cli.configuration import LOCAL_MODEL_SOURCE, choose_config

    chosen, source = choose_config(config)
    meaning = explain_config(chosen, os.environ)
    if json:
        print_json({"source": source, **meaning})
        return
    print_line(source if source == LOCAL_MODEL_SOURCE else f"{source} is good")
    print_providers(meaning)
    print_routes(meaning)
    print_limits(meaning)
    print_servers(meaning)
    print_agents(meaning)
    print_policy(meaning)
    print_reach(meaning)
    print_warnings(meaning)


def print_providers(explanation: Mapping[str, Any]) -> None:
    rows = []
    for provider in explanation["providers"]:
        keys = [f"{key['from']} {key['state']}" for key in provider["keys"]]
        rows.append(
            (provider["name"], provider["type"], provider["url"] or "here", ", ".join(keys) or "none")
        )
    if rows:
        print_line("")
        print_table(("PROVIDER", "TYPE", "ADDRESS", "KEYS"), rows)


def print_routes(explanation: Mapping[str, Any]) -> None:
    rows = [("the default", explanation["model"])] if explanation["model"] else []
    rows += [(name, ", then ".join(models)) for name, models in explanation["aliases"].items()]
    if explanation["defaultProvider"]:
        rows.append(("any other name", f"{explanation['defaultProvider']}/that name"))
    rows += [(f"{name} failing", ", then ".join(models)) for name, models in explanation["fallbacks"].items()]
    if rows:
        print_line("")
        print_table(("MODEL", "GOES TO"), rows)
    if explanation["fallbacks"]:
        print_line(f"\nfailing means: {', '.join(explanation['fallbackOn'])}")


def print_limits(explanation: Mapping[str, Any]) -> None:
    limits = explanation["limits"]
    named = {"each key": limits["key"], "each owner": limits["owner"]}
    named |= {f"owner {name}": held for name, held in limits["owners"].items()}
    rows = [
        (who, ", ".join(f"{field} {value:g}" for field, value in held.items()))
        for who, held in named.items()
        if held
    ]
    if rows:
        print_line("")
        print_table(("WHO", "MAY ASK"), rows)


def print_servers(explanation: Mapping[str, Any]) -> None:
    rows = [
        (each["name"], each["from"], each["state"], each["trust"], ", ".join(each["tools"]))
        for each in explanation["mcpServers"]
    ]
    if rows:
        print_line("")
        print_table(("MCP SERVER", "COMMAND OR ADDRESS", "STATE", "TRUST", "TOOLS"), rows)


def print_agents(explanation: Mapping[str, Any]) -> None:
    rows = []
    for agent in explanation["agents"]:
        rows += [(agent["name"], f"stops when {stop}") for stop in agent["stopWhen"]]
        known = agent["callableAs"]
        rows += [(agent["name"], f"is for others too, as {known}: {agent['description']}")] if known else []
        said = {"asks {} before each step": agent["onPrepareStep"], "is JSON: {}": agent["output"]}
        rows += [(agent["name"], words.format(value)) for words, value in said.items() if value]
    if rows:
        print_line("")
        print_table(("AGENT", "ITS ANSWER"), rows)


def print_policy(explanation: Mapping[str, Any]) -> None:
    rows = [
        (
            rule["decision"],
            "whatever no rule fits" if rule["operations"] is None else ", ".join(rule["operations"]),
            "; ".join(f"{field} {', '.join(said)}" for field, said in rule["for"].items()) or "everybody",
        )
        for rule in explanation["policy"]
    ]
    print_line("")
    print_table(("POLICY", "OPERATIONS", "FOR"), rows)


def print_reach(explanation: Mapping[str, Any]) -> None:
    web, files, spokes = (explanation["reach"][name] for name in ("web", "files", "spokes"))
    rows = [
        ("web.fetch", "off" if web is None else describe_hosts(web)),
        ("files.*", "off" if files is None else ", ".join(f"{name} {path}" for name, path in files.items())),
        ("spokes", "off" if spokes is None else describe_namespaces(spokes["namespaces"])),
    ]
    print_line("")
    print_table(("OPERATIONS", "REACH"), rows)


def describe_hosts(web: Mapping[str, Any]) -> str:
    said = [", ".join(web["allow"]) or "public hosts"]
    said += [f"not {', '.join(web['deny'])}"] if web["deny"] else []
    said += [f"and {', '.join(web['networks'])}"] if web["networks"] else []
    return f"{', '.join(said)}; ports {', '.join(map(str, web['ports']))}"


def describe_namespaces(granted: Mapping[str, Any]) -> str:
    """The namespaces that spokes may bring operations in."""
    said = [
        f"{owner}: {', '.join(patterns) or 'none'}" for owner, patterns in granted.items() if owner != "*"
    ]
    others = ", ".join(granted.get("*", ("what is free",))) or "none"
    return "; ".join([*said, f"others: {others}" if said else others])


def print_warnings(explanation: Mapping[str, Any]) -> None:
    """What is good as a file, but will not go well."""
    if not explanation["providers"]:
        print_note("WARNING: no provider is configured, so no model can answer")
    said = [
        f"the key of {provider['name']} is missing: {key['from']}"
        for provider in explanation["providers"]
        for key in provider["keys"]
        if key["state"] == "missing"
    ]
    said += [
        f"the MCP server {server['name']} gets no {variable}: it is not set"
        for server in explanation["mcpServers"]
        for variable in server["missing"]
    ]
    said += [
        f"the agent {agent['name']} counts money, and {model} has no price: say one under `prices`"
        for agent in explanation["agents"]
        for model in agent["unpriced"]
    ]
    for each in said:
        print_note(f"WARNING: {each}")
