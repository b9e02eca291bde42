"""`dragoman ops`: list, search and call operations, of a running hub or of a configuration."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias
from urllib.parse import quote

import typer

from dragoman.cli.access.question_prompt import question_lines, resolve_answer
from dragoman.cli.completion import operation_ids
from dragoman.cli.hub_client.connect import HubTarget, run_with_client
from dragoman.cli.options import DEFAULT_DATA, AsJson, ConfigFile, Data, Hub, Key, Places
from dragoman.cli.terminal import (
    examples,
    format_age,
    print_error,
    print_json,
    print_line,
    print_note,
    print_table,
)
from dragoman.errors import BadRequest
from dragoman.json_decoding import DECODE_ERRORS, decode_json

if TYPE_CHECKING:
    from dragoman.cli.hub_client.client import HubClient

ops = typer.Typer(
    no_args_is_help=True,
    help="Operations: what models and you can call; without --hub, those that a hub started here would have.",
)
Namespace: TypeAlias = Annotated[str | None, typer.Option(help="Only operations of this namespace.")]


class OperationSource(NamedTuple):
    """A running hub and its key, or else a configuration and further operations."""

    hub: str | None
    key: str | None
    config: Path | None
    modules: Sequence[str] | None


@ops.command(
    "list",
    epilog=examples(
        ("dragoman ops list", "the built-in operations"),
        ("dragoman ops list --operations ./my_tools.py", "with yours"),
        ("dragoman ops list --hub http://127.0.0.1:8000", "those of a running hub"),
        ("dragoman ops list --text order --limit 20", "the first 20 with this text in their id"),
    ),
)
def list_operations(
    *,
    namespace: Namespace = None,
    text: Annotated[str | None, typer.Option(help="Only operations with this text in their id.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, max=500, help="Maximum number of rows.")] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="ID", autocompletion=operation_ids, help="Only those behind this id."),
    ] = None,
    hub: Hub = None,
    key: Key = None,
    config: ConfigFile = None,
    operations: Places = None,
    json: AsJson = False,
) -> None:
    """List operations, by id."""
    source = OperationSource(hub, key, config, operations)
    query = {
        "namespace": namespace,
        "text": text,
        "limit": None if limit is None else str(limit),
        "after": after,
    }
    answer = run_with_source(source, lambda client: client.operations(**query))
    if json:
        print_json(answer)
        return
    rows = [(each["id"], each["effect"], each["summary"]) for each in answer["operations"]]
    print_table(("OPERATION", "EFFECT", "WHAT IT DOES"), rows)
    if answer.get("next") is not None:
        print_note(f"there are more: --after {answer['next']}")


@ops.command(
    "search", epilog=examples(("dragoman ops search 'current time'", "what a model would find with it"))
)
def search(
    query: Annotated[str, typer.Argument(help="Search words: verb, object, service.")],
    *,
    namespace: Namespace = None,
    hub: Hub = None,
    key: Key = None,
    config: ConfigFile = None,
    operations: Places = None,
    json: AsJson = False,
) -> None:
    """Search operations, as the meta-tool hub.search does for a model."""
    source = OperationSource(hub, key, config, operations)
    answer = run_with_source(source, lambda client: client.operations(q=query, namespace=namespace))
    if json:
        print_json(answer)
        return
    rows = [(f"{each['tool']}{each['signature']}", each["summary"]) for each in answer["tools"]]
    if rows:
        print_table(("OPERATION", "WHAT IT DOES"), rows)
    if answer.get("hint"):
        print_note(answer["hint"])


@ops.command("schema", epilog=examples(("dragoman ops schema time.now", "what it takes and gives")))
def schema(
    id: Annotated[str, typer.Argument(autocompletion=operation_ids, help="The operation, namespace.name.")],
    *,
    hub: Hub = None,
    key: Key = None,
    config: ConfigFile = None,
    operations: Places = None,
) -> None:
    """Print an operation with its JSON Schemas, as JSON."""
    source = OperationSource(hub, key, config, operations)
    print_json(run_with_source(source, lambda client: client.operation(id)))


@ops.command(
    "stats",
    epilog=examples(
        ("dragoman ops stats shop.price", "how its calls of the last day went, from .dragoman"),
        ("dragoman ops stats shop.price --since 7d --hub http://127.0.0.1:8000", "of a running hub"),
    ),
)
def stats(
    id: Annotated[str, typer.Argument(autocompletion=operation_ids, help="The operation, namespace.name.")],
    *,
    since: Annotated[str, typer.Option(metavar="WHEN", help="From when: 24h, 7d, or a date.")] = "24h",
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Show how the calls of an operation went: counts, durations and the last ones."""
    path = f"/api/operations/{quote(id, safe='')}/stats"
    found = run_with_client(
        HubTarget(hub, key, data), lambda client: client.request("GET", path, query={"since": since})
    )
    if json:
        print_json(found)
        return
    statuses = ", ".join(f"{count} {status}" for status, count in found["byStatus"].items())
    print_line(f"{id}: {found['calls']} calls" + (f": {statuses}" if statuses else ""))
    if found["p50"] is not None:
        print_line(f"p50 {found['p50']:.3f} s, p95 {found['p95']:.3f} s, p99 {found['p99']:.3f} s")
    rows = [
        (each["id"], format_age(each["startedAt"]), each["status"], each.get("input") or "")
        for each in found["lastCalls"]
    ]
    if rows:
        print_table(("CALL", "BEGAN", "STATUS", "INPUT"), rows)


@ops.command(
    "call",
    epilog=examples(
        (
            "dragoman ops call math.calculate expression='6 * 7'",
            "arguments by name; strings as the schema says",
        ),
        ('dragoman ops call math.calculate --input \'{"expression": "6 * 7"}\'', "the input as JSON"),
        (
            'echo \'{"expression": "6 * 7"}\' | dragoman ops call math.calculate --input - --json',
            "from a pipe",
        ),
    ),
)
def call(
    id: Annotated[str, typer.Argument(autocompletion=operation_ids, help="The operation, namespace.name.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Arguments, over those of --input.")
    ] = None,
    *,
    input: Annotated[str | None, typer.Option(metavar="JSON", help="The whole input; - reads stdin.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve it, if it needs an approval.")] = False,
    hub: Hub = None,
    key: Key = None,
    config: ConfigFile = None,
    operations: Places = None,
    json: AsJson = False,
) -> None:
    """Call an operation and print its result. Exit code 1 when it fails.

    An approval or a question is put to you at the terminal; without one it waits for `dragoman approvals`.
    """
    raw = sys.stdin.read() if input == "-" else input

    async def run(client: HubClient) -> Any:
        properties = (await client.operation(id))["inputSchema"].get("properties", {})
        parsed = parse_arguments(raw, arguments or (), properties=properties)
        return await call_with_approvals(client, id, input=parsed, yes=yes)

    outcome = run_with_source(OperationSource(hub, key, config, operations), run)
    if json:
        print_json(outcome)
    elif outcome["success"]:
        print_result(outcome["result"])
    else:
        print_failure(id, outcome["error"])
    raise typer.Exit(0 if outcome["success"] else 1)


async def call_with_approvals(client: HubClient, id: str, *, input: Mapping[str, Any], yes: bool) -> Any:
    """Call an operation and answer its approvals and questions, at the terminal if there is one."""
    outcome = await client.call_operation(id, input)
    while (approval_id := outcome.get("approvalId")) is not None:
        question = (await client.approval(approval_id))["question"]
        decision = yes or ask_user(id, question, reason=outcome["error"]["message"])
        if decision is False:
            break
        if isinstance(decision, str):
            await client.answer(approval_id, decision)
        else:
            await client.decide(approval_id, approved=True)
        outcome = await client.call_operation(id, input, approval=approval_id)
    return outcome


def ask_user(id: str, question: Mapping[str, Any] | None, *, reason: str) -> bool | str:
    """Ask at the terminal for an approval or an answer. False without a terminal."""
    if not sys.stdin.isatty():
        return False
    if question is None:
        return typer.confirm(f"{reason}. Call {id} now?", default=False, err=True)
    for line in question_lines(question):
        print_note(line)
    text: str = typer.prompt("Answer (an empty line declines)", default="", show_default=False, err=True)
    return resolve_answer(question, text) if text.strip() else False


def run_with_source(source: OperationSource, work: Callable[[HubClient], Awaitable[Any]]) -> Any:
    """Run `work` with a client of the named hub, or else of the configuration's operations."""
    if source.hub:
        return run_with_client(HubTarget(source.hub, source.key), work)
    from dragoman.cli.config_discovery import (  # late: YAML and schemas take 0.2 s
        add_operations,
        read_config_if_any,
    )
    from dragoman.cli.hub_client.in_process import connect_to_config  # late: as above

    config = add_operations(read_config_if_any(source.config), source.modules or ())

    async def run() -> Any:
        async with connect_to_config(config) as client:
            return await work(client)

    return asyncio.run(run())


def print_result(result: Any) -> None:
    if isinstance(result, str):
        print_line(result)
    else:
        print_json(result)


def print_failure(id: str, error: Mapping[str, Any]) -> None:
    schema_hint = f"`dragoman ops schema {id}` shows what it takes" if error.get("problems") else None
    print_error(error["message"], hint=error.get("hint") or schema_hint)


def parse_arguments(
    raw: str | None, pairs: Sequence[str], *, properties: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the input: the JSON object `raw`, with the NAME=VALUE pairs over it. BadRequest.

    A value is a string where the property's schema accepts one, else JSON if it parses as JSON.
    """
    try:
        input = decode_json(raw) if raw and raw.strip() else {}
    except DECODE_ERRORS as error:
        raise BadRequest(f"--input is not valid JSON: {error}") from None
    if not isinstance(input, dict):
        raise BadRequest("--input must be a JSON object", hint='such as {"name": "value"}')
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadRequest(f"{pair!r} is not a valid argument", hint="write NAME=VALUE")
        input[name] = value if accepts_string(properties.get(name)) else parse_value(value)
    return input


def accepts_string(schema: Any) -> bool:
    """Return whether a property's schema accepts a string."""
    if not isinstance(schema, Mapping):
        return False
    kinds = schema.get("type")
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
        return True
    return any(accepts_string(each) for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())))


def parse_value(value: str) -> Any:
    try:
        return decode_json(value)
    except DECODE_ERRORS:
        return value
