"""Ends requests in shared sessions once the grant that allowed them is gone, whichever process removed it.

A grant is checked when a request begins. Streams and sockets last, so those of callers that are not the
session's owner are checked again here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import msgspec

from dragoman.errors import Forbidden, KeyEnded, StoreError, Unavailable
from dragoman.http.asgi_exchange import Exchange
from dragoman.identity import Identity
from dragoman.operations.authorization import SessionRole, visible_owner
from dragoman.revocable_work import StopWork
from dragoman.store.hosts.signals import Wakeup
from dragoman.store.sessions.sessions import SessionRepository, is_of_others

log = logging.getLogger(__name__)
CHECK_INTERVAL = 2.0
"""Seconds between two checks: a request ends within 10 seconds, with the last frames of a stream."""


class SharedUse(msgspec.Struct, frozen=True):
    """A caller who uses a session of another owner by a grant."""

    session_id: str
    caller: Identity
    role: SessionRole


NO_GRANT = nullcontext()  # nearly all use is the owner's own


class SharedAccess:
    """The open requests of this process that grants allow."""

    def __init__(self, sessions: SessionRepository, *, interval: float = CHECK_INTERVAL) -> None:
        self._sessions = sessions
        self._interval = interval
        self._wakeup = Wakeup()
        self._stops: dict[object, tuple[SharedUse, StopWork]] = {}

    def track_id(self, session_id: str, exchange: Exchange) -> AbstractContextManager[None]:
        """End an exchange as if its key had ended, once its caller may no longer read the session.

        An id that is not the hub's id of another owner's session is one of the caller's own sessions.
        """
        if not _is_used_by_grant(session_id, exchange.identity):
            return NO_GRANT

        def stop(error: KeyEnded) -> None:
            if exchange.on_key_ended is not None:
                exchange.on_key_ended(error)

        return self.track(session_id, exchange.identity, stop=stop)

    def track(
        self, session_id: str, caller: Identity, *, stop: StopWork, role: SessionRole = "read"
    ) -> AbstractContextManager[None]:
        """Call `stop` when the caller may no longer use the session while the block runs."""
        if not _is_used_by_grant(session_id, caller):
            return NO_GRANT
        return self._track(SharedUse(session_id, caller, role), stop)

    @contextmanager
    def _track(self, use: SharedUse, stop: StopWork) -> Iterator[None]:
        entry = object()
        self._stops[entry] = use, stop
        try:
            yield
        finally:
            self._stops.pop(entry, None)

    def wake(self, session_id: str | None = None) -> None:
        """Check now, because another host has changed the grants of a session."""
        self._wakeup.wake(session_id)

    async def run(self) -> None:
        """Check every `interval` seconds, and when it is woken, until cancelled."""
        while True:
            await self._wakeup.wait(self._interval)
            await self.check()

    async def check(self) -> None:
        """Check once. While the database is down nothing is ended."""
        uses = {use for use, _ in self._stops.values()}
        try:
            allowed = {use: await self._is_allowed(use) for use in uses}
        except (StoreError, Unavailable) as error:
            log.debug("grants cannot be checked now: %s", error.message)
            return
        self._stop_others(allowed)

    async def _is_allowed(self, use: SharedUse) -> bool:
        try:
            found = await self._sessions.get_shared(use.session_id, caller=use.caller, role=use.role)
        except Forbidden:
            return False
        return found is not None

    def _stop_others(self, allowed: Mapping[SharedUse, bool]) -> None:
        for entry, (use, stop) in list(self._stops.items()):
            if not allowed.get(use, True):
                del self._stops[entry]
                log.info("%s may no longer use session %s", use.caller.owner, use.session_id)
                stop(KeyEnded("the session is no longer shared with you", reason="grant revoked"))


def _is_used_by_grant(session_id: str, caller: Identity) -> bool:
    return is_of_others(session_id, caller.owner) and visible_owner(caller) is not None
