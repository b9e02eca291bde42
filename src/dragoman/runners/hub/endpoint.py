"""The WebSocket endpoint `/api/runners`, with its authentication."""

from __future__ import annotations

import asyncio
import logging

from starlette.types import Receive, Scope, Send

from dragoman.active_work import ActiveWork
from dragoman.errors import DragomanError, Forbidden, Unauthorized, Unavailable, WireError
from dragoman.http.exchange import read_headers
from dragoman.identity import Identity
from dragoman.operations.access import require_scope
from dragoman.runners.hub.connection import send_last
from dragoman.runners.hub.server import RunnerServer
from dragoman.spokes.hub.connection import Socket, SocketClosed
from dragoman.spokes.hub.endpoint import AsgiSocket, CheckHost, Headers, Identify, has_credentials
from dragoman.spokes.protocol import close_code
from dragoman.wire.runner.frames import (
    HELLO_BYTES,
    VERSION,
    FrameError,
    RunnerHello,
    RunnerRefused,
    decode_from_runner,
)

log = logging.getLogger(__name__)


class RunnerEndpoint:
    """The ASGI app that accepts WebSockets of runners."""

    def __init__(
        self, server: RunnerServer, *, identify: Identify, check_host: CheckHost | None = None
    ) -> None:
        """`identify` returns the identity for headers, or raises Unauthorized or Unavailable."""
        self.work = ActiveWork()
        """Where connections are registered, to end when their key does."""
        self._server = server
        self._identify = identify
        self._check_host = check_host
        self._unauthenticated = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = AsgiSocket(receive, send)
        headers = read_headers(scope)
        try:
            if self._check_host is not None:
                self._check_host(headers, at=(scope.get("server") or (None,))[0])
            self._check_origin(headers)
            identity = await self._authenticate(headers) if has_credentials(headers) else None
        except DragomanError as error:
            await refuse_upgrade(socket, error)
            return
        try:
            await socket.accept()
            await self._serve(socket, headers, identity=identity)
        except SocketClosed:
            return
        except Exception:
            log.exception("the connection of a runner failed")

    def _check_origin(self, headers: Headers) -> None:
        """Refuse pages of other sites, and too many who do not say who they are."""
        origin, settings = headers.get("origin"), self._server.settings
        if origin is not None and origin not in settings.origins:
            message = f"pages of {origin[:200]!r} may not connect as runners"
            raise Forbidden(message, hint="`cors.origins` of the configuration names those that may")
        if self._unauthenticated >= settings.max_unauthenticated and not has_credentials(headers):
            raise Unavailable("too many unauthenticated connections; try again later")

    async def _authenticate(self, headers: Headers) -> Identity:
        identity = await self._identify(headers)
        require_scope(identity, "runner", "admin")
        return identity

    async def _serve(self, socket: Socket, headers: Headers, *, identity: Identity | None) -> None:
        try:
            hello = await self._receive_hello(socket, 0 if identity else 1)
            by_header = identity is not None or hello.token is None
            signed = headers if by_header else {"authorization": f"Bearer {hello.token}"}
            caller = identity or await self._authenticate(signed)
        except DragomanError as error:
            await send_refusal(socket, error)
            return
        checking = asyncio.create_task(self._recheck_key(socket, signed))
        try:
            with self.work.track(caller, lambda error: self._server.disconnect(socket, error.message)):
                await self._server.serve(socket, hello, identity=caller)
        except DragomanError as error:
            await send_refusal(socket, error)
        finally:
            checking.cancel()

    async def _receive_hello(self, socket: Socket, unauthenticated: int) -> RunnerHello:
        """Return the first frame; `unauthenticated` is 1 while the runner is not authenticated."""
        self._unauthenticated += unauthenticated
        try:
            async with asyncio.timeout(self._server.settings.hello_timeout):
                text = await socket.receive()
        except TimeoutError:
            raise WireError("the runner did not send its hello in time") from None
        finally:
            self._unauthenticated -= unauthenticated
        hello = decode_from_runner(text, limit=HELLO_BYTES)
        if not isinstance(hello, RunnerHello):
            raise WireError("the first frame of a runner must be its hello")
        if hello.protocol != VERSION:
            error = WireError(
                f"this hub speaks version {VERSION} of the runner protocol, not {hello.protocol}"
            )
            error.code = "bad_version"
            raise error
        return hello

    async def _recheck_key(self, socket: Socket, headers: Headers) -> None:
        """Disconnect the runner when its key may no longer connect."""
        while True:
            await asyncio.sleep(self._server.settings.recheck)
            try:
                await self._authenticate(headers)
            except (Unauthorized, Forbidden) as error:
                self._server.disconnect(socket, error.message)
                return
            except DragomanError as error:
                log.debug("the key of a runner cannot be checked now: %s", error.message)


async def refuse_upgrade(socket: AsgiSocket, error: DragomanError) -> None:
    """Respond to the upgrade request with an HTTP error."""
    try:
        await socket.refuse(error.status, error)
    except SocketClosed:
        return


async def send_refusal(socket: Socket, error: DragomanError) -> None:
    """Send the reason and close."""
    log.info("a runner was refused: %s", error.message)
    refused = RunnerRefused(error=FrameError(code=error.code, message=error.message))
    await send_last(socket, refused, code=close_code(error.code), reason=error.message)
