"""Serves a repository as spoke and runner: connects worktrees, tasks, agents and both connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dragoman.cli.dev.coord_operations import Coordination
from dragoman.cli.dev.hub_sessions import HubSessions
from dragoman.cli.dev.operations import CoordinationOperations
from dragoman.cli.dev.task_store import TaskStore
from dragoman.cli.dev.worktree_agent import WorktreeAgents, WorktreeAgentSettings
from dragoman.cli.dev.worktrees import Worktrees
from dragoman.cli.hub_client.client import HubClient
from dragoman.operations.registry import Registry
from dragoman.runners.client.runner import Runner, RunnerSettings
from dragoman.spokes import Spoke


class DevSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a dev spoke serves: the repository around `path`, with `parallel` agents at a time in up to
    `max_tasks` worktrees for each owner.
    """

    path: Path
    agents: WorktreeAgentSettings
    worktrees: Path | None = None
    id: str | None = None
    parallel: int = 4
    max_tasks: int = 50


class DevSpoke(msgspec.Struct, frozen=True):
    """A running dev spoke; both of its connections reconnect by themselves."""

    spoke: Spoke
    runner: Runner
    worktrees: Worktrees
    restored: Sequence[str]


@asynccontextmanager
async def serve_repository(settings: DevSettings) -> AsyncIterator[DevSpoke]:
    """Serve a repository while the block runs.

    Raises ConfigError without a repository or a model, Conflict if another process serves it, and what the
    hub refuses the key with.
    """
    agents = settings.agents
    worktrees = await Worktrees.find(settings.path, folder=settings.worktrees)
    store = TaskStore(worktrees.state_folder)
    async with AsyncExitStack() as stack:
        store.open()
        stack.callback(store.close)
        client = await stack.enter_async_context(HubClient.over_http(agents.hub, agents.key))
        sessions = await stack.enter_async_context(HubSessions(client))
        if not agents.command and agents.model is None:
            agents = replace(agents, model=await sessions.only_model())
        coordination = Coordination(
            worktrees,
            store,
            sessions=sessions,
            agents=WorktreeAgents(worktrees, sessions, settings=agents),
            max_tasks=settings.max_tasks,
        )
        restored = await coordination.restore()
        runner = coordination.runner = Runner(
            coordination.answer,
            hub=agents.hub,
            key=agents.key,
            sessions=restored,
            settings=RunnerSettings(turns=settings.parallel),
        )
        await stack.enter_async_context(runner)
        name = worktrees.root.name
        registry = Registry(*CoordinationOperations(coordination).list())
        spoke = Spoke(registry, hub=agents.hub, key=agents.key, id=settings.id, name=name)
        await stack.enter_async_context(spoke)
        yield DevSpoke(spoke, runner, worktrees, restored)
