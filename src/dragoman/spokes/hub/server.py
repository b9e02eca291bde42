"""The hub's side of the spoke protocol: connections, registrations and calls of all spokes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from dragoman.errors import Conflict, Unavailable, WireError
from dragoman.http.asgi_websocket import Socket
from dragoman.identity import Identity
from dragoman.operations.registry import Registry
from dragoman.spokes.hub.bad_frames import PartialRegister
from dragoman.spokes.hub.connection import SpokeConnection
from dragoman.spokes.hub.definition_approvals import DefinitionApprovals
from dragoman.spokes.hub.namespace_claims import NamespaceClaims, NamespaceStore
from dragoman.spokes.hub.operations import SpokeOperations
from dragoman.spokes.hub.permissions import NamespacePermissions
from dragoman.spokes.hub.remote_spoke import RemoteSpoke
from dragoman.spokes.hub.settings import SpokeSettings
from dragoman.spokes.protocol import (
    HUB_RESTART,
    REPLACED,
    UNAUTHORIZED,
    VERSION,
    AbortedFrame,
    AbortFrame,
    ByeFrame,
    ErrorFrame,
    FrameFromSpoke,
    HelloFrame,
    ProgressFrame,
    PublishFrame,
    RegisterFrame,
    ResultFrame,
    SubcallFrame,
    UnregisterFrame,
    WelcomeFrame,
)
from dragoman.store.mcp_servers import PinStore

log = logging.getLogger(__name__)


class SpokeServer:
    """Registers the operations of spokes at the hub and has the spokes run them."""

    def __init__(
        self,
        registry: Registry,
        *,
        permissions: NamespacePermissions | None = None,
        settings: SpokeSettings | None = None,
        namespaces: NamespaceStore | None = None,
        pin_store: PinStore | None = None,
    ) -> None:
        """`namespaces` stores the owners of namespaces, `pin_store` the approved definitions.

        Without them, both are only in memory.
        """
        self.settings = settings or SpokeSettings()
        self.operations = SpokeOperations(
            registry,
            permissions or NamespacePermissions(),
            claims=NamespaceClaims(namespaces, limit=self.settings.namespaces),
            approvals=DefinitionApprovals(pin_store),
        )
        self._spokes: dict[str, RemoteSpoke] = {}
        self._connections: set[SpokeConnection] = set()
        self._closed = False
        self._removals: set[asyncio.Future[None]] = set()
        self.on_change: Callable[[], None] = lambda: None
        """Called when a spoke connects or disconnects."""

    async def serve(self, socket: Socket, hello: HelloFrame, *, identity: Identity) -> None:
        """Serve a spoke that has sent its hello until it disconnects.

        Raises Conflict when its id is that of another owner's spoke, Unavailable while the hub shuts down or
        its database does not answer.
        """
        await self.operations.load()
        remote = self._spoke_for(hello, identity)
        connection = SpokeConnection(
            socket, self.settings, message_limit=hello.message or self.settings.frame
        )
        if remote.connection is not None:
            remote.connection.close(
                REPLACED, ByeFrame(code="replaced", message="it reconnected", again=False)
            )
        remote.name = hello.name or hello.id
        remote.window = min(hello.window or self.settings.window, self.settings.window)
        connection.outbox.send_urgent(
            self._welcome_frame(remote, remote.attach(connection, call_ids=hello.calls))
        )
        log.info("spoke %s of %s is connected", remote.id, remote.owner)
        self._connections.add(connection)
        self.on_change()
        try:
            await connection.run(partial(self._handle_call_frame, remote, connection=connection))
        finally:
            self._connections.discard(connection)
            if remote.connection is connection:
                log.info("spoke %s of %s is gone", remote.id, remote.owner)
                remote.leaving = remote.leaving or connection.is_final
                remote.detach(partial(self._remove_spoke, remote))
                self.on_change()

    def status(self) -> list[dict[str, Any]]:
        """Return the known spokes as JSON values."""
        return [
            {
                "id": remote.id,
                "name": remote.name,
                "owner": remote.owner,
                "connected": remote.connected,
                "calls": remote.active_calls,
                "window": remote.window,
                "operations": sorted(offer.id for offer in remote.offers.values()),
            }
            for remote in sorted(self._spokes.values(), key=lambda spoke: spoke.id)
        ]

    async def namespaces(self) -> Mapping[str, str]:
        """Return the owners of all namespaces that spokes have registered in. Raises Unavailable."""
        await self.operations.claims.load()
        return self.operations.claims.by_namespace()

    def set_permissions(self, permissions: NamespacePermissions) -> None:
        """Use these permissions for new registrations, and for the visibility of existing ones."""
        self.operations.set_permissions(permissions)

    def disconnect(self, socket: Socket, message: str) -> None:
        """Close a connection whose key is no longer valid. The calls of its spoke fail at once."""
        for remote in self._spokes.values():
            connection = remote.connection
            if connection is not None and connection.socket is socket:
                remote.leaving = True
                connection.close(UNAUTHORIZED, ByeFrame(code="unauthorized", message=message, again=False))

    async def close(self) -> None:
        """Disconnect all spokes with a message to reconnect later. Their calls fail."""
        self._closed = True
        for connection in self._connections:
            connection.close(HUB_RESTART, ByeFrame(code="restart", message="the hub shuts down", again=True))
        for connection in list(self._connections):
            await connection.closed.wait()
        for remote in list(self._spokes.values()):
            self._remove_spoke(remote)
        await asyncio.gather(*self._removals)

    def _spoke_for(self, hello: HelloFrame, identity: Identity) -> RemoteSpoke:
        if self._closed:
            raise Unavailable("the hub is shutting down; reconnect in a moment")
        existing = self._spokes.get(hello.id)
        if existing is not None and existing.owner != identity.owner:
            raise Conflict(f"there is a spoke {hello.id!r} of another owner; choose another id")
        remote = existing or RemoteSpoke(hello.id, identity.owner, settings=self.settings)
        remote.key_id = identity.key_id
        self._spokes[hello.id] = remote
        return remote

    def _welcome_frame(self, spoke: RemoteSpoke, waiting: tuple[str, ...]) -> WelcomeFrame:
        settings = self.settings
        return WelcomeFrame(
            protocol=VERSION,
            window=spoke.window,
            frame=settings.frame,
            message=settings.message,
            heartbeat=settings.heartbeat,
            timeout=settings.timeout,
            grace=settings.grace,
            waiting=waiting,
            publishes=True,
        )

    async def _handle_call_frame(
        self, spoke: RemoteSpoke, frame: FrameFromSpoke, *, connection: SpokeConnection
    ) -> None:
        match frame:
            case ResultFrame() | ErrorFrame() | AbortedFrame():
                spoke.receive_reply(frame)
            case ProgressFrame():
                spoke.receive_progress(frame)
            case PublishFrame():
                spoke.receive_publish(frame)
            case SubcallFrame(parent=parent):
                await connection.subcalls.start(frame, spoke.calls.get(parent))
            case AbortFrame(id=id):
                connection.subcalls.abort(id)
            case _:
                await self._handle_control_frame(spoke, frame, connection=connection)

    async def _handle_control_frame(
        self, spoke: RemoteSpoke, frame: FrameFromSpoke, *, connection: SpokeConnection
    ) -> None:
        match frame:
            case RegisterFrame():
                answer = await self.operations.register(spoke, frame)
                unreadable = frame.unreadable if isinstance(frame, PartialRegister) else ()
                await connection.outbox.send(replace(answer, refused=(*answer.refused, *unreadable)))
            case UnregisterFrame(operations=operations):
                await self.operations.unregister(spoke, operations)
            case ByeFrame():  # no more calls; the running ones may end
                spoke.leaving = True
                await self.operations.unregister(spoke, list(spoke.offers))
            case _:
                raise WireError(f"a spoke does not send {frame.__struct_config__.tag!r} here")

    def _remove_spoke(self, spoke: RemoteSpoke) -> None:
        """Remove a spoke that does not come back, in a task: it may have thousands of operations."""
        if self._spokes.get(spoke.id) is spoke:
            del self._spokes[spoke.id]
        removal = asyncio.ensure_future(self.operations.remove_spoke(spoke))
        self._removals.add(removal)
        removal.add_done_callback(self._end_removal)

    def _end_removal(self, removal: asyncio.Future[None]) -> None:
        self._removals.discard(removal)
        self.on_change()
