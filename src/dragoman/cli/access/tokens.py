"""`dragoman tokens`: session tokens, for the browsers of an app's users. They need a running hub."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from dragoman.cli.hub_client.connect import HubTarget, run_with_client
from dragoman.cli.options import DEFAULT_HUB, AsJson, Hub, Key
from dragoman.cli.terminal import examples, format_age, print_json, print_line, print_note, print_table
from dragoman.errors import BadRequest

if TYPE_CHECKING:
    from dragoman.cli.hub_client.client import HubClient

Json: TypeAlias = dict[str, Any]

tokens = typer.Typer(no_args_is_help=True, help="Session tokens: access for the users of an app.")


@tokens.command("list", epilog=examples(("dragoman tokens list --json", "without their secrets")))
def list_tokens(
    *,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Maximum number of tokens.")] = 100,
    hub: Hub = DEFAULT_HUB,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """List the tokens of this key that have not expired; those of all keys for an administrator."""
    found = run_with_client(HubTarget(hub, key), lambda client: client.tokens(limit))
    if json:
        print_json({"tokens": found})
        return
    if not found:
        print_note("there is no token: dragoman tokens create --owner USER")
        return
    now = time.time()
    rows = [
        (
            each["id"],
            each["keyId"],
            describe_sessions(each),
            each["role"],
            ", ".join(each["models"]) if each["models"] is not None else "-",
            format_age(each["createdAt"]),
            f"in {math.ceil((each['expiresAt'] - now) / 60)} min",
        )
        for each in found
    ]
    print_table(("ID", "KEY", "SESSIONS", "ROLE", "MODELS", "MADE", "ENDS"), rows)


@tokens.command(
    "create",
    epilog=examples(
        ("dragoman tokens create --owner user-42", "for all sessions of one of your users"),
        ("dragoman tokens create --session demo --role read --minutes 60", "to read one session"),
    ),
)
def create(
    *,
    owner: Annotated[str | None, typer.Option(help="A user of the app, for all of its sessions.")] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="One session instead.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Sessions whose ids begin with this, instead.")] = None,
    minutes: Annotated[float, typer.Option(help="How long it is valid, at most 120.")] = 15.0,
    role: Annotated[Literal["read", "write"], typer.Option(help="What it may do.")] = "write",
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="A model that it may use; may be repeated."),
    ] = None,
    hub: Hub = DEFAULT_HUB,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Make a token that stands for this key, and print it. It cannot be shown again."""
    fields: Json = {"owner": owner, "session": session, "prefix": prefix, "models": model or None}
    body = {name: value for name, value in fields.items() if value is not None}
    body |= {"minutes": minutes, "role": role}
    made = run_with_client(HubTarget(hub, key), lambda client: client.create_token(body))
    if json:
        print_json(made)
        return
    print_note(f"token {made['id']} for {describe_sessions(made)}; it is shown this once:")
    print_line(made["token"])


@tokens.command(
    "revoke",
    epilog=examples(
        ("dragoman tokens revoke tok_3f9a0c1d2e4b5a67", "one"),
        ("dragoman tokens revoke --owner user-42", "all that this key made for one of your users"),
    ),
)
def revoke(
    id: Annotated[str | None, typer.Argument(help="The token's id, as `tokens list` shows it.")] = None,
    *,
    owner: Annotated[str | None, typer.Option(help="A user of the app: all of its tokens.")] = None,
    hub: Hub = DEFAULT_HUB,
    key: Key = None,
) -> None:
    """Revoke a token, or all of a user. Its streams end within ten seconds."""
    if (id is None) == (owner is None):
        raise BadRequest("name a token or an owner", hint="dragoman tokens revoke ID, or --owner USER")
    count = run_with_client(HubTarget(hub, key), lambda client: revoke_with(client, id, owner=owner))
    print_note(f"{count} token{'' if count == 1 else 's'} revoked")


async def revoke_with(client: HubClient, id: str | None, *, owner: str | None) -> int:
    """Revoke a token by its id, or those of an owner; return how many there were. NotFound."""
    if id is None:
        return await client.revoke_tokens(owner or "")
    await client.revoke_token(id)
    return 1


def describe_sessions(token: Json) -> str:
    """Return the sessions that a token is for, in a few words."""
    if token["owner"] is not None:
        return f"user {token['owner']}"
    return f"session {token['session']}" if token["prefix"] is None else f"{token['prefix']}…"
