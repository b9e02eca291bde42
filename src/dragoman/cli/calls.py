"""`dragoman calls`: show calls as a live tree, as a list or singly, and stop them."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from dragoman.cli.hub_client.connect import HubTarget, connect, run_with_client
from dragoman.cli.options import DEFAULT_DATA, DEFAULT_HUB, AsJson, Data, Hub, Key
from dragoman.cli.terminal import examples, format_age, print_json, print_line, print_note, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from dragoman.cli.hub_client.client import HubClient

Json: TypeAlias = dict[str, Any]
MIN_POLL_INTERVAL = 0.25
POLL_BACKOFF = 5  # pause between polls, as a multiple of the response time
calls = typer.Typer(no_args_is_help=True, help="Calls: inputs, callers and results; stop active ones.")
Id = Annotated[str, typer.Argument(metavar="ID", help="A call.")]
RunOrCall = Annotated[
    str | None, typer.Argument(metavar="[RUN|CALL]", help="A run or a call; the last one when left out.")
]
Follow = Annotated[
    bool | None,
    typer.Option("--follow/--no-follow", help="Update while it runs; the default at a terminal."),
]


@calls.command(
    "tree",
    epilog=examples(
        ("dragoman calls tree", "the last run in .dragoman, live while it runs"),
        ("dragoman calls tree run_01 --hub http://127.0.0.1:8000", "one of yours, in a running hub"),
        ("dragoman calls tree call_01", "the whole tree that one call belongs to, with a mark at the call"),
        ("dragoman calls tree call_01 --below --json", "only what is below one call, for programs"),
    ),
)
def tree(
    id: RunOrCall = None,
    *,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    follow: Follow = None,
    below: Annotated[bool, typer.Option("--below", help="Only the call and what is below it.")] = False,
    json: AsJson = False,
) -> None:
    """Show a tree from its root: model calls and the calls below them, with times, costs and errors.

    A call named in the middle of the tree is marked with ◀. Bars share one time axis. Active calls are
    updated until they end; Ctrl-C leaves them running.
    """
    follows = follow if follow is not None else sys.stdout.isatty() and not json
    asyncio.run(_tree(HubTarget(hub, key, data), id, follow=follows, below=below, json=json))


@calls.command(
    "list",
    epilog=examples(
        ("dragoman calls list", "the last ones in .dragoman, of all owners"),
        ("dragoman calls list --status failed --limit 10", "recent failures"),
    ),
)
def list_calls(
    *,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Only of this run.")] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only of this session.")] = None,
    operation: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this operation.")] = None,
    status: Annotated[
        str | None,
        typer.Option(help="Only these: pending, running, done, failed, aborted, denied, uncertain."),
    ] = None,
    roots: Annotated[
        bool, typer.Option("--roots", help="Runs and calls that were started from outside, with their sums.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of rows.")] = 50,
    json: AsJson = False,
) -> None:
    """List calls, the newest first."""
    filters = {
        "roots": "1" if roots else None,
        "run": run,
        "session": session,
        "operation": operation,
        "status": status,
    }
    query = {name: value for name, value in filters.items() if value is not None}
    query["limit"] = str(limit)
    found = run_with_client(HubTarget(hub, key, data), lambda client: client.calls(query))
    if json:
        print_json(found)
        return
    if not found["calls"]:
        print_note("no call matches")
        return
    rows = [
        (
            call["id"],
            format_age(call["startedAt"]),
            call["status"],
            format_span(call),
            call["name"],
            call.get("input") or "",
        )
        for call in found["calls"]
    ]
    of_calls = ("ID", "BEGAN", "STATUS", "TIME", "OPERATION", "INPUT")
    print_table(("ID", "BEGAN", "STATUS", "TIME", "NAME", "INPUT") if roots else of_calls, rows)


@calls.command("show", epilog=examples(("dragoman calls show call_01", "its whole input and result")))
def show(
    id: Id, *, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None, json: AsJson = False
) -> None:
    """Show one call: caller, operation, input and result."""
    call = run_with_client(HubTarget(hub, key, data), lambda client: client.call(id))
    if json:
        print_json(call)
        return
    for name, value in call.items():
        if value not in (None, [], {}):
            text = value if isinstance(value, str) else compact_json(value)
            print_line(f"{name:<15} {text}".replace("\n", f"\n{'':<16}"))


@calls.command(
    "export", epilog=examples(("dragoman calls export run_01 >run.jsonl", "with all inputs and results"))
)
def export(
    id: Annotated[str, typer.Argument(metavar="RUN|CALL", help="A run or a call.")],
    *,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
) -> None:
    """Write a run, or a call with all below it, to stdout as JSON lines."""
    asyncio.run(_export(HubTarget(hub, key, data), id))


@calls.command("abort", epilog=examples(("dragoman calls abort run_01", "stops it and all below it")))
def abort(
    id: Annotated[str, typer.Argument(metavar="RUN|CALL", help="A run or a call.")],
    *,
    hub: Hub = DEFAULT_HUB,
    key: Key = None,
) -> None:
    """Stop a run, or a call with all below it, in a running hub."""
    if not run_with_client(HubTarget(hub, key), lambda client: client.abort(id)):
        print_note(f"{id} is not active there; nothing was stopped")
        raise typer.Exit(1)
    print_line(f"{id} was stopped")


async def _export(target: HubTarget, id: str) -> None:
    async with connect(target) as client, aclosing(client.export_call(id)) as chunks:
        async for chunk in chunks:
            sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


async def _tree(target: HubTarget, id: str | None, *, follow: bool, below: bool, json: bool) -> None:
    from dragoman.cli.call_tree import render_tree, tree_console  # late: rich takes 0.1 s

    async with connect(target) as client:
        root = id or await _last_run(client)
        tree = await client.call_tree(root)
        if tree["path"] and not below:
            root = tree["path"][0]["id"]
            tree = await client.call_tree(root)
        out = tree_console()
        if follow and tree["running"]:
            tree = await _follow(client, root, tree=tree, out=None if json else out, mark=id)
    if json:
        print_json(tree)
        return
    out.print(render_tree(tree, tree["now"], width=out.width, mark=id))


async def _follow(client: HubClient, id: str, *, tree: Json, out: Console | None, mark: str | None) -> Json:
    """Poll the tree until it has ended; at a terminal, draw each state."""
    from rich.live import Live  # late: as above

    from dragoman.cli.call_tree import render_tree  # late: as above

    screen = out if out is not None and out.is_terminal else None
    live = Live(console=screen, auto_refresh=False, transient=True) if screen else None
    with live or nullcontext():
        while tree["running"]:
            if screen is not None and live is not None:
                drawn = render_tree(
                    tree, tree["now"], width=screen.width, max_rows=screen.height - 2, mark=mark
                )
                live.update(drawn, refresh=True)
            started = time.monotonic()
            tree = {**tree, **await client.call_tree(id, since=tree["version"])}
            await asyncio.sleep(max(MIN_POLL_INTERVAL, POLL_BACKOFF * (time.monotonic() - started)))
    return tree


async def _last_run(client: HubClient) -> str:
    from dragoman.errors import NotFound  # late: as above

    newest = (await client.calls({"limit": "1"}))["calls"]
    if not newest:
        raise NotFound("There is no call yet.", hint="`dragoman chat` or `dragoman ops call` makes calls")
    return str(newest[0]["runId"] or newest[0]["id"])


def format_span(call: Json) -> str:
    return "-" if call.get("duration") is None else f"{call['duration']:.2f} s"


def compact_json(value: Any) -> str:
    import msgspec  # late: as above

    return msgspec.json.encode(value).decode()
