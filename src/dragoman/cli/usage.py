"""`dragoman usage`: show usage and cost, from the data folder or from a running hub."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated, TypeAlias

import typer

from dragoman.cli.hub_client.connect import HubTarget, connect, run_with_client
from dragoman.cli.options import DEFAULT_DATA, AsJson, Data, Hub, Key
from dragoman.cli.terminal import examples, print_json, print_note

commands = typer.Typer()
EPILOG = examples(
    ("dragoman usage", "the last 30 days by model, from .dragoman"),
    ("dragoman usage --by day,owner --since 7d", "a week, by day and owner"),
    (
        "dragoman usage --by key --since 2026-11-01 --until 2026-12-01 --csv > november.csv",
        "for a spreadsheet",
    ),
    ("dragoman usage --requests --since 1h", "each request of the last hour"),
    ("dragoman usage --hub http://127.0.0.1:8000", "yours, from a running hub"),
)


By: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="WHAT,...",
        help="Group by: owner, key, provider, model, model_asked, door, status, day, hour, session, run.",
    ),
]
Since: TypeAlias = Annotated[
    str, typer.Option(metavar="WHEN", help="From when: 24h, 7d, or 2026-11-01 (UTC); all for all.")
]
Until: TypeAlias = Annotated[str | None, typer.Option(metavar="WHEN", help="Up to when, exclusively.")]
Owner: TypeAlias = Annotated[str | None, typer.Option(help="Only this owner's.")]
Model: TypeAlias = Annotated[str | None, typer.Option(help="Only of this model, asked or served.")]
KeyId: TypeAlias = Annotated[str | None, typer.Option(metavar="ID", help="Only of this key.")]
Requests: TypeAlias = Annotated[bool, typer.Option("--requests", help="List single requests.")]
Limit: TypeAlias = Annotated[
    int | None, typer.Option(min=1, max=10_000, help="Maximum number of rows; 50 in a table.")
]
AsCsv: TypeAlias = Annotated[bool, typer.Option("--csv", help="CSV, for spreadsheets.")]


@commands.command("usage", epilog=EPILOG)
def usage(
    *,
    by: By = "model",
    since: Since = "30d",
    until: Until = None,
    owner: Owner = None,
    model: Model = None,
    key_id: KeyId = None,
    requests: Requests = False,
    limit: Limit = None,
    csv: AsCsv = False,
    json: AsJson = False,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
) -> None:
    """Show usage and cost.

    IN counts whole prompts, CACHED the part read from the provider's cache. A cost after ≥ lacks calls
    whose price is unknown; ~ marks counts that hold estimates.
    """
    query = {"since": since, "until": until, "owner": owner, "model": model, "key": key_id}
    query |= {"group_by": None if requests else by, "limit": None if limit is None else str(limit)}
    parameters = {name: value for name, value in query.items() if value is not None and value != "all"}
    target = HubTarget(hub, key, data)
    if csv:
        asyncio.run(write_csv(target, parameters))
        return
    report = run_with_client(target, lambda client: client.usage({"limit": "50", **parameters}))
    if json:
        print_json(report)
        return
    if not report["total"]["calls"]:
        print_note("nothing was used in this time; --since all shows everything")
        return
    from dragoman.cli.usage_table import print_report  # late: rich takes 0.1 s

    print_report(report)


async def write_csv(target: HubTarget, parameters: Mapping[str, str]) -> None:
    """Write the report to stdout as CSV, page by page; all rows unless the parameters limit them."""
    async with connect(target) as client, aclosing(client.usage_csv(parameters)) as pages:
        async for page in pages:
            sys.stdout.write(page.decode())
