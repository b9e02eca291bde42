"""`dragoman check`: validate a configuration and explain it. No request is sent to a provider."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from dragoman.cli.logging_setup import configure_logging
from dragoman.cli.options import AsJson, ConfigFile, Places
from dragoman.cli.terminal import examples, print_json, print_line, print_note, print_table
from dragoman.errors import ConfigError

MAX_CLOCK_SKEW = 2.0  # seconds
# A writer, four readers, the lock, one for signals, four of the queue; two more while it recovers.
HUB_CONNECTIONS = 13
commands = typer.Typer()
EPILOG = examples(
    ("dragoman check", "check ./dragoman.yaml and the environment"),
    ("dragoman check --config hub.yaml && systemctl reload dragoman", "reload only a valid configuration"),
    ("dragoman check --json", "the explanation as JSON, for programs"),
)


@commands.command("check", epilog=EPILOG)
def check(*, config: ConfigFile = None, operations: Places = None, json: AsJson = False) -> None:
    """Check a configuration.

    Prints every error with its line and field, or else the resulting configuration: providers and whether
    their keys are present (never the keys), aliases, fallbacks and limits, MCP servers, callable agents, stop
    conditions, the policy, and what operations may access. Everything that `serve` rejects is an error here
    too: the modules and files that the configuration names are loaded. The command sends nothing to any
    provider and starts no MCP server. For a Postgres database, it prints the version, tables, clock offset
    and connections, and changes nothing.
    """
    from dragoman.cli.config_discovery import choose_config, is_file_source, locating_errors  # late: as above
    from dragoman.config import locate_error  # late: as above
    from dragoman.server.app.config_summary import explain_config  # late: YAML and the server take 0.3 s
    from dragoman.server.app.dry_run import check_database, check_startup  # late: as above

    configure_logging("error", as_json=False)
    chosen, source = choose_config(config, operations or ())
    with locating_errors(source):
        meaning = explain_config(chosen, os.environ)
        unknown_names = asyncio.run(check_startup(chosen, os.environ))
        meaning["database"] = asyncio.run(check_database(chosen))
    if is_file_source(source) and Path(source).is_file():
        unknown_names = [locate_error(ConfigError(name), Path(source)).message for name in unknown_names]
    if json:
        print_json({"source": source, **meaning, "warnings": unknown_names})
        return
    print_line(f"{source} is valid" if is_file_source(source) else source)
    print_providers(meaning)
    print_routes(meaning)
    print_limits(meaning)
    print_servers(meaning)
    print_agents(meaning)
    print_policy(meaning)
    print_reach(meaning)
    print_database(meaning)
    print_warnings(meaning)
    for name in unknown_names:
        print_note(f"WARNING: {name}")


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
    balance = explanation["balance"]
    for name, models in explanation["aliases"].items():
        text = f"{' or '.join(models)} ({balance[name]})" if name in balance else ", then ".join(models)
        rows.append((name, text))
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
    named |= {f"owner {name}": limits_of_one for name, limits_of_one in limits["owners"].items()}
    rows = [
        (who, ", ".join(f"{field} {value:g}" for field, value in limits_of_one.items()))
        for who, limits_of_one in named.items()
        if limits_of_one
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
        callable_name = agent["callableAs"]
        rows += (
            [(agent["name"], f"is for others too, as {callable_name}: {agent['description']}")]
            if callable_name
            else []
        )
        properties = {"asks {} before each step": agent["onPrepareStep"], "is JSON: {}": agent["output"]}
        rows += [(agent["name"], words.format(value)) for words, value in properties.items() if value]
    if rows:
        print_line("")
        print_table(("AGENT", "ITS ANSWER"), rows)


def print_policy(explanation: Mapping[str, Any]) -> None:
    rows = [
        (
            rule["decision"],
            "whatever no rule fits" if rule["operations"] is None else ", ".join(rule["operations"]),
            "; ".join(f"{field} {', '.join(values)}" for field, values in rule["for"].items()) or "everybody",
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


def print_database(explanation: Mapping[str, Any]) -> None:
    """Print what the Postgres database is; nothing for SQLite."""
    found = explanation["database"]
    if found is None or found["problem"] is not None:
        return
    tables = f"revision {found['revision']}" if found["revision"] else "none yet; the hub creates them"
    if found["revision"] not in (None, found["programRevision"]):
        tables += f"; the hub migrates them to {found['programRevision']}"
    rows = [
        ("address", found["url"]),
        ("server", f"Postgres {found['version']}"),
        ("tables", f"in schema {found['schema']}: {tables}"),
        ("clock", f"{found['clockSkew']:+.1f} s"),
        ("connections", f"{found['connections']} of max_connections {found['maxConnections']}"),
        ("used by", found["usedBy"] or "no hub"),
    ]
    print_line("")
    print_table(("DATABASE", ""), rows)


def database_warnings(found: Mapping[str, Any] | None) -> list[str]:
    """Return what may go wrong with a Postgres database."""
    if found is None:
        return []
    if found["problem"] is not None:
        return [f"the database cannot be reached now: {found['problem']}"]
    warnings = []
    if abs(found["clockSkew"]) > MAX_CLOCK_SKEW:
        warnings.append(
            f"the database's clock is {found['clockSkew']:+.1f} s off this machine's: set both by NTP"
        )
    if found["maxConnections"] - found["connections"] < HUB_CONNECTIONS:
        warnings.append(f"a hub needs {HUB_CONNECTIONS} connections to the database, which has fewer left")
    return warnings


def describe_hosts(web: Mapping[str, Any]) -> str:
    parts = [", ".join(web["allow"]) or "public hosts"]
    parts += [f"not {', '.join(web['deny'])}"] if web["deny"] else []
    parts += [f"and {', '.join(web['networks'])}"] if web["networks"] else []
    return f"{', '.join(parts)}; ports {', '.join(map(str, web['ports']))}"


def describe_namespaces(granted: Mapping[str, Any]) -> str:
    """Describe the namespaces that spokes may use."""
    parts = [
        f"{owner}: {', '.join(patterns) or 'none'}" for owner, patterns in granted.items() if owner != "*"
    ]
    others = ", ".join(granted.get("*", ("any free namespace",))) or "none"
    return "; ".join([*parts, f"others: {others}" if parts else others])


def print_warnings(explanation: Mapping[str, Any]) -> None:
    """Print warnings on a valid configuration that will not work as intended."""
    if not explanation["providers"]:
        print_note("WARNING: no provider is configured, so no model can answer")
    warnings = [
        f"the key of {provider['name']} is missing: {key['from']}"
        for provider in explanation["providers"]
        for key in provider["keys"]
        if key["state"] == "missing"
    ]
    warnings += [
        f"the MCP server {server['name']} gets no {variable}: it is not set"
        for server in explanation["mcpServers"]
        for variable in server["missing"]
    ]
    warnings += [
        f"the agent {agent['name']} counts money, and {model} has no price: set one under `prices`"
        for agent in explanation["agents"]
        for model in agent["unpriced"]
    ]
    for each in warnings + database_warnings(explanation["database"]):
        print_note(f"WARNING: {each}")
