"""The browsers of teams: one for each team and owner, closed with the runs that use it, or when idle."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from msgspec.structs import replace

from dragoman.errors import CallError, LimitReached
from dragoman.operations.context import Context
from dragoman.teams.browser.playwright_server import BrowserSession, BrowserSettings
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.spec import TeamSpec
from dragoman.tools.web.host_policy import HostPolicy, WebSettings

MAX_BROWSERS = 8
IDLE_SECONDS = 300.0
Key = tuple[str, str]


class OpenBrowser:
    """The browser of a team and an owner, the runs and agents that use it, and when it closes itself."""

    def __init__(self, session: BrowserSession, team: TeamSpec) -> None:
        self.session = session
        self.team = team
        self.users: set[tuple[str, str | None]] = set()
        self.idle: asyncio.TimerHandle | None = None

    def stop_waiting(self) -> None:
        """Cancel the idle timer: the browser is in use."""
        if self.idle is not None:
            self.idle.cancel()


class TeamBrowsers:
    """Starts browsers when they are needed. `web` are the hub's limits, which apply here too.

    `on_use` is called before a run uses one; then `end_run` has to be called at its end.
    """

    def __init__(
        self,
        teams: TeamRegistry,
        settings: BrowserSettings,
        *,
        web: WebSettings,
        environ: Mapping[str, str] | None = None,
        on_use: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_use = on_use
        self._teams = teams
        self._settings = settings
        self._web = web
        self._environ = os.environ if environ is None else environ
        self._browsers: dict[Key, OpenBrowser] = {}
        self._starting = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    def policy(self, team: TeamSpec) -> HostPolicy:
        """Return what a team's browser may open. Raises CallError for a team that may not open any page."""
        if not team.browser.allowed_domains:
            raise CallError(
                f"The browser of the team {team.name!r} may not open any page.",
                hint="`browser: {allowed_domains: [...]}` in team.yaml names the domains.",
            )
        return HostPolicy(replace(self._web, allow_hosts=team.browser.allowed_domains))

    def policy_of(self, context: Context) -> HostPolicy:
        """Return what the browser of the calling team may open. Raises CallError."""
        return self.policy(self._teams.calling_team(context))

    @asynccontextmanager
    async def use(self, context: Context) -> AsyncIterator[BrowserSession]:
        """Yield the browser of the calling team for one call; start it if there is none. Raises CallError."""
        team = self._teams.calling_team(context)
        self.policy(team)
        self._on_use()
        browser = await self._browser((team.name, context.identity.owner), team)
        if context.run_id is not None:
            browser.users.add((context.run_id, context.agent))
        try:
            async with browser.session.lock:
                browser.stop_waiting()
                yield browser.session
        finally:
            browser.stop_waiting()
            key = (team.name, context.identity.owner)
            if self._browsers.get(key) is browser:
                loop = asyncio.get_running_loop()
                browser.idle = loop.call_later(IDLE_SECONDS, self._close_soon, key)

    async def close_own(self, context: Context) -> bool:
        """Close the browser of the calling team; return whether there was one."""
        team = self._teams.calling_team(context)
        return await self._close((team.name, context.identity.owner))

    async def end_run(self, run_id: str, agent: str | None) -> None:
        """Close the browsers that only this agent of this run still used."""
        for key, browser in list(self._browsers.items()):
            if (run_id, agent) in browser.users:
                browser.users.discard((run_id, agent))
                if not browser.users:
                    await self._close(key)

    async def close(self) -> None:
        """Close all browsers."""
        await asyncio.gather(*(self._close(key) for key in list(self._browsers)), *self._closing)

    async def _browser(self, key: Key, team: TeamSpec) -> OpenBrowser:
        async with self._starting:
            existing = self._browsers.get(key)
            if existing is not None and existing.team.browser == team.browser:
                return existing
            await self._close(key)
            if len(self._browsers) >= MAX_BROWSERS:
                raise LimitReached(f"{MAX_BROWSERS} browsers run already", hint="wait until a run has ended")
            session = BrowserSession(self._settings, self.policy(team), seconds=team.browser.timeout)
            try:
                await session.start(self._environ)
            except BaseException:
                await asyncio.shield(session.close())
                raise
            browser = self._browsers[key] = OpenBrowser(session, team)
            return browser

    async def _close(self, key: Key) -> bool:
        browser = self._browsers.pop(key, None)
        if browser is None:
            return False
        browser.stop_waiting()
        await asyncio.shield(browser.session.close())
        return True

    def _close_soon(self, key: Key) -> None:
        async def close() -> None:
            await self._close(key)

        task = asyncio.ensure_future(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
