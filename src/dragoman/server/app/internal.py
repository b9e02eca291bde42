"""Opens the internal listener of a hub that shares its database, and publishes its address to other hosts."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.config import HostsConfig
from dragoman.errors import StoreError, Unavailable
from dragoman.server.app.services import HubServices
from dragoman.server.internal.listener import open_internal_listener
from dragoman.server.internal.routes import HostRoutes, build_internal_app

log = logging.getLogger(__name__)
TOKEN_BYTES = 32


@asynccontextmanager
async def listen_for_hosts(
    config: HostsConfig, services: HubServices, *routes: HostRoutes
) -> AsyncIterator[None]:
    """Serve these routes to other hosts while the block runs; nothing without hosts. Raises ConfigError."""
    host_id = services.store.host_id
    if host_id is None:
        yield
        return
    token = secrets.token_urlsafe(TOKEN_BYTES)
    services.environment.secrets.add(token)
    app = build_internal_app(*routes, token=token)
    async with open_internal_listener(app, config.listen, url=config.url) as url:
        try:
            await services.store.hosts.set_address(host_id, url=url, token=token)
        except (StoreError, Unavailable) as error:
            log.warning("other hosts cannot reach this one yet: %s", error.message)
        yield
