"""Operations from outside the hub: MCP servers, configured or added at run time, and spokes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from dragoman.accounts.shared_budgets import SharedBudgets
from dragoman.config import Config, McpServerConfig, parse_config
from dragoman.errors import (
    BadRequest,
    ConfigError,
    Conflict,
    DragomanError,
    NotFound,
    StoreError,
    Unavailable,
)
from dragoman.hosts.client import HostClient
from dragoman.mcp.client.client import McpClient
from dragoman.mcp.client.secret_redaction import secrets_of
from dragoman.mcp.server_spec import ServerSpec, ServerStatus
from dragoman.operations.registry import Registry
from dragoman.server.app.services import HubEnvironment
from dragoman.spokes.hub.host_operations import HostOperations
from dragoman.spokes.hub.permissions import NamespacePermissions
from dragoman.spokes.hub.server import SpokeServer
from dragoman.spokes.hub.settings import SpokeSettings
from dragoman.store.hosts.signals import Wakeup
from dragoman.store.store import Store

log = logging.getLogger(__name__)

FOLLOW_INTERVAL = 5.0  # seconds between two reads of the servers and approvals of other hosts
SHARED_WAIT = 1.0  # seconds that a start waits for the operations of other hosts
MIN_SECRET_LENGTH = 8  # characters of a secret: a shorter one would mask ordinary words
MIN_VARIABLE_LENGTH = 12  # characters of an environment variable that may hold a secret


class ExternalOperations:
    """The MCP servers and the spokes of a hub. Use it in `async with`."""

    def __init__(
        self,
        config: Config,
        registry: Registry,
        *,
        store: Store,
        environment: HubEnvironment,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called when a server or a spoke is added, is removed or changes its state."""
        self.servers = McpClient(registry, pin_store=store.definition_pins, environ=environment.environ)
        self.servers.on_change = on_change
        self.spoke_server = SpokeServer(
            registry,
            permissions=build_permits(config, config.mcp_servers),
            settings=SpokeSettings(
                grace=config.spokes.grace,
                operations=config.spokes.operations,
                owner_operations=config.spokes.owner_operations,
                origins=tuple(config.cors.origins),
            ),
            namespaces=store.spoke_namespaces,
            pin_store=store.definition_pins,
        )
        self.spoke_server.on_change = on_change
        self._config = config
        self._registry = registry
        self._store = store
        self._environment = environment
        self._lock = asyncio.Lock()
        self._is_shared = asyncio.Event()
        self._last_added: dict[str, McpServerConfig] = {}  # added servers, as last read
        self._versions: Mapping[str, str] = {}  # of their rows

    async def __aenter__(self) -> ExternalOperations:
        await self.servers.__aenter__()
        await self.reload(self._config)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.spoke_server.close()
        await self.servers.close()

    async def share_operations(self, client: HostClient | None, shared_budgets: SharedBudgets) -> None:
        """Register the operations of spokes of other hosts, until cancelled; nothing without other hosts."""
        own_id = self._store.host_id
        if client is None or own_id is None:
            self._is_shared.set()
        else:
            others = HostOperations(
                self._registry,
                client,
                hosts=self._store.hosts,
                own_id=own_id,
                shared_budgets=shared_budgets,
                grace=self._config.spokes.grace,
            )
            self._store.signals.subscribe("spokes", others.refresh)
            self.spoke_server.operations.other_hosts = others
            await others.try_poll()
            self._is_shared.set()
            await others.run()

    async def wait_shared(self) -> None:
        """Wait up to SHARED_WAIT seconds until operations of other hosts are registered: one may be down."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SHARED_WAIT):
                await self._is_shared.wait()

    async def follow_other_hosts(self) -> None:
        """Run the MCP servers that other hosts add, and apply the approvals that they give, until cancelled.

        Returns at once where no other host shares the database.
        """
        if self._store.host_id is None:
            return
        wakeup = Wakeup()
        self._store.signals.subscribe("definitions", wakeup.wake)
        while True:
            await wakeup.wait(FOLLOW_INTERVAL)
            with suppress(StoreError, Unavailable):
                await self.spoke_server.operations.reload_approvals()
                if await self._store.mcp_servers.read_versions() != self._versions:
                    await self.reload(self._config)
                await self.servers.reload_approvals()

    async def reload(self, config: Config) -> None:
        """Run the servers of this configuration and those that were added."""
        async with self._lock:
            self._config = config
            specs, left_out = [], {}
            for name, server in (await self._reserve_namespaces()).items():
                try:
                    specs.append(await self._build_spec(name, server))
                except ConfigError as error:
                    log.warning("the MCP server %s is left out: %s", name, error.message)
                    left_out[name] = error.message
            await self.servers.replace_all(specs)
            for name, why in left_out.items():
                self.servers.add_unusable(name, why)

    async def add(self, name: str, body: Any) -> ServerStatus:
        """Add and store a server, described as in the configuration. BadRequest, Conflict."""
        if name.lower() in {each.lower() for each in self._config.mcp_servers}:
            raise Conflict(f"the MCP server {name!r} is in the configuration; change it there")
        async with self._lock:
            try:
                server = parse_config({"mcp_servers": {name: body}}, source="the server").mcp_servers[name]
                spec = await self._build_spec(name, server)
            except ConfigError as error:
                raise BadRequest(error.message, hint=error.hint) from None
            status = self.servers.add(spec)
            try:
                await self._store.mcp_servers.put(name, msgspec.json.encode(body).decode())
            except DragomanError:
                await self.servers.remove(name)
                raise
            await self._reserve_namespaces()
            return status

    async def remove(self, name: str) -> None:
        """Remove a server that was added, with its approved definitions. Conflict, NotFound."""
        async with self._lock:
            exact_name = self.servers.status(name).name
            if exact_name in self._config.mcp_servers:
                raise Conflict(f"the MCP server {exact_name!r} is in the configuration; remove it there")
            await self._store.mcp_servers.delete(exact_name)
            await self.servers.remove(exact_name, forget=True)
            await self._reserve_namespaces()

    async def reconnect(self, name: str) -> ServerStatus:
        """Reconnect to a server with its current secrets. NotFound."""
        async with self._lock:
            exact_name = self.servers.status(name).name
            server = (await self._all_servers()).get(exact_name)
            if server is None:
                raise NotFound(f"there is no MCP server {exact_name!r}", hint="another hub removed it")
            try:
                return self.servers.update(await self._build_spec(exact_name, server))
            except ConfigError as error:
                raise BadRequest(error.message, hint=error.hint) from None

    async def _reserve_namespaces(self) -> dict[str, McpServerConfig]:
        """Reserve the namespaces of all servers against spokes, and return the servers."""
        wanted = await self._all_servers()
        self.spoke_server.set_permissions(build_permits(self._config, wanted))
        return wanted

    async def _all_servers(self) -> dict[str, McpServerConfig]:
        """Return all servers. A server in the configuration overrides an added one of the same name."""
        configured = {name.lower() for name in self._config.mcp_servers}
        added = await self._added_servers()
        return {
            **self._config.mcp_servers,
            **{name: server for name, server in added.items() if name.lower() not in configured},
        }

    async def _added_servers(self) -> dict[str, McpServerConfig]:
        """Return the servers that were added; as last read while the database does not answer."""
        try:
            self._versions = await self._store.mcp_servers.read_versions()
            rows = await self._store.mcp_servers.list()
        except (StoreError, Unavailable) as error:
            log.warning("the MCP servers that were added cannot be read: %s", error.message)
            return self._last_added
        found = {}
        for each in rows:
            try:
                found[each.name] = msgspec.json.decode(each.body, type=McpServerConfig)
            except msgspec.ValidationError as error:
                log.warning("the MCP server %s is left out: %s", each.name, error)
        self._last_added = found
        return found

    async def _build_spec(self, name: str, config: McpServerConfig) -> ServerSpec:
        """Build the spec of a server with its secrets; register them for redaction in the logs."""
        secrets = {field: await self._read_secret(name, entry) for field, entry in config.secrets.items()}
        fields = {field: getattr(config, field) for field in config.__struct_fields__ if field != "secrets"}
        spec = ServerSpec(name=name, secrets=secrets, **fields)
        self._environment.secrets.update(secret_values(spec, self._environment.environ))
        return spec

    async def _read_secret(self, server: str, entry: str) -> str:
        try:
            return await self._store.secrets.get(entry)
        except DragomanError as error:
            raise ConfigError(
                f"the MCP server {server!r} needs the secret {entry!r}: {error.message}", hint=error.hint
            ) from None


def build_permits(config: Config, servers: Iterable[str]) -> NamespacePermissions:
    """Return who may register operations in which namespaces; those of MCP servers are reserved."""
    reserved = (*config.spokes.reserved, *servers)
    spokes = config.spokes
    return NamespacePermissions(
        spokes.namespaces, reserved=reserved, effects=spokes.effects, trust_effects=spokes.trust_effects
    )


def secret_values(spec: ServerSpec, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield values to redact that are long enough: the server's own, and all environment variables."""
    yield from spec.secrets.values()
    yield from (value for value in secrets_of(spec, environ) if len(value) >= MIN_SECRET_LENGTH)
    yield from (value for value in spec.env.values() if len(value) >= MIN_VARIABLE_LENGTH)
