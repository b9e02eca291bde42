"""Who has a session open: the sockets of this host by owner, and those of the hosts that share its database.

A host writes how many sockets an owner has there, and sends a signal when an owner's first socket opens or
the last one closes. The other hosts that have the session open then read the people of all hosts, and tell
their own sockets who is new and who has left; so nobody is announced twice, or stays listed when a host dies.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dragoman.errors import NotFound, StoreError, Unavailable
from dragoman.hub_events.event_log import EventLog
from dragoman.identity import Identity
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store

log = logging.getLogger(__name__)
JOINED, LEFT = "user.joined", "user.left"


class PeopleOfSession:
    """A session that is open at this host: how many sockets each owner has, here and `elsewhere`."""

    def __init__(self, session: Session) -> None:
        self.id = session.id
        self.owner = session.owner
        self.here: Counter[str] = Counter()
        self.elsewhere: Counter[str] = Counter()
        self.has_read = False
        """Whether `elsewhere` was read. Those whom the first reading finds are not announced."""

    def people(self) -> Counter[str]:
        """Return the sockets by owner at all hosts."""
        return self.here + self.elsewhere


class SessionPeople:
    """The people of all sessions that are open at this host."""

    def __init__(self, store: Store, events: EventLog) -> None:
        self._store = store
        self._events = events
        self._open: dict[str, PeopleOfSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        store.signals.subscribe("presence", self._read_again)

    @contextmanager
    def present(self, session: Session, caller: Identity) -> Iterator[None]:
        """Announce that the caller is there while the block runs, and afterwards that it has left."""
        opened = self._open.setdefault(session.id, PeopleOfSession(session))
        self._change(opened, caller.owner, by=1)
        try:
            yield
        finally:
            self._change(opened, caller.owner, by=-1)
            if not opened.here:
                self._open.pop(session.id, None)

    async def read(self, session_id: str) -> Counter[str]:
        """Return the sockets by owner of a session that is open here, as far as they are known."""
        opened = self._open[session_id]
        if not opened.has_read:
            await self._refresh(opened)
        return opened.people()

    def _change(self, opened: PeopleOfSession, owner: str, *, by: int) -> None:
        before = set(opened.people())
        opened.here[owner] += by
        if not opened.here[owner]:
            del opened.here[owner]
        self._publish_changes(opened, before)
        if self._store.host_id is not None:
            is_news = opened.here[owner] == max(by, 0)  # the owner's first socket, or its last one
            self._spawn(self._write(opened, owner, sockets=opened.here[owner], is_news=is_news))

    async def _write(self, opened: PeopleOfSession, owner: str, *, sockets: int, is_news: bool) -> None:
        host = self._store.host_id or ""
        with suppress(StoreError, Unavailable, NotFound):  # the session may have been deleted
            await self._store.people.note(opened.id, owner, host=host, sockets=sockets)
            if is_news:
                self._store.signals.send("presence", opened.id)

    def _read_again(self, session_id: str | None) -> None:
        """Read again who is at the other hosts, for one session or for all."""
        for opened in list(self._open.values()):
            if session_id in (None, opened.id):
                self._spawn(self._refresh(opened))

    async def _refresh(self, opened: PeopleOfSession) -> None:
        if self._store.host_id is None:
            return
        try:
            found = await self._store.people.list_elsewhere(opened.id, host=self._store.host_id)
        except (StoreError, Unavailable) as error:
            log.debug("who is at other hosts in session %s is not known: %s", opened.id, error.message)
            return
        before, is_first = set(opened.people()), not opened.has_read
        opened.elsewhere, opened.has_read = found, True
        if not is_first:
            self._publish_changes(opened, before)

    def _publish_changes(self, opened: PeopleOfSession, before: set[str]) -> None:
        """Publish to the sockets of this host who has joined, and who has left."""
        after = set(opened.people())
        for name, owners in ((JOINED, after - before), (LEFT, before - after)):
            for owner in sorted(owners):
                self._events.publish_live(opened.id, opened.owner, name=name, data={"owner": owner})

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
