"""`dragoman check`: whether a configuration is good, and what it means. No provider is asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.terminal import examples, note, say, show_json, show_table

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
    from dragoman.cli.meaning import explain  # late: only this command and `serve` read a configuration
    from dragoman.cli.settings import NO_FILE, choose  # late: as above

    chosen, source = choose(config)
    meaning = explain(chosen, os.environ)
    if json:
        show_json({"source": source, **meaning})
        return
    say(source if source == NO_FILE else f"{source} is good")
    show_providers(meaning)
    show_routes(meaning)
    show_limits(meaning)
    show_servers(meaning)
    show_agents(meaning)
    show_policy(meaning)
    show_reach(meaning)
    warn(meaning)


def show_providers(meaning: Mapping[str, Any]) -> None:
    rows = []
    for provider in meaning["providers"]:
        keys = [f"{key['from']} {key['state']}" for key in provider["keys"]]
        rows.append(
            (provider["name"], provider["type"], provider["url"] or "here", ", ".join(keys) or "none")
        )
    if rows:
        say("")
        show_table(("PROVIDER", "TYPE", "ADDRESS", "KEYS"), rows)


def show_routes(meaning: Mapping[str, Any]) -> None:
    rows = [("the default", meaning["model"])] if meaning["model"] else []
    rows += [(name, ", then ".join(models)) for name, models in meaning["aliases"].items()]
    if meaning["defaultProvider"]:
        rows.append(("any other name", f"{meaning['defaultProvider']}/that name"))
    rows += [(f"{name} failing", ", then ".join(models)) for name, models in meaning["fallbacks"].items()]
    if rows:
        say("")
        show_table(("MODEL", "GOES TO"), rows)
    if meaning["fallbacks"]:
        say(f"\nfailing means: {', '.join(meaning['fallbackOn'])}")


def show_limits(meaning: Mapping[str, Any]) -> None:
    limits = meaning["limits"]
    named = {"each key": limits["key"], "each owner": limits["owner"]}
    named |= {f"owner {name}": held for name, held in limits["owners"].items()}
    rows = [
        (who, ", ".join(f"{field} {value:g}" for field, value in held.items()))
        for who, held in named.items()
        if held
    ]
    if rows:
        say("")
        show_table(("WHO", "MAY ASK"), rows)


def show_servers(meaning: Mapping[str, Any]) -> None:
    rows = [
        (each["name"], each["from"], each["state"], each["trust"], ", ".join(each["tools"]))
        for each in meaning["mcpServers"]
    ]
    if rows:
        say("")
        show_table(("MCP SERVER", "COMMAND OR ADDRESS", "STATE", "TRUST", "TOOLS"), rows)


def show_agents(meaning: Mapping[str, Any]) -> None:
    rows = []
    for agent in meaning["agents"]:
        rows += [(agent["name"], f"stops when {stop}") for stop in agent["stopWhen"]]
        known = agent["callableAs"]
        rows += [(agent["name"], f"is for others too, as {known}: {agent['description']}")] if known else []
        said = {"asks {} before each step": agent["onPrepareStep"], "is JSON: {}": agent["output"]}
        rows += [(agent["name"], words.format(value)) for words, value in said.items() if value]
    if rows:
        say("")
        show_table(("AGENT", "ITS ANSWER"), rows)


def show_policy(meaning: Mapping[str, Any]) -> None:
    rows = [
        (
            rule["decision"],
            "whatever no rule fits" if rule["operations"] is None else ", ".join(rule["operations"]),
            "; ".join(f"{field} {', '.join(said)}" for field, said in rule["for"].items()) or "everybody",
        )
        for rule in meaning["policy"]
    ]
    say("")
    show_table(("POLICY", "OPERATIONS", "FOR"), rows)


def show_reach(meaning: Mapping[str, Any]) -> None:
    web, files, spokes = (meaning["reach"][name] for name in ("web", "files", "spokes"))
    rows = [
        ("web.fetch", "off" if web is None else hosts_in_words(web)),
        ("files.*", "off" if files is None else ", ".join(f"{name} {path}" for name, path in files.items())),
        ("spokes", "off" if spokes is None else spaces_in_words(spokes["namespaces"])),
    ]
    say("")
    show_table(("OPERATIONS", "REACH"), rows)


def hosts_in_words(web: Mapping[str, Any]) -> str:
    said = [", ".join(web["allow"]) or "public hosts"]
    said += [f"not {', '.join(web['deny'])}"] if web["deny"] else []
    said += [f"and {', '.join(web['networks'])}"] if web["networks"] else []
    return f"{', '.join(said)}; ports {', '.join(map(str, web['ports']))}"


def spaces_in_words(granted: Mapping[str, Any]) -> str:
    """The namespaces that spokes may bring operations in."""
    said = [
        f"{owner}: {', '.join(patterns) or 'none'}" for owner, patterns in granted.items() if owner != "*"
    ]
    others = ", ".join(granted.get("*", ("what is free",))) or "none"
    return "; ".join([*said, f"others: {others}" if said else others])


def warn(meaning: Mapping[str, Any]) -> None:
    """What is good as a file, but will not go well."""
    if not meaning["providers"]:
        note("WARNING: no provider is configured, so no model can answer")
    said = [
        f"the key of {provider['name']} is missing: {key['from']}"
        for provider in meaning["providers"]
        for key in provider["keys"]
        if key["state"] == "missing"
    ]
    said += [
        f"the MCP server {server['name']} gets no {variable}: it is not set"
        for server in meaning["mcpServers"]
        for variable in server["missing"]
    ]
    said += [
        f"the agent {agent['name']} counts money, and {model} has no price: say one under `prices`"
        for agent in meaning["agents"]
        for model in agent["unpriced"]
    ]
    for each in said:
        note(f"WARNING: {each}")
