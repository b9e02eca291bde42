"""`dragoman calls`: what was called, as a live tree, as a list, one by one; and stopping it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias
from urllib.parse import urlencode

import typer

from dragoman.cli.client import HubClient, path_segment
from dragoman.cli.keys import require_data_folder
from dragoman.cli.options import DEFAULT_DATA, DEFAULT_HUB, AsJson, Data, Hub, Key
from dragoman.cli.terminal import examples, format_age, print_json, print_line, print_note, print_table
from dragoman.server.calls import CallReader
from dragoman.store.store import Store

if TYPE_CHECKING:
    from rich.console import Console


# ---- The ledger of calls as commands read it: from a running hub, or from a data folder.

Json: TypeAlias = dict[str, Any]


class Remote:
    """The caller's calls in a running hub."""

    def __init__(self, client: HubClient) -> None:
        self._client = client

    @classmethod
    @asynccontextmanager
    async def open(cls, hub: str, key: str | None) -> AsyncIterator[Remote]:
        """Those of the key's owner; of all where it has the scope "admin"."""
        async with HubClient(hub, key) as client:
            yield cls(client)

    async def tree(self, id: str, since: str = "") -> Json:
        """See `GET /api/calls/{id}/tree`."""
        return await self._get(f"/{path_segment(id)}/tree?{urlencode({'since': since})}")

    async def list(self, query: Mapping[str, str]) -> Json:
        """See `GET /api/calls`."""
        return await self._get(f"?{urlencode(query)}")

    async def call(self, id: str) -> Json:
        """See `GET /api/calls/{id}`."""
        return await self._get(f"/{path_segment(id)}")

    async def _get(self, path: str) -> Json:
        found: Json = await self._client.request("GET", f"/api/calls{path}")
        return found


class Folder:
    """The calls of all owners in a data folder, also while a hub runs there."""

    def __init__(self, store: Store) -> None:
        self._reader = CallReader(store)

    @classmethod
    @asynccontextmanager
    async def open(cls, data: Path) -> AsyncIterator[Folder]:
        """NotFound when there is no such folder."""
        async with await Store.open(require_data_folder(data), exclusive=False) as store:
            yield cls(store)

    async def tree(self, id: str, since: str = "") -> Json:
        """See `GET /api/calls/{id}/tree`; always whole."""
        return {**await self._reader.tree(id), "now": time.time()}

    async def list(self, query: Mapping[str, str]) -> Json:
        """See `GET /api/calls`."""
        return await self._reader.list(query)

    async def call(self, id: str) -> Json:
        """See `GET /api/calls/{id}`."""
        return await self._reader.call(id)


MIN_POLL_INTERVAL = 0.25
POLL_BACKOFF = 5  # how much longer than an answer takes it is not asked again
calls = typer.Typer(no_args_is_help=True, help="Calls: what was called, by whom, and what came of it.")
Id = Annotated[str, typer.Argument(metavar="ID", help="A call.")]
RunOrCall = Annotated[
    str | None, typer.Argument(metavar="[RUN|CALL]", help="A run or a call; the last one when left out.")
]
Follow = Annotated[
    bool | None,
    typer.Option("--follow/--no-follow", help="Go on while it runs; at a terminal it does by itself."),
]


class Source(Protocol):
    """Where calls are read: a hub, or a data folder. The answers are those of `/api/calls`."""

    async def tree(self, id: str, since: str = "") -> Json: ...

    async def list(self, query: Mapping[str, str]) -> Json: ...

    async def call(self, id: str) -> Json: ...


@calls.command(
    "tree",
    epilog=examples(
        ("dragoman calls tree", "the last run in .dragoman, live while it runs"),
        ("dragoman calls tree run_01 --hub http://127.0.0.1:8000", "one of yours, in a running hub"),
        ("dragoman calls tree call_01 --json", "what is below one call, for programs"),
    ),
)
def tree(
    id: RunOrCall = None,
    *,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    follow: Follow = None,
    json: AsJson = False,
) -> None:
    """Draw a run, its model calls, what they called and what that called; with times, money and errors.

    Bars share one axis of time. What is under way ticks until it ends; Ctrl-C leaves it running.
    """
    follows = follow if follow is not None else sys.stdout.isatty() and not json
    asyncio.run(_tree(Place(hub, key, data=data), id, follow=follows, json=json))


@calls.command(
    "list",
    epilog=examples(
        ("dragoman calls list", "the last ones in .dragoman, of all owners"),
        ("dragoman calls list --status failed --limit 10", "what went wrong lately"),
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
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many at most.")] = 50,
    json: AsJson = False,
) -> None:
    """List calls, the newest first."""
    asked = {"run": run, "session": session, "operation": operation, "status": status, "limit": str(limit)}
    query = {name: value for name, value in asked.items() if value is not None}
    found = asyncio.run(_list(Place(hub, key, data=data), query))
    if json:
        print_json(found)
        return
    if not found["calls"]:
        print_note("there is no such call yet")
        return
    rows = [
        (
            each["id"],
            format_age(each["startedAt"]),
            each["status"],
            format_span(each),
            each["name"],
            each.get("input", ""),
        )
        for each in found["calls"]
    ]
    print_table(("ID", "BEGAN", "STATUS", "TIME", "OPERATION", "INPUT"), rows)


@calls.command("show", epilog=examples(("dragoman calls show call_01", "its whole input and result")))
def show(
    id: Id, *, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None, json: AsJson = False
) -> None:
    """Show one call: who called what with which input, and what came of it."""
    found = asyncio.run(_call(Place(hub, key, data=data), id))
    if json:
        print_json(found)
        return
    for name, value in found.items():
        if value not in (None, [], {}):
            told = value if isinstance(value, str) else compact_json(value)
            print_line(f"{name:<15} {told}".replace("\n", f"\n{'':<16}"))


@calls.command("abort", epilog=examples(("dragoman calls abort run_01", "stops it and all below it")))
def abort(
    id: Annotated[str, typer.Argument(metavar="RUN|CALL", help="A run or a call.")],
    *,
    hub: Hub = DEFAULT_HUB,
    key: Key = None,
) -> None:
    """Stop a run, or a call with all below it, in a running hub."""
    if not asyncio.run(_abort(hub or DEFAULT_HUB, key, id=id)):
        print_note(f"{id} is not under way there; nothing was stopped")
        raise typer.Exit(1)
    print_line(f"{id} was stopped")


class Place:
    """A running hub, or else a data folder."""

    def __init__(self, hub: str | None, key: str | None, *, data: Path) -> None:
        self.hub = hub
        self.key = key
        self.data = data

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Source]:
        """What can be asked there."""

        opened = Remote.open(self.hub, self.key) if self.hub else Folder.open(self.data)
        async with opened as source:
            yield source


async def _tree(place: Place, id: str | None, *, follow: bool, json: bool) -> None:
    # late: drawing takes 0.1 s
    from dragoman.cli.call_tree import render_tree, tree_console

    async with place.open() as source:
        wanted = id or await _last_run(source)
        found = await source.tree(wanted)
        out = tree_console()
        if follow and found["running"]:
            found = await _follow(source, wanted, found=found, out=None if json else out)
    if json:
        print_json(found)
        return
    out.print(render_tree(found, found["now"], width=out.width))


async def _follow(source: Source, id: str, *, found: Json, out: Console | None) -> Json:
    """Ask until it has ended, and draw it again each time where somebody sees it."""
    from rich.live import Live  # late: as above

    from dragoman.cli.call_tree import render_tree  # late: as above

    is_seen = out is not None and out.is_terminal
    with Live(console=out, auto_refresh=False, transient=True) if is_seen else NoLiveDisplay() as live:
        while found["running"]:
            if out is not None and is_seen:
                live.update(
                    render_tree(found, found["now"], width=out.width, max_rows=out.height - 2), refresh=True
                )
            began = time.monotonic()
            news = await source.tree(id, since=found["version"])
            found = {**found, **news}
            await asyncio.sleep(max(MIN_POLL_INTERVAL, POLL_BACKOFF * (time.monotonic() - began)))
    return found


class NoLiveDisplay:
    """Where nothing is drawn."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass


async def _last_run(source: Source) -> str:
    from dragoman.errors import NotFound  # late: as above

    newest = (await source.list({"limit": "1"}))["calls"]
    if not newest:
        raise NotFound("nothing was called yet", hint="`dragoman chat` or `dragoman ops call` does")
    return str(newest[0]["runId"] or newest[0]["id"])


async def _list(place: Place, query: Mapping[str, str]) -> Json:
    async with place.open() as source:
        return await source.list(query)


async def _call(place: Place, id: str) -> Json:
    async with place.open() as source:
        return await source.call(id)


async def _abort(hub: str, key: str | None, *, id: str) -> bool:
    from dragoman.cli.client import HubClient, path_segment  # late: as above

    async with HubClient(hub, key) as client:
        return bool((await client.request("POST", f"/api/calls/{path_segment(id)}/abort"))["aborted"])


def format_span(call: Json) -> str:
    return "-" if call.get("duration") is None else f"{call['duration']:.2f} s"


def compact_json(value: Any) -> str:
    import msgspec  # late: as above

    return msgspec.json.encode(value).decode()
