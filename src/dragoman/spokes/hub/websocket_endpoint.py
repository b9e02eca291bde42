"""WebSocket endpoints for processes that join the hub (spokes, runners): check origin, hello and key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from dragoman.errors import DragomanError, Forbidden, Unauthorized, Unavailable, WireError
from dragoman.http.asgi_websocket import AsgiSocket, Socket, SocketClosed
from dragoman.identity import Identity, door
from dragoman.identity import Scope as KeyScope
from dragoman.operations.authorization import require_scope
from dragoman.revocable_work import ActiveWork

log = logging.getLogger(__name__)
Headers = Mapping[str, str]


class CheckHost(Protocol):
    """Raises an error when `Host` is not a name of this hub; `at` is the address of the request."""

    def __call__(self, headers: Headers, *, at: str | None) -> None: ...


Identify = Callable[[Headers], Awaitable[Identity]]


class ProcessHello(Protocol):
    """The first frame of a process; its key, where a header does not have it."""

    @property
    def token(self) -> str | None: ...


H = TypeVar("H", bound=ProcessHello)
ReadHello_co = TypeVar("ReadHello_co", bound=ProcessHello, covariant=True)
ServedHello_contra = TypeVar("ServedHello_contra", bound=ProcessHello, contravariant=True)


class JoinSettings(Protocol):
    """Settings for connections that are not served yet. Times are in seconds.

    `hello_timeout`: how long to wait for the first frame; `recheck`: between two checks of a key.
    `max_unauthenticated`: connections that have sent neither a key nor a hello.
    """

    @property
    def origins(self) -> tuple[str, ...]: ...

    @property
    def max_unauthenticated(self) -> int: ...

    @property
    def hello_timeout(self) -> float: ...

    @property
    def recheck(self) -> float: ...


class ProcessServer(Protocol[ServedHello_contra]):
    """Serves the connections of one kind of process."""

    @property
    def settings(self) -> JoinSettings: ...

    async def serve(self, socket: Socket, hello: ServedHello_contra, *, identity: Identity) -> None: ...

    def disconnect(self, socket: Socket, message: str) -> None: ...


class JoinProtocol(Protocol[ReadHello_co]):
    """The differences between the protocols of processes. `kind` names the process: `spoke`, `runner`."""

    @property
    def kind(self) -> str: ...

    @property
    def scope(self) -> KeyScope: ...

    def decode_hello(self, text: str) -> ReadHello_co:
        """Return the first frame. Raises WireError."""
        ...

    async def refuse(self, socket: Socket, error: DragomanError) -> None:
        """Send the reason and close."""
        ...


class ProcessEndpoint(Generic[H]):
    """The ASGI app that accepts WebSockets of processes."""

    def __init__(
        self,
        server: ProcessServer[H],
        protocol: JoinProtocol[H],
        *,
        identify: Identify,
        check_host: CheckHost | None = None,
    ) -> None:
        """`identify` returns the identity for headers, or raises Unauthorized or Unavailable.

        `check_host` raises an error when a request was sent to a name that is not the hub's.
        """
        self.work = ActiveWork()
        """The open connections, which end when their key is revoked."""
        self._server = server
        self._protocol = protocol
        self._identify = identify
        self._check_host = check_host
        self._unauthenticated = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = AsgiSocket(scope, receive, send)
        try:
            if self._check_host is not None:
                self._check_host(socket.headers, at=(scope.get("server") or (None,))[0])
            self._check_origin(socket)
            identity = await self._authenticate(socket.headers) if socket.has_credentials else None
        except DragomanError as error:
            with suppress(SocketClosed):
                await socket.refuse(error)
            return
        try:
            await socket.accept()
            await self._serve(socket, identity=identity)
        except SocketClosed:
            return
        except Exception:
            log.exception("the connection of a %s failed", self._protocol.kind)

    def _check_origin(self, socket: AsgiSocket) -> None:
        """Raise Forbidden for pages of other sites, and Unavailable for too many connections without a key.

        Browsers let pages open WebSockets to any site, and send an Origin.
        """
        origin, settings = socket.headers.get("origin"), self._server.settings
        if origin is not None and origin not in settings.origins:
            raise Forbidden(
                f"pages of {origin[:200]!r} may not connect as {self._protocol.kind}s",
                hint="`cors.origins` of the hub's configuration names those that may",
            )
        if self._unauthenticated >= settings.max_unauthenticated and not socket.has_credentials:
            raise Unavailable("too many unauthenticated connections; try again later")

    async def _authenticate(self, headers: Headers) -> Identity:
        identity = await self._identify(headers)
        require_scope(identity, self._protocol.scope, "admin")
        return identity

    async def _serve(self, socket: AsgiSocket, *, identity: Identity | None) -> None:
        try:
            hello = await self._receive_hello(socket, 0 if identity else 1)
            by_header = identity is not None or hello.token is None
            credentials = socket.headers if by_header else {"authorization": f"Bearer {hello.token}"}
            caller = identity or await self._authenticate(credentials)
        except DragomanError as error:
            await self._refuse(socket, error)
            return
        checking = asyncio.create_task(self._recheck_key(socket, credentials))
        door.set(self._protocol.kind)
        try:
            with self.work.track(caller, lambda error: self._server.disconnect(socket, error.message)):
                await self._server.serve(socket, hello, identity=caller)
        except DragomanError as error:
            await self._refuse(socket, error)
        finally:
            checking.cancel()

    async def _refuse(self, socket: Socket, error: DragomanError) -> None:
        log.info("a %s was refused: %s", self._protocol.kind, error.message)
        await self._protocol.refuse(socket, error)

    async def _receive_hello(self, socket: Socket, unauthenticated: int) -> H:
        """Return the first frame. `unauthenticated` is 1 for a connection without a key, else 0."""
        self._unauthenticated += unauthenticated
        try:
            async with asyncio.timeout(self._server.settings.hello_timeout):
                text = await socket.receive()
        except TimeoutError:
            raise WireError(f"the {self._protocol.kind} did not send its hello in time") from None
        finally:
            self._unauthenticated -= unauthenticated
        return self._protocol.decode_hello(text)

    async def _recheck_key(self, socket: Socket, headers: Headers) -> None:
        """Disconnect the process when its key may no longer connect, for example without its scope."""
        while True:
            await asyncio.sleep(self._server.settings.recheck)
            try:
                await self._authenticate(headers)
            except (Unauthorized, Forbidden) as error:
                self._server.disconnect(socket, error.message)
                return
            except DragomanError as error:
                log.debug("the key of a %s cannot be checked now: %s", self._protocol.kind, error.message)
