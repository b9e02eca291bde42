"""The agent of a worktree: the library's, whose model requests go through the hub, or a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from dragoman.agent.agent import Agent
from dragoman.agent.result import UsageSummary
from dragoman.agent.settings import RunLimits
from dragoman.cli.dev.hub_sessions import HubSessions
from dragoman.cli.dev.task_store import WorktreeTask
from dragoman.cli.dev.worktree_tools import worktree_hooks, worktree_operations
from dragoman.cli.dev.worktrees import Worktrees
from dragoman.errors import ProviderError
from dragoman.events import Usage
from dragoman.messages import Message, TextPart
from dragoman.providers.openai import OpenAIProvider
from dragoman.providers.provider import close_provider
from dragoman.runners.client.command_agent import CommandAgent, CommandFormat, RunnerCommand
from dragoman.runners.client.event_writer import EventWriter
from dragoman.runners.client.runner import AnswerFunction
from dragoman.runners.client.turn import RunnerTurn

INSTRUCTIONS = """You work alone on one task, in a git worktree of your own on the branch {branch}.
Paths are relative to the worktree. Read before you write; run the project's own checks with shell_run; commit
with git_commit when the work is whole, with a message that says what changed. Answer at the end with what you
did, what you checked, and what is left. The task:

{task}"""
KEY_VARIABLES = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
COMMAND_VARIABLES: Mapping[str, str] = {
    "OPENAI_BASE_URL": "{hub}/v1",
    "ANTHROPIC_BASE_URL": "{hub}",
}


class WorktreeAgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How agents answer: by a `command`, or with a `model` of the hub within `steps` steps.

    `hidden` are the variables that a command does not get.
    """

    hub: str
    key: str
    model: str | None = None
    steps: int = 50
    command: Sequence[str] = ()
    format: CommandFormat = "text"
    hidden: frozenset[str] = frozenset()

    def with_command(
        self, command: Sequence[str], *, format: CommandFormat, hidden: frozenset[str]
    ) -> WorktreeAgentSettings:
        """Return these settings with a command; without one, the built-in agent answers."""
        return msgspec.structs.replace(self, command=tuple(command), format=format, hidden=hidden)

    def __repr__(self) -> str:
        """Without the key."""
        return f"WorktreeAgentSettings(hub={self.hub!r}, model={self.model!r}, command={self.command!r})"


class WorktreeAgents:
    """Makes the agent of a task."""

    def __init__(
        self, worktrees: Worktrees, sessions: HubSessions, *, settings: WorktreeAgentSettings
    ) -> None:
        self._worktrees = worktrees
        self._sessions = sessions
        self._settings = settings

    def answer_function(self, task: WorktreeTask) -> AnswerFunction:
        """Return what answers the turns of a task's session."""
        if self._settings.command:
            return CommandAgent(self._command(task)).answer
        return ModelAgent(self._agent(task), self._sessions).answer

    def _command(self, task: WorktreeTask) -> RunnerCommand:
        settings = self._settings
        places = {name: place.format(hub=settings.hub) for name, place in COMMAND_VARIABLES.items()}
        return RunnerCommand(
            arguments=settings.command,
            format=settings.format,
            cwd=Path(task.worktree),
            variables={**places, **dict.fromkeys(KEY_VARIABLES, settings.key)},
            hidden=settings.hidden,
        )

    def _agent(self, task: WorktreeTask) -> Callable[[], Agent[None]]:
        settings = self._settings

        def make() -> Agent[None]:
            provider = OpenAIProvider(base_url=f"{settings.hub}/v1", api_key=settings.key, name="hub")
            return Agent(
                provider.model(task.model or settings.model or ""),
                instructions=INSTRUCTIONS.format(branch=task.branch, task=task.task),
                operations=worktree_operations(self._worktrees, task),
                limits=RunLimits(max_steps=settings.steps),
                hooks=worktree_hooks(Path(task.worktree)),
                retries=3,
                meta_tools=False,
                name="dev",
            )

        return make


class ModelAgent:
    """Answers turns with a model and the operations of a worktree.

    The conversation is read from the hub, so it includes a turn that a crash of this process has ended.
    """

    def __init__(self, make: Callable[[], Agent[None]], sessions: HubSessions) -> None:
        self._make = make
        self._sessions = sessions

    async def answer(self, turn: RunnerTurn) -> None:
        """Answer a turn. Raises ProviderError if the model fails."""
        history = [*await self._sessions.history(turn.session_id, before=turn.turn_id)]
        if not history or history[-1].role != "user":
            history.append(Message(turn.turn_id, "user", (TextPart(turn.text),)))
        agent, writer = self._make(), EventWriter(turn)
        try:
            async with agent, agent.spawn(history) as run:
                async for batch in run.batches():
                    await writer.write_batch(batch)
                result = await run.result
        finally:
            await close_provider(agent.model.provider)
        turn.report_usage(total_usage(result.usage), cost=result.cost, model=result.model)
        if result.exit_reason != "success":
            error = result.error.message if result.error is not None else result.stopped_by
            raise ProviderError(error or f"the agent stopped: {result.exit_reason}", category="unknown")


def total_usage(usage: UsageSummary) -> Usage:
    """Return the tokens of a run as one number each."""
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cached_input_tokens=usage.cache_read_input_tokens,
        cache_write_tokens=usage.cache_creation_input_tokens,
    )
