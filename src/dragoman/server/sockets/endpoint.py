"""The WebSocket endpoint `/api/sessions/{id}/socket`: who may open it, and when it is closed."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import suppress
from functools import partial
from urllib.parse import parse_qs, unquote

from starlette.types import Receive, Scope, Send

from dragoman.errors import BadRequest, DragomanError, Forbidden, KeyEnded, Unavailable
from dragoman.http.asgi_websocket import AsgiSocket, Socket, SocketClosed
from dragoman.http.host_origin import parse_authority, parse_origin
from dragoman.hub_events.event_filter import EventFilter
from dragoman.identity import Identity
from dragoman.large_json import weigh
from dragoman.offload import offload
from dragoman.operations.authorization import require_scope
from dragoman.revocable_work import ActiveWork
from dragoman.server.auth import Auth
from dragoman.server.sessions.grant_revocation import SharedAccess
from dragoman.server.sessions.session_lookup import find_session
from dragoman.server.sockets.frames import SocketKey, decode_frame, error_frame
from dragoman.server.sockets.people import SessionPeople
from dragoman.server.sockets.session_socket import SessionSocket, SocketServices
from dragoman.store.hub_events import EventPosition

log = logging.getLogger(__name__)
PATH = re.compile(r"/api/sessions/([^/]+)/socket")
AUTH_TIMEOUT = 10.0  # seconds for the first frame
MAX_UNAUTHENTICATED = 64
REFUSED, ENDED, INTERNAL = 4403, 4401, 1011
MAX_REASON = 120  # bytes of a close frame


class SessionSocketEndpoint:
    """The ASGI app of the sockets of sessions."""

    def __init__(
        self,
        services: SocketServices,
        *,
        auth: Auth,
        access: SharedAccess,
        origins: frozenset[str],
        requires_key: bool,
    ) -> None:
        """`origins` are those of pages that may connect besides the hub's own."""
        self.work = ActiveWork()
        """Where sockets are registered, to end when their key does."""
        self._services = services
        self._auth = auth
        self._access = access
        self._origins = origins
        self._requires_key = requires_key
        self._people = SessionPeople(services.store, services.events)
        self._unauthenticated = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = AsgiSocket(scope, receive, send)
        try:
            identity = await self._identify(socket, address=(scope.get("server") or (None,))[0])
        except DragomanError as error:
            with suppress(SocketClosed):
                await socket.refuse(error)
            return
        try:
            await socket.accept()
            socket.headers.clear()
            await self._serve(socket, scope, identity=identity)
        except SocketClosed:
            return
        except DragomanError as error:
            await close(socket, error, code=REFUSED)
        except Exception:
            log.exception("the socket of a session failed")
            await close(socket, DragomanError("internal error of the hub; see its log"), code=INTERNAL)

    async def _identify(self, socket: AsgiSocket, *, address: str | None) -> Identity | None:
        """Return who connects; None for a client that sends its key later. Raises any DragomanError."""
        headers = socket.headers
        self._auth.check_host(headers, at=address)
        self._check_origin(headers.get("origin"), host=headers.get("host", ""))
        if socket.has_credentials or not self._requires_key:
            return await self._auth.identify(headers, at=address, admits_tokens=True)
        if self._unauthenticated >= MAX_UNAUTHENTICATED:
            raise Unavailable("too many unauthenticated connections; try again later")
        return None

    def _check_origin(self, origin: str | None, *, host: str) -> None:
        """Raise Forbidden for pages of other sites: browsers let them open WebSockets, but send an Origin."""
        if origin is None or origin in self._origins:
            return
        page, own = parse_origin(origin), parse_authority(host)
        if page is None or own is None or (page.host, page.port) != (own.host, own.port):
            raise Forbidden(
                f"pages of {origin[:200]!r} may not connect",
                hint="`cors.origins` of the hub's configuration names those that may",
            )

    async def _serve(self, socket: Socket, scope: Scope, *, identity: Identity | None) -> None:
        after = position_in(scope)
        if identity is None:
            first = await self._receive_auth(socket)
            identity = await self._auth.identify(
                {"authorization": f"Bearer {first.token}"}, admits_tokens=True
            )
            after = first.after or after
        require_scope(identity, "chat")
        session = await find_session(
            self._services.store.sessions, session_id_in(scope), caller=identity, owner=None
        )
        scope["headers"] = []  # nobody reads them any more, and the socket may be open for long
        position = None if after is None else EventPosition.parse(after)
        wanted = EventFilter(session_id=session.id)
        ended: list[KeyEnded] = []
        with self._people.present(session, identity):  # before `follow`: without its own `user.joined`
            async with self._services.events.follow(
                wanted, caller=identity.owner, after=position
            ) as follower:

                def end(error: KeyEnded) -> None:
                    ended.append(error)
                    follower.close()

                with (
                    self.work.track(identity, end),
                    self._access.track(session.id, identity, stop=end),
                ):
                    line = SessionSocket(socket, session, caller=identity, services=self._services)
                    await line.serve(follower, people=self._people)
        if ended:
            await close(socket, ended[0], code=ENDED)

    async def _receive_auth(self, socket: Socket) -> SocketKey:
        self._unauthenticated += 1
        try:
            async with asyncio.timeout(AUTH_TIMEOUT):
                raw = (await socket.receive()).encode()
                frame = await offload(weigh(raw), partial(decode_frame, raw))
        except TimeoutError:
            raise BadRequest("no `auth` frame arrived in time") from None
        finally:
            self._unauthenticated -= 1
        if not isinstance(frame, SocketKey):
            raise BadRequest('the first frame must be {"type": "auth", "token": "…"}')
        return frame


def position_in(scope: Scope) -> str | None:
    """Return the id of the last event that a client has, as the query names it."""
    query = parse_qs(str(scope.get("query_string", b""), "latin-1"))
    return query["after"][-1] if "after" in query else None


def session_id_in(scope: Scope) -> str:
    """Return the id of the session in the path."""
    raw = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
    found = PATH.fullmatch(raw)
    return unquote(found[1]) if found else ""


async def close(socket: Socket, error: DragomanError, *, code: int) -> None:
    """Send the error as a frame, and close with its message as the reason."""
    with suppress(SocketClosed):
        await socket.send(error_frame(error))
        await socket.close(code, error.message.encode()[:MAX_REASON].decode(errors="ignore"))
