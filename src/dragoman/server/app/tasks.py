"""Wires the tasks of teams: their service, and its listeners to the runs of the hub."""

from __future__ import annotations

from dragoman.config import Config
from dragoman.operations.context import Context
from dragoman.runs.registry import RunRegistry
from dragoman.runs.run_factory import ContextBinder
from dragoman.server.app.services import HubServices
from dragoman.teams.tasks.call_contexts import TaskContexts
from dragoman.teams.tasks.message_operations import message_operations
from dragoman.teams.tasks.operations import task_operations
from dragoman.teams.tasks.service import TeamTasks
from dragoman.teams.tasks.team_operations import TeamChanges


def bind_all(*binders: ContextBinder) -> ContextBinder:
    """Return a function that binds the context of a run by each of these."""

    async def bind(context: Context) -> Context:
        for binder in binders:
            context = await binder(context)
        return context

    return bind


def add_team_tasks(config: Config, services: HubServices, *, runs: RunRegistry) -> TeamTasks:
    """Return the tasks of a hub's teams."""
    contexts = TaskContexts(
        services.store, services.calls, shared_budgets=runs.factory.billing.meter.shared_budgets
    )
    tasks = TeamTasks(
        services.store, services.teams.registry, runs=runs, contexts=contexts, max_wakes=config.limits.wakes
    )
    changes = TeamChanges(tasks, files=services.teams.files, vault=services.store.vault)
    if services.teams.registry.root is not None:
        for operation in (*task_operations(tasks), *message_operations(tasks), *changes.operations()):
            services.registry.add(operation)
        runs.factory.bind_context = bind_all(contexts.bind, services.teams.active_skills.bind)
    runs.on_stop = tasks.worker.run_stopped
    runs.on_ending = tasks.worker.join_end
    runs.on_end.append(tasks.worker.run_ended)
    return tasks
