"""Wires runners: their connections, the runs that they answer, and the recovery of those."""

from __future__ import annotations

from dragoman.config import Config
from dragoman.runners.hub.endpoint import RunnerEndpoint
from dragoman.runners.hub.server import RunnerServer
from dragoman.runners.hub.settings import RunnerLimits
from dragoman.runs.registry import RunRegistry
from dragoman.runs.runners.runner_runs import RunnerRuns
from dragoman.server.app.services import HubServices
from dragoman.server.auth import Auth


def runner_limits(config: Config) -> RunnerLimits:
    """Return the settings of runners."""
    runners = config.runners
    return RunnerLimits(
        grace=runners.grace,
        idle=runners.idle,
        stop_timeout=runners.stop,
        frame=runners.frame,
        window=runners.window,
        rate=runners.rate,
        sessions=runners.sessions,
        owner_connections=runners.owner_connections,
        answer=config.limits.answer,
        question_seconds=config.approval_seconds,
        origins=tuple(config.cors.origins),
    )


def add_runners(config: Config, services: HubServices, *, runs: RunRegistry) -> RunnerServer:
    """Let runners answer in sessions; return the server of their connections."""
    server = RunnerServer(services.store, runner_limits(config))
    runner_runs = RunnerRuns(services.store, server, toolbox=services.toolbox, settings=runs.factory.settings)
    runner_runs.recovery = runs.recovery
    runner_runs.find_run = runs.find_active
    runner_runs.hosts.client = services.host_client
    runner_runs.session_events = services.session_events
    server.runs = runner_runs
    runs.factory.runners = runner_runs
    runs.recovery.restore_runner = runner_runs.restore
    return server


def build_runner_endpoint(server: RunnerServer, auth: Auth) -> RunnerEndpoint:
    """Build the endpoint of runners."""
    return RunnerEndpoint(server, identify=auth.identify, check_host=auth.check_host)
