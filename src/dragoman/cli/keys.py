"""`dragoman keys`: who may ask. Works on the data folder, also while the hub runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from dragoman.cli.options import DEFAULT_DATA, AsJson, Data
from dragoman.cli.rules import (
    Dollars,
    Expires,
    Models,
    Name,
    Parallel,
    PerMinute,
    Rules,
    Scopes,
    cleared,
    read_limits,
    read_rules,
    said,
)
from dragoman.cli.terminal import ago, examples, note, say, show_json, show_table
from dragoman.errors import NotFound
from dragoman.server.moments import read_span

if TYPE_CHECKING:
    from dragoman.store.keys import Key
    from dragoman.store.sealing import MasterKey
    from dragoman.store.store import Store

T = TypeVar("T")
Id: TypeAlias = Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")]

keys = typer.Typer(no_args_is_help=True, help="Keys: they let people and programs in.")


@keys.command(
    "create",
    epilog=examples(
        ("dragoman keys create --owner ada", "prints the key, once"),
        (
            "export DRAGOMAN_KEY=$(dragoman keys create --owner ada --name laptop)",
            "keeps it for `dragoman chat`",
        ),
        (
            "dragoman keys create --owner ci --scope gateway --usd-per-day 5 --expires 30d",
            "for one purpose, for a month",
        ),
    ),
)
def create(
    *,
    owner: Annotated[str, typer.Option(help="Whose sessions it opens and whose usage it is.")],
    data: Data = DEFAULT_DATA,
    name: Name = None,
    scope: Scopes = None,
    model: Models = None,
    expires: Expires = None,
    requests_per_minute: PerMinute = None,
    tokens_per_minute: PerMinute = None,
    parallel: Parallel = None,
    usd_per_day: Dollars = None,
    usd_per_month: Dollars = None,
    usd_total: Dollars = None,
    json: AsJson = False,
) -> None:
    """Make a key and print it. It cannot be read again: only its hash is kept."""
    limits = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "parallel": parallel,
        "usd_per_day": usd_per_day,
        "usd_per_month": usd_per_month,
        "usd_total": usd_total,
    }
    fields = read_rules(name=name, scope=scope, model=model, expires=expires)
    fields["limits"] = read_limits(limits)
    key, secret = with_store(data, lambda store: store.keys.create(owner, **fields))
    tell(key, secret, json=json)


@keys.command(
    "change",
    epilog=examples(
        (
            "dragoman keys change key_3f9a0c1d2e4b5a67 --usd-per-day 10 --parallel 4",
            "its secret stays as it is",
        ),
        ("dragoman keys change key_3f9a0c1d2e4b5a67 --expires 90d", "prolongs it"),
        ("dragoman keys change key_3f9a0c1d2e4b5a67 --clear usd-per-day --clear model", "takes limits away"),
    ),
)
def change(
    id: Id,
    *,
    data: Data = DEFAULT_DATA,
    name: Name = None,
    scope: Scopes = None,
    model: Models = None,
    expires: Expires = None,
    requests_per_minute: PerMinute = None,
    tokens_per_minute: PerMinute = None,
    parallel: Parallel = None,
    usd_per_day: Dollars = None,
    usd_per_month: Dollars = None,
    usd_total: Dollars = None,
    clear: Rules = None,
    json: AsJson = False,
) -> None:
    """Change what a key may do. What is not named stays. A running hub knows within five seconds."""
    limits = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "parallel": parallel,
        "usd_per_day": usd_per_day,
        "usd_per_month": usd_per_month,
        "usd_total": usd_total,
    }
    fields = read_rules(name=name, scope=scope, model=model, expires=expires)
    key = with_store(
        existing(data), lambda store: amend(store, id, fields=fields, limits=limits, clear=clear or ())
    )
    if json:
        show_json(shown(key))
        return
    note(f"key {key.id} of {key.owner}: {said(key) or 'everything but admin, without limits of its own'}")


@keys.command(
    "rotate",
    epilog=examples(
        ("dragoman keys rotate key_3f9a0c1d2e4b5a67", "the old secret is good for another day"),
        ("dragoman keys rotate key_3f9a0c1d2e4b5a67 --grace 0s", "it has leaked: end it now"),
    ),
)
def rotate(
    id: Id,
    *,
    data: Data = DEFAULT_DATA,
    grace: Annotated[str, typer.Option(metavar="SPAN", help="How long the old secret stays good.")] = "24h",
    json: AsJson = False,
) -> None:
    """Give a key a new secret and print it. Its id, limits and usage stay."""
    seconds = read_span(grace)
    key, secret = with_store(existing(data), lambda store: store.keys.rotate(id, seconds))
    note(f"the secret before is good for {grace} more")
    tell(key, secret, json=json)


@keys.command("list", epilog=examples(("dragoman keys list --json", "all keys, without their secrets")))
def show(*, data: Data = DEFAULT_DATA, json: AsJson = False) -> None:
    """List all keys."""
    found = with_store(existing(data), lambda store: store.keys.list())
    if json:
        show_json({"keys": [shown(key) for key in found]})
        return
    if not found:
        note("there is no key yet: dragoman keys create --owner NAME")
        return
    rows = [
        (key.id, key.owner, key.name or "-", f"{key.prefix}…", state(key), said(key) or "-") for key in found
    ]
    show_table(("ID", "OWNER", "NAME", "KEY", "STATE", "MAY"), rows)


@keys.command("revoke", epilog=examples(("dragoman keys revoke key_3f9a0c1d2e4b5a67", "the id, not the key")))
def revoke(id: Id, *, data: Data = DEFAULT_DATA) -> None:
    """Revoke a key. A running hub refuses it within five seconds."""
    if not with_store(existing(data), lambda store: store.keys.revoke(id)):
        raise missing(id)
    note(f"key {id} is revoked")


def with_store(data: Path, work: Callable[[Store], Awaitable[T]], *, master: MasterKey | None = None) -> T:
    """What the work gives, done on the store of a data folder; `master` opens its secrets."""
    from dragoman.store.store import Store  # late: SQLAlchemy takes 0.2 s, and --help should not

    async def run() -> T:
        async with await Store.open(data, exclusive=False, master=master) as store:
            return await work(store)

    return asyncio.run(run())


def existing(data: Path) -> Path:
    """The data folder; NotFound when no hub has ever used it."""
    if not (data / "hub.db").exists():
        raise NotFound(f"there is no hub's data in {str(data)!r}", hint="name its folder with --data")
    return data


def shown(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "owner": key.owner,
        "name": key.name,
        "prefix": key.prefix,
        "scopes": sorted(key.scopes),
        "models": key.models,
        "limits": key.limits or {},
        "createdAt": key.created_at,
        "expiresAt": key.expires_at,
        "revokedAt": key.revoked_at,
        "lastUsedAt": key.last_used_at,
    }


def state(key: Key) -> str:
    if key.revoked_at is not None:
        return f"revoked {ago(key.revoked_at)}"
    if key.expires_at is not None and key.expires_at <= time.time():
        return f"expired {ago(key.expires_at)}"
    return f"used {ago(key.last_used_at)}" if key.last_used_at else "never used"


def tell(key: Key, secret: str, *, json: bool) -> None:
    """The secret, alone on stdout."""
    if json:
        show_json({**shown(key), "key": secret})
        return
    end = f"dragoman keys revoke {key.id}"
    note(f"key {key.id} for {key.owner}; it is shown this once (revoke it with `{end}`):")
    say(secret)


async def amend(
    store: Store, id: str, *, fields: Mapping[str, Any], limits: Mapping[str, Any], clear: Sequence[str]
) -> Key:
    """The key with these fields and limits set, after others were cleared. NotFound."""
    key = await store.keys.get(id)
    if key is None:
        raise missing(id)
    gone, left = cleared(clear, key.limits)
    return await store.keys.change(id, **{**gone, **fields, "limits": read_limits(limits, over=left)})


def missing(id: str) -> NotFound:
    return NotFound(f"there is no valid key with the id {id!r}", hint="`dragoman keys list` shows them")
