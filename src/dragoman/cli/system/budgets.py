"""`dragoman budgets`: what of each budget is spent, in a data folder or a running hub."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import typer

from dragoman.cli.hub_client.connect import HubTarget, run_with_client
from dragoman.cli.options import DEFAULT_DATA, AsJson, Data, Hub, Key
from dragoman.cli.terminal import bar, examples, print_json, print_note, print_table

Json: TypeAlias = Mapping[str, Any]
commands = typer.Typer()
EPILOG = examples(
    ("dragoman budgets", "of the keys in .dragoman; what is used most comes first"),
    (
        "dragoman budgets --hub http://127.0.0.1:8000",
        "of a running hub, owners too",
    ),
)


@commands.command("budgets", epilog=EPILOG)
def budgets(*, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None, json: AsJson = False) -> None:
    """Show budgets: the amounts spent, the amounts reserved by active requests, and when each resets.

    Limits of owners are in the configuration, so a data folder shows those of keys only.
    """
    found: Json = run_with_client(
        HubTarget(hub, key, data), lambda client: client.request("GET", "/api/budgets")
    )
    if json:
        print_json(found)
        return
    rows = [row for subject in found["budgets"] for row in budget_rows(subject)]
    if not rows:
        print_note("nothing has a budget; `dragoman keys change ID --usd-per-day 5` sets one")
        return
    print_table(("OF", "OWNER", "PER", "LIMIT", "SPENT", "RESERVED", "USED", "RESETS"), rows)


def budget_rows(subject: Json) -> Iterator[tuple[str, ...]]:
    """Yield the budgets of a key or an owner as rows."""
    for budget in subject["budgets"]:
        used = budget["spent"] + budget["reserved"]
        share = used / budget["limit"] if budget["limit"] else 1.0
        ends = budget["resetsAt"]
        yield (
            f"{subject['kind']} {subject['id']}",
            subject.get("owner") or subject["id"],
            budget["window"],
            f"${budget['limit']:.2f}",
            f"${budget['spent']:.4f}",
            f"${budget['reserved']:.4f}",
            f"{share:>4.0%} {bar(min(share, 1.0), 1.0)}",
            "-" if ends is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(ends)),
        )
