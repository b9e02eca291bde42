"""The WebSocket endpoint `/api/spoke`."""

from __future__ import annotations

from dragoman.errors import DragomanError, WireError
from dragoman.http.asgi_websocket import Socket
from dragoman.identity import Scope
from dragoman.operations.outcome import to_failure
from dragoman.spokes.hub.connection import send_and_close
from dragoman.spokes.hub.server import SpokeServer
from dragoman.spokes.hub.websocket_endpoint import CheckHost, Identify, ProcessEndpoint
from dragoman.spokes.protocol import (
    HELLO_BYTES,
    HelloFrame,
    RefusedFrame,
    SpokeFailure,
    check_version,
    close_code,
    decode_from_spoke,
)


class SpokeJoinProtocol:
    """How spokes join."""

    kind = "spoke"
    scope: Scope = "spoke"

    def decode_hello(self, text: str) -> HelloFrame:
        """Return the hello of a spoke. Raises WireError."""
        if len(text) > HELLO_BYTES:
            raise WireError(f"a hello is at most {HELLO_BYTES} bytes")
        check_version(text)
        hello = decode_from_spoke(text)
        if not isinstance(hello, HelloFrame):
            raise WireError("the first message of a spoke must be its hello")
        return hello

    async def refuse(self, socket: Socket, error: DragomanError) -> None:
        """Send the reason and close."""
        frame = RefusedFrame(error=SpokeFailure.from_call_failure(to_failure(error)))
        await send_and_close(socket, frame, code=close_code(error.code), reason=error.message)


class SpokeEndpoint(ProcessEndpoint[HelloFrame]):
    """The ASGI app that accepts WebSockets of spokes."""

    def __init__(
        self, server: SpokeServer, *, identify: Identify, check_host: CheckHost | None = None
    ) -> None:
        super().__init__(server, SpokeJoinProtocol(), identify=identify, check_host=check_host)
