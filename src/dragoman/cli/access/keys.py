"""`dragoman keys`: manage API keys in a data folder, also while its hub runs, or on a running hub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, TypeVar

import typer
from msgspec.structs import asdict

from dragoman.cli.data_folder import find_database
from dragoman.cli.hub_client.connect import HubTarget, run_with_client
from dragoman.cli.options import DEFAULT_DATA, AsJson, Data, Hub, Key
from dragoman.cli.terminal import examples, format_age, print_json, print_line, print_note, print_table
from dragoman.errors import BadRequest
from dragoman.identity import DEFAULT_SCOPES
from dragoman.server.http.time_expressions import parse_future, parse_span
from dragoman.usage_limits import NO_LIMITS, Limits

if TYPE_CHECKING:
    from dragoman.cli.hub_client.client import HubClient
    from dragoman.store.encryption import MasterKey
    from dragoman.store.store import Store

Json: TypeAlias = dict[str, Any]

# Rules of a key: options that set them, changes, and their description.

SCOPES = ("gateway", "chat", "operations", "spoke", "runner", "admin")
CLEARABLE: Mapping[str, tuple[str, Any]] = {
    "name": ("name", None),
    "scope": ("scopes", []),
    "model": ("models", None),
    "expires": ("expiresAt", None),
}
LIMITS = tuple(name.replace("_", "-") for name in Limits.__struct_fields__)


def choice_check(*choices: str) -> Callable[[list[str] | None], list[str] | None]:
    """Return a callback that checks each value of a repeatable option."""

    def check(values: list[str] | None) -> list[str] | None:
        for value in values or ():
            if value not in choices:
                raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}")
        return values

    return check


Name: TypeAlias = Annotated[str | None, typer.Option(help="A label, such as the device.")]


def scope_option(*names: str, help: str) -> Any:
    """Return a repeatable option that takes a scope."""
    return typer.Option(*names, metavar="|".join(SCOPES), callback=choice_check(*SCOPES), help=help)


Scopes: TypeAlias = Annotated[
    list[str] | None,
    scope_option(
        help="A scope of the key; may be repeated. Without it, all scopes but spoke, runner and admin."
    ),
]
NewScopes: TypeAlias = Annotated[
    list[str] | None,
    scope_option("--scope", help="A scope, in place of those that the key has; may be repeated."),
]
AddedScopes: TypeAlias = Annotated[
    list[str] | None,
    scope_option("--add-scope", help="A scope, beside those that the key has; may be repeated."),
]
RemovedScopes: TypeAlias = Annotated[
    list[str] | None,
    scope_option("--remove-scope", help="A scope to take away; may be repeated."),
]
Models: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Models that it may use, such as 'openai/*'. May be repeated."),
]
Expires: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="Expiry: a span such as 30d, or a date such as 2027-01-31."),
]
PerMinute: TypeAlias = Annotated[int | None, typer.Option(min=0, metavar="N", help="Most per minute.")]
Parallel: TypeAlias = Annotated[int | None, typer.Option(min=0, metavar="N", help="Most at the same time.")]
Dollars: TypeAlias = Annotated[float | None, typer.Option(min=0, metavar="USD", help="Most US dollars.")]
Rules: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHAT",
        callback=choice_check(*CLEARABLE, "limits", *LIMITS),
        help="A rule to remove: name, scope, model, expires, limits, or a limit such as parallel.",
    ),
]


def rule_fields(
    *, name: str | None, scope: Sequence[str] | None, model: Sequence[str] | None, expires: str | None
) -> dict[str, Any]:
    """Return the fields of a key that the options set, as the API names them. BadRequest for a moment."""
    fields = {
        "name": name,
        "scopes": sorted(scope) if scope else None,
        "models": model or None,
        "expiresAt": parse_future(expires, time.time()) if expires else None,
    }
    return {field: value for field, value in fields.items() if value is not None}


def build_limits(limits: Mapping[str, float | None], *, previous: Limits | None = None) -> Limits | None:
    """Return the options' limits over the previous ones; None without any. BadRequest."""
    set_limits = {name: value for name, value in limits.items() if value is not None}
    if not all(map(isfinite, set_limits.values())):
        raise BadRequest("no limit was given", hint="to remove one: `dragoman keys change ID --clear LIMIT`")
    made = Limits(**{**asdict(previous or NO_LIMITS), **set_limits})
    return None if made == NO_LIMITS else made


def clear_rules(rules: Sequence[str], limits: Limits) -> tuple[dict[str, Any], Limits | None]:
    """Return the cleared fields with their defaults, and the remaining limits. BadRequest."""
    fields = dict(CLEARABLE[rule] for rule in rules if rule in CLEARABLE)
    if "limits" in rules:
        return fields, None
    gone = {rule.replace("-", "_") for rule in rules}
    return fields, Limits(**{name: None if name in gone else value for name, value in asdict(limits).items()})


def describe_rules(key: Json) -> str:
    """Describe the restrictions of a key; empty without any."""
    words = [", ".join(key["scopes"])] if key["scopes"] else []
    words += [f"models {', '.join(key['models'])}"] if key["models"] is not None else []
    words += [f"{name.replace('_', ' ')} {value:g}" for name, value in key["limits"].items()]
    if key["expiresAt"] is not None and key["expiresAt"] > time.time():
        words.append(f"until {time.strftime('%Y-%m-%d %H:%M', time.localtime(key['expiresAt']))}")
    return "; ".join(words)


T = TypeVar("T")
Id: TypeAlias = Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")]

keys = typer.Typer(no_args_is_help=True, help="Keys: access for people and programs.")


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
    owner: Annotated[str, typer.Option(help="The owner of its sessions and usage.")],
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
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
    """Create a key and print it. It cannot be shown again: only its hash is stored."""
    limits = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "parallel": parallel,
        "usd_per_day": usd_per_day,
        "usd_per_month": usd_per_month,
        "usd_total": usd_total,
    }
    body = rule_fields(name=name, scope=scope, model=model, expires=expires)
    body |= {"owner": owner, "limits": build_limits(limits)}
    target = HubTarget(hub, key, data, creates=True)
    print_secret(run_with_client(target, lambda client: client.create_key(body)), json=json)


@keys.command(
    "change",
    epilog=examples(
        (
            "dragoman keys change key_3f9a0c1d2e4b5a67 --usd-per-day 10 --parallel 4",
            "its secret stays as it is",
        ),
        ("dragoman keys change key_3f9a0c1d2e4b5a67 --expires 90d", "prolongs it"),
        ("dragoman keys change key_3f9a0c1d2e4b5a67 --add-scope admin", "beside the scopes that it has"),
        ("dragoman keys change key_3f9a0c1d2e4b5a67 --clear usd-per-day --clear model", "takes limits away"),
    ),
)
def change(
    id: Id,
    *,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    name: Name = None,
    scope: NewScopes = None,
    add_scope: AddedScopes = None,
    remove_scope: RemovedScopes = None,
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
    """Change what a key may do; other rules stay. A running hub applies it within five seconds."""
    limits = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "parallel": parallel,
        "usd_per_day": usd_per_day,
        "usd_per_month": usd_per_month,
        "usd_total": usd_total,
    }
    changes = KeyChanges(
        fields=rule_fields(name=name, scope=scope, model=model, expires=expires),
        limits=limits,
        clear=clear or (),
        scopes=ScopeChange(frozenset(add_scope or ()), frozenset(remove_scope or ())),
    )
    changed = run_with_client(
        HubTarget(hub, key, data), lambda client: change_key(client, id, changes=changes)
    )
    if json:
        print_json(changed)
        return
    print_note(
        f"key {changed['id']} of {changed['owner']}: "
        f"{describe_rules(changed) or 'everything but admin, without limits of its own'}"
    )


@keys.command(
    "rotate",
    epilog=examples(
        ("dragoman keys rotate key_3f9a0c1d2e4b5a67", "the old secret stays valid for a day"),
        ("dragoman keys rotate key_3f9a0c1d2e4b5a67 --grace 0s", "a leaked secret: invalidate it now"),
    ),
)
def rotate(
    id: Id,
    *,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    grace: Annotated[str, typer.Option(metavar="SPAN", help="How long the old secret stays valid.")] = "24h",
    json: AsJson = False,
) -> None:
    """Give a key a new secret and print it. Its id, limits and usage stay."""
    seconds = parse_span(grace)
    rotated = run_with_client(HubTarget(hub, key, data), lambda client: client.rotate_key(id, seconds))
    print_note(f"the previous secret stays valid for {grace}")
    print_secret(rotated, json=json)


@keys.command("list", epilog=examples(("dragoman keys list --json", "all keys, without their secrets")))
def list_keys(*, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None, json: AsJson = False) -> None:
    """List all keys."""
    found = run_with_client(HubTarget(hub, key, data), lambda client: client.keys())
    if json:
        print_json({"keys": found})
        return
    if not found:
        print_note("there is no key yet: dragoman keys create --owner NAME")
        return
    rows = [
        (
            each["id"],
            each["owner"],
            each["name"] or "-",
            f"{each['prefix']}…",
            describe_state(each),
            describe_rules(each) or "-",
        )
        for each in found
    ]
    print_table(("ID", "OWNER", "NAME", "KEY", "STATE", "MAY"), rows)


@keys.command("revoke", epilog=examples(("dragoman keys revoke key_3f9a0c1d2e4b5a67", "the id, not the key")))
def revoke(id: Id, *, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None) -> None:
    """Revoke a key. A running hub refuses it within five seconds."""
    run_with_client(HubTarget(hub, key, data), lambda client: client.revoke_key(id))
    print_note(f"key {id} is revoked")


def run_with_store(
    data: Path,
    work: Callable[[Store], Awaitable[T]],
    *,
    config: Path | None = None,
    master: MasterKey | None = None,
) -> T:
    """Run `work` on the store of a data folder and return its result; `master` decrypts the secrets.

    `config` is the configuration that may name another database, ./dragoman.yaml for None.
    """
    # late: SQLAlchemy takes 0.2 s, and --help should not
    from dragoman.store.store import DatabaseSettings, Store  # late: as above

    database = DatabaseSettings(find_database(config))

    async def run() -> T:
        async with await Store.open(data, database=database, exclusive=False, master_key=master) as store:
            return await work(store)

    return asyncio.run(run())


def describe_state(key: Json) -> str:
    if key["revokedAt"] is not None:
        return f"revoked {format_age(key['revokedAt'])}"
    if key["expiresAt"] is not None and key["expiresAt"] <= time.time():
        return f"expired {format_age(key['expiresAt'])}"
    return f"used {format_age(key['lastUsedAt'])}" if key["lastUsedAt"] else "never used"


def print_secret(key: Json, *, json: bool) -> None:
    """Print the secret alone to stdout, and notes to stderr."""
    if json:
        print_json(key)
        return
    end = f"dragoman keys revoke {key['id']}"
    print_note(f"key {key['id']} for {key['owner']}; it is shown this once (revoke it with `{end}`):")
    print_line(key["key"])


class ScopeChange(NamedTuple):
    """Scopes that a key gets beside those that it has, and scopes that it loses."""

    added: frozenset[str]
    removed: frozenset[str]

    def apply(self, scopes: frozenset[str]) -> frozenset[str]:
        """Return the scopes of a key after the change. BadRequest when none would be left.

        A key that names no scopes has the default ones; they are named once one is added or removed.
        """
        if not self.added and not self.removed:
            return scopes
        if both := self.added & self.removed:
            raise BadRequest(f"the scope {min(both)!r} cannot be added and removed at once", field="scopes")
        changed = ((scopes or DEFAULT_SCOPES) | self.added) - self.removed
        if not changed:
            raise BadRequest(
                "no scope would be left", field="scopes", hint="`dragoman keys revoke ID` revokes the key"
            )
        return changed


class KeyChanges(NamedTuple):
    """What changes of a key: fields as the API names them, limits, and rules that are removed before."""

    fields: Mapping[str, Any]
    limits: Mapping[str, float | None]
    clear: Sequence[str]
    scopes: ScopeChange


async def change_key(client: HubClient, id: str, *, changes: KeyChanges) -> Json:
    """Return the key after clearing rules and setting the rest. NotFound, BadRequest."""
    key = await client.api_key(id)
    gone, left = clear_rules(changes.clear, Limits(**key["limits"]))
    changed = {**gone, **changes.fields}
    scopes: frozenset[str] = frozenset(changed.get("scopes", key["scopes"]) or ())
    changed["scopes"] = sorted(changes.scopes.apply(scopes))
    return await client.change_key(id, {**changed, "limits": build_limits(changes.limits, previous=left)})
