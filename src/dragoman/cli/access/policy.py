"""`dragoman policy`: show what the configuration's rules decide, and why; list and revoke standing rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from dragoman.cli.completion import operation_ids
from dragoman.cli.hub_client.connect import HubTarget, run_with_client
from dragoman.cli.options import DEFAULT_DATA, DEFAULT_HUB, AsJson, ConfigFile, Data, Hub, Key, Places
from dragoman.cli.terminal import examples, format_age, print_json, print_line, print_note, print_table

if TYPE_CHECKING:
    from dragoman.config import Config
    from dragoman.operations.operation import Operation
    from dragoman.operations.permission.policy import Policy, RuleMatch

Effect: TypeAlias = Literal["read", "idempotent", "once"]
KEY_PREFIX = "key:"

policy = typer.Typer(no_args_is_help=True, help="Policy: who may call what, as the configuration says.")


@policy.callback()
def group() -> None:
    """Policy: who may call what, as the configuration says."""


@policy.command(
    "check",
    epilog=examples(
        ("dragoman policy check mail.send", "as ./dragoman.yaml has it, for anybody"),
        ("dragoman policy check mail.send --agent support --identity ann", "for an agent and an owner"),
        ("dragoman policy check mail.send --identity key:key_3f9a0c1d2e4b5a67", "for a key"),
        ("dragoman policy check github.delete_repo --effect once", "of a server that is not asked here"),
    ),
)
def check(
    operation: Annotated[str, typer.Argument(autocompletion=operation_ids, help="The operation's id.")],
    *,
    agent: Annotated[str | None, typer.Option(help="The agent that calls it.")] = None,
    identity: Annotated[
        list[str] | None,
        typer.Option(metavar="OWNER|key:ID", help="Who calls it. May be given for both owner and key."),
    ] = None,
    effect: Annotated[
        Effect | None, typer.Option(help="Its effect, where it is not known here; once when left out.")
    ] = None,
    config: ConfigFile = None,
    operations: Places = None,
    json: AsJson = False,
) -> None:
    """Print whether a call would be allowed, denied or need approval, and which rule decides.

    All matching rules are listed, the deciding one first.
    """
    # late: YAML and schemas take 0.2 s
    from dragoman.cli.config_discovery import add_operations, read_config_if_any
    from dragoman.operations.permission.explanation import match_to_json  # late: as above
    from dragoman.server.app.operation_setup import build_policy  # late: as above

    loaded = add_operations(read_config_if_any(config), operations or ())
    meant = find_operation(operation, loaded, effect=effect)
    found = find_matches(build_policy(loaded), meant, identities=identity or (), agent=agent)
    shown = [match_to_json(match) for match in found]
    if json:
        print_json({"operation": meant.id, "effect": meant.policy_effect, **shown[0], "matches": shown})
        return
    print_line(f"{meant.id} ({meant.policy_effect}): {shown[0]['decision']}")
    if shown[0]["reason"]:
        print_line(shown[0]["reason"])
    print_matches(shown)


@policy.command(
    "explain",
    epilog=examples(
        ("dragoman policy explain mail.send --agent support", "as the running hub would decide, for you"),
        ("dragoman policy explain mail.send --owner ann", "for another owner, with the scope admin"),
        ('dragoman policy explain mail.send --input \'{"to": "ann"}\'', "and whether this input is valid"),
    ),
)
def explain(
    operation: Annotated[str, typer.Argument(autocompletion=operation_ids, help="The operation's id.")],
    *,
    agent: Annotated[str | None, typer.Option(help="The agent that calls it.")] = None,
    owner: Annotated[str | None, typer.Option(help="The owner that calls it.")] = None,
    key_id: Annotated[str | None, typer.Option(metavar="ID", help="The key that calls it.")] = None,
    input: Annotated[str | None, typer.Option(metavar="JSON", help="The input to check.")] = None,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Print which rule of a running hub decides about a call, without making it.

    `policy check` does the same for a configuration file.
    """
    body: dict[str, Any] = {"operation": operation, "agent": agent, "owner": owner, "key": key_id}
    body = {name: value for name, value in body.items() if value is not None}
    if input is not None:
        body["input"] = parse_input(input)
    found = run_with_client(
        HubTarget(hub or DEFAULT_HUB, key),
        lambda client: client.request("POST", "/api/policy/explain", body=body),
    )
    if json:
        print_json(found)
        return
    print_line(f"{found['operation']} ({found['effect']}): {found['decision']}")
    if found["reason"]:
        print_line(found["reason"])
    print_matches(found["matches"])
    for problem in found["problems"] or ():
        print_line(f"input {problem['path'] or '-'}: expected {problem['expected']}, got {problem['got']}")


def parse_input(text: str) -> Any:
    """Return the input of a call. BadRequest."""
    # late: as above
    from msgspec import DecodeError

    from dragoman.errors import BadRequest  # late: as above
    from dragoman.json_decoding import decode_json  # late: as above

    try:
        return decode_json(text)
    except DecodeError as error:
        raise BadRequest(f"--input is not valid JSON: {error}") from None


def print_matches(matches: Sequence[Mapping[str, Any]]) -> None:
    """Print the rules that match, the deciding one first."""
    rows = [(each["decision"], each["pattern"] or "-", each["source"]) for each in matches]
    print_table(("DECISION", "PATTERN", "BECAUSE OF"), rows)


@policy.command("rules", epilog=examples(("dragoman policy rules", "of all owners in .dragoman")))
def rules(*, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None, json: AsJson = False) -> None:
    """List standing rules: what people always allow."""
    found = run_with_client(HubTarget(hub, key, data), lambda client: client.policy_rules())
    if json:
        print_json({"rules": found})
        return
    if not found:
        print_note("nothing is always allowed")
        return
    rows = [
        (
            rule["id"],
            rule["operation"],
            rule["owner"],
            rule["agent"] or "-",
            rule["createdBy"],
            format_age(rule["createdAt"]),
        )
        for rule in found
    ]
    print_table(("ID", "OPERATION", "OWNER", "AGENT", "ADDED BY", "ADDED"), rows)


@policy.command("revoke", epilog=examples(("dragoman policy revoke rul_3f9a0c1d", "it is asked again")))
def revoke(
    id: Annotated[str, typer.Argument(help="A standing rule, as `policy rules` shows it.")],
    *,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
) -> None:
    """Revoke a standing rule: the next call is asked about again."""
    run_with_client(HubTarget(hub, key, data), lambda client: client.revoke_rule(id))
    print_line(f"{id} is revoked")


def find_matches(
    policy: Policy, operation: Operation, *, identities: Sequence[str], agent: str | None
) -> Sequence[RuleMatch]:
    from dragoman.identity import LOCAL, Identity  # late: as above

    owners = [each for each in identities if not each.startswith(KEY_PREFIX)] or [LOCAL.owner]
    key = next((each.removeprefix(KEY_PREFIX) for each in identities if each.startswith(KEY_PREFIX)), None)
    return policy.matches(operation, identity=Identity(owners[0], key), agent=agent)


def find_operation(id: str, config: Config, *, effect: Effect | None) -> Operation:
    """Return the operation of this configuration, or a placeholder of this id. BadRequest."""
    from msgspec.structs import replace  # late: as above

    from dragoman.errors import BadRequest, ConfigError, NotFound  # late: as above
    from dragoman.operations.message_search import MemoryMessageSearch  # late: as above
    from dragoman.operations.operation import Operation  # late: as above
    from dragoman.operations.results.artifact import MemoryArtifactStore  # late: as above
    from dragoman.server.app.operation_setup import build_registry  # late: as above

    try:
        found = build_registry(config, MemoryArtifactStore(), history=MemoryMessageSearch()).get(id)
        return replace(found, effect=effect, retries=0) if effect else found
    except NotFound:
        print_note(
            f"{id} is not known here; its effect is assumed to be `{effect or 'once'}`, without an approval"
        )
    namespace, _, name = id.partition(".")
    try:
        return Operation.from_schema(unreachable, {}, namespace=namespace, name=name, effect=effect or "once")
    except ConfigError:
        raise BadRequest(f"{id!r} is not a valid operation id", hint="write it like mail.send") from None


async def unreachable(*_: Any) -> None:
    raise NotImplementedError("it is only decided about")
