"""The MCP client: other MCP servers as operations of the hub.

A slow or failed server delays neither the hub nor the other servers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from dragoman.errors import Conflict, NotFound
from dragoman.mcp.client.definition_pins import DefinitionChange
from dragoman.mcp.client.flood import TrafficLimits
from dragoman.mcp.client.sdk_loader import SdkLoader
from dragoman.mcp.client.server_supervisor import RemoteServer, ServerSharedState, StartTimeouts
from dragoman.mcp.server_spec import ServerSpec, ServerStatus
from dragoman.operations.registry import Registry
from dragoman.processes.watchdog import Watchdog
from dragoman.store.mcp_servers import MemoryPinStore, PinStore


class McpClient:
    """All MCP servers of a hub. Use it in `async with`; servers start concurrently, in the background.

    `pin_store` keeps what was approved. `environ` are the hub's variables, of which a server sees PATH,
    HOME, LANG and those that its spec names.
    """

    def __init__(
        self,
        registry: Registry,
        specs: Iterable[ServerSpec] = (),
        *,
        pin_store: PinStore | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
        limits: TrafficLimits | None = None,
    ) -> None:
        self._specs = tuple(specs)
        self._pin_store = MemoryPinStore() if pin_store is None else pin_store
        self._servers: dict[str, RemoteServer] = {}  # by name in lower case
        self._unusable: dict[str, ServerStatus] = {}  # without a valid spec, by name in lower case
        self._stopping: set[asyncio.Task[None]] = set()
        self._clock = clock
        self._watchdog = Watchdog()
        self._shared = ServerSharedState(
            registry,
            self._pin_store,
            environ or {},
            clock,
            StartTimeouts(),
            SdkLoader(),
            self._watchdog,
            limits or TrafficLimits(),
            self._note_change,
        )
        self.on_change: Callable[[], None] = lambda: None
        """Called when a server is added or removed, or its state or definitions change."""

    async def __aenter__(self) -> McpClient:
        for spec in self._specs:
            self.add(spec)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop all servers concurrently. Their processes have ended when this returns."""
        stopping = [self._stop_server(key) for key in list(self._servers)]
        await asyncio.gather(*stopping, *self._stopping)
        await self._watchdog.close()

    def add(self, spec: ServerSpec) -> ServerStatus:
        """Add a server and start it in the background. Raises Conflict if the name is in use."""
        key = spec.name.lower()
        if key in self._servers:
            raise Conflict(f"there is an MCP server {self._servers[key].spec.name!r} already")
        return self._start_server(spec)

    async def remove(self, name: str, *, forget: bool = False) -> None:
        """Stop a server and remove its operations; `forget` removes its approvals too. Raises NotFound."""
        status, key = self.status(name), name.lower()
        self._unusable.pop(key, None)
        if key in self._servers:
            await self._stop_server(key)
        if forget:
            await self._pin_store.delete(status.name)

    def add_unusable(self, name: str, reason: str) -> ServerStatus:
        """List a server that has no valid spec as failed, with this reason."""
        status = ServerStatus(name=name, state="failed", since=self._clock(), error=reason)
        self._unusable[name.lower()] = status
        return status

    def update(self, spec: ServerSpec) -> ServerStatus:
        """Set the spec of a server and connect again."""
        key = spec.name.lower()
        if key not in self._servers:
            return self._start_server(spec)
        if self._servers[key].spec == spec:
            return self.reconnect(spec.name)
        return self._start_server(spec, after=self._stop_server(key))

    async def replace_all(self, specs: Iterable[ServerSpec]) -> None:
        """Replace all servers with these; one whose spec is unchanged stays connected."""
        self._unusable.clear()
        wanted = {spec.name.lower(): spec for spec in specs}
        replaced = [key for key, remote in self._servers.items() if wanted.get(key) != remote.spec]
        stopping = {key: self._stop_server(key) for key in replaced}
        for key, spec in wanted.items():
            if key not in self._servers:
                self._start_server(spec, after=stopping.get(key))
        await asyncio.gather(*stopping.values())

    def list(self) -> Sequence[ServerStatus]:
        """Return the status of each server, by name."""
        statuses = {key: remote.status() for key, remote in self._servers.items()}
        return [status for _, status in sorted({**self._unusable, **statuses}.items())]

    def status(self, name: str) -> ServerStatus:
        """Return the status of a server. Raises NotFound."""
        unusable = self._unusable.get(name.lower())
        return self._find(name).status() if unusable is None else unusable

    def recent_lines(self, name: str) -> Sequence[tuple[float, str]]:
        """Return the last lines of a server's error output as (unix time, line). Raises NotFound."""
        return [] if name.lower() in self._unusable else self._find(name).recent_lines.list()

    def reconnect(self, name: str) -> ServerStatus:
        """Close a server's connection and open another in the background; a disabled one stays so."""
        remote = self._find(name)
        if remote.spec.enabled:
            remote.reconnect()
        return remote.status()

    async def wait_until_started(self, name: str | None = None) -> Sequence[ServerStatus]:
        """Wait until no server, or not this one, is starting. Return their status."""
        remotes = list(self._servers.values()) if name is None else [self._find(name)]
        await asyncio.gather(*(remote.wait_until_started() for remote in remotes))
        return [remote.status() for remote in remotes]

    def changes(self, name: str | None = None) -> Sequence[DefinitionChange]:
        """Return the definitions that wait for approval, of all servers or one, with the approved ones."""
        if name is not None and name.lower() in self._unusable:
            return []
        remotes = [self._find(name)] if name is not None else list(self._servers.values())
        return [change for remote in remotes for change in remote.offered_tools.changes()]

    async def approve(
        self, name: str, tools: Sequence[str] | Mapping[str, str] | None = None, *, by: str
    ) -> Sequence[str]:
        """Approve all pending definitions of a server, or these `tools`. Return the names of the approved.

        With `{tool: hash}` of what `changes` returned, only what was reviewed is approved: Conflict is
        raised if one has changed since. Raises NotFound if no definition of that name is pending.
        """
        return await self._find(name).offered_tools.approve(tools, by=by)

    async def reload_approvals(self) -> None:
        """Apply approvals that were given at another host to the definitions that wait here."""
        for remote in list(self._servers.values()):
            if remote.offered_tools.pending_count:
                await remote.offered_tools.reload_pins()

    def _start_server(self, spec: ServerSpec, *, after: asyncio.Task[None] | None = None) -> ServerStatus:
        """Start a server, after the one that it replaces has stopped."""
        self._unusable.pop(spec.name.lower(), None)
        remote = self._servers[spec.name.lower()] = RemoteServer(spec, self._shared)
        remote.start(after)
        self.on_change()
        return remote.status()

    def _stop_server(self, key: str) -> asyncio.Task[None]:
        """Stop a server. The task ends when its process has ended."""
        stop = asyncio.create_task(self._servers.pop(key).stop())
        self._stopping.add(stop)
        stop.add_done_callback(self._stopping.discard)
        return stop

    def _note_change(self) -> None:
        self.on_change()

    def _find(self, name: str) -> RemoteServer:
        remote = self._servers.get(name.lower())
        if remote is None:
            names = ", ".join(each.name for each in self.list())
            raise NotFound(
                f"there is no MCP server {name[:100]!r}", hint=f"the servers are: {names}" if names else None
            )
        return remote
