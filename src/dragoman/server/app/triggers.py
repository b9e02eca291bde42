"""Wires the triggers of a hub's teams: their service, timer, and watchers of messages and files."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.accounts.meter import Meter
from dragoman.config import Config
from dragoman.server.app.background_jobs import BackgroundJob
from dragoman.server.app.services import HubServices
from dragoman.server.metrics.metrics import Metrics
from dragoman.teams.tasks.service import TeamTasks
from dragoman.teams.tasks.stalls import StallDetector
from dragoman.teams.triggers.file_changes import FileWatcher
from dragoman.teams.triggers.occurrence_lifecycle import TriggerFiring
from dragoman.teams.triggers.operations import trigger_operations
from dragoman.teams.triggers.service import TriggerService, TriggerSettings
from dragoman.teams.triggers.session_messages import MessageWatcher
from dragoman.teams.triggers.team_files import TriggerFiles
from dragoman.teams.triggers.timer import TriggerTimer


class TeamTriggers:
    """The triggers of a hub."""

    def __init__(
        self, config: Config, services: HubServices, *, tasks: TeamTasks, metrics: Metrics, meter: Meter
    ) -> None:
        registry = services.teams.registry
        settings = TriggerSettings(approval_seconds=config.approval_seconds)
        self.service = TriggerService(services.store, registry, settings=settings)
        self.timer = TriggerTimer(
            self.service, TriggerFiring(self.service, tasks, write_usage=meter.ledger.flush)
        )
        self.messages = MessageWatcher(self.service, services.events)
        self.file_changes = FileWatcher(self.service)
        self.team_files = TriggerFiles(self.service)
        self.stalls = StallDetector(services.store, on_stall=metrics.task_stalled)
        self.service.on_change = self._on_change
        self.service.wake = self.timer.wake
        tasks.worker.on_end.append(self.timer.task_ended)
        tasks.on_remove.append(self.service.disable_all)
        registry.on_change(self.team_files.refresh)
        if registry.root is not None:
            for operation in trigger_operations(self.service):
                services.registry.add(operation)

    def jobs(self) -> Iterator[BackgroundJob]:
        """Yield the jobs that run until the hub is closed; none in a hub without teams."""
        if self.service.teams.root is not None:
            yield self.timer.run
            yield self.stalls.run
            yield self.messages.run
            yield self.file_changes.run
            yield self.team_files.run

    def approval_answered(self) -> None:
        """Check whether an answered approval activates a trigger or starts an occurrence."""
        self.timer.approvals_may_wait()
        self.timer.wake()

    def _on_change(self) -> None:
        self.approval_answered()
        self.messages.refresh()
        self.file_changes.refresh()
