"""`dragoman demo`: a hub, a model and tools at work, without any key."""

from __future__ import annotations

from typing import Annotated

import typer

from dragoman.cli.terminal import examples

commands = typer.Typer()
EPILOG = examples(
    ("dragoman demo", "with the small local model when it is installed, else with a simulator"),
    ("dragoman demo --scripted", "with the simulator in any case"),
    ("dragoman demo --keep", "and leave the hub running, to try a front end on it"),
)


@commands.command("demo", epilog=EPILOG)
def demo(
    *,
    scripted: Annotated[bool, typer.Option("--scripted", help="A script instead of a model.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the hub running, and keep its data.")] = False,
) -> None:
    """Run a demonstration.

    Starts a hub on a free port of this machine with its data in a temporary folder, makes a key, asks a
    question that needs tools, prints the answer as it streams, and shows what was stored.
    """
    from dragoman.cli.demo_run import run_demo  # late: a whole hub, and --help needs none

    raise typer.Exit(run_demo(scripted=scripted, keep=keep))
