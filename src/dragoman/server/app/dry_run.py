"""Check whether a hub would start with a configuration by opening one on an empty data folder."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.config import Config
from dragoman.errors import StoreError
from dragoman.server.app.hub import Hub
from dragoman.store.postgres.url import shown_url
from dragoman.store.store import postgres_backend


async def check_startup(config: Config, environ: Mapping[str, str]) -> Sequence[str]:
    """Return the warnings of a hub with this configuration. Raises the error that would stop its start.

    The same code runs as in a hub that is served, so the two cannot disagree. Nothing is sent to a provider,
    and no MCP server is started. What depends on the real data folder and database is not checked.
    """
    servers = {name: replace(server, enabled=False) for name, server in config.mcp_servers.items()}
    with TemporaryDirectory(prefix="dragoman-check-") as folder:
        checked = replace(config, mcp_servers=servers, database=None)
        async with Hub.open(checked, Path(folder), environ=environ) as hub:
            return await hub.unknown_policy_names(config)


async def check_database(config: Config) -> dict[str, Any] | None:
    """Return a report on the Postgres database of a configuration as JSON values; None for SQLite.

    `problem` says why it cannot be reached; a hub would start and wait for it. Raises StoreError for a
    fault that does not pass by itself, such as a wrong password.
    """
    if config.database is None:
        return None
    backend = postgres_backend(config.database)
    try:
        report = await asyncio.to_thread(backend.inspect)
    except StoreError as error:
        if backend.outage_scope(error) is None:
            raise
        return {"url": shown_url(config.database), "problem": error.message}
    found: dict[str, Any] = msgspec.to_builtins(report)
    return {**found, "problem": None}
