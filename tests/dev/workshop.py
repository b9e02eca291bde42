"""A hub, and a repository that is served to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dragoman.cli.dev.dev_spoke import DevSettings, DevSpoke, serve_repository
from dragoman.cli.dev.worktree_agent import WorktreeAgentSettings
from tests.dev.repositories import make_repository
from tests.serving import Served, serving, write_script
from tests.waiting import poll, until

WORK: list[Any] = [
    {"tools": [{"name": "files_write", "input": {"path": "login.py", "text": "print('login')\n"}}]},
    {"tools": [{"name": "git_commit", "input": {"message": "Add a login"}}]},
    {"text": "The login is there."},
]
SPAWN = {"sessionId": "auth", "task": "Add a login page", "branch": "auth"}


class Workshop:
    """A hub, and a repository whose spoke offers `coord.*` to it."""

    def __init__(self, served: Served, repository: Path) -> None:
        self.served = served
        self.repository = repository

    async def call(self, operation: str, **input: Any) -> Any:
        """The result of an operation of the spoke."""
        response = await self.served.http.post(f"/api/operations/{operation}/call", json=input)
        outcome = response.json()
        assert outcome["success"], outcome
        return outcome["result"]

    async def failure(self, operation: str, **input: Any) -> str:
        """The error of an operation of the spoke."""
        response = await self.served.http.post(f"/api/operations/{operation}/call", json=input)
        message: str = response.json()["error"]["message"]
        return message

    async def task(self, session: str = "auth") -> dict[str, Any]:
        [found] = [
            each for each in (await self.call("coord.status"))["tasks"] if each["sessionId"] == session
        ]
        task: dict[str, Any] = found
        return task

    async def written(self, text: str, session: str = "auth") -> None:
        """Wait until the session has this text."""

        async def is_there() -> bool:
            return text in str(await self.served.messages(session))

        await poll(is_there)

    async def settled_messages(self, session: str = "auth") -> list[dict[str, Any]]:
        """The messages of a session, once nothing runs in it."""
        await until(lambda: self.served.active_run(session) is None)
        return await self.served.messages(session)

    async def settled(self, session: str = "auth", *, messages: int = 2) -> dict[str, Any]:
        """Wait until a task is not at work and its session has so many messages; the task."""

        async def look() -> dict[str, Any] | None:
            stored = await self.served.messages(session)
            task = await self.task(session)
            is_settled = len(stored) >= messages and task["state"] not in ("starting", "working")
            return task if is_settled else None

        return await poll(look)


@asynccontextmanager
async def hub_with_repository(
    folder: Path, dialogue: Sequence[Any] = (), work: Sequence[Any] = WORK, **config: Any
) -> AsyncIterator[Workshop]:
    """A hub with a model for the parent and one for the workers, and a repository that nobody serves yet."""
    providers = {
        "sim": {"type": "scripted", "script": str(write_script(folder / "sim", dialogue, play="turns"))},
        "worker": {"type": "scripted", "script": str(write_script(folder / "worker", work, play="turns"))},
    }
    repository = folder / "shop"
    if not repository.exists():
        make_repository(repository)
    async with serving(folder, providers=providers, model="sim/any", **config) as served:
        yield Workshop(served, repository)


@asynccontextmanager
async def served_repository(shop: Workshop, *command: str, key: str = "") -> AsyncIterator[DevSpoke]:
    """Serve its repository, by a command if one is given."""
    agents = WorktreeAgentSettings(hub=shop.served.url, key=key, model="worker/any")
    agents = agents.with_command(command, format="text", hidden=frozenset())
    async with serve_repository(DevSettings(path=shop.repository, agents=agents, id="dev")) as dev:
        yield dev


@asynccontextmanager
async def workshop(folder: Path, dialogue: Sequence[Any] = (), **more: Any) -> AsyncIterator[Workshop]:
    """Both, served."""
    async with hub_with_repository(folder, dialogue, **more) as shop, served_repository(shop):
        yield shop
