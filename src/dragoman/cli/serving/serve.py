"""`dragoman serve`: run a hub until it is told to stop."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated, Literal

import typer

from dragoman.cli.options import DEFAULT_DATA, ConfigFile, Data, Database, Places
from dragoman.cli.terminal import examples, use_json_lines

commands = typer.Typer()
EPILOG = examples(
    ("dragoman serve", "with ./dragoman.yaml, at http://127.0.0.1:8000"),
    ("dragoman serve --config hub.yaml --data /var/lib/hub --port 9000", "with its own files and port"),
    ("dragoman serve --database postgresql://hub@db.example/hub", "with its data in Postgres"),
    ("dragoman serve --workers 4", "with four processes; the database is Postgres"),
    ("dragoman serve --no-auth", "without keys, for this machine only"),
    ("dragoman serve --operations ./my_tools.py", "with operations of your own"),
)


@commands.command("serve", epilog=EPILOG)
def serve(
    *,
    config: ConfigFile = None,
    data: Data = DEFAULT_DATA,
    database: Database = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses a free one.")] = 8000,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Accept requests without a key; loopback only.")
    ] = False,
    operations: Places = None,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Processes behind the port; more than 1 needs Postgres.")
    ] = 1,
    worker: Annotated[str | None, typer.Option(hidden=True)] = None,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option()] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="All output as JSON lines.")] = False,
) -> None:
    """Serve a hub.

    Prints a line with `listening on` and the address once it is ready. Ctrl-C or SIGTERM stops it: open
    answers get up to `limits.drain` seconds to end, and are then closed and kept; a second Ctrl-C ends it at
    once. SIGHUP reads the configuration again, without dropping an answer; with several workers it
    replaces them one by one.
    """
    gc.disable()  # imports create no garbage; the collector is enabled again when the hub is ready
    from dragoman.cli.config_discovery import ServedConfig, locating_errors  # late: the server imports slowly
    from dragoman.cli.serving.lifecycle import ServeOptions, run_service  # late: as above
    from dragoman.cli.serving.workers import WorkerSettings  # late: as above

    if log_json:
        use_json_lines()
    served = ServedConfig(config, operations=operations or (), database=database)
    with locating_errors(served.source):
        run_service(
            ServeOptions(
                served.current,
                served.read_again,
                Path(data),
                host=host,
                port=port,
                require_keys=not no_auth,
                source=served.source,
                found_file=served.found_file,
                workers=workers,
                worker=None if worker is None else WorkerSettings.parse(worker),
            ),
            level=log_level,
            as_json=log_json,
        )
