"""HTTP handlers of chat: start a run and stream it, resume the stream, stop the run."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from dragoman.errors import BadRequest, Forbidden, TooLarge
from dragoman.event_splitting import split_events
from dragoman.http.asgi_exchange import Exchange, header_value
from dragoman.json_decoding import parse_digits
from dragoman.large_json import weigh
from dragoman.offload import offload
from dragoman.operations.authorization import SessionRole
from dragoman.part_builders import MAX_DELTA
from dragoman.runs.deduplication import StoredAnswer
from dragoman.runs.registry import RunRegistry
from dragoman.server.sessions.grant_revocation import SharedAccess
from dragoman.server.streaming import requested_interval, response_dialect, stream_run
from dragoman.server.token_bounds import run_caller
from dragoman.session_ids import hub_session_id
from dragoman.store.hub_events import NewEvent
from dragoman.store.sessions.sessions import Session, session_not_found
from dragoman.store.store import Store
from dragoman.wire.encoder import StreamEncoder
from dragoman.wire.ui.client_request import parse_chat_request
from dragoman.wire.ui.history_skimmer import HistorySkimmer

MAX_HISTORY_VALUES = 2_000_000  # in messages that are skipped, not decoded


class ChatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes and characters, `keep_alive` in seconds."""

    body: int
    history: int
    part: int
    keep_alive: float
    signs_webhooks: bool = False


class ChatHandlers:
    """Handlers of `/api/chat` and `/api/sessions/{id}/chat`."""

    def __init__(
        self, runs: RunRegistry, store: Store, *, access: SharedAccess, settings: ChatSettings
    ) -> None:
        self._runs = runs
        self._store = store
        self._access = access
        self._settings = settings

    async def post(self, exchange: Exchange) -> None:
        """Start a run and stream it; for a background run respond with its id at once."""
        dialect, interval = response_dialect(exchange), requested_interval(exchange)
        raw = await read_chat_body(exchange, self._settings)
        parse = partial(
            parse_chat_request,
            raw,
            session_id=exchange.path_params.get("id"),
            max_part=self._settings.part,
            max_values=exchange.body_limits.max_values,
        )
        request = await offload(weigh(raw), parse)
        del raw, parse  # a history may be large, and the stream long
        caller = run_caller(exchange.identity, request.session_id)
        if request.webhook is not None and exchange.identity.bounds is not None:
            raise Forbidden(
                "a session token may not name webhooks", hint="the app's server may, with its key"
            )
        if request.webhook is not None and not self._settings.signs_webhooks:
            hint = "the hub's operator sets webhooks.secret_env in dragoman.yaml"
            raise BadRequest("this hub posts to no webhooks", field="webhook", hint=hint)
        if request.background:
            accepted = await self._runs.start_run(request, caller, waits=False)
            body = {"runId": accepted.run_id, "sessionId": request.session_id}
            await exchange.respond(202, body, headers={"location": f"/api/runs/{accepted.run_id}"})
            return
        started = await self._runs.start_run(request, caller)
        if isinstance(started, StoredAnswer):
            await send_stored_answer(exchange, started, dialect=dialect, session_id=request.session_id)
            return
        follower = started.follow()
        follower.interval = interval
        with self._access.track_id(request.session_id, exchange):
            await stream_run(
                exchange,
                follower,
                dialect=dialect,
                keep_alive=self._settings.keep_alive,
                headers={
                    "x-dragoman-session": header_value(request.session_id),
                    "x-dragoman-run": started.run.row.id,
                },
            )

    async def resume(self, exchange: Exchange) -> None:
        """Stream the active run from the start of its message, or the answer of a run that has just ended.

        204 when there is neither.
        """
        dialect, interval = response_dialect(exchange), requested_interval(exchange)
        session_id = exchange.path_params["id"]
        session = await self._find_session(exchange, role="read")
        if session is None:
            await exchange.respond(204)
            return
        run = await self._runs.queue.find_current(session.id)
        if run is None:
            ended = await self._runs.ended_answer(session.id)
            if ended is None:
                await exchange.respond(204)
                return
            await send_stored_answer(exchange, ended, dialect=dialect, session_id=session_id)
            return
        headers = {"x-dragoman-session": header_value(session_id), "x-dragoman-run": run.row.id}
        follower = run.follow(replay=True)
        follower.interval = interval
        with self._access.track_id(session.id, exchange):
            await stream_run(
                exchange, follower, dialect=dialect, keep_alive=self._settings.keep_alive, headers=headers
            )

    async def stop(self, exchange: Exchange) -> None:
        """Stop the active run; the response is sent after the run is closed and stored."""
        session = await self._find_session(exchange, role="write")
        if session is None:  # its first message may be about to be stored
            own_id = hub_session_id(exchange.path_params["id"], owner=exchange.identity.owner)
            if await self._runs.starting.wait_started(own_id):
                session = await self._find_session(exchange, role="write")
        if session is None:
            raise session_not_found(exchange.path_params["id"])
        run = await self._runs.stop_run(session.id, "stopped by the user")
        if run is not None:
            caller = exchange.identity
            data = {"runId": run.row.id}
            event = NewEvent(
                name="run.stopped",
                owner=session.owner,
                session_id=session.id,
                data=msgspec.json.encode(data).decode(),
                actor=caller.owner,
                key_id=caller.key_id,
            )
            _ = self._store.events.submit(event)
        body = {"stopped": run is not None, "runId": run.row.id if run else None}
        await exchange.respond(200, body)

    async def _find_session(self, exchange: Exchange, *, role: SessionRole) -> Session | None:
        """Return the caller's session, or one that is shared with it, or None. Raises Forbidden."""
        id = exchange.path_params["id"]
        return await self._store.sessions.get_accessible(id, caller=exchange.identity, role=role)


async def read_chat_body(exchange: Exchange, settings: ChatSettings) -> bytes:
    """Return the body; a long one without its oldest messages, which the session has anyway."""
    limit, most = settings.body, settings.history
    declared = exchange.headers.get("content-length", "")
    if (size := parse_digits(declared)) is not None:
        if size <= limit:
            return await exchange.read_body(limit, max_values=MAX_HISTORY_VALUES)
        if size > most:
            text = f"the request body has {declared:.30} bytes; {most} are allowed"
            raise TooLarge(text, hint="`limits.history` sets the limit")
    skimmer = HistorySkimmer(limit)
    return await exchange.read_skimmed(most, skimmer, max_values=MAX_HISTORY_VALUES)


async def send_stored_answer(
    exchange: Exchange, answer: StoredAnswer, *, dialect: StreamEncoder, session_id: str
) -> None:
    """Send the stored answer to a repeated request as a stream."""
    headers = {"x-dragoman-session": header_value(session_id)}
    if answer.run_id:
        headers["x-dragoman-run"] = answer.run_id
    await exchange.start_response(200, {**dialect.headers, **headers})
    frames = b""
    for batch in split_events(answer.events(), MAX_DELTA):
        if frames:
            await exchange.send_chunk(frames)
            await asyncio.sleep(0)
        frames = dialect.encode(batch)
    await exchange.send({"type": "http.response.body", "body": frames + dialect.end()})
