"""`dragoman hosts`: the processes that share a hub's database, and how one is drained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from dragoman.cli.hub_client.connect import HubTarget, run_with_client
from dragoman.cli.options import DEFAULT_HUB, AsJson, Key
from dragoman.cli.serving.mcp_servers import Url
from dragoman.cli.terminal import examples, format_age, print_json, print_line, print_table
from dragoman.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from dragoman.cli.hub_client.client import HubClient

Json: TypeAlias = dict[str, Any]

hosts = typer.Typer(
    invoke_without_command=True,
    help="The hosts of a running hub, processes that share its database; needs a key with the scope admin.",
    epilog=examples(
        ("dragoman hosts", "who is there, since when, and how many runs each executes"),
        ("dragoman hosts drain alpha", "let it begin no more runs"),
    ),
)


@hosts.callback()
def list_hosts(
    context: typer.Context, *, hub: Url = DEFAULT_HUB, key: Key = None, json: AsJson = False
) -> None:
    """List the hosts of a running hub; needs a key with the scope admin."""
    if context.invoked_subcommand is not None:
        return
    found = run_with_client(HubTarget(hub, key), lambda client: client.hosts())
    if json:
        print_json({"hosts": found})
        return
    print_table(("HOST", "NAME", "VERSION", "RUNS", "SINCE", "STATE"), [host_row(each) for each in found])


@hosts.command(
    "drain",
    epilog=examples(("dragoman hosts drain alpha", "stop it afterwards: its runs go on at the other hosts")),
)
def drain(
    host: Annotated[str, typer.Argument(metavar="NAME|ID", help="The host's name, or its id.")],
    *,
    hub: Url = DEFAULT_HUB,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Drain a host: it starts no more runs, and its /readyz returns 503 for load balancers."""

    async def work(client: HubClient) -> Json:
        return await client.drain_host(find_host(await client.hosts(), host))

    found = run_with_client(HubTarget(hub, key), work)
    if json:
        print_json(found)
        return
    print_line(f"drained {found['name']} ({found['id']}); it executes {found['runs']} runs")


def find_host(found: Sequence[Json], wanted: str) -> str:
    """Return the id of the host with this id, or else this name. NotFound; BadRequest for one of several."""
    ids = [each["id"] for each in found if wanted == each["id"]]
    ids = ids or [each["id"] for each in found if wanted == each["name"]]
    if not ids:
        raise NotFound(f"there is no host {wanted!r}", hint="`dragoman hosts` lists the hosts")
    if len(ids) > 1:
        raise BadRequest(
            f"{len(ids)} hosts are named {wanted!r}", hint=f"name one by its id: {', '.join(ids)}"
        )
    return str(ids[0])


def host_row(host: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a host as a table row."""
    state = "draining" if host["draining"] else "serving"
    here = ", this one" if host["self"] else ""
    since = format_age(host["since"])
    return host["id"], host["name"], host["version"], str(host["runs"]), since, state + here
