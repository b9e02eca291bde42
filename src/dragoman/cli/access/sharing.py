"""`dragoman sessions share`, `grant` and so on: links that anybody reads, and grants to owners and keys."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import typer

from dragoman.cli.completion import session_ids
from dragoman.cli.hub_client.connect import HubTarget, run_with_client
from dragoman.cli.options import DEFAULT_HUB, AsJson, Hub, Key
from dragoman.cli.terminal import examples, format_age, print_json, print_line, print_note, print_table
from dragoman.server.http.time_expressions import parse_future

commands = typer.Typer()
"""Commands of `dragoman sessions`."""
Id = Annotated[str, typer.Argument(metavar="ID", autocompletion=session_ids, help="A session of yours.")]
Owner = Annotated[str | None, typer.Option(metavar="NAME", help="The other owner.")]
KeyId = Annotated[str | None, typer.Option("--key-id", metavar="ID", help="One key, instead of an owner.")]


@commands.command(
    "share",
    epilog=examples(
        ("dragoman sessions share trip --expires 7d", "prints a link to the session as it is now"),
        ("dragoman sessions share trip --list", "its links, with the ids that revoke them"),
    ),
)
def share(
    id: Id,
    *,
    hub: Hub = DEFAULT_HUB,
    key: Key = None,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="The end of the link: 7d, 12h, or a date.")
    ] = None,
    tools: Annotated[bool, typer.Option("--tools", help="Show tool calls too.")] = False,
    links: Annotated[bool, typer.Option("--list", help="List the links instead of creating one.")] = False,
    json: AsJson = False,
) -> None:
    """Create a link to a session, which anybody can read without a key."""
    target = HubTarget(hub, key)
    if links:
        print_links(run_with_client(target, lambda client: client.links(id)), json=json)
        return
    body: dict[str, Any] = {"tools": tools}
    if expires is not None:
        now = time.time()
        body["expiresIn"] = parse_future(expires, now) - now
    link = run_with_client(target, lambda client: client.create_link(id, body))
    if json:
        print_json(link)
        return
    print_line(f"{(hub or DEFAULT_HUB).rstrip('/')}{link['path']}")
    print_note(f"anybody can read it; `dragoman sessions unshare {id} {link['id']}` revokes it")


@commands.command(
    "unshare", epilog=examples(("dragoman sessions unshare trip shr_01", "the link is a 404 from then on"))
)
def unshare(
    id: Id,
    link: Annotated[str, typer.Argument(metavar="LINK", help="The id of the link.")],
    *,
    hub: Hub = DEFAULT_HUB,
    key: Key = None,
) -> None:
    """Revoke a link to a session."""
    run_with_client(HubTarget(hub, key), lambda client: client.revoke_link(id, link))
    print_line(f"{link} is revoked")


@commands.command("grants", epilog=examples(("dragoman sessions grants trip", "who else may use it")))
def grants(id: Id, *, hub: Hub = DEFAULT_HUB, key: Key = None, json: AsJson = False) -> None:
    """List who else may use a session."""
    print_grants(run_with_client(HubTarget(hub, key), lambda client: client.grants(id)), json=json)


@commands.command(
    "grant",
    epilog=examples(
        ("dragoman sessions grant trip --owner bob", "bob may read it"),
        ("dragoman sessions grant trip --owner bob --role write", "and send messages, instead"),
    ),
)
def grant(
    id: Id,
    *,
    hub: Hub = DEFAULT_HUB,
    key: Key = None,
    owner: Owner = None,
    key_id: KeyId = None,
    role: Annotated[Literal["read", "write", "admin"], typer.Option(help="What it allows.")] = "read",
    json: AsJson = False,
) -> None:
    """Let another owner, or one key, use a session; in place of an earlier grant."""
    body = {**parse_grantee(owner, key_id), "role": role}
    print_grants(run_with_client(HubTarget(hub, key), lambda client: client.grant(id, body)), json=json)


@commands.command(
    "revoke", epilog=examples(("dragoman sessions revoke trip --owner bob", "ends what is open by it too"))
)
def revoke(
    id: Id, *, hub: Hub = DEFAULT_HUB, key: Key = None, owner: Owner = None, key_id: KeyId = None
) -> None:
    """Revoke a grant."""
    grantee = parse_grantee(owner, key_id)
    run_with_client(HubTarget(hub, key), lambda client: client.revoke_grant(id, grantee))
    print_line(f"the grant to {owner or key_id} is revoked")


def parse_grantee(owner: str | None, key_id: str | None) -> dict[str, str]:
    """Return to whom a grant is, as the hub's API names it. BadParameter unless exactly one is named."""
    match owner, key_id:
        case str(name), None:
            return {"owner": name}
        case None, str(id):
            return {"key": id}
        case _:
            raise typer.BadParameter("name one of --owner and --key-id")


def print_grants(found: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(found)
        return
    rows = [(each.get("owner") or each["key"], each["role"], each["createdBy"]) for each in found["grants"]]
    if rows:
        print_table(("GRANTED TO", "ROLE", "BY"), rows)
        print_note(f"they name the session {found['hubId']}")
    else:
        print_note("nobody but its owner may use it")


def print_links(found: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        print_json({"shares": found})
        return
    if not found:
        print_note("there is no link to it")
        return
    rows = [
        (
            each["id"],
            format_age(each["createdAt"]),
            format_end(each["expiresAt"]),
            "yes" if each["tools"] else "no",
        )
        for each in found
    ]
    print_table(("ID", "CREATED", "EXPIRES", "TOOL CALLS"), rows)


def format_end(moment: float | None) -> str:
    return "never" if moment is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
