"""Whether a hub of a configuration would start: it is opened on an empty data folder, and closed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from dragoman.config import Config
from dragoman.server.app.hub import Hub


async def check_startup(config: Config, environ: Mapping[str, str]) -> Sequence[str]:
    """Return the warnings of a hub of this configuration; raise the error with which it would not start.

    The same code runs as in a hub that is served, so the two cannot disagree. Nothing is sent to a provider,
    and no MCP server is started. What depends on the real data folder is not checked.
    """
    servers = {name: replace(server, enabled=False) for name, server in config.mcp_servers.items()}
    with TemporaryDirectory(prefix="dragoman-check-") as folder:
        async with Hub.open(replace(config, mcp_servers=servers), Path(folder), environ=environ) as hub:
            return await hub.unknown_policy_names(config)
