"""`teams.create`, `teams.update` and `teams.remove`: changes of teams by agents, once a person agrees.

The person is shown what is going to be written, and approves exactly that. The hub writes it below
`generated/`, so what people have written stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import yaml
from msgspec.structs import replace
from pydantic import Field

from dragoman.errors import ApprovalNeeded, CallDenied, Conflict, NotFound
from dragoman.operations.approval import ApprovalItem
from dragoman.operations.context import Context
from dragoman.operations.definitions.decorator import from_function
from dragoman.operations.ledger import hash_input
from dragoman.operations.operation import Operation
from dragoman.store.teams.task_records import TaskEnd, TeamTask
from dragoman.store.teams.vault import VaultRepository
from dragoman.teams.folder import ACCEPTS_FILE, AcceptsChange
from dragoman.teams.generated_files_sync import SharedFiles
from dragoman.teams.spec import TEAM_FILE, TeamSpec
from dragoman.teams.tasks.assignees import narrowed
from dragoman.teams.tasks.operations import NAMESPACE, Json, TeamName
from dragoman.teams.tasks.service import TeamTasks

MAX_ACCEPTS = 50
MAX_WORDS = 2_000  # characters of a description
INSTRUCTIONS = "rules/team/instructions.md"
REMOVED = "its team is removed"

Accepted = Annotated[str, Field(min_length=1, max_length=200)]
AcceptedList = Annotated[list[Accepted], Field(max_length=MAX_ACCEPTS)]


def list_schema(description: str, *, most: int, length: int) -> Json:
    """Return the schema of a list of short texts."""
    item = {"type": "string", "minLength": 1, "maxLength": length}
    return {"type": "array", "items": item, "maxItems": most, "description": description}


def text_schema(description: str, *, length: int) -> Json:
    """Return the schema of a text."""
    return {"type": "string", "maxLength": length, "description": description}


CREATE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": text_schema("Its name: a-z, 0-9, - and _.", length=63),
        "description": text_schema("What it does.", length=MAX_WORDS),
        "accepts": list_schema("The kinds of tasks that it accepts.", most=MAX_ACCEPTS, length=200),
        "allowed_tools": list_schema(
            "Patterns of the operations that it may call; without them none.", most=100, length=200
        ),
        "instructions": text_schema("Rules for its model.", length=50_000),
        "parent": text_schema("A team below yours, for a team below that one.", length=63),
        "model": text_schema("Its model; the hub's without one.", length=200),
        "max_steps": {
            "type": "integer",
            "minimum": 1,
            "maximum": 500,
            "description": "How many model calls an answer may take.",
        },
        "budget": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "US dollars that a task may cost.",
        },
        "secrets": list_schema("Names of secrets in your vault to copy to it.", most=20, length=64),
    },
    "required": ["name", "description"],
    "additionalProperties": False,
}


class NewTeam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `teams.create` takes."""

    name: str
    description: str
    accepts: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] = ()
    instructions: str = ""
    parent: str | None = None
    model: str | None = None
    max_steps: int | None = None
    budget: float | None = None
    secrets: tuple[str, ...] = ()

    def to_yaml(self, parent: str | None) -> str:
        """Return the `team.yaml` of a team below `parent`."""
        fields: dict[str, Any] = {
            "parent": parent,
            "description": self.description,
            "accepts": list(self.accepts),
            "model": self.model,
            "allowed_tools": list(self.allowed_tools),
            "max_steps": self.max_steps,
            "budget": None if self.budget is None else {"usd": self.budget},
        }
        return to_yaml({name: value for name, value in fields.items() if value})


class TeamChanges:
    """Creates, changes and removes teams for agents."""

    def __init__(self, tasks: TeamTasks, *, files: SharedFiles, vault: VaultRepository) -> None:
        self._tasks = tasks
        self._teams = tasks.teams
        self._files = files
        self._vault = vault

    def operations(self) -> Sequence[Operation]:
        """Return the operations."""
        return [
            self._create_operation(),
            resumable(self._with_teams(from_function(self.update, NAMESPACE, effect="idempotent"))),
            resumable(self._with_teams(from_function(self.remove, NAMESPACE, effect="idempotent"))),
        ]

    def _create_operation(self) -> Operation:
        """Return `teams.create`."""

        async def create(input: Mapping[str, Any], context: Context) -> Json:
            return await self._create(msgspec.convert(input, NewTeam), context)

        return Operation.from_schema(
            create,
            CREATE_SCHEMA,
            namespace=NAMESPACE,
            name="create",
            description="Create a team below yours. A person is asked; after that you can give it tasks.",
            effect="idempotent",
            resumes=True,
        )

    async def _create(self, new: NewTeam, context: Context) -> Json:
        own = self._teams.nearest_team(context)
        above = self._above(own, new.parent)
        content = new.to_yaml(above)
        rules = {INSTRUCTIONS: new.instructions} if new.instructions.strip() else {}
        secrets = await self._check_secrets(own, new.secrets, context=context)
        is_repeated = has_consent(context) and self._files.local.has_team(new.name, content=content)
        if not is_repeated:  # after a crash it may be there already
            self._files.local.check_team(new.name, content=content)
        shown = {"secrets": secrets, "keeps_secrets": await self._kept_secrets(new, context=context)}
        wanted: Json = {"name": new.name, TEAM_FILE: content, **rules}
        wanted |= {name: names for name, names in shown.items() if names}
        require_consent("teams.create", wanted, context=context)
        await self._files.create_team(new.name, content=content, files=rules)
        await self._copy_secrets(own, new.name, names=secrets, context=context)
        return {"team": new.name, "parent": above, "created": True}

    async def update(
        self,
        team: TeamName,
        *,
        accepts_add: AcceptedList | None = None,
        accepts_remove: AcceptedList | None = None,
        context: Context,
    ) -> Json:
        """Change which tasks your team, or one below it, accepts. A person is asked.

        Args:
            team: The team.
            accepts_add: Kinds of tasks that it accepts from now on.
            accepts_remove: Kinds of tasks that it no longer accepts.
        """
        spec = self._find(team, context, has_own=True)
        change = AcceptsChange.between(
            self._teams.written_accepts(team),
            [*(each for each in spec.accepts if each not in (accepts_remove or ())), *(accepts_add or ())],
        )
        accepts = change.apply(self._teams.written_accepts(team))
        if accepts != spec.accepts:
            wanted = {"team": team, "accepts": list(accepts), "before": list(spec.accepts)}
            require_consent("teams.update", wanted, context=context)
            await self._files.write(team, {ACCEPTS_FILE: to_yaml(msgspec.to_builtins(change))})
        return {"team": team, "accepts": list(self._teams.get(team).accepts)}

    async def remove(self, team: TeamName, *, cascade: bool = False, context: Context) -> Json:
        """Remove a team below yours that an agent created, with its files. A person is asked.

        Args:
            team: The team.
            cascade: Also stop its tasks and remove the teams below it; without this they make it fail.
        """
        if self._teams.find(team) is None and has_consent(context):
            return {"team": team, "removed": []}  # it was removed before a crash
        self._find(team, context, has_own=False)
        names = [team, *self._below(team)]
        tasks = [task for name in names for task in await self._tasks.list_begun(name)]
        refuse_busy(team, names[1:], tasks=tasks, cascade=cascade)
        self._files.local.check_generated(names)
        require_consent("teams.remove", {"team": team, "removes": names}, context=context)
        for name in reversed(names):
            await self._remove(name)
        return {"team": team, "removed": names}

    async def _remove(self, name: str) -> None:
        while tasks := await self._tasks.list_begun(name):
            for task in tasks:
                await self._tasks.worker.end(task, TaskEnd(state="cancelled", error=REMOVED))
        for listener in self._tasks.on_remove:
            await listener(name)
        await self._files.remove_team(name)

    def _above(self, own: TeamSpec | None, parent: str | None) -> str | None:
        """Return the parent of a new team. Raises NotFound, CallDenied when it is not below the caller's."""
        if parent is not None:
            self._teams.get(parent)
        if own is None or parent == own.name:
            return parent
        if parent is not None and parent not in self._below(own.name):
            raise CallDenied(f"The team {parent!r} is not below {own.name!r}; a new team has to be.")
        return parent or own.name

    def _find(self, name: str, context: Context, *, has_own: bool) -> TeamSpec:
        """Return a team that a caller may change. Raises NotFound, CallDenied."""
        spec, own = self._teams.get(name), self._teams.nearest_team(context)
        if own is not None and name not in self._changeable(own.name, has_own=has_own):
            raise CallDenied(f"The team {name!r} is not below {own.name!r}.")
        return spec

    def _changeable(self, own: str, *, has_own: bool) -> list[str]:
        return [*([own] if has_own else []), *self._below(own)]

    def _below(self, name: str) -> list[str]:
        """Return the teams below one, each behind its parent."""
        return [
            found for child in self._teams.children(name) for found in (child.name, *self._below(child.name))
        ]

    def _with_teams(self, operation: Operation) -> Operation:
        """Return an operation whose callers are shown the teams that they may change."""
        has_own = operation.name == "update"

        def narrow(wide: Operation, context: Context) -> Operation:
            own = self._teams.team_of(context)
            names = [] if own is None else self._changeable(own.name, has_own=has_own)
            return narrowed(wide, "team", names=tuple(sorted(names))) if names else wide

        return replace(operation, narrow=narrow)

    async def _check_secrets(
        self, own: TeamSpec | None, names: Sequence[str], *, context: Context
    ) -> Sequence[str]:
        """Return the names of secrets to copy. Raises NotFound for one that the caller's vault has not."""
        entries = [] if own is None else await self._vault.list(own.name, context.identity.owner)
        own_names = sorted(entry.name for entry in entries if not entry.is_managed)
        for name in names:
            if name not in own_names:
                raise NotFound(
                    f"your vault has no secret {name!r} of its own",
                    hint=f"it has: {', '.join(own_names) or 'none'}",
                )
        return sorted(set(names))

    async def _kept_secrets(self, new: NewTeam, *, context: Context) -> Sequence[str]:
        """Return the secrets that a new team inherits from an earlier team of its name."""
        entries = await self._vault.list(new.name, context.identity.owner)
        return sorted({entry.name for entry in entries} - set(new.secrets))

    async def _copy_secrets(
        self, own: TeamSpec | None, name: str, *, names: Sequence[str], context: Context
    ) -> None:
        if own is None or not names:
            return
        for entry, value in await self._vault.read(own.name, context.identity.owner):
            if entry.name in names and not entry.is_managed:
                await self._vault.put(replace(entry, team=name), value)


def resumable(operation: Operation) -> Operation:
    """Return an operation that continues once a person has agreed."""
    return replace(operation, resumes=True)


def has_consent(context: Context) -> bool:
    """Return whether a person has agreed to a call."""
    return context.state is not None and context.grant is not None and context.grant.approved


def require_consent(operation: str, wanted: Mapping[str, Any], *, context: Context) -> None:
    """Require a person's approval of exactly this change.

    Raises ApprovalNeeded, CallDenied without consent, Conflict when what was shown has changed.
    """
    digest = hash_input(wanted)
    if context.state is None or context.grant is None:
        item = ApprovalItem(operation, wanted, digest, reason=f"An agent wants: {operation}")
        raise ApprovalNeeded(f"A person has to agree to {operation}.", items=[item], state=digest.encode())
    if not context.grant.approved:
        raise CallDenied(f"A person did not agree: {context.grant.text or 'no reason is given'}")
    if context.state != digest.encode():
        raise Conflict("The teams have changed since a person agreed.", hint="Call it again.")


def refuse_busy(team: str, below: Sequence[str], *, tasks: Sequence[TeamTask], cascade: bool) -> None:
    """Raise Conflict for a team with tasks or teams below it, unless they go with it."""
    if cascade:
        return
    if below:
        raise Conflict(f"teams are below {team!r}: {', '.join(below)}", hint="`cascade` removes them, too")
    if tasks:
        raise Conflict(f"the team {team!r} has {len(tasks)} tasks", hint="`cascade` stops them")


def to_yaml(fields: Mapping[str, Any]) -> str:
    """Return fields as YAML."""
    text: str = yaml.safe_dump(dict(fields), sort_keys=False, allow_unicode=True)
    return text
