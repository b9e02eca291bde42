"""`dragoman system`, `providers`, `models`, `agents` and `queue`: what a running hub has and does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import typer

from dragoman.cli.hub_client.connect import HubTarget, run_with_client
from dragoman.cli.options import DEFAULT_HUB, AsJson, Hub, Key
from dragoman.cli.terminal import (
    examples,
    format_age,
    format_period,
    format_seconds,
    print_json,
    print_line,
    print_note,
    print_table,
)

Json: TypeAlias = Mapping[str, Any]
MEGABYTE = 1_000_000
commands = typer.Typer()
SYSTEM_EPILOG = examples(
    ("dragoman system", "version, memory, runs, queue and database of the hub at http://127.0.0.1:8000"),
    ("dragoman system --tables", "the rows of each table, and how many retention would delete"),
)
PROVIDERS_EPILOG = examples(("dragoman providers", "which are up, and how the last hour went"))
MODELS_EPILOG = examples(("dragoman models", "the names that a message may use, and which is the default"))
AGENTS_EPILOG = examples(("dragoman agents", "who can answer, and with which model"))
QUEUE_EPILOG = examples(("dragoman queue", "messages that wait for the run of their session to end"))


def ask_hub(path: str, *, hub: str | None, key: str | None) -> Json:
    """Return the answer of a running hub to `GET path`."""
    target = HubTarget(hub or DEFAULT_HUB, key)
    found: Json = run_with_client(target, lambda client: client.request("GET", path))
    return found


@commands.command("system", epilog=SYSTEM_EPILOG)
def system(
    *,
    tables: Annotated[bool, typer.Option("--tables", help="The tables of the database.")] = False,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Show the process and the database of a running hub; needs a key with the scope admin."""
    found = ask_hub("/api/system/tables" if tables else "/api/system", hub=hub, key=key)
    if json:
        print_json(found)
    elif tables:
        rows = [table_row(each) for each in found["tables"]]
        print_table(("TABLE", "ROWS", "OLDEST", "KEPT FOR", "EXPIRED"), rows)
    else:
        for name, value in system_lines(found):
            print_line(f"{name:<10} {value}")


def system_lines(found: Json) -> list[tuple[str, str]]:
    """Describe the process and its database, a line for each."""
    host, database, queue = found["host"], found["database"], found["queue"]
    size = "" if database["size"] is None else f", {database['size'] / MEGABYTE:.1f} MB"
    problem = "up" if database["up"] else f"down: {database['problem']}"
    retention = [f"{name} {format_period(seconds)}" for name, seconds in found["retention"].items()]
    state = "draining" if host["draining"] else "serving"
    return [
        ("version", f"{found['version']}, Python {found['python']}"),
        ("host", f"{host['name']} ({host['id']}), {state}, started {format_age(found['startedAt'])}"),
        ("memory", f"{found['memory'] / MEGABYTE:.0f} MB, {found['processors']} processors"),
        ("runs", f"{found['runs']} active, {queue['waiting']} messages wait"),
        ("database", f"{database['kind']}, {problem}{size}"),
        ("kept for", ", ".join(retention)),
    ]


def table_row(table: Json) -> tuple[str, ...]:
    """Return a table of the database as a row."""
    oldest = "-" if table["oldest"] is None else format_age(table["oldest"])
    expired = "-" if table["expired"] is None else str(table["expired"])
    return table["name"], str(table["rows"]), oldest, format_period(table["keptFor"]), expired


@commands.command("providers", epilog=PROVIDERS_EPILOG)
def providers(*, hub: Hub = None, key: Key = None, json: AsJson = False) -> None:
    """List the providers of a running hub; needs a key with the scope admin."""
    found = ask_hub("/api/providers", hub=hub, key=key)
    if json:
        print_json(found)
        return
    headings = ("PROVIDER", "FAMILY", "STATE", "KEYS", "REQUESTS/H", "FAILED", "FIRST BYTE", "DURATION")
    print_table(headings, [provider_row(each) for each in found["providers"]])


def provider_row(provider: Json) -> tuple[str, ...]:
    """Return a provider as a row; times are medians of the last hour."""
    hour = provider["lastHour"]
    cooling = sum(each["cooldown"] > 0 for each in provider["keys"])
    keys = f"{len(provider['keys'])}" + (f", {cooling} cooling down" if cooling else "")
    return (
        provider["name"], provider["family"], provider["state"], keys, str(hour["requests"]),
        str(hour["failed"]), format_median(hour["firstByte"]), format_median(hour["duration"]),
    )  # fmt: skip


def format_median(spans: Json | None) -> str:
    return format_seconds(spans["p50"] if spans else None)


@commands.command("models", epilog=MODELS_EPILOG)
def models(*, hub: Hub = None, key: Key = None, json: AsJson = False) -> None:
    """List the models that a message may name."""
    found = ask_hub("/api/models", hub=hub, key=key)
    if json:
        print_json(found)
        return
    for name in found["models"]:
        print_line(f"{name}  (default)" if name == found["default"] else name)


@commands.command("agents", epilog=AGENTS_EPILOG)
def agents(*, hub: Hub = None, key: Key = None, json: AsJson = False) -> None:
    """List the agents, with the models that answer."""
    found = ask_hub("/api/agents", hub=hub, key=key)
    if json:
        print_json(found)
        return
    rows = [
        (each["name"], each["model"] or "-", str(len(each["operations"])), each["description"] or "-")
        for each in found["agents"]
    ]
    print_table(("AGENT", "MODEL", "PINNED", "WHAT IT DOES"), rows)


@commands.command("queue", epilog=QUEUE_EPILOG)
def queue(*, hub: Hub = None, key: Key = None, json: AsJson = False) -> None:
    """List the messages that wait for the run of their session to end."""
    found = ask_hub("/api/queue", hub=hub, key=key)
    if json:
        print_json(found)
        return
    if not found["queued"]:
        print_note("no message waits")
        return
    rows = [
        (each["id"], each["sessionId"], each["owner"], each["mode"], format_age(each["createdAt"]))
        for each in found["queued"]
    ]
    print_table(("RUN", "SESSION", "OWNER", "MODE", "SENT"), rows)
