"""The service of `dragoman serve`: binds its address, serves a hub with uvicorn, and handles signals."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import shlex
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import typer
import uvloop

from dragoman.cli.logging_setup import Level, configure_logging
from dragoman.cli.serving.workers import WorkerPool, WorkerSettings, worker_command
from dragoman.cli.terminal import print_line, print_note
from dragoman.config import Config, HttpConfig
from dragoman.errors import ConfigError, DragomanError, Unavailable
from dragoman.http.url_and_proxy import is_loopback
from dragoman.server.app import Hub
from dragoman.server.console.pages import is_built as console_is_built
from dragoman.server.http.connection_limits import ConnectionLimits
from dragoman.server.http.listener import bind_listener, build_server, keep_date, listener_url
from dragoman.store.postgres.url import shown_url
from dragoman.store.private_files import make_private_folder, set_private_umask
from dragoman.store.store import DATABASE_FILE, Store

log = logging.getLogger(__name__)
RESERVED_FILES = 200  # open files for other things than client connections and providers
EXIT_FAILED = 1
EXIT_FENCED = 75  # "temporary failure" of sysexits.h: supervisors start the process again
EXIT_FORCED = 130
FENCED_EXIT_SECONDS = 10.0  # after which a fenced host ends, whatever still hangs
# Events are many, short-lived and free of cycles. A collection blocks the event loop for up to a millisecond
# per 1,000 objects that it visits: some 10,000 in the first generation, and 20,000 in the second.
GC_THRESHOLDS = (10_000, 1, 2_500)


class HostedHub(NamedTuple):
    """A hub that serves at `url`."""

    hub: Hub
    url: str


@asynccontextmanager
async def host_hub(
    config: Config,
    data: Path,
    *,
    listener: socket.socket,
    require_keys: bool,
    secrets: set[str] | None = None,
) -> AsyncIterator[HostedHub]:
    """Serve a hub on the listener while the block runs.

    At its end new requests are refused, active ones get `limits.drain` seconds, all runs are stopped,
    and open streams are notified before they close. `secrets` collects the values that logs must redact.
    """
    async with Hub.open(config, data, require_keys=require_keys, environ=os.environ, secrets=secrets) as hub:
        server = build_server(hub.app, connection_limits(config.http))
        await server.startup(sockets=[listener])
        ticking = asyncio.create_task(keep_date(server))
        try:
            yield HostedHub(hub, listener_url(listener))
        finally:
            ticking.cancel()
            for accepting in server.servers:
                accepting.close()
            await hub.drain(0.0 if hub.fence.is_closed else config.limits.drain)
            await hub.stop()
            await server.shutdown(sockets=[listener])


def connection_limits(http: HttpConfig) -> ConnectionLimits:
    """Return the limits of a configuration, with no more connections than this process may open files for.

    Each may need a second one to a provider. The process's limit is raised as far as it may be.
    """
    wanted = 2 * http.connections + RESERVED_FILES
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < wanted:
        files = min(wanted, most) if most != resource.RLIM_INFINITY else wanted
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    connections = max(1, min(http.connections, (files - RESERVED_FILES) // 2))
    if connections < http.connections:
        log.warning(
            "http.connections is %d, not %d: only %d files may be open", connections, http.connections, files
        )
    return ConnectionLimits(
        head=http.head,
        headers=http.headers,
        head_timeout=http.head_timeout,
        body_timeout=http.body_timeout,
        body_rate=http.body_rate,
        idle_timeout=http.idle_timeout,
        connections=connections,
        per_address=http.per_address,
        shared_addresses=http.shared_addresses,
    )


class ServeOptions(msgspec.Struct, frozen=True):
    """A hub to serve; `source` names the origin of its configuration, `read_config` reads it again.

    `found_file` is the configuration file that no option names.
    """

    config: Config
    read_config: Callable[[], Config]
    data: Path
    host: str = "127.0.0.1"
    port: int = 8000
    require_keys: bool = True
    source: str = ""
    found_file: Path | None = None
    workers: int = 1
    worker: WorkerSettings | None = None
    """What this process got from its parent if it is one of several workers."""


def run_service(options: ServeOptions, *, level: Level, as_json: bool) -> None:
    """Serve until a signal arrives. ConfigError when the address cannot be bound."""
    if not options.require_keys and not is_loopback(options.host):
        raise typer.BadParameter(
            f"on {options.host} it would admit everybody who reaches this machine. Omit it and make"
            " keys with `dragoman keys create`, or listen on 127.0.0.1.",
            param_hint="--no-auth",
        )
    secrets: set[str] = set()
    configure_logging(level, as_json=as_json, secrets=secrets)
    worker = options.worker
    listener = worker.open_listener() if worker else bind_listener(options.host, options.port)
    try:
        if options.workers > 1 and worker is None:
            raise SystemExit(uvloop.run(run_workers(options, listener)))
        is_fenced = uvloop.run(serve_until_signal(options, listener, secrets=secrets))
    except (DragomanError, OSError):
        raise
    except Exception:  # the log redacts secrets
        log.critical("the hub failed", exc_info=True)
        raise SystemExit(EXIT_FAILED) from None
    finally:
        listener.close()
    if is_fenced:
        raise SystemExit(EXIT_FENCED)


async def run_workers(options: ServeOptions, listener: socket.socket) -> int:
    """Serve with several processes; return the exit code."""
    if options.config.database is None:
        raise ConfigError(
            "several workers need a Postgres database: with SQLite one process has the data",
            hint="name one with --database postgresql://…, or leave out --workers",
        )
    command = worker_command(sys.argv[1:], found_file=options.found_file)
    pool = WorkerPool(command, listener, count=options.workers, check_config=options.read_config)
    url = listener_url(listener)
    return await pool.run(lambda: print_line(f"dragoman: listening on {url} with {options.workers} workers"))


async def serve_until_signal(options: ServeOptions, listener: socket.socket, *, secrets: set[str]) -> bool:
    """Serve until a signal arrives or this host is fenced; return whether it was fenced."""
    set_private_umask()
    make_data_folder(options.data)
    stop, again = asyncio.Event(), asyncio.Event()

    watch_signals(stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, again.set)
    async with host_hub(
        options.config, options.data, listener=listener, require_keys=options.require_keys, secrets=secrets
    ) as here:
        here.hub.fence.on_close(partial(end_fenced, stop))
        worker = options.worker
        if worker is None or worker.prints_setup:
            await print_startup(options, here)
        reloading = asyncio.create_task(reload_on_request(again, options, hub=here.hub))
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()
        if worker is None:
            print_line(f"dragoman: listening on {here.url}")
        else:
            worker.report_ready(stop.set)
        here.hub.load_prices()
        await stop.wait()
        reloading.cancel()
        if here.hub.fence.is_closed:
            print_note("other hosts have declared this one dead: it ends", level="warning")
            return True
        limit = options.config.limits.drain
        if worker is None:
            print_note(
                f"shutting down: active answers get up to {limit:g} s to end; Ctrl-C again stops at once"
            )
    return False


def make_data_folder(folder: Path) -> None:
    """Create the data folder if there is none. ConfigError if it cannot be created or written to.

    A folder that already holds a database is accepted even if it is not writable: a hub whose database is
    down still starts, and relays requests. A hub that has never stored anything does not.
    """
    if folder.is_dir() and (os.access(folder, os.W_OK | os.X_OK) or any(folder.glob(f"{DATABASE_FILE}*"))):
        return
    try:
        make_private_folder(folder)
        reason = "" if os.access(folder, os.W_OK | os.X_OK) else "this user may not write to it"
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
    if reason:
        raise ConfigError(
            f"the data folder {str(folder.absolute())!r} cannot be used: {reason}",
            hint="start in a folder that this user may write to, or name one with --data",
        )


def end_fenced(stop: asyncio.Event) -> None:
    """Stop, and end the process in any case: what hangs must not keep a fenced host alive."""
    stop.set()
    ending = threading.Timer(FENCED_EXIT_SECONDS, os._exit, (EXIT_FENCED,))
    ending.daemon = True
    ending.start()


async def reload_on_request(requested: asyncio.Event, options: ServeOptions, *, hub: Hub) -> None:
    """Reload the configuration whenever `requested` is set; an invalid one changes nothing."""
    while await requested.wait():
        requested.clear()
        try:
            await hub.reload(await asyncio.to_thread(options.read_config))  # it may ask servers
        except DragomanError as error:
            log.error("the configuration was not reloaded: %s", error.message)
        else:
            log.warning("the configuration was reloaded; active requests finish with the old one")


def watch_signals(stop: Callable[[], None]) -> None:
    """The first SIGINT or SIGTERM stops, a second one ends the process: acknowledged data is on disk."""
    loop = asyncio.get_running_loop()
    is_stopping = False

    def on_signal() -> None:
        nonlocal is_stopping
        if is_stopping:
            os._exit(EXIT_FORCED)
        is_stopping = True
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)


async def has_key(store: Store) -> bool:
    """Return whether anybody has a valid key; True while the database is down, which the log reports."""
    try:
        keys = await store.keys.list()
    except Unavailable:
        return True
    return any(key.revoked_at is None for key in keys)


async def print_startup(options: ServeOptions, hosted: HostedHub) -> None:
    """Print the setup of this hub, and warnings about what is missing."""
    place = f"data in {options.data.absolute()}"
    if options.config.database is not None:
        place = f"data in {shown_url(options.config.database)} and {options.data.absolute()}"
    print_note(f"{options.source}; model {options.config.model or 'none'}; {place}")
    signs_in = " (`dragoman open` signs you in)" if options.require_keys else ""
    console = f"{hosted.url}/console/{signs_in}" if console_is_built() else "not part of this installation"
    print_note(f"console: {console}; documentation: {hosted.url}/docs/")
    if not options.config.providers:
        print_note("WARNING: no provider is configured, so no model can answer", level="warning")
    if not options.require_keys:
        warning = "WARNING: --no-auth: everybody on this machine has access without a key, as one owner"
        print_note(warning, level="warning")
    elif not await has_key(hosted.hub.store):
        data = shlex.quote(str(options.data.absolute()))
        print_note(f"nobody has a key yet: dragoman keys create --data {data} --owner NAME")
