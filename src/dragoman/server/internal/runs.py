"""Handlers of the internal listener for the runs and calls of this host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dragoman.errors import BadRequest, NotFound
from dragoman.hosts.client import KEEP_ALIVE
from dragoman.http.asgi_exchange import Exchange
from dragoman.runs.registry import RunRegistry
from dragoman.runs.remote_feed import RunFeedEncoder, current_state
from dragoman.runs.run import HubRun
from dragoman.server.internal.routes import HostRoutes
from dragoman.server.streaming import stream_run

MAX_BODY = 65_536  # bytes


class InternalRunHandlers:
    """Handlers of `/runs`, `/calls` and `/sessions` for other hosts."""

    def __init__(self, runs: RunRegistry, *, abort_call: Callable[[str, str], bool]) -> None:
        """`abort_call` aborts a call of this host for a reason; False when it does not run."""
        self._runs = runs
        self._abort_call = abort_call

    def routes(self) -> HostRoutes:
        """The paths of these handlers."""
        yield "/runs/{id}", {"GET": self.state}
        yield "/runs/{id}/events", {"GET": self.events}
        yield "/runs/{id}/stop", {"POST": self.stop}
        yield "/runs/{id}/queued", {"POST": self.announce_queued}
        yield "/runs/{id}/release", {"POST": self.release}
        yield "/runs/{id}/continue", {"POST": self.continue_run}
        yield "/sessions/{id:path}/runner/leave", {"POST": self.disconnect_runner}
        yield "/sessions/{id:path}/runner/note", {"POST": self.note_runner}
        yield "/calls/{id}/abort", {"POST": self.abort_call}
        yield "/sessions/{id:path}/undelivered", {"POST": self.take_undelivered}

    async def state(self, exchange: Exchange) -> None:
        """Return the state of a run, with its message so far."""
        run = self._find(exchange)
        state = current_state(run, message=run.message()).encode()
        await exchange.respond(200, state, headers={"content-type": "application/json"})

    async def events(self, exchange: Exchange) -> None:
        """Stream a run from its start: see `remote_feed.py`. The stream is one follower of the run."""
        run = self._find(exchange)
        encoder = RunFeedEncoder(current_state(run, message=run.first_message))
        await stream_run(
            exchange, run.follow_from_start(is_retold=False), dialect=encoder, keep_alive=KEEP_ALIVE
        )

    async def stop(self, exchange: Exchange) -> None:
        """Stop a run for the `reason` of the body; the response is sent once it is closed and stored."""
        run = self._find(exchange)
        body = await read_fields(exchange, "reason")
        await run.stop_and_wait(body["reason"])
        await exchange.respond(200, {"stopped": True})

    async def announce_queued(self, exchange: Exchange) -> None:
        """Tell a run of the message that has been queued behind it, whose `id` the body has."""
        run = self._find(exchange)
        body = await read_fields(exchange, "id")
        await self._runs.queue.announce_id(run, body["id"])
        await exchange.respond(200, {"told": True})

    async def release(self, exchange: Exchange) -> None:
        """Give up a run that a runner answers, because the runner has connected to another host."""
        run = self._find(exchange)
        if self._runs.factory.runners is not None:
            await self._runs.factory.runners.release(run)
        await exchange.respond(200, {"released": True})

    async def continue_run(self, exchange: Exchange) -> None:
        """Go on here with a run that no host has, because the runner of its session is here. Conflict."""
        if self._runs.factory.runners is not None:
            await self._runs.factory.runners.continue_here(exchange.path_params["id"])
        await exchange.respond(200, {"begun": True})

    async def disconnect_runner(self, exchange: Exchange) -> None:
        """Disconnect the runner of a session: it is at another host now. Conflict for another key."""
        body = await read_fields(exchange)
        if self._runs.factory.runners is not None:
            server = self._runs.factory.runners.server
            server.leave(exchange.path_params["id"], key_id=body.get("keyId"))
        await exchange.respond(200, {"left": True})

    async def note_runner(self, exchange: Exchange) -> None:
        """Note that the session's runner is connected here; return whether it is."""
        runners = self._runs.factory.runners
        is_here = runners is not None and await runners.hosts.note_here(exchange.path_params["id"])
        await exchange.respond(200, is_here)

    async def abort_call(self, exchange: Exchange) -> None:
        """Abort a call with all below it; return whether it ran."""
        await exchange.respond(200, self._abort_call(exchange.path_params["id"], "stopped by the user"))

    async def take_undelivered(self, exchange: Exchange) -> None:
        """Return, once, whether nobody has seen the end of the session's last run."""
        await exchange.respond(200, self._runs.take_undelivered(exchange.path_params["id"]))

    def _find(self, exchange: Exchange) -> HubRun:
        id = exchange.path_params["id"]
        run = self._runs.get(id)
        if run is None:
            raise NotFound(f"this host does not execute a run {id!r}")
        return run


async def read_fields(exchange: Exchange, *required: str) -> Mapping[str, Any]:
    """Return the fields of the body; those that are required are texts. BadRequest."""
    body = await exchange.read_json(MAX_BODY)
    fields = body if isinstance(body, dict) else {}
    missing = [name for name in required if not isinstance(fields.get(name), str)]
    if missing:
        raise BadRequest(f"the body needs {', '.join(missing)}, as text")
    return fields
