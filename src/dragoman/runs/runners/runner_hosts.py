"""Which host the runner of a session is connected to.

The session's row stores it (`runner_host`). The column may be empty although a runner is connected: the
session was deleted and created again, or its host once failed to answer. Then the other hosts are asked. A
host that is asked only looks and writes its name; it waits for no run and asks no other host, so that no two
hosts wait for each other.
"""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import quote

from dragoman.errors import DragomanError
from dragoman.hosts.client import HostClient
from dragoman.http.transport import Timeouts
from dragoman.runners.hub.server import RunnerServer
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store

log = logging.getLogger(__name__)
ASK_TIMEOUTS = Timeouts(connect=2.0, first_byte=5.0, idle=5.0)
"""Short, because a frozen host delays messages to runners that are connected nowhere until it is fenced."""


class RunnerHosts:
    """Finds the hosts of runners, among those that share the database."""

    def __init__(self, store: Store, server: RunnerServer) -> None:
        self.client: HostClient | None = None
        """The client for requests to other hosts; None where there are none."""
        self._store = store
        self._server = server
        self._searches: dict[str, asyncio.Task[str | None]] = {}

    async def find_other(self, session: Session) -> str | None:
        """Return the other host that the session's runner is connected to; None if it is here, or nowhere."""
        own, noted = self._store.host_id, session.runner_host
        if self.client is None or noted == own or (noted is None and self._server.is_connected(session.id)):
            return None
        return noted or await self._search_once(session.id)

    async def _search_once(self, session_id: str) -> str | None:
        """Ask the other hosts for a runner; concurrent searches share the answer."""
        search = self._searches.get(session_id)
        if search is None:
            search = asyncio.create_task(self._search(session_id))
            self._searches[session_id] = search
            search.add_done_callback(lambda _: self._searches.pop(session_id, None))
        return await asyncio.shield(search)

    async def _search(self, session_id: str) -> str | None:
        others = [host.id for host in await self._store.hosts.list() if host.id != self._store.host_id]
        answers = await asyncio.gather(*(self._ask(host, session_id) for host in others))
        return next((host for host, has_runner in zip(others, answers, strict=True) if has_runner), None)

    async def _ask(self, host: str, session_id: str) -> bool:
        """Return whether a host has the session's runner; False if the host does not answer."""
        if self.client is None:
            return False
        path = f"/sessions/{quote(session_id, safe='')}/runner/note"
        try:
            return await self.client.post(host, path, timeouts=ASK_TIMEOUTS) is True
        except DragomanError as error:
            log.info("whether the host %s has a runner is not known: %s", host, error.message)
            return False

    async def note_here(self, session_id: str) -> bool:
        """Record that the session's runner is connected here; False if it is not, or moved meanwhile."""
        own = self._store.host_id
        if own is None or not self._server.is_connected(session_id):
            return False
        await self._store.sessions.restore_runner_host(session_id, own)
        session = await self._store.sessions.get(session_id)
        return session is not None and session.runner_host == own
