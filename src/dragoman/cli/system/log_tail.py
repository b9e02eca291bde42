"""`dragoman logs`: the last log lines of a running hub, and with `--follow` the new ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from dragoman.cli.hub_client.connect import HubTarget, connect
from dragoman.cli.options import DEFAULT_HUB, AsJson, Hub, Key
from dragoman.cli.terminal import examples, print_line, print_note
from dragoman.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from dragoman.cli.hub_client.client import HubClient

POLL_SECONDS = 1.0
PAGE = 500  # lines of one request while the log is followed

commands = typer.Typer()
EPILOG = examples(
    ("dragoman logs", "the last 50 lines"),
    ("dragoman logs --follow --level warning", "warnings and errors as they come, until Ctrl-C"),
    ("dragoman logs --text req_7Qx --json", "lines with a text, as JSON lines"),
)


@commands.command("logs", epilog=EPILOG)
def logs(
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")] = False,
    level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option(help="Only lines of this level and above."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Only lines that contain this text.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many of the last lines.")] = 50,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Print the log of a running hub; needs a key with the scope admin.

    A hub keeps its last 2,000 lines, without secrets, of the levels that its `--log-level` lets through.
    """
    query = {name: value for name, value in (("level", level), ("text", text)) if value}
    target = HubTarget(hub or DEFAULT_HUB, key)
    asyncio.run(_print_log(target, query, limit=limit, follow=follow, json=json))


async def _print_log(
    target: HubTarget, query: Mapping[str, str], *, limit: int, follow: bool, json: bool
) -> None:
    async with connect(target) as client:
        found = await client.request("GET", "/api/logs", query={**query, "limit": str(limit)})
        print_lines(found, json=json)
        while follow:
            await asyncio.sleep(POLL_SECONDS)
            found = await next_lines(client, query, before=found)
            print_lines(found, json=json)


async def next_lines(
    client: HubClient, query: Mapping[str, str], *, before: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the answer of `/api/logs` with the lines after those of `before`, an earlier answer.

    It has no lines while the hub is down, and those of the new process once the hub has started again.
    """
    since = {**query, "since": str(before["last"]), "limit": str(PAGE)}
    try:
        found: Mapping[str, Any] = await client.request("GET", "/api/logs", query=since)
        if found["ring"] != before["ring"]:
            print_note("the hub has started again")
            found = await client.request("GET", "/api/logs", query={**query, "limit": str(PAGE)})
    except (Unavailable, NotFound):
        return {**before, "lines": []}
    return found


def print_lines(found: Mapping[str, Any], *, json: bool) -> None:
    """Print the lines of an answer of `/api/logs`, each as JSON or as readable text."""
    for line in found["lines"]:
        print_line(msgspec.json.encode(line).decode() if json else format_line(line))


def format_line(line: Mapping[str, Any]) -> str:
    """Format a log line: time, level, logger, message, fields."""
    clock = time.strftime("%H:%M:%S", time.localtime(line["time"]))
    fields = {"request": line.get("requestId"), **(line.get("fields") or {})}
    named = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
    return f"{clock} {line['level']:<7} {line['logger']}: {line['message']} {named}".rstrip().replace(
        "\n", "\n  "
    )
