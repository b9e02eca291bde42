"""`triggers.*`: operations by which teams, and people, create and change triggers.

What a model wants to activate, a person approves: a new or changed trigger is pending, and `triggers.enable`
needs approval whoever calls it. A team sees and changes its own triggers only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args

from pydantic import Field

from dragoman.errors import CallDenied, CallError, Conflict, NotFound
from dragoman.operations.context import Context
from dragoman.operations.definitions.decorator import from_function
from dragoman.operations.operation import Operation
from dragoman.store.teams.triggers import TriggerRecord
from dragoman.teams.lesson_validation import LearningKind
from dragoman.teams.tasks.new_task import is_task_session
from dragoman.teams.trigger_spec import (
    MAX_STEPS,
    OverlapPolicy,
    ResultDelivery,
    TriggerType,
    parse_definition,
)
from dragoman.teams.triggers.service import NewTrigger, TriggerService
from dragoman.teams.triggers.views import occurrence_to_json, trigger_to_json

NAMESPACE = "triggers"
Name = Annotated[str, Field(min_length=1, max_length=63)]
Team = Annotated[str | None, Field(max_length=63)]
Task = Annotated[str, Field(min_length=1, max_length=20_000)]


def trigger_operations(service: TriggerService) -> Sequence[Operation]:
    """Return the operations of triggers."""
    own = OwnTriggers(service)
    return [
        create_operation(own),
        update_operation(own),
        *state_operations(own),
        list_operation(own),
        test_operation(own),
        cursor_operation(own),
    ]


class OwnTriggers:
    """The triggers that a call may see: those of its team, or of the team that a person names."""

    def __init__(self, service: TriggerService) -> None:
        self.service = service

    def team(self, context: Context, team: str | None) -> str:
        """Return the team that a call is made for. Raises CallError, NotFound."""
        return self.service.teams.calling_team(context, team).name

    async def find(self, name: str, context: Context, *, team: str | None) -> TriggerRecord:
        """Return a trigger by its name or id. Raises NotFound, CallError."""
        own = self.service.teams.team_of(context)
        if team is None and own is None and name.startswith("trg_"):
            return await self.service.get(name, caller=context.identity)
        wanted = self.team(context, team)
        try:
            return await self.service.find(wanted, name, caller=context.identity)
        except NotFound as error:
            found = await self.service.list(caller=context.identity, team=wanted, limit=50)
            names = ", ".join(each.name for each in found) or "none"
            raise NotFound(f"{error.message}; its triggers are: {names}") from None


CREATE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 63, "description": "Its name in the team."},
        "type": {"type": "string", "enum": list(get_args(TriggerType)), "description": "When it fires."},
        "task": {
            "type": "string",
            "minLength": 1,
            "maxLength": 20_000,
            "description": "The task that the team gets each time.",
        },
        "config": {
            "type": "object",
            "description": "By type. schedule: cron, zone, missed (skip, once or all). "
            "window: during (cron), zone, tick, max_ticks, max_tokens, max_usd. message: sessions, channels. "
            "keyword: keywords, match, sessions, channels. webhook: signature (github, stripe or standard), "
            "events. file: path, on, max_chain.",
        },
        "team": {
            "type": "string",
            "maxLength": 63,
            "description": "The team, if the caller is not a team.",
        },
        "overlap": {
            "type": "string",
            "enum": list(get_args(OverlapPolicy)),
            "description": "What to do if an earlier task of it is still running.",
        },
        "failure_threshold": {
            "type": "integer",
            "minimum": 1,
            "maximum": 100,
            "description": "The number of consecutive failures that disables it.",
        },
        "deliver": {
            "type": "string",
            "enum": list(get_args(ResultDelivery)),
            "description": "Where results are delivered.",
        },
        "webhook": {"type": "string", "description": "The URL for `deliver: webhook`."},
        "quiet_when": {"type": "string", "description": "A result with exactly this text is not delivered."},
        "budget": {"type": "number", "description": "US dollars that each task may spend."},
        "topic": {"type": "string", "description": "A conversation of the team that its tasks belong to."},
        "priority": {"type": "string", "enum": ["low", "normal", "high", "critical"]},
        "subagent": {
            "type": "string",
            "maxLength": 63,
            "description": "The sub-agent of the team that does the task.",
        },
        "max_steps": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_STEPS,
            "description": "How many steps each task may take.",
        },
        "learn": {
            "enum": list(get_args(LearningKind)),
            "description": "Makes it learn from the team's work; task, type and config then have defaults.",
        },
    },
    "required": ["name"],
    "additionalProperties": False,
}


def create_operation(own: OwnTriggers) -> Operation:
    """Return `triggers.create`."""

    async def create(input: Mapping[str, Any], context: Context) -> dict[str, Any]:
        definition = parse_definition({key: input[key] for key in input if key not in ("name", "team")})
        team = own.team(context, input.get("team"))
        new = NewTrigger(team=team, name=input["name"], definition=definition, session_id=context.session_id)
        try:
            record = await own.service.create(new, identity=context.identity, agent=context.agent)
        except Conflict:
            record = await own.find(input["name"], context, team=input.get("team"))
            if record.hash != definition.hash:
                raise
            if context.agent is not None:  # a crash may have come between the trigger and its approval
                record = await own.service.ask_to_activate(record, agent=context.agent)
        return trigger_to_json(record)

    return Operation.from_schema(
        create,
        CREATE_SCHEMA,
        namespace=NAMESPACE,
        name="create",
        description="Create a trigger of your team. It does not fire until a person has activated it.",
        effect="idempotent",
    )


def update_operation(own: OwnTriggers) -> Operation:
    """Return `triggers.update`."""

    async def update(
        name: Name, changes: dict[str, Any], *, team: Team = None, context: Context
    ) -> dict[str, Any]:
        """Change a trigger of your team. A person has to activate it again.

        Args:
            name: The trigger.
            changes: The fields to change, as in triggers.create.
            team: The team, if the caller is not a team.
        """
        trigger = await own.find(name, context, team=team)
        return trigger_to_json(await own.service.update(trigger, changes, agent=context.agent))

    return from_function(update, NAMESPACE, effect="idempotent")


def state_operations(own: OwnTriggers) -> Sequence[Operation]:
    """Return `triggers.enable` and `triggers.disable`."""

    async def enable(name: Name, *, team: Team = None, context: Context) -> dict[str, Any]:
        """Activate a trigger of your team: a person is asked.

        Args:
            name: The trigger.
            team: The team, if the caller is not a team.
        """
        trigger = await own.find(name, context, team=team)
        return trigger_to_json(await own.service.enable(trigger, by=context.identity))

    async def disable(
        name: Name,
        reason: Annotated[str | None, Field(max_length=500)] = None,
        *,
        team: Team = None,
        context: Context,
    ) -> dict[str, Any]:
        """Stop a trigger of your team from firing until it is enabled again.

        Args:
            name: The trigger.
            reason: Why.
            team: The team, if the caller is not a team.
        """
        trigger = await own.find(name, context, team=team)
        return trigger_to_json(await own.service.disable(trigger, reason))

    return [
        from_function(enable, NAMESPACE, effect="idempotent", approval=True),
        from_function(disable, NAMESPACE, effect="idempotent"),
    ]


def list_operation(own: OwnTriggers) -> Operation:
    """Return `triggers.list`."""

    async def list_triggers(*, team: Team = None, context: Context) -> list[dict[str, Any]]:
        """List the triggers of your team: state, next time, last result.

        Args:
            team: The team, if the caller is not a team; without it, a person sees those of all teams.
        """
        caller = own.service.teams.team_of(context)
        wanted = team if caller is None else own.team(context, team)
        found = await own.service.list(caller=context.identity, team=wanted, limit=200)
        return [trigger_to_json(each) for each in found]

    return from_function(list_triggers, NAMESPACE, effect="read", name="list")


def test_operation(own: OwnTriggers) -> Operation:
    """Return `triggers.test`."""

    async def test(name: Name, *, team: Team = None, context: Context) -> dict[str, Any]:
        """Fire a trigger of your team once, now. An agent can fire active ones only, not in a task.

        Args:
            name: The trigger.
            team: The team, if the caller is not a team.
        """
        trigger = await own.find(name, context, team=team)
        if context.agent is not None and is_task_session(context.session_id):
            raise CallDenied("A task may not fire triggers: it could fire the one that gave it, without end.")
        if context.agent is not None and trigger.state != "active":
            raise CallDenied(f"The trigger {trigger.name!r} is {trigger.state}: a person activates it first.")
        return occurrence_to_json(await own.service.run_now(trigger, is_test=True))

    return from_function(test, NAMESPACE, effect="once")


def cursor_operation(own: OwnTriggers) -> Operation:
    """Return `triggers.cursor`."""

    async def cursor(
        name: Name, cursor: dict[str, Any], *, team: Team = None, context: Context
    ) -> Mapping[str, bool]:
        """Store how far the work of a trigger got: its next task gets this as `cursor`.

        Args:
            name: The trigger.
            cursor: For example the id of the last thing that was read; at most 8 kB.
            team: The team, if the caller is not a team.
        """
        trigger = await own.find(name, context, team=team)
        if own.service.teams.team_of(context) is None and team is None:
            raise CallError("Name the team in `team`.")
        await own.service.set_cursor(trigger, cursor)
        return {"stored": True}

    return from_function(cursor, NAMESPACE, effect="idempotent")
