"""`dragoman spoke`: serve the operations of this process to a hub elsewhere."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from dragoman.cli.options import DEFAULT_HUB
from dragoman.cli.terminal import examples, print_line, print_note, use_json_lines

if TYPE_CHECKING:
    from dragoman.operations import Registry
    from dragoman.spokes import Spoke

commands = typer.Typer()
EPILOG = examples(
    (
        "DRAGOMAN_KEY=dgm_... dragoman spoke tools:registry --hub https://hub.example",
        "a registry of tools.py",
    ),
    ("dragoman spoke ./tools.py", "all operations of a file, for the hub on this machine"),
    ("dragoman spoke tools:registry --key-env HUB_KEY --id worker-1", "with its own variable and id"),
)


SpokeId: TypeAlias = Annotated[
    str | None, typer.Option(help="The id of this process across restarts; a new one by default.")
]
Source: TypeAlias = Annotated[
    str | None, typer.Option(help="What the hub shows as the source; the module's name unless given.")
]
KeyVariable: TypeAlias = Annotated[
    str, typer.Option(metavar="VAR", help="The environment variable that holds a key of the hub.")
]


@commands.command("spoke", epilog=EPILOG)
def spoke(
    *,
    reference: str = typer.Argument(
        ..., metavar="MODULE:REGISTRY", help="The operations: a module or file, and a name in it."
    ),
    hub: Annotated[str, typer.Option(envvar="DRAGOMAN_HUB", metavar="URL", help="The hub.")] = DEFAULT_HUB,
    key_env: KeyVariable = "DRAGOMAN_KEY",
    id: SpokeId = None,
    name: Source = None,
    window: Annotated[int, typer.Option(min=1, help="Maximum number of simultaneous calls.")] = 256,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option()] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="All output as JSON lines.")] = False,
) -> None:
    """Serve operations of this process to a hub until it is stopped.

    It reconnects when the connection is lost or the hub restarts. The key is read from the
    environment only. Ctrl-C or SIGTERM stops it: calls under way get a few seconds to end.
    """
    import uvloop  # late: --help needs none of these

    from dragoman.cli.logging_setup import configure_logging  # late: as above
    from dragoman.spokes import Capacity, Spoke  # late: as above

    key = os.environ.get(key_env, "")
    if log_json:
        use_json_lines()
    configure_logging(log_level, as_json=log_json, secrets={key} if key else set())
    registry, capacity = load_registry(reference), Capacity(window=window)
    made = Spoke(registry, hub=hub, key=key, id=id, name=name or default_name(reference), capacity=capacity)
    if not key:
        print_note(f"{key_env} is not set; a hub that requires a key will refuse the connection")
    uvloop.run(run_spoke(made))


def load_registry(reference: str) -> Registry:
    """Load the operations that `reference` names, `MODULE:REGISTRY` or a file, into a registry."""
    from dragoman.operations.loader import load_operations  # late: --help needs none of it
    from dragoman.operations.registry import Registry  # late: as above

    return Registry(*load_operations(reference))


async def run_spoke(spoke: Spoke) -> None:
    """Run the spoke until a signal arrives; a second signal cancels it at once."""
    import asyncio  # late: as above

    loop = asyncio.get_running_loop()
    running = asyncio.create_task(spoke.run())
    announcing = asyncio.create_task(print_when_ready(spoke))
    closing: list[asyncio.Task[None]] = []

    def stop() -> None:
        if closing:
            running.cancel()
        closing.append(asyncio.create_task(spoke.close()))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await running
    finally:
        announcing.cancel()


async def print_when_ready(spoke: Spoke) -> None:
    """Print a line when the hub has registered the operations."""
    await spoke.ready()
    print_line(f"dragoman: spoke {spoke.id} serves at {spoke.url}")


def default_name(reference: str) -> str:
    """Return the name of the module or file as the spoke's name."""
    place = reference.split(":", 1)[0].removesuffix(".py")
    tail = place.rstrip("/").rpartition("/")[2].rpartition(".")[2]
    return "".join(each if each.isalnum() and each.isascii() else "-" for each in tail).strip("-") or "spoke"
