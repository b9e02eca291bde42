"""The service that `dragoman serve` runs: signals, what is said at the start, and the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import typer
import uvloop

from dragoman.cli.hosting import Hosted, bind, hosted
from dragoman.cli.logs import Level, set_up
from dragoman.cli.terminal import note, say
from dragoman.config import Config
from dragoman.errors import DragomanError
from dragoman.providers.address import is_loopback
from dragoman.server.app import Hub

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
