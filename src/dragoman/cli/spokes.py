"""`dragoman spokes`: spokes of a running hub, and approvals of the operations that they offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from dragoman.cli.hub_client.connect import HubTarget, run_with_client
from dragoman.cli.options import DEFAULT_HUB, AsJson, Key
from dragoman.cli.serving.mcp_servers import HASH_LENGTH, Url
from dragoman.cli.terminal import examples, format_age, print_json, print_line, print_note, print_table
from dragoman.errors import Conflict

if TYPE_CHECKING:
    from dragoman.cli.hub_client.client import HubClient

Json: TypeAlias = dict[str, Any]
SHARING: Mapping[str, str] = {
    "granted": "all owners, by spokes.namespaces",
    "approved": "all owners, approved",
    "changed": "its owner: changed since approved",
    "private": "its owner",
}

spokes = typer.Typer(
    no_args_is_help=True,
    help="Spokes of a running hub and the operations that they offer; needs a key with the scope admin.",
)


@spokes.command(
    "list",
    epilog=examples(
        ("dragoman spokes list", "the spokes, and who may call what they offer"),
        ("dragoman spokes list --namespace stock", "the operations of one namespace"),
    ),
)
def list_spokes(
    *,
    namespace: Annotated[str | None, typer.Option(help="Only operations of this namespace.")] = None,
    hub: Url = DEFAULT_HUB,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """List the spokes, their operations with who may call them, and the owners of namespaces."""

    async def work(client: HubClient) -> Json:
        query = {} if namespace is None else {"namespace": namespace}
        found: Json = await client.request("GET", "/api/spokes")
        listed = await client.request("GET", "/api/spokes/operations", query=query)
        return {**found, "operations": listed["operations"]}

    found = run_with_client(HubTarget(hub, key), work)
    if json:
        print_json(found)
        return
    if not (found["spokes"] or found["operations"] or found["namespaces"]):
        print_note("there are no spokes; `dragoman spoke` connects one")
        return
    if found["spokes"] and namespace is None:
        print_table(
            ("SPOKE", "OWNER", "STATE", "CALLS", "OPERATIONS"), [spoke_row(each) for each in found["spokes"]]
        )
        print_line("")
    if found["operations"]:
        rows = [definition_row(each) for each in found["operations"]]
        print_table(("OPERATION", "OWNER", "FOR", "HASH"), rows)
    if found["namespaces"] and namespace is None:
        print_line("")
        print_table(("NAMESPACE", "OWNER"), [(each["name"], each["owner"]) for each in found["namespaces"]])


@spokes.command(
    "show", epilog=examples(("dragoman spokes show stock.level", "its definition, before it is approved"))
)
def show(
    operation: Annotated[str, typer.Argument(help="The operation's id.")],
    *,
    hub: Url = DEFAULT_HUB,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Show what a spoke offers, and how it differs from what was approved."""
    path = definition_path(operation)
    found = run_with_client(HubTarget(hub, key), lambda client: client.request("GET", path))
    if json:
        print_json(found)
        return
    print_table(("OPERATION", "OWNER", "FOR", "HASH"), [definition_row(found)])
    if "approvedAt" in found:
        print_note(f"approved {format_age(found['approvedAt'])} by {found['approvedBy']}")
    if found["diff"]:
        print_line("")
        print_line(found["diff"])
    if found["sharing"] in ("private", "changed"):
        print_note(
            "to approve it as it is shown here:"
            f" dragoman spokes approve {found['id']}@{found['hash'][:HASH_LENGTH]}"
        )


@spokes.command(
    "approve",
    epilog=examples(
        ("dragoman spokes approve stock.level@6f1ed002ab55", "as it was shown"),
        ("dragoman spokes approve stock.level stock.order", "these, whatever they are by now"),
    ),
)
def approve(
    operations: Annotated[list[str], typer.Argument(metavar="OPERATION[@HASH]...")],
    *,
    hub: Url = DEFAULT_HUB,
    key: Key = None,
) -> None:
    """Let callers of all owners find and call operations of spokes, as long as they do not change.

    With the hash that `show` prints, an operation is approved only if it has not changed since.
    """

    async def work(client: HubClient) -> Json:
        wanted: dict[str, str] = {}
        for text in operations:
            id, _, seen = text.partition("@")
            found = await client.request("GET", definition_path(id))
            if not found["hash"].startswith(seen):
                raise Conflict(f"{found['id']} has changed since it was shown", hint="review it again")
            wanted[found["id"]] = found["hash"]
        answer: Json = await client.request("POST", "/api/spokes/approve", body={"operations": wanted})
        return answer

    print_line(f"approved: {', '.join(run_with_client(HubTarget(hub, key), work)['approved'])}")


@spokes.command(
    "revoke", epilog=examples(("dragoman spokes revoke stock.level", "it is for its owner only again"))
)
def revoke(
    operations: Annotated[list[str], typer.Argument(metavar="OPERATION...")],
    *,
    hub: Url = DEFAULT_HUB,
    key: Key = None,
) -> None:
    """Take back approvals, also of operations that no spoke offers at present."""
    body = {"operations": operations}
    found = run_with_client(
        HubTarget(hub, key), lambda client: client.request("POST", "/api/spokes/revoke", body=body)
    )
    print_line(f"revoked: {', '.join(found['revoked'])}")


@spokes.command(
    "free", epilog=examples(("dragoman spokes free stock", "another owner's spokes may register in it"))
)
def free(
    namespace: Annotated[str, typer.Argument(help="The namespace.")],
    *,
    hub: Url = DEFAULT_HUB,
    key: Key = None,
) -> None:
    """Free a namespace that belongs to the first owner who registered in it; its operations are removed."""
    from dragoman.cli.hub_client.url_quoting import path_segment  # late: --help needs none of it

    path = f"/api/spokes/namespaces/{path_segment(namespace)}"
    run_with_client(HubTarget(hub, key), lambda client: client.request("DELETE", path))
    print_line(f"freed {namespace}")


def definition_path(operation: str) -> str:
    """Return the path of an operation of spokes in the hub's API."""
    from dragoman.cli.hub_client.url_quoting import path_segment  # late: --help needs none of it

    return f"/api/spokes/operations/{path_segment(operation)}"


def spoke_row(spoke: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a spoke as a table row."""
    state = "connected" if spoke["connected"] else "away"
    return spoke["id"], spoke["owner"], state, str(spoke["calls"]), str(len(spoke["operations"]))


def definition_row(definition: Mapping[str, Any]) -> tuple[str, ...]:
    """Return an operation of spokes as a table row."""
    sharing = SHARING.get(definition["sharing"], definition["sharing"])
    away = "" if definition["offered"] else " (no spoke offers it)"
    return definition["id"], definition["owner"], sharing + away, definition["hash"][:HASH_LENGTH]
