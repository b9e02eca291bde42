"""The MCP client: other people's servers as operations. None of them holds up the hub, or another server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from dragoman.errors import Conflict, NotFound
from dragoman.mcp.client.pins import Change, MemoryPins, Pins
from dragoman.mcp.client.remote import Patience, Remote, Shared
from dragoman.mcp.client.sdk import Sdk
from dragoman.mcp.spec import ServerSpec, ServerStatus
from dragoman.operations.registry import Registry
from dragoman.processes.watchdog import Watchdog

ANSWER_LIMIT = 64_000_000  # bytes of one message of a server


class Servers:
    """All MCP servers of a hub. Use it in `async with`; starting is in the background, all at a time.

    `pins` keep what was approved. `environ` are the hub's variables, of which a server sees PATH, HOME, LANG
    and those that its spec names. `limit` is how many bytes an answer may have.
    """

    def __init__(
        self,
        registry: Registry,
        specs: Iterable[ServerSpec] = (),
        *,
        pins: Pins | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
        limit: int = ANSWER_LIMIT,
    ) -> None:
        self._specs = tuple(specs)
        self._pins = MemoryPins() if pins is None else pins
        self._remotes: dict[str, Remote] = {}  # by small-letter name
        self._left_out: dict[str, ServerStatus] = {}  # likewise
        self._leaving: set[asyncio.Task[None]] = set()
        self._clock = clock
        self._watchdog = Watchdog()
        self._shared = Shared(
            registry, self._pins, environ or {}, clock, Patience(), Sdk(), limit, self._watchdog
        )

    async def __aenter__(self) -> Servers:
        for spec in self._specs:
            self.add(spec)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let all servers go, at a time; their processes are gone when this returns."""
        leaving = [self._let_go(key) for key in list(self._remotes)]
        await asyncio.gather(*leaving, *self._leaving)
        await self._watchdog.close()

    def add(self, spec: ServerSpec) -> ServerStatus:
        """Take a server in; it starts in the background. Conflict when there is one of this name."""
        key = spec.name.lower()
        if key in self._remotes:
            raise Conflict(f"there is an MCP server {self._remotes[key].spec.name!r} already")
        return self._put(spec)

    async def remove(self, name: str, *, forget: bool = False) -> None:
        """Let a server go, with its operations; `forget` what was approved of it too. NotFound if none."""
        status, key = self.status(name), name.lower()
        self._left_out.pop(key, None)
        if key in self._remotes:
            await self._let_go(key)
        if forget:
            await self._pins.forget(status.name)

    def leave_out(self, name: str, why: str) -> ServerStatus:
        """There is no spec of this server, for this reason: it is shown as one that has failed."""
        status = ServerStatus(name=name, state="failed", since=self._clock(), error=why)
        self._left_out[name.lower()] = status
        return status

    def renew(self, spec: ServerSpec) -> ServerStatus:
        """Have a server as this says, connected anew."""
        key = spec.name.lower()
        if key not in self._remotes:
            return self._put(spec)
        if self._remotes[key].spec == spec:
            return self.reconnect(spec.name)
        return self._put(spec, after=self._let_go(key))

    async def replace(self, specs: Iterable[ServerSpec]) -> None:
        """Have exactly these servers: those whose spec is the same stay connected."""
        self._left_out.clear()
        wanted = {spec.name.lower(): spec for spec in specs}
        gone = [key for key, remote in self._remotes.items() if wanted.get(key) != remote.spec]
        leaving = {key: self._let_go(key) for key in gone}
        for key, spec in wanted.items():
            if key not in self._remotes:
                self._put(spec, after=leaving.get(key))
        await asyncio.gather(*leaving.values())

    def list(self) -> Sequence[ServerStatus]:
        """How the servers stand, by name."""
        held = {key: remote.status() for key, remote in self._remotes.items()}
        return [status for _, status in sorted({**self._left_out, **held}.items())]

    def status(self, name: str) -> ServerStatus:
        """How one stands. NotFound when there is none."""
        left_out = self._left_out.get(name.lower())
        return self._find(name).status() if left_out is None else left_out

    def reconnect(self, name: str) -> ServerStatus:
        """Drop a server's connection and open another, in the background; a disabled one stays so."""
        remote = self._find(name)
        if remote.spec.enabled:
            remote.reconnect()
        return remote.status()

    async def settled(self, name: str | None = None) -> Sequence[ServerStatus]:
        """How the servers stand, or this one, once none of them is starting any more."""
        remotes = list(self._remotes.values()) if name is None else [self._find(name)]
        await asyncio.gather(*(remote.settle() for remote in remotes))
        return [remote.status() for remote in remotes]

    def changes(self, name: str | None = None) -> Sequence[Change]:
        """The definitions that wait for approval, of all servers or of one, each beside what was approved."""
        if name is not None and name.lower() in self._left_out:
            return []
        remotes = [self._find(name)] if name is not None else list(self._remotes.values())
        return [change for remote in remotes for change in remote.offers.changes()]

    async def approve(
        self, name: str, tools: Sequence[str] | Mapping[str, str] | None = None, *, by: str
    ) -> Sequence[str]:
        """Approve of definitions that wait, all or these; they become operations. Gives their names.

        Name the hashes that `changes` showed, `{tool: hash}`, so that nothing is approved that nobody saw:
        Conflict when one has changed since. NotFound when there is nothing of that name to approve.
        """
        return await self._find(name).offers.approve(tools, by=by)

    def _put(self, spec: ServerSpec, *, after: asyncio.Task[None] | None = None) -> ServerStatus:
        """A new server; it starts once the one whose place it takes has left."""
        self._left_out.pop(spec.name.lower(), None)
        remote = self._remotes[spec.name.lower()] = Remote(spec, self._shared)
        remote.start(after)
        return remote.status()

    def _let_go(self, key: str) -> asyncio.Task[None]:
        """Stop a server; the task ends when its process is gone."""
        leaving = asyncio.create_task(self._remotes.pop(key).stop())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        return leaving

    def _find(self, name: str) -> Remote:
        remote = self._remotes.get(name.lower())
        if remote is None:
            known = ", ".join(each.name for each in self.list())
            raise NotFound(
                f"there is no MCP server {name[:100]!r}", hint=f"there is {known}" if known else None
            )
        return remote
