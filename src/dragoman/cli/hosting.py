"""Hosting: a hub behind an address: bound, served by uvicorn, and ended so that open streams are told."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import typer
import uvicorn
import uvloop
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dragoman.cli.logs import Level, set_up
from dragoman.cli.terminal import note, say
from dragoman.config import Config
from dragoman.errors import ConfigError, DragomanError
from dragoman.http.address import is_loopback
from dragoman.server.app import Hub

# ---- Corking: what a response writes in one go leaves in one go, its head with its body.


class CorkedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, whose writes are joined: each is a system call, and those are dear."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """See asyncio.Protocol."""
        super().connection_made(cast(asyncio.Transport, Cork(transport, asyncio.get_running_loop())))


class Cork:
    """A transport that writes at the end of the loop's round all that was written to it in between."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        """See asyncio.Transport."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def close(self) -> None:
        """See asyncio.Transport: what is held leaves first."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held and not self._transport.is_closing():
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


BACKLOG = 2048
WEBSOCKET_FRAME = 2_000_000  # bytes; larger messages of spokes come in parts
GRACE = 5  # seconds that open responses get once all runs are closed


class Hosted(NamedTuple):
    """A hub that is reached at `url`."""

    hub: Hub
    url: str


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at this address; ConfigError says why there is none."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise ConfigError(
            f"{host!r} is no address of this machine", hint="use 127.0.0.1, or 0.0.0.0 for all"
        ) from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise refusal(host, port, error=error) from None
    return listener


def refusal(host: str, port: int, *, error: OSError) -> ConfigError:
    """Why an address cannot be had, in the user's words."""
    match error.errno:
        case errno.EADDRINUSE:
            message, hint = f"port {port} on {host} is taken by another program", "--port 0 takes a free one"
        case errno.EACCES:
            message, hint = f"this user may not take port {port}", "choose one from 1024 on with --port"
        case _:
            message, hint = f"cannot listen on {host} port {port}: {error.strerror}", "see --host and --port"
    return ConfigError(message, hint=hint)


def address_of(listener: socket.socket) -> str:
    """The URL that a listener is reached at."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@asynccontextmanager
async def hosted(
    config: Config,
    data: Path,
    *,
    listener: socket.socket,
    keys: bool,
    secrets: set[str] | None = None,
) -> AsyncIterator[Hosted]:
    """A hub that accepts requests on the listener while the block runs.

    At its end nothing more is accepted, what is under way gets `limits.drain` seconds, all runs are stopped,
    and open streams are told so before they close. `secrets` is told what must never be shown.
    """
    async with Hub.open(config, data, keys=keys, environ=os.environ, secrets=secrets) as hub:
        server = server_of(hub.app)
        await server.startup(sockets=[listener])
        ticking = asyncio.create_task(server.main_loop())
        try:
            yield Hosted(hub, address_of(listener))
        finally:
            ticking.cancel()
            for accepting in server.servers:
                accepting.close()
            await hub.drain(config.limits.drain)
            await hub.end()
            await server.shutdown(sockets=[listener])


def server_of(app: ASGIApp) -> uvicorn.Server:
    """uvicorn for this app, ready to start. Its `serve()` would take the signals, which are ours to hear."""
    settings = uvicorn.Config(
        app,
        http=CorkedProtocol,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_ping_interval=None,  # the protocol of spokes has a heartbeat of its own
        ws_max_size=WEBSOCKET_FRAME,
        lifespan="off",
        log_config=None,
        access_log=logging.getLogger().isEnabledFor(logging.DEBUG),
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE,
    )
    settings.load()
    server = uvicorn.Server(settings)
    server.lifespan = settings.lifespan_class(settings)
    return server


# ---- The service that `dragoman serve` runs: signals, what is said at the start, and the end.

log = logging.getLogger(__name__)
FAILED = 1
FORCED = 130
COLLECT = (50_000, 20, 50)  # events are many, short-lived and without cycles


class Service(msgspec.Struct, frozen=True):
    """A hub to serve; `source` says where its configuration comes from, `reread` reads it again."""

    config: Config
    reread: Callable[[], Config]
    data: Path
    host: str = "127.0.0.1"
    port: int = 8000
    keys: bool = True
    source: str = ""


def run(service: Service, *, level: Level, as_json: bool) -> None:
    """Serve until a signal comes. ConfigError when the address cannot be had."""
    if not service.keys and not is_loopback(service.host):
        raise typer.BadParameter(
            f"on {service.host} it would let everybody in who reaches this machine. Leave it away and make"
            " keys with `dragoman keys create`, or listen on 127.0.0.1.",
            param_hint="--no-auth",
        )
    secrets: set[str] = set()
    set_up(level, as_json=as_json, secrets=secrets)
    listener = bind(service.host, service.port)
    try:
        uvloop.run(serve(service, listener, secrets=secrets))
    except (DragomanError, OSError):
        raise
    except Exception:  # the log knows the secrets, and blots them out
        log.critical("the hub failed", exc_info=True)
        raise SystemExit(FAILED) from None


async def serve(service: Service, listener: socket.socket, *, secrets: set[str]) -> None:
    stop, again = asyncio.Event(), asyncio.Event()
    watch(stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, again.set)
    async with hosted(
        service.config, service.data, listener=listener, keys=service.keys, secrets=secrets
    ) as here:
        await introduce(service, here)
        reloading = asyncio.create_task(follow(again, service, hub=here.hub))
        gc.freeze()
        gc.set_threshold(*COLLECT)
        gc.enable()
        say(f"dragoman: listening on {here.url}")
        await stop.wait()
        reloading.cancel()
        limit = service.config.limits.drain
        note(f"stopping: answers under way get up to {limit:g} s to end; Ctrl-C again ends it at once")


async def follow(again: asyncio.Event, service: Service, *, hub: Hub) -> None:
    """Read the configuration again whenever that is asked for; a broken one changes nothing."""
    while await again.wait():
        again.clear()
        try:
            await hub.reload(service.reread())
        except DragomanError as error:
            log.error("the configuration was not reloaded: %s", error.message)
        else:
            log.warning("the configuration was reloaded; what is under way goes on by the old one")


def watch(stop: Callable[[], None]) -> None:
    """The first SIGINT or SIGTERM stops, a second one ends the process: what was acknowledged is on disk."""
    loop = asyncio.get_running_loop()
    heard: list[int] = []

    def hear(number: int) -> None:
        if heard:
            os._exit(FORCED)
        heard.append(number)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, hear, number)


async def introduce(service: Service, here: Hosted) -> None:
    """Say what this hub is, and what it still lacks."""
    note(f"{service.source}; model {service.config.model or 'none'}; data in {service.data}")
    note(f"how to talk to it: {here.url}/docs")
    if not service.config.providers:
        note("WARNING: no provider is configured, so no model can answer")
    if not service.keys:
        note("WARNING: --no-auth: everybody on this machine is let in, without a key, as one owner")
    elif not any(key.revoked_at is None for key in await here.hub.store.keys.list()):
        note(f"nobody has a key yet: dragoman keys create --data {service.data} --owner NAME")
