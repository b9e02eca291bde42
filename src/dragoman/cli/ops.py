"""`dragoman ops`: what can be called, and calling it; of a running hub, or right here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from dragoman.cli.options import AsJson, ConfigFile, Hub, Key, Places
from dragoman.cli.questions import chosen, lines_of
from dragoman.cli.terminal import complain, examples, note, say, show_json, show_table

if TYPE_CHECKING:
    from dragoman.cli.catalog import Catalog

ops = typer.Typer(
    no_args_is_help=True,
    help="Operations: what models and you can call; without --hub, those that a hub started here would have.",
)
Namespace: TypeAlias = Annotated[str | None, typer.Option(help="Only those of this namespace.")]
Work: TypeAlias = "Callable[[Catalog], Awaitable[Any]]"


class Source(NamedTuple):
    """Where the operations are."""

    hub: str | None
    key: str | None
    config: Path | None
    places: Sequence[str] | None


@ops.command(
    "list",
    epilog=examples(
        ("dragoman ops list", "the built-in operations"),
        ("dragoman ops list --operations ./my_tools.py", "with yours"),
        ("dragoman ops list --hub http://127.0.0.1:8000", "those of a running hub"),
    ),
)
def show_all(
    *,
    namespace: Namespace = None,
    hub: Hub = None,
    key: Key = None,
    config: ConfigFile = None,
    operations: Places = None,
    json: AsJson = False,
) -> None:
    """List operations."""
    answer = look(Source(hub, key, config, operations), lambda catalog: catalog.list(namespace))
    if json:
        show_json(answer)
        return
    rows = [(each["id"], each["effect"], each["summary"]) for each in answer["operations"]]
    show_table(("OPERATION", "EFFECT", "WHAT IT DOES"), rows)


@ops.command(
    "search", epilog=examples(("dragoman ops search 'current time'", "what a model would find with it"))
)
def search(
    query: Annotated[str, typer.Argument(help="What you look for: verb, object, service.")],
    *,
    namespace: Namespace = None,
    hub: Hub = None,
    key: Key = None,
    config: ConfigFile = None,
    operations: Places = None,
    json: AsJson = False,
) -> None:
    """Search operations, as the meta-tool hub.search does for a model."""
    answer = look(Source(hub, key, config, operations), lambda catalog: catalog.search(query, namespace))
    if json:
        show_json(answer)
        return
    rows = [(f"{each['tool']}{each['signature']}", each["summary"]) for each in answer["tools"]]
    if rows:
        show_table(("OPERATION", "WHAT IT DOES"), rows)
    if answer.get("hint"):
        note(answer["hint"])


@ops.command("schema", epilog=examples(("dragoman ops schema time.now", "what it takes and gives")))
def schema(
    id: Annotated[str, typer.Argument(help="The operation, namespace.name.")],
    *,
    hub: Hub = None,
    key: Key = None,
    config: ConfigFile = None,
    operations: Places = None,
) -> None:
    """Print an operation with its JSON Schemas, as JSON."""
    show_json(look(Source(hub, key, config, operations), lambda catalog: catalog.get(id)))


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
    id: Annotated[str, typer.Argument(help="The operation, namespace.name.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Arguments, over those of --input.")
    ] = None,
    *,
    input: Annotated[str | None, typer.Option(metavar="JSON", help="The whole input; - reads stdin.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve it, if it wants an approval.")] = False,
    hub: Hub = None,
    key: Key = None,
    config: ConfigFile = None,
    operations: Places = None,
    json: AsJson = False,
) -> None:
    """Call an operation and print its result. Exit code 1 when it fails.

    One that wants an approval, or an answer, is asked about at the terminal, or waits for
    `dragoman approvals`.
    """
    from dragoman.cli.arguments import parse  # late: msgspec, and --help needs none

    raw = sys.stdin.read() if input == "-" else input

    async def run(catalog: Catalog) -> Any:
        properties = (await catalog.get(id))["inputSchema"].get("properties", {})
        given = parse(raw, arguments or (), properties=properties)
        return await answered(catalog, id, given=given, yes=yes)

    outcome = look(Source(hub, key, config, operations), run)
    if json:
        show_json(outcome)
    elif outcome["success"]:
        show_result(outcome["result"])
    else:
        show_failure(id, outcome["error"])
    raise typer.Exit(0 if outcome["success"] else 1)


async def answered(catalog: Catalog, id: str, *, given: Mapping[str, Any], yes: bool) -> Any:
    """What comes of a call, with all that is asked on the way answered, as far as somebody is there."""
    outcome = await catalog.call(id, given)
    while (approval := outcome.get("approvalId")) is not None:
        question, why = await catalog.question(approval), outcome["error"]["message"]
        said = yes or decided(id, question, why=why)
        if said is False:
            break
        await catalog.approve(approval, said if isinstance(said, str) else None)
        outcome = await catalog.call(id, given, approval=approval)
    return outcome


def decided(id: str, question: Mapping[str, Any] | None, *, why: str) -> bool | str:
    """Whether somebody at the terminal approves a call, or the answer; nobody there means no."""
    if not sys.stdin.isatty():
        return False
    if question is None:
        return typer.confirm(f"{why}. Call {id} now?", default=False, err=True)
    for line in lines_of(question):
        note(line)
    said: str = typer.prompt("Answer (an empty line declines)", default="", show_default=False, err=True)
    return chosen(question, said) if said.strip() else False


def look(source: Source, work: Work) -> Any:
    """What the work finds in the catalog."""
    from dragoman.cli.catalog import opened  # late: pydantic and the operations take 0.3 s, --help none

    async def run() -> Any:
        async with opened(
            source.hub, source.key, config=source.config, places=source.places or ()
        ) as catalog:
            return await work(catalog)

    return asyncio.run(run())


def show_result(result: Any) -> None:
    if isinstance(result, str):
        say(result)
    else:
        show_json(result)


def show_failure(id: str, error: Mapping[str, Any]) -> None:
    wrong = f"`dragoman ops schema {id}` shows what it takes" if error.get("problems") else None
    complain(error["message"], hint=error.get("hint") or wrong)
