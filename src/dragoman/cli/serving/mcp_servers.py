"""`dragoman servers`: MCP servers of a running hub, and definitions that wait for approval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from dragoman.cli.hub_client.connect import HubTarget, run_with_client
from dragoman.cli.options import DEFAULT_HUB, AsJson, Key
from dragoman.cli.terminal import (
    examples,
    format_age,
    print_json,
    print_line,
    print_note,
    print_table,
    truncate,
)
from dragoman.errors import BadRequest

if TYPE_CHECKING:
    from dragoman.cli.hub_client.client import HubClient

Json: TypeAlias = dict[str, Any]
Url: TypeAlias = Annotated[
    str, typer.Option("--hub", envvar="DRAGOMAN_HUB", metavar="URL", help="The running hub.")
]
Name: TypeAlias = Annotated[str, typer.Argument(help="The server's name.")]
MAX_ERROR = 70
HASH_LENGTH = 12  # characters of a hash that are shown

servers = typer.Typer(
    no_args_is_help=True,
    help="MCP servers of a running hub, whose tools are operations there; needs a key with the scope admin.",
)


@servers.command("list", epilog=examples(("dragoman servers list", "how each stands, and why")))
def list_servers(*, hub: Url = DEFAULT_HUB, key: Key = None, json: AsJson = False) -> None:
    """List the MCP servers."""
    found = run_with_client(HubTarget(hub, key), lambda client: client.request("GET", "/api/mcp/servers"))
    if json:
        print_json(found)
        return
    if not found["servers"]:
        print_note("there are no MCP servers; name some under `mcp_servers:` in dragoman.yaml, or add one")
        return
    print_table(
        ("SERVER", "STATE", "SINCE", "TOOLS", "WAITING", "WHY"),
        [server_row(each) for each in found["servers"]],
    )


@servers.command("show", epilog=examples(("dragoman servers show git", "and what changed of its tools")))
def show(name: Name, *, hub: Url = DEFAULT_HUB, key: Key = None, json: AsJson = False) -> None:
    """Show one server: what was left out of it, and the definitions that wait for approval."""
    found = run_with_client(HubTarget(hub, key), lambda client: client.request("GET", server_path(name)))
    if json:
        print_json(found)
        return
    print_table(("SERVER", "STATE", "SINCE", "TOOLS", "WAITING", "WHY"), [server_row(found)])
    if len(found.get("error", "")) > MAX_ERROR:
        print_note(found["error"])
    if "lastError" in found and found["lastError"] != found.get("error"):
        print_note(f"last error, {format_age(found['lastErrorAt'])}: {found['lastError']}")
    if "firstError" in found:
        print_note(f"first error since it was ready: {found['firstError']}")
    for problem in found.get("problems", ()):
        print_note(problem)
    for change in found["changes"]:
        print_line(f"\n{change['kind']}: {change['name']}  ({change['hash'][:HASH_LENGTH]})")
        print_line(change["diff"])
    if found["changes"]:
        shown = " ".join(f"{change['name']}@{change['hash'][:HASH_LENGTH]}" for change in found["changes"])
        print_note(f"to approve of them as they are shown here: dragoman servers approve {name} {shown}")


@servers.command(
    "approve",
    epilog=examples(
        ("dragoman servers approve git commit@6f1ed002ab55 push@9a0b2c4d6e8f", "as they were shown"),
        ("dragoman servers approve git commit", "this tool, whatever it is by now"),
        ("dragoman servers approve git", "all that waits"),
    ),
)
def approve(
    name: Name,
    tools: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOOL[@HASH]]...", help="The tools; all that wait, if none."),
    ] = None,
    *,
    hub: Url = DEFAULT_HUB,
    key: Key = None,
) -> None:
    """Approve definitions that are new or have changed, so that they can be called.

    With the hash that `show` prints, a tool is approved only if it has not changed since.
    """

    async def work(client: HubClient) -> Json:
        waiting = {
            each["name"]: each["hash"] for each in (await client.request("GET", server_path(name)))["changes"]
        }
        wanted = waiting if not tools else dict(select_tool(each, waiting) for each in tools)
        found: Json = await client.request("POST", f"{server_path(name)}/approve", body={"tools": wanted})
        return found

    approved = run_with_client(HubTarget(hub, key), work)["approved"]
    print_line(f"approved: {', '.join(approved)}" if approved else "nothing waits for approval")


@servers.command(
    "add",
    epilog=examples(
        ("dragoman servers add time -- uvx mcp-server-time", "a program that is started"),
        ("dragoman servers add docs --url https://example.com/mcp", "a server somewhere"),
    ),
)
def add(
    name: Name,
    command: Annotated[list[str] | None, typer.Argument(help="The program and its arguments.")] = None,
    *,
    url: Annotated[str | None, typer.Option(help="The URL of a running server.")] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=ENTRY", help="A variable or header from `dragoman secrets`."),
    ] = None,
    trust: Annotated[
        str, typer.Option(help="always, first or ask: which of its tools are used without an approval.")
    ] = "first",
    hub: Url = DEFAULT_HUB,
    key: Key = None,
) -> None:
    """Add a server to a running hub, which keeps it."""
    body: Json = {"name": name, "trust": trust}
    body |= {"command": command} if command else {}
    body |= {"url": url} if url else {}
    if secret:
        body["secrets"] = dict(parse_pair(each) for each in secret)
    status = run_with_client(
        HubTarget(hub, key), lambda client: client.request("POST", "/api/mcp/servers", body=body)
    )
    print_line(f"{status['name']}: {status['state']}")


@servers.command("remove", epilog=examples(("dragoman servers remove time", "with what was approved of it")))
def remove(name: Name, *, hub: Url = DEFAULT_HUB, key: Key = None) -> None:
    """Remove a server that was added."""
    run_with_client(HubTarget(hub, key), lambda client: client.request("DELETE", server_path(name)))
    print_line(f"removed {name}")


@servers.command("reconnect", epilog=examples(("dragoman servers reconnect time", "after it was mended")))
def reconnect(name: Name, *, hub: Url = DEFAULT_HUB, key: Key = None) -> None:
    """Reconnect to a server."""
    status = run_with_client(
        HubTarget(hub, key), lambda client: client.request("POST", f"{server_path(name)}/reconnect")
    )
    print_line(f"{status['name']}: {status['state']}")


def select_tool(text: str, pending: Mapping[str, str]) -> tuple[str, str]:
    """Parse `TOOL` or `TOOL@HASH` into a pending tool and its hash. BadRequest."""
    tool, _, seen = text.partition("@")
    if tool not in pending:
        raise BadRequest(f"no tool named {tool!r} waits for approval")
    if not pending[tool].startswith(seen):
        raise BadRequest(f"{tool} has changed since it was shown", hint="review it again")
    return tool, pending[tool]


def server_path(name: str) -> str:
    """Return the path of a server in the hub's API."""
    from dragoman.cli.hub_client.url_quoting import path_segment  # late: --help needs none of it

    return f"/api/mcp/servers/{path_segment(name)}"


def server_row(server: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a server as a table row."""
    counts = (str(server.get("tools", 0)), str(server.get("waiting", 0)))
    return (
        server["name"],
        server["state"],
        format_age(server["since"]),
        *counts,
        truncate(reason_of(server), MAX_ERROR),
    )


def reason_of(server: Mapping[str, Any]) -> str:
    """Return why a server failed; while it starts again, why it failed before."""
    earlier = server.get("lastError", "") if server["state"] == "starting" else ""
    return str(server.get("error", earlier))


def parse_pair(text: str) -> tuple[str, str]:
    """Split `FIELD=ENTRY`. BadRequest."""
    field, separator, entry = text.partition("=")
    if not separator or not field or not entry:
        raise BadRequest(f"{text!r} is not a valid FIELD=ENTRY", hint="write it like API_TOKEN=github")
    return field, entry
