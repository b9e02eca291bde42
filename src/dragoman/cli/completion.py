"""Shell completion of values from the hub that the command line or DRAGOMAN_HUB names.

Nothing is offered where no hub answers at once; a shell shows no errors.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import typer

from dragoman.cli.hub_client.connect import HubTarget, run_with_client
from dragoman.cli.options import DEFAULT_HUB
from dragoman.errors import DragomanError

if TYPE_CHECKING:
    from dragoman.cli.hub_client.client import HubClient

TIMEOUT = 2.0
MOST = 100  # of the newest
Value: TypeAlias = tuple[str, str]
"""A value and what the shell shows beside it."""


def session_ids(context: typer.Context, incomplete: str) -> list[Value]:
    """Complete the id of a session."""

    async def find(client: HubClient) -> list[Value]:
        return [(each["id"], each["title"] or "") for each in await client.sessions(MOST)]

    return complete(context, incomplete, find=find)


def run_ids(context: typer.Context, incomplete: str) -> list[Value]:
    """Complete the id of a run."""

    async def find(client: HubClient) -> list[Value]:
        return [(each["id"], each["state"]) for each in await client.runs({}, limit=MOST)]

    return complete(context, incomplete, find=find)


def operation_ids(context: typer.Context, incomplete: str) -> list[Value]:
    """Complete the id of an operation."""

    async def find(client: HubClient) -> list[Value]:
        # Ids with this prefix sort after `incomplete[:-1]` and contain the text, so the hub sends few.
        found = await client.operations(text=incomplete, after=incomplete[:-1], limit=str(MOST))
        return [(each["id"], each["summary"]) for each in found["operations"]]

    return complete(context, incomplete, find=find)


def model_names(context: typer.Context, incomplete: str) -> list[Value]:
    """Complete the name of a model."""

    async def find(client: HubClient) -> list[Value]:
        return [(name, "") for name in (await client.request("GET", "/api/models"))["models"]]

    return complete(context, incomplete, find=find)


def agent_names(context: typer.Context, incomplete: str) -> list[Value]:
    """Complete the name of an agent."""

    async def find(client: HubClient) -> list[Value]:
        agents = (await client.request("GET", "/api/agents"))["agents"]
        return [(each["name"], each.get("description") or "") for each in agents]

    return complete(context, incomplete, find=find)


def complete(
    context: typer.Context, incomplete: str, *, find: Callable[[HubClient], Awaitable[list[Value]]]
) -> list[Value]:
    """Return the values that begin with what has been typed; none when the hub does not answer in time."""
    hub = context.params.get("hub") or os.environ.get("DRAGOMAN_HUB") or DEFAULT_HUB
    key = context.params.get("key") or os.environ.get("DRAGOMAN_KEY")

    async def find_in_time(client: HubClient) -> list[Value]:
        async with asyncio.timeout(TIMEOUT):
            return await find(client)

    try:
        found = run_with_client(HubTarget(hub, key), find_in_time)
    except (DragomanError, TimeoutError):
        return []
    return [value for value in found if value[0].startswith(incomplete)]
