"""A served hub with teams whose models are scripts."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from dragoman.identity import LOCAL, Identity
from dragoman.session_ids import hub_session_id
from dragoman.store.teams.task_records import TeamTask
from dragoman.teams.tasks.new_task import NewTask
from tests.cli.program import scripted
from tests.serving import Served, hub_of
from tests.waiting import LIMIT

GATE = "tests.teams.gate"
GATE_TOOLS = ["gate.hold", "gate.look", "gate.sign"]

Json = dict[str, Any]
Steps = Sequence[Mapping[str, Any]]


def call(tool: str, /, **input: Any) -> Json:
    """A tool call of a script."""
    return {"name": tool, "input": input}


def write_teams(folder: Path, teams: Mapping[str, Json], **config: Any) -> Path:
    """Write the folders of teams, each with its `steps`, and a configuration that names them."""
    providers = {"lead": scripted(folder, "lead", config.pop("steps", [{"text": "Hello."}]))}
    for name, team in teams.items():
        fields = dict(team)
        steps, play = fields.pop("steps", [{"text": f"{name} is done."}]), fields.pop("play", "turns")
        providers[name] = scripted(folder, name, steps, play=play)
        place = folder / "teams" / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "team.yaml").write_bytes(msgspec.json.encode({"model": f"{name}/x", **fields}))
    path = folder / "dragoman.yaml"
    body = {
        "providers": providers,
        "model": "lead/x",
        "teams": str(folder / "teams"),
        "operations": [GATE],
        **config,
    }
    path.write_bytes(msgspec.json.encode(body))
    return path


@asynccontextmanager
async def team_hub(folder: Path, teams: Mapping[str, Json], **config: Any) -> AsyncIterator[Served]:
    """A hub with these teams."""
    async with hub_of(write_teams(folder, teams, **config), folder / "hub") as hub:
        yield hub


async def give(
    hub: Served, team: str, text: str = "work", *, identity: Identity = LOCAL, **fields: Any
) -> TeamTask:
    """Hand in a task; return it as it is stored."""
    submitted = await hub.hub.team_tasks.submit(NewTask(team=team, text=text, **fields), identity)
    return submitted.task


async def ended(hub: Served, *ids: str) -> list[TeamTask]:
    """The tasks, once they have ended."""
    async with asyncio.timeout(LIMIT):
        return [await hub.hub.team_tasks.wait(await read(hub, id)) for id in ids]


async def read(hub: Served, id: str) -> TeamTask:
    """The task as it is now."""
    found = await hub.hub.store.team_tasks.get(id)
    assert found is not None
    return found


async def eventually(check: Callable[[], Any]) -> Any:
    """Call a function until what it returns, or what that yields, is true; return it."""
    async with asyncio.timeout(LIMIT):
        while True:
            found = check()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.01)


async def until_state(hub: Served, id: str, state: str) -> TeamTask:
    """The task, once it is in a state."""

    async def look() -> TeamTask | None:
        task = await read(hub, id)
        return task if task.state == state else None

    found: TeamTask = await eventually(look)
    return found


async def until_delivered(hub: Served, id: str) -> TeamTask:
    """The task, once its result is where it was given."""

    async def look() -> TeamTask | None:
        task = await read(hub, id)
        return None if task.delivered_at is None else task

    found: TeamTask = await eventually(look)
    return found


def session_of(client_id: str = "s") -> str:
    """The hub's id of a session of the owner without a key."""
    return hub_session_id(client_id, owner=LOCAL.owner)
