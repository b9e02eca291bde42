"""`dragoman ops`: what can be called, and calling it; of a running hub, or right here."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import urlencode

import msgspec
import typer

from dragoman.cli.approvals import question_lines, resolve_answer
from dragoman.cli.client import HubClient, path_segment
from dragoman.cli.configuration import DEFAULT_FILE, add_operations
from dragoman.cli.options import AsJson, ConfigFile, Hub, Key, Places
from dragoman.cli.terminal import examples, print_error, print_json, print_line, print_note, print_table
from dragoman.config import read_config
from dragoman.errors import BadRequest
from dragoman.identity import LOCAL
from dragoman.operations.approval import MemoryApprovalStore, validate_answer
from dragoman.operations.artifact import MemoryArtifactStore
from dragoman.operations.calls import Calls
from dragoman.operations.context import Context
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.message_search import MemoryMessageSearch
from dragoman.operations.operation import Operation
from dragoman.operations.permission.access_control import AccessControl
from dragoman.operations.registry import Registry
from dragoman.operations.search.search import OperationSearch
from dragoman.operations.search.summary import summarise
from dragoman.server.app.operations import build_policy, build_registry
from dragoman.server.approvals import question_to_json
from dragoman.server.operations import outcome_to_json

if TYPE_CHECKING:
    pass


# ---- The catalog: operations to list, search and call, of a running hub or right here in this process.


class Catalog(Protocol):
    """Operations; the values are those of the doors under `/api/operations`."""

    async def list(self, namespace: str | None) -> Any: ...

    async def search(self, query: str, namespace: str | None) -> Any: ...

    async def get(self, id: str) -> Any: ...

    async def call(self, id: str, input: Mapping[str, Any], *, approval: str | None = None) -> Any: ...

    async def question(self, approval: str) -> Any:
        """What is asked; None where a yes or no is wanted."""
        ...

    async def approve(self, approval: str, answer: str | None = None) -> None: ...


class Remote:
    """The operations of a running hub."""

    def __init__(self, client: HubClient) -> None:
        self._client = client

    async def list(self, namespace: str | None) -> Any:
        return await self._find(namespace=namespace)

    async def search(self, query: str, namespace: str | None) -> Any:
        return await self._find(q=query, namespace=namespace)

    async def get(self, id: str) -> Any:
        return await self._client.request("GET", f"/api/operations/{path_segment(id)}")

    async def call(self, id: str, input: Mapping[str, Any], *, approval: str | None = None) -> Any:
        query = f"?{urlencode({'approval': approval})}" if approval else ""
        return await self._client.request(
            "POST", f"/api/operations/{path_segment(id)}/call{query}", body=input
        )

    async def question(self, approval: str) -> Any:
        return (await self._client.request("GET", f"/api/approvals/{path_segment(approval)}"))["question"]

    async def approve(self, approval: str, answer: str | None = None) -> None:
        body = {"approved": True} if answer is None else {"answer": answer}
        await self._client.request("POST", f"/api/approvals/{path_segment(approval)}", body=body)

    async def _find(self, **asked: str | None) -> Any:
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return await self._client.request("GET", f"/api/operations?{query}")


class Here:
    """The operations that a hub of this configuration would have, in this process."""

    def __init__(self, registry: Registry, calls: Calls) -> None:
        self._registry = registry
        self._calls = calls

    async def list(self, namespace: str | None) -> Any:
        found = [line(operation) for operation in self._registry.list(namespace)]
        return {"operations": found, "namespaces": self._registry.namespaces()}

    async def search(self, query: str, namespace: str | None) -> Any:
        return OperationSearch(self._registry).search(query, namespace=namespace).to_json()

    async def get(self, id: str) -> Any:
        operation = self._registry.get(id)
        schemas = {"inputSchema": operation.input_schema, "outputSchema": operation.output_schema}
        return {**line(operation), "description": operation.description, **schemas}

    async def call(self, id: str, input: Mapping[str, Any], *, approval: str | None = None) -> Any:
        context = Context(approval=approval)
        return outcome_to_json(await self._calls.call(self._registry.get(id), input, context=context))

    async def question(self, approval: str) -> Any:
        return question_to_json((await self._calls.access_control.approvals.get(approval)).question)

    async def approve(self, approval: str, answer: str | None = None) -> None:
        await self._calls.answer_approval(
            approval, approved=True, by=LOCAL, reason=answer and validate_answer(answer)
        )


def line(operation: Operation) -> dict[str, Any]:
    return {
        "id": operation.id,
        "namespace": operation.namespace,
        "summary": summarise(operation),
        "effect": operation.effect,
        "source": operation.source,
    }


@asynccontextmanager
async def opened(
    hub: str | None, key: str | None, *, config: Path | None, places: Sequence[str]
) -> AsyncIterator[Catalog]:
    """The catalog of a hub when one is named, else that of a configuration, if there is one."""
    if hub:
        async with HubClient(hub, key) as client:
            yield Remote(client)
        return
    path = config or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    said = add_operations(read_config(path), places)
    registry = build_registry(said, MemoryArtifactStore(), history=MemoryMessageSearch())
    guard = AccessControl(build_policy(said), MemoryApprovalStore(time.time), clock=time.time)
    async with Calls(registry, MemoryLedger(), access_control=guard) as calls:
        yield Here(registry, calls)


# ---- Arguments of an operation as they are typed on a command line: a JSON text, and NAME=VALUE pairs.


def parse_arguments(
    raw: str | None, pairs: Sequence[str], *, properties: Mapping[str, Any]
) -> dict[str, Any]:
    """The input: the JSON object `raw`, and the pairs over it. BadRequest when one cannot be read.

    A value whose property takes a string is one, as it stands; any other is JSON where it can be.
    """
    try:
        input = msgspec.json.decode(raw) if raw and raw.strip() else {}
    except msgspec.DecodeError as error:
        raise BadRequest(f"--input is no JSON: {error}") from None
    if not isinstance(input, dict):
        raise BadRequest("--input must be a JSON object", hint='such as {"name": "value"}')
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadRequest(f"{pair!r} is no argument", hint="write NAME=VALUE")
        input[name] = value if accepts_string(properties.get(name)) else parse_value(value)
    return input


def accepts_string(schema: Any) -> bool:
    """Whether a property's schema lets a string through."""
    if not isinstance(schema, Mapping):
        return False
    kinds = schema.get("type")
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
        return True
    return any(accepts_string(each) for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())))


def parse_value(value: str) -> Any:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value


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
def list_operations(
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
        print_json(answer)
        return
    rows = [(each["id"], each["effect"], each["summary"]) for each in answer["operations"]]
    print_table(("OPERATION", "EFFECT", "WHAT IT DOES"), rows)


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
        print_json(answer)
        return
    rows = [(f"{each['tool']}{each['signature']}", each["summary"]) for each in answer["tools"]]
    if rows:
        print_table(("OPERATION", "WHAT IT DOES"), rows)
    if answer.get("hint"):
        print_note(answer["hint"])


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
    print_json(look(Source(hub, key, config, operations), lambda catalog: catalog.get(id)))


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

    raw = sys.stdin.read() if input == "-" else input

    async def run(catalog: Catalog) -> Any:
        properties = (await catalog.get(id))["inputSchema"].get("properties", {})
        given = parse_arguments(raw, arguments or (), properties=properties)
        return await call_with_approvals(catalog, id, input=given, yes=yes)

    outcome = look(Source(hub, key, config, operations), run)
    if json:
        print_json(outcome)
    elif outcome["success"]:
        print_result(outcome["result"])
    else:
        print_failure(id, outcome["error"])
    raise typer.Exit(0 if outcome["success"] else 1)


async def call_with_approvals(catalog: Catalog, id: str, *, input: Mapping[str, Any], yes: bool) -> Any:
    """What comes of a call, with all that is asked on the way answered, as far as somebody is there."""
    outcome = await catalog.call(id, input)
    while (approval := outcome.get("approvalId")) is not None:
        question, why = await catalog.question(approval), outcome["error"]["message"]
        said = yes or ask_user(id, question, reason=why)
        if said is False:
            break
        await catalog.approve(approval, said if isinstance(said, str) else None)
        outcome = await catalog.call(id, input, approval=approval)
    return outcome


def ask_user(id: str, question: Mapping[str, Any] | None, *, reason: str) -> bool | str:
    """Whether somebody at the terminal approves a call, or the answer; nobody there means no."""
    if not sys.stdin.isatty():
        return False
    if question is None:
        return typer.confirm(f"{reason}. Call {id} now?", default=False, err=True)
    for line in question_lines(question):
        print_note(line)
    said: str = typer.prompt("Answer (an empty line declines)", default="", show_default=False, err=True)
    return resolve_answer(question, said) if said.strip() else False


def look(source: Source, work: Work) -> Any:
    """What the work finds in the catalog."""

    async def run() -> Any:
        async with opened(
            source.hub, source.key, config=source.config, places=source.places or ()
        ) as catalog:
            return await work(catalog)

    return asyncio.run(run())


def print_result(result: Any) -> None:
    if isinstance(result, str):
        print_line(result)
    else:
        print_json(result)


def print_failure(id: str, error: Mapping[str, Any]) -> None:
    wrong = f"`dragoman ops schema {id}` shows what it takes" if error.get("problems") else None
    print_error(error["message"], hint=error.get("hint") or wrong)
