"""The switchboard: the spokes of a hub, from their first word to their last."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from dragoman.errors import Conflict, Unavailable, WireError
from dragoman.operations.identity import Identity
from dragoman.operations.registry import Registry
from dragoman.spokes.hub.line import Line, Socket
from dragoman.spokes.hub.offers import Offers
from dragoman.spokes.hub.permits import Permits
from dragoman.spokes.hub.remote import Remote
from dragoman.spokes.hub.settings import SpokeSettings
from dragoman.spokes.protocol import (
    REPLACED,
    RESTART,
    UNAUTHORIZED,
    VERSION,
    Abort,
    Aborted,
    Bye,
    Error,
    FromSpoke,
    Hello,
    Progress,
    Register,
    Result,
    Subcall,
    Unregister,
    Welcome,
)

log = logging.getLogger(__name__)


class Switchboard:
    """Registers what spokes bring as operations of the hub, and has the spokes run them."""

    def __init__(
        self,
        registry: Registry,
        *,
        permits: Permits | None = None,
        settings: SpokeSettings | None = None,
    ) -> None:
        self.settings = settings or SpokeSettings()
        self._offers = Offers(registry, permits or Permits())
        self._remotes: dict[str, Remote] = {}
        self._lines: set[Line] = set()
        self._closed = False

    async def attend(self, socket: Socket, hello: Hello, *, identity: Identity) -> None:
        """Serve a spoke that has said hello, until it goes.

        Before it is welcomed: Conflict when its id is another owner's, Unavailable while the hub ends.
        """
        remote = self._admit(hello, identity)
        line = Line(socket, self.settings, message=hello.message or self.settings.frame)
        if remote.line is not None:
            remote.line.end(REPLACED, Bye(code="replaced", message="it connected anew", again=False))
        remote.name = hello.name or hello.id
        remote.window = min(hello.window or self.settings.window, self.settings.window)
        line.outbox.post(self._welcome(remote, remote.attach(line, calls=hello.calls)))
        log.info("spoke %s of %s is connected", remote.id, remote.owner)
        lines = self._lines
        lines.add(line)
        try:
            await line.run(partial(self._hear, remote, line=line))
        finally:
            lines.discard(line)
            if remote.line is line:
                log.info("spoke %s of %s is gone", remote.id, remote.owner)
                remote.detach(partial(self._retire, remote))

    def status(self) -> list[dict[str, Any]]:
        """The spokes that are known, as JSON: for people to see."""
        return [
            {
                "id": remote.id,
                "name": remote.name,
                "owner": remote.owner,
                "connected": remote.here,
                "calls": remote.busy,
                "window": remote.window,
                "operations": sorted(offer.id for offer in remote.offers.values()),
            }
            for remote in sorted(self._remotes.values(), key=lambda each: each.id)
        ]

    def permit(self, permits: Permits) -> None:
        """Go by these permits from now on; what is registered stays."""
        self._offers.permits = permits

    def dismiss(self, key_id: str | None, message: str) -> None:
        """Close the connections of a key that is good no more."""
        for remote in self._remotes.values():
            if remote.line is not None and remote.key_id == key_id:
                remote.line.end(UNAUTHORIZED, Bye(code="unauthorized", message=message, again=False))

    async def close(self) -> None:
        """Tell all spokes that the hub ends. Calls that they have are lost."""
        self._closed = True
        for line in self._lines:
            line.end(RESTART, Bye(code="restart", message="the hub ends", again=True))
        for line in list(self._lines):
            await line.gone.wait()
        for remote in list(self._remotes.values()):
            self._retire(remote)

    def _admit(self, hello: Hello, identity: Identity) -> Remote:
        if self._closed:
            raise Unavailable("the hub is ending; come back in a moment")
        known = self._remotes.get(hello.id)
        if known is not None and known.owner != identity.owner:
            raise Conflict(f"there is a spoke {hello.id!r} of another owner; choose another id")
        remote = known or Remote(hello.id, identity.owner, settings=self.settings)
        remote.key_id = identity.key_id
        self._remotes[hello.id] = remote
        return remote

    def _welcome(self, remote: Remote, waiting: tuple[str, ...]) -> Welcome:
        settings = self.settings
        return Welcome(
            protocol=VERSION,
            window=remote.window,
            frame=settings.frame,
            message=settings.message,
            heartbeat=settings.heartbeat,
            timeout=settings.timeout,
            grace=settings.grace,
            waiting=waiting,
        )

    async def _hear(self, remote: Remote, frame: FromSpoke, *, line: Line) -> None:
        match frame:
            case Result() | Error() | Aborted():
                remote.answer(frame)
            case Progress():
                remote.progress(frame)
            case Subcall(parent=parent):
                await line.subcalls.start(frame, remote.tickets.get(parent))
            case Abort(id=id):
                line.subcalls.abort(id)
            case _:
                await self._arrange(remote, frame, line=line)

    async def _arrange(self, remote: Remote, frame: FromSpoke, *, line: Line) -> None:
        match frame:
            case Register():
                await line.outbox.put(await self._offers.take(remote, frame))
            case Unregister(operations=operations):
                self._offers.drop(remote, operations)
            case Bye():
                self._part(remote)
            case _:
                raise WireError(f"a spoke does not say {frame.__struct_config__.tag!r} here")

    def _part(self, remote: Remote) -> None:
        """The spoke wants nothing more, and ends what it has."""
        remote.leaving = True
        self._offers.drop(remote, list(remote.offers))

    def _retire(self, remote: Remote) -> None:
        if self._remotes.get(remote.id) is remote:
            del self._remotes[remote.id]
        self._offers.retire(remote)
