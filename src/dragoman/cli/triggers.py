"""`dragoman triggers`: list, create, activate and fire triggers, which give tasks to teams by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from dragoman.cli.access.question_prompt import spell_invisible
from dragoman.cli.hub_client.connect import HubTarget, run_with_client
from dragoman.cli.hub_client.url_quoting import path_segment
from dragoman.cli.options import DEFAULT_DATA, AsJson, Data, Hub, Key
from dragoman.cli.terminal import (
    examples,
    print_json,
    print_line,
    print_note,
    print_table,
    truncate,
)
from dragoman.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from dragoman.cli.hub_client.client import HubClient

Json: TypeAlias = dict[str, Any]
Trigger: TypeAlias = Annotated[
    str, typer.Argument(help="The trigger: its id, or TEAM/NAME.", metavar="TRIGGER")
]
MAX_TEXT = 60

triggers = typer.Typer(
    no_args_is_help=True, help="Triggers: schedules, windows, messages, webhooks and files that give tasks."
)


@triggers.command(
    "list",
    epilog=examples(
        ("dragoman triggers list", "those in .dragoman, of all owners"),
        ("dragoman triggers list --team research", "of one team"),
        ("dragoman triggers list --limit 20", "the first 20"),
    ),
)
def list_triggers(
    *,
    team: Annotated[str | None, typer.Option(help="Only those of this team.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of rows; all without it.")] = None,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """List triggers by team and name."""
    query = {} if team is None else {"team": team}
    found = run_with_client(HubTarget(hub, key, data), lambda client: client.triggers(query, limit=limit))
    if json:
        print_json({"triggers": found})
        return
    if not found:
        print_note("there are no triggers")
        return
    rows = [
        (
            each["id"],
            spell_invisible(f"{each['team']}/{each['name']}"),
            each["type"],
            each["state"],
            each.get("nextAt", "-"),
            each.get("lastResultAt", "-"),
            truncate(spell_invisible(each["task"]), MAX_TEXT),
        )
        for each in found
    ]
    print_table(("ID", "TRIGGER", "TYPE", "STATE", "NEXT", "LAST RESULT", "TASK"), rows)


@triggers.command(
    "show", epilog=examples(("dragoman triggers show research/nightly", "its definition and state"))
)
def show(
    trigger: Trigger, *, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None, json: AsJson = False
) -> None:
    """Show a trigger: when it fires, what it gives, and why it is in its state."""
    found = ask(HubTarget(hub, key, data), trigger, method="GET")
    if json:
        print_json(found)
        return
    print_line(f"{found['id']}  {spell_invisible(found['team'])}/{spell_invisible(found['name'])}")
    for name, value in found.items():
        if name not in ("id", "team", "name"):
            print_line(f"  {name}: {spell_invisible(str(value))}")


@triggers.command(
    "add",
    epilog=examples(
        (
            "dragoman triggers add research nightly --type schedule -s cron='30 2 * * *' --task 'News?'",
            "every night; it waits until it is enabled",
        ),
        ("dragoman triggers add research issues --file hook.yaml", "as a file says"),
    ),
)
def add(
    team: Annotated[str, typer.Argument(help="The team.")],
    name: Annotated[str, typer.Argument(help="The name of the trigger in its team.")],
    *,
    type: Annotated[str | None, typer.Option(help="When it fires: schedule, window, message, …")] = None,
    task: Annotated[str | None, typer.Option(help="What the team is to do.")] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("-s", "--set", metavar="FIELD=VALUE", help="A field; the value is YAML. Repeatable."),
    ] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="A YAML file with the fields.")] = None,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Create a trigger at a running hub. It fires nothing until it is enabled."""
    body = {**read_fields(file), **parse_fields(set or ()), "team": team, "name": name}
    body |= {field: value for field, value in (("type", type), ("task", task)) if value is not None}
    found = run_with_client(
        HubTarget(hub, key, data), lambda client: client.request("POST", "/api/triggers", body=body)
    )
    if json:
        print_json(found)
        return
    print_line(found["id"])
    if "secret" in found:
        print_line(f"webhook: {found['hook']}\nsecret: {found['secret']}")
        print_note("the secret is not shown again")
    print_note(f"it is pending; `dragoman triggers enable {found['id']}` activates it")


@triggers.command(
    "enable", epilog=examples(("dragoman triggers enable research/nightly", "it fires from now on"))
)
def enable(
    trigger: Trigger, *, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None, json: AsJson = False
) -> None:
    """Activate a trigger as it is now."""
    print_state(ask(HubTarget(hub, key, data), trigger, action="enable"), json=json)


@triggers.command(
    "disable",
    epilog=examples(("dragoman triggers disable research/nightly --reason holidays", "until it is enabled")),
)
def disable(
    trigger: Trigger,
    *,
    reason: Annotated[str | None, typer.Option(help="Why; stored with the trigger.")] = None,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Pause a trigger: it fires nothing until it is enabled."""
    body = {} if reason is None else {"reason": reason}
    found = ask(HubTarget(hub, key, data), trigger, action="disable", body=body)
    print_state(found, json=json)


@triggers.command("run", epilog=examples(("dragoman triggers run research/nightly", "once, now")))
def run(
    trigger: Trigger, *, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None, json: AsJson = False
) -> None:
    """Fire a trigger once, now, whatever its state is."""
    found = ask(HubTarget(hub, key, data), trigger, action="run")
    if json:
        print_json(found)
        return
    print_line(found["occurrence"])


@triggers.command(
    "history", epilog=examples(("dragoman triggers history research/nightly", "the last 20 that it fired"))
)
def history(
    trigger: Trigger,
    *,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Maximum number of rows.")] = 20,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """List what a trigger fired, newest first."""
    found = ask(HubTarget(hub, key, data), trigger, method="GET", action=f"history?limit={limit}")
    if json:
        print_json(found)
        return
    if not found["occurrences"]:
        print_note("it has fired nothing")
        return
    rows = [
        (
            each["dueAt"],
            each["state"],
            each.get("task", "-"),
            truncate(spell_invisible(each.get("error") or each.get("result") or "-"), MAX_TEXT),
        )
        for each in found["occurrences"]
    ]
    print_table(("DUE", "STATE", "TASK", "RESULT"), rows)


@triggers.command(
    "next", epilog=examples(("dragoman triggers next research/nightly --count 10", "the next ten times"))
)
def next_times(
    trigger: Trigger,
    *,
    count: Annotated[int, typer.Option(min=1, max=100, help="How many times.")] = 5,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Print the next times at which a trigger is due by the clock, in UTC."""
    found = ask(HubTarget(hub, key, data), trigger, method="GET", query=f"?next={count}")
    if json:
        print_json({"nextTimes": found["nextTimes"]})
        return
    for at in found["nextTimes"]:
        print_line(at)
    if not found["nextTimes"]:
        print_note(f"a trigger of the type {found['type']} has no set times")


@triggers.command(
    "remove", epilog=examples(("dragoman triggers remove research/nightly", "with its history"))
)
def remove(trigger: Trigger, *, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None) -> None:
    """Delete a trigger with its history. One of a file is removed there."""
    ask(HubTarget(hub, key, data), trigger, method="DELETE")
    print_note(f"{trigger} is deleted")


def ask(
    target: HubTarget,
    trigger: str,
    *,
    method: str = "POST",
    action: str = "",
    query: str = "",
    body: Json | None = None,
) -> Any:
    """Send a request about a trigger. Raises NotFound."""

    async def send(client: HubClient) -> Any:
        id = await find_id(client, trigger)
        path = f"/api/triggers/{path_segment(id)}{'/' if action else ''}{action}{query}"
        return await client.request(method, path, body=body)

    return run_with_client(target, send)


async def find_id(client: HubClient, trigger: str) -> str:
    """Return the id of a trigger; `trigger` is its id or TEAM/NAME. Raises NotFound."""
    team, slash, name = trigger.partition("/")
    if not slash:
        return trigger
    found = await client.triggers({"team": team})
    ids = [str(each["id"]) for each in found if each["name"] == name]
    if not ids:
        raise NotFound(f"there is no trigger {trigger!r}", hint="`dragoman triggers list` lists them")
    return ids[0]


def print_state(trigger: Json, *, json: bool) -> None:
    """Print a trigger whose state has changed."""
    if json:
        print_json(trigger)
        return
    when = f", next at {trigger['nextAt']}" if "nextAt" in trigger else ""
    print_note(f"{trigger['id']} is {trigger['state']}{when}")


def read_fields(file: Path | None) -> Json:
    """Return the fields in a YAML file. Raises BadRequest."""
    if file is None:
        return {}
    import yaml  # late: most commands need none

    try:
        fields = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadRequest(f"cannot read {str(file)!r}: {error}") from None
    if not isinstance(fields, dict):
        raise BadRequest(f"{str(file)!r} has no fields, such as `type: schedule`")
    return fields


def parse_fields(pairs: Sequence[str]) -> Json:
    """Return the fields of `FIELD=VALUE`. Raises BadRequest."""
    import yaml  # late: as above

    fields: Json = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadRequest(f"{pair[:60]!r} is not FIELD=VALUE", hint="such as -s zone=Europe/Berlin")
        try:
            fields[name] = value if value.startswith("*") else yaml.safe_load(value)
        except yaml.YAMLError:
            fields[name] = value
    return fields
