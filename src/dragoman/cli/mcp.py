"""`dragoman mcp`: the hub as a stdio server for MCP clients that start programs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import DEFAULT_DATA, ConfigFile, Data, Hub, Places
from dragoman.cli.terminal import examples
from dragoman.errors import BadRequest

KEY_VARIABLE = "DRAGOMAN_KEY"
commands = typer.Typer()
EPILOG = examples(
    (
        "dragoman mcp --stdio --hub http://127.0.0.1:8000",
        "a bridge to a hub; its key in DRAGOMAN_KEY",
    ),
    ("dragoman mcp --stdio", "a hub of ./dragoman.yaml in this process"),
    ("dragoman mcp --stdio --operations ./my_tools.py", "with operations of your own"),
)


@commands.command("mcp", epilog=EPILOG)
def mcp(
    *,
    stdio: Annotated[bool, typer.Option("--stdio", help="Use stdin and stdout, the only transport.")] = False,
    hub: Hub = None,
    key_env: Annotated[
        str, typer.Option(metavar="VAR", help="The variable that holds a key of that hub.")
    ] = KEY_VARIABLE,
    config: ConfigFile = None,
    data: Data = DEFAULT_DATA,
    operations: Places = None,
) -> None:
    """Serve the hub's tools to an MCP client over stdin and stdout.

    With --hub it is a bridge to a running hub; without, it opens a hub in this process, and no other process
    can use its data folder meanwhile. Logs go to stderr. A client that speaks HTTP needs none of this: its
    address is /mcp of the hub.
    """
    if not stdio:
        raise typer.BadParameter(
            "add --stdio; over HTTP the tools are at /mcp of `dragoman serve`", param_hint="--stdio"
        )
    if hub is not None:
        asyncio.run(run_bridge(hub, os.environ.get(key_env)))
        return
    serve_stdio(config, Path(data), places=operations or ())


async def run_bridge(hub: str, key: str | None) -> None:
    """Relay messages between stdio and a running hub."""
    # late: as above
    from dragoman.http.transport import Timeouts, Transport, proxies_from
    from dragoman.mcp.server import stdio as pipe  # late: --help needs none of these
    from dragoman.mcp.server.stdio_bridge import StdioBridge  # late: as above

    if not hub.startswith(("http://", "https://")):
        raise BadRequest(f"{hub!r} is not the URL of a hub", hint="write it like http://127.0.0.1:8000")
    url = hub.rstrip("/").removesuffix("/mcp") + "/mcp"
    transport = Transport(
        timeouts=Timeouts(connect=5.0, first_byte=60.0, idle=60.0), proxies=proxies_from(os.environ)
    )
    try:
        await StdioBridge(url, key, transport=transport, write=pipe.stdout_writer()).run(pipe.read_lines())
    finally:
        await transport.close()


def serve_stdio(config: Path | None, data: Path, *, places: list[str] | tuple[str, ...]) -> None:
    """Open a hub in this process and serve it until stdin closes."""
    import uvloop  # late: --help needs none of these

    # late: as above
    from dragoman.cli.config_discovery import add_operations, read_config_if_any
    from dragoman.cli.logging_setup import configure_logging  # late: as above
    from dragoman.mcp.server import stdio as pipe  # late: as above
    from dragoman.server.app import Hub as Opened  # late: as above

    secrets: set[str] = set()
    configure_logging("warning", as_json=False, secrets=secrets)
    chosen = add_operations(read_config_if_any(config), places)

    async def run() -> None:
        async with Opened.open(chosen, data, require_keys=False, environ=os.environ, secrets=secrets) as hub:
            await pipe.serve_stdio(hub.mcp)

    uvloop.run(run())
