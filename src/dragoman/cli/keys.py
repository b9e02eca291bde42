"""`dragoman keys`: who may ask. Works on the data folder, also while the hub runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dragoman.cli.options import DEFAULT_DATA, AsJson, Data
from dragoman.cli.terminal import ago, examples, note, say, show_json, show_table
from dragoman.errors import NotFound

if TYPE_CHECKING:
    from dragoman.store.keys import Key
    from dragoman.store.store import Store

T = TypeVar("T")
keys = typer.Typer(no_args_is_help=True, help="Keys: they let people and programs in.")


@keys.command(
    "create",
    epilog=examples(
        ("dragoman keys create --owner ada", "prints the key, once"),
        (
            "export DRAGOMAN_KEY=$(dragoman keys create --owner ada --name laptop)",
            "keeps it for `dragoman chat`",
        ),
    ),
)
def create(
    *,
    owner: Annotated[str, typer.Option(help="Whose sessions it opens. Keys of one owner see the same.")],
    data: Data = DEFAULT_DATA,
    name: Annotated[str | None, typer.Option(help="A word to tell it by, such as the device.")] = None,
    scope: Annotated[list[str] | None, typer.Option(help="What it may do. May be repeated.")] = None,
    json: AsJson = False,
) -> None:
    """Make a key and print it. It cannot be read again: only its hash is kept."""
    key, secret = with_store(data, lambda store: store.keys.create(owner, name=name, scopes=scope or ()))
    if json:
        show_json({**shown(key), "key": secret})
        return
    note(f"key {key.id} for {owner}; it is shown this once (revoke it with `dragoman keys revoke {key.id}`):")
    say(secret)


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
    rows = [(key.id, key.owner, key.name or "-", f"{key.prefix}…", state(key)) for key in found]
    show_table(("ID", "OWNER", "NAME", "KEY", "STATE"), rows)


@keys.command("revoke", epilog=examples(("dragoman keys revoke key_3f9a0c1d2e4b5a67", "the id, not the key")))
def revoke(
    id: Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")],
    *,
    data: Data = DEFAULT_DATA,
) -> None:
    """Revoke a key. A running hub refuses it within five seconds."""
    if not with_store(existing(data), lambda store: store.keys.revoke(id)):
        raise NotFound(f"there is no valid key with the id {id!r}", hint="`dragoman keys list` shows them")
    note(f"key {id} is revoked")


def with_store(data: Path, work: Callable[[Store], Awaitable[T]]) -> T:
    """What the work gives, done on the store of a data folder."""
    from dragoman.store.store import Store  # late: SQLAlchemy takes 0.2 s, and --help should not

    async def run() -> T:
        async with await Store.open(data, exclusive=False) as store:
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
        "createdAt": key.created_at,
        "revokedAt": key.revoked_at,
        "lastUsedAt": key.last_used_at,
    }


def state(key: Key) -> str:
    if key.revoked_at is not None:
        return f"revoked {ago(key.revoked_at)}"
    return f"used {ago(key.last_used_at)}" if key.last_used_at else "never used"
