"""The WebSocket endpoint `/api/runners`."""

from __future__ import annotations

from dragoman.errors import DragomanError, WireError
from dragoman.http.asgi_websocket import Socket
from dragoman.identity import Scope
from dragoman.runners.hub.connection import send_last
from dragoman.runners.hub.server import RunnerServer
from dragoman.spokes.hub.websocket_endpoint import CheckHost, Identify, ProcessEndpoint
from dragoman.spokes.protocol import close_code
from dragoman.wire.runner.frames import (
    HELLO_BYTES,
    VERSION,
    FrameError,
    RunnerHello,
    RunnerRefused,
    decode_from_runner,
)


class RunnerJoinProtocol:
    """How runners join."""

    kind = "runner"
    scope: Scope = "runner"

    def decode_hello(self, text: str) -> RunnerHello:
        """Return the hello of a runner. Raises WireError."""
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

    async def refuse(self, socket: Socket, error: DragomanError) -> None:
        """Send the reason and close."""
        refused = RunnerRefused(error=FrameError(code=error.code, message=error.message))
        await send_last(socket, refused, code=close_code(error.code), reason=error.message)


class RunnerEndpoint(ProcessEndpoint[RunnerHello]):
    """The ASGI app that accepts WebSockets of runners."""

    def __init__(
        self, server: RunnerServer, *, identify: Identify, check_host: CheckHost | None = None
    ) -> None:
        super().__init__(server, RunnerJoinProtocol(), identify=identify, check_host=check_host)
