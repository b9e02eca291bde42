"""`teams.tell`, `teams.hand_up` and `teams.escalate`: to teams at work, to the parent team, to a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import Field

from dragoman.errors import ApprovalNeeded, CallError
from dragoman.operations.approval import ApprovalItem, Question
from dragoman.operations.context import Context
from dragoman.operations.definitions.decorator import from_function
from dragoman.operations.ledger import hash_input
from dragoman.operations.operation import Operation
from dragoman.store.teams.task_records import TaskPriority
from dragoman.teams.spec import TeamSpec
from dragoman.teams.tasks.assignees import require_member, with_members
from dragoman.teams.tasks.new_task import NewTask
from dragoman.teams.tasks.operations import (
    NAMESPACE,
    Json,
    Key,
    TaskText,
    TeamName,
    call_key,
    confirm_overlap,
)
from dragoman.teams.tasks.service import TeamTasks

MAX_REASON = 2_000  # characters
ASKED = b"asked"


def message_operations(tasks: TeamTasks) -> Sequence[Operation]:
    """Return the operations by which teams talk to those around them."""
    tell = with_members(tell_operation(tasks), tasks.teams, field="team")
    return tell, hand_up_operation(tasks), escalate_operation(tasks)


def tell_operation(tasks: TeamTasks) -> Operation:
    """Return `teams.tell`."""

    async def tell(team: TeamName, message: TaskText, *, context: Context) -> Json:
        """Send a message to a team that works on a task of yours, or that gave you yours. It reads it soon.

        Args:
            team: The team.
            message: What it should know.
        """
        require_member(tasks.teams, team, context=context)
        session_id = await find_session(tasks, team, context=context)
        own = tasks.teams.team_of(context)
        sender = "a person" if own is None else f"the team {own.name}"
        await tasks.tell(session_id, message, sender=sender, identity=context.identity, key=call_key(context))
        return {"team": team, "delivered": True}

    return from_function(tell, NAMESPACE, effect="idempotent")


async def find_session(tasks: TeamTasks, team: str, *, context: Context) -> str:
    """Return the session in which a team works for the caller, or the caller for it. Raises CallError."""
    for task in await tasks.list_below(context.session_id or ""):
        if task.team == team and task.is_active:
            return task.session_id
    above = await tasks.find_of_session(context.session_id)
    if above is not None and above.source_session is not None and above.chain and above.chain[-1] == team:
        return above.source_session
    raise CallError(
        f"The team {team!r} has no task of yours, and gave you none.", hint="Give it one: teams.delegate."
    )


def parent_of(tasks: TeamTasks, context: Context) -> tuple[TeamSpec, TeamSpec | None]:
    """Return the caller's team and its parent. Raises CallError for a caller without a team."""
    own = tasks.teams.calling_team(context)
    return own, None if own.parent is None else tasks.teams.get(own.parent)


def hand_up_operation(tasks: TeamTasks) -> Operation:
    """Return `teams.hand_up`."""

    async def hand_up(
        task: TaskText,
        *,
        priority: TaskPriority = "normal",
        correlation_id: Key | None = None,
        context: Context,
    ) -> Json:
        """Give a task to your parent team: work that is not yours, or needs more than you may do.

        Args:
            task: The whole task, with all that is needed for it: the team sees nothing else.
            priority: Its priority among the team's tasks.
            correlation_id: A name that you choose. Handing up twice under one name gives one task.
        """
        own, parent = parent_of(tasks, context)
        if parent is None:
            raise CallError(
                f"The team {own.name!r} has no parent team.", hint="Ask a person: teams.escalate."
            )
        key = call_key(context) if correlation_id is None else hash_input(["up", own.name, correlation_id])
        new = NewTask(
            team=parent.name,
            text=task,
            source="call",
            priority=priority,
            overlap="skip",
            correlation_id=correlation_id,
            dedup_key=key,
            deliver="session",
            wake=own.wake,
        )
        return await confirm_overlap(tasks, new, context=context)

    return from_function(hand_up, NAMESPACE, effect="idempotent")


def escalate_operation(tasks: TeamTasks) -> Operation:
    """Return `teams.escalate`."""

    async def escalate(
        message: TaskText,
        *,
        reason: Annotated[str, Field(max_length=MAX_REASON)] = "",
        to_person: bool = False,
        context: Context,
    ) -> Json:
        """Ask for a decision that is not yours: your parent team or, if there is none, a person.

        A person's answer is the result. The parent team's answer arrives as a message in this conversation.

        Args:
            message: What is to be decided, with all that is needed for it.
            reason: Why you cannot decide it.
            to_person: Whether to ask a person in any case.
        """
        own, parent = parent_of(tasks, context)
        text = f"{message}\n\nWhy it is asked: {reason}" if reason else message
        if parent is None or to_person:
            return {"answer": ask_person(own, text, context=context)}
        new = NewTask(
            team=parent.name,
            text=f"The team {own.name} asks for a decision. {text}",
            source="call",
            priority="high",
            overlap="skip",
            dedup_key=call_key(context),
            deliver="session",
            wake=True,
        )
        return await confirm_overlap(tasks, new, context=context)

    return replace(from_function(escalate, NAMESPACE, effect="idempotent"), resumes=True)


def ask_person(team: TeamSpec, text: str, *, context: Context) -> str:
    """Return a person's answer. Raises ApprovalNeeded until there is one, CallError when it is declined."""
    if context.state is None or context.grant is None:
        input: dict[str, Any] = {"team": team.name, "message": text}
        question = Question(f"The team {team.name} asks: {text}"[:4_000])
        item = ApprovalItem("teams.escalate", input, hash_input(input), question=question)
        raise ApprovalNeeded("The question has not been answered.", items=[item], state=ASKED)
    if not context.grant.approved:
        raise CallError(f"Nobody decided it: {context.grant.text or 'the question was declined'}")
    return context.grant.text or "yes"
