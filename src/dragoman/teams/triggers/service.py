"""Create, activate, change and read triggers. The timer, the watchers and the endpoints use it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.errors import BadRequest, Conflict, DragomanError, NotFound, StoreError, Unavailable
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.operations.approval import ApprovalItem, ApprovalRequest
from dragoman.operations.authorization import is_visible, visible_owner
from dragoman.operations.ledger import hash_input
from dragoman.session_ids import hub_session_id
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.store.teams.triggers import TriggerOccurrence, TriggerRecord
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.schedule import find_zone, next_occurrence, next_tick, occurrences_after, window_at
from dragoman.teams.trigger_spec import (
    Name,
    ScheduleConfig,
    TriggerDefinition,
    WebhookConfig,
    WindowConfig,
    convert,
    parse_definition,
    parse_tick,
    read_config,
)
from dragoman.teams.triggers.occurrence_input import occurrence_input

log = logging.getLogger(__name__)
ACTIVATE = "triggers.enable"
MESSAGE_TYPES = ("message", "keyword")
MAX_CURSOR = 8_192  # bytes
MAX_FIRINGS = 100
MAX_OF_TEAM = 10_000


WRITTEN_IN_FILES = "{action} it there: in `triggers:` of team.yaml, or in triggers/NAME.yaml"


class TriggerSettings(msgspec.Struct, frozen=True):
    """Limits: triggers of an owner, and for how long an approval waits, in seconds."""

    per_owner: int = 2_000
    approval_seconds: float = 86_400.0


class NewTrigger(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger to create: its team, its name and its definition."""

    team: str
    name: str
    definition: TriggerDefinition
    secret: str | None = None
    session_id: str | None = None


class TriggerService:
    """The triggers of a hub. `on_change` is called after a trigger has changed."""

    def __init__(self, store: Store, teams: TeamRegistry, *, settings: TriggerSettings | None = None) -> None:
        self.store = store
        self.triggers = store.triggers
        self.teams = teams
        self.settings = settings or TriggerSettings()
        self.wake: Callable[[], None] = do_nothing
        """Called when an occurrence was inserted, for the timer to handle it."""
        self.on_change: Callable[[], None] = do_nothing

    # ---- reading

    async def get(self, id: str, *, caller: Identity) -> TriggerRecord:
        """Return a trigger. Raises NotFound, also for one of another owner."""
        found = await self.triggers.get(id)
        if not is_visible(found.owner, to=visible_owner(caller)):
            raise NotFound(f"there is no trigger {id!r}", hint="`dragoman triggers list` lists them")
        return found

    async def find(self, team: str, name: str, *, caller: Identity) -> TriggerRecord:
        """Return the trigger of a team by its name. Raises NotFound, Conflict."""
        try:
            return await self.triggers.find(team, name, owner=caller.owner)
        except NotFound:
            if visible_owner(caller) is not None:
                raise
            return await self.triggers.find(team, name, owner=None)

    async def list(
        self,
        *,
        caller: Identity,
        team: str | None = None,
        text: str | None = None,
        after: TriggerRecord | None = None,
        limit: int = 1_000,
    ) -> Sequence[TriggerRecord]:
        """Return the triggers that a caller sees, by team and name; see `TriggerRepository.list`."""
        owner = visible_owner(caller)
        return await self.triggers.list(owner=owner, team=team, text=text, after=after, limit=limit)

    async def history(
        self, trigger: TriggerRecord, *, before: float | None = None, limit: int = 50
    ) -> Sequence[TriggerOccurrence]:
        """Return what a trigger fired, newest first."""
        return await self.triggers.history(trigger.id, before=before, limit=limit)

    # ---- changing

    async def create(
        self, wanted: NewTrigger, *, identity: Identity, agent: str | None = None
    ) -> TriggerRecord:
        """Create a pending trigger. `agent` is the agent that wants it: then a person is asked to approve it.

        Raises NotFound for a team that is not there, BadRequest, Conflict, LimitReached.
        """
        team = self.teams.get(wanted.team).name
        convert(wanted.name, Name, where="name")
        self.check_subagent(team, wanted.definition)
        definition, now = wanted.definition, self.triggers.now()
        session, session_id = definition.fields.session, wanted.session_id
        if session is not None:
            session_id = hub_session_id(session, owner=identity.owner)
        record = TriggerRecord(
            id=new_id("trg"),
            owner=identity.owner,
            key_id=identity.key_id,
            team=team,
            name=wanted.name,
            type=definition.fields.type,
            body=definition.body,
            hash=definition.hash,
            secret=webhook_secret(definition, wanted.secret),
            session_id=session_id,
            created_at=now,
            updated_at=now,
        )
        await self.triggers.create(record, limit=self.settings.per_owner)
        if agent is not None:
            record = await self.ask_to_activate(record, agent=agent)
        self.on_change()
        return record

    async def ask_to_activate(self, trigger: TriggerRecord, *, agent: str) -> TriggerRecord:
        """Request activation of a pending trigger, unless that is requested already; return the trigger."""
        if trigger.state != "pending" or trigger.approval_id is not None:
            return trigger
        approval = await self.request_approval(trigger, agent=agent)
        await self.triggers.update_seen(trigger, approval_id=approval.id)
        return await self.triggers.get(trigger.id)

    def check_subagent(self, team: str, definition: TriggerDefinition) -> None:
        """Raise BadRequest for a sub-agent that the team does not have."""
        name, names = definition.fields.subagent, [each.name for each in self.teams.sources(team).subagents]
        if name is not None and name not in names:
            listed = ", ".join(names) or "none"
            raise BadRequest(
                f"the team {team!r} has no sub-agent {name!r}; its sub-agents are: {listed}", field="subagent"
            )

    async def update(
        self,
        trigger: TriggerRecord,
        changes: Mapping[str, Any],
        *,
        secret: str | None = None,
        agent: str | None = None,
    ) -> TriggerRecord:
        """Change fields of a trigger's definition. It is pending again. Raises BadRequest, Conflict."""
        if trigger.source != "api":
            raise Conflict(
                f"the trigger {trigger.name!r} is defined in a file of the team {trigger.team!r}",
                hint=WRITTEN_IN_FILES.format(action="change"),
            )
        old = msgspec.json.decode(trigger.body)
        kind = changes.get("type", old["type"])
        old_config = old["config"] if kind == old["type"] else {}
        merged = {**old, **changes, "config": {**old_config, **read_config(changes)}}
        definition = parse_definition(merged)
        self.check_subagent(trigger.team, definition)
        fields: dict[str, Any] = {
            "type": definition.fields.type,
            "body": definition.body,
            "hash": definition.hash,
            "state": "pending",
            "reason": "its definition has changed",
            "next_at": None,
            "approval_id": None,
        }
        if definition.fields.session is not None:
            fields["session_id"] = hub_session_id(definition.fields.session, owner=trigger.owner)
        if secret is not None or trigger.secret is None:
            fields["secret"] = webhook_secret(definition, secret)
        if agent is not None:
            request = await self.request_approval(replace(trigger, hash=definition.hash), agent=agent)
            fields["approval_id"] = request.id
        await self.triggers.update(trigger.id, **fields)
        self.on_change()
        return await self.triggers.get(trigger.id)

    async def enable(self, trigger: TriggerRecord, *, by: Identity) -> TriggerRecord:
        """Activate a trigger as it is now. One of a file gets the identity of the person who activates it.

        The session that it names is made if it is not there. Raises Conflict when it was changed meanwhile.
        """
        changes: dict[str, Any] = {"reason": None, "failures": 0, "overlaps": 0}
        if trigger.source != "api" and trigger.state == "pending":
            changes |= {"owner": by.owner, "key_id": by.key_id}
        definition, owner = read_definition(trigger), str(changes.get("owner", trigger.owner))
        if definition.fields.session is not None:
            changes["session_id"] = hub_session_id(definition.fields.session, owner=owner)
            await self._make_session(definition.fields.session, owner=owner)
        changes["approval_id"] = None
        if trigger.state != "active":  # an active one keeps its progress, so that due occurrences still fire
            is_message = trigger.type in MESSAGE_TYPES  # messages from now on
            changes["progress"] = str(await self.store.events.last_position()) if is_message else None
            changes["next_at"] = next_time(definition, self.triggers.now())
        await self.triggers.activate(trigger, **changes)
        self.on_change()
        return await self.triggers.get(trigger.id)

    async def _make_session(self, id: str, *, owner: str) -> None:
        now = self.triggers.now()
        session = Session(id=hub_session_id(id, owner=owner), owner=owner, created_at=now, updated_at=now)
        with suppress(Conflict):  # it is there
            create = partial(self.store.sessions.create, session)
            await self.store.session_deletion.make_room(session.id, create)

    async def disable(self, trigger: TriggerRecord, reason: str | None = None) -> TriggerRecord:
        """Stop a trigger from firing until it is enabled again. Its running tasks continue."""
        state = "pending" if trigger.state == "pending" else "disabled"
        await self.triggers.update(trigger.id, state=state, reason=reason, next_at=None)
        self.on_change()
        return await self.triggers.get(trigger.id)

    async def disable_all(self, team: str) -> None:
        """Disable the triggers of a removed team, so that a later team of its name gets no tasks."""
        for each in await self.triggers.list(team=team, limit=MAX_OF_TEAM):
            await self.disable(each, "its team was removed")

    async def remove(self, trigger: TriggerRecord) -> None:
        """Delete a trigger with its history. Raises Conflict for one of a file."""
        if trigger.source != "api":
            raise Conflict(
                f"the trigger {trigger.name!r} is defined in a file of the team {trigger.team!r}",
                hint=WRITTEN_IN_FILES.format(action="remove"),
            )
        await self.triggers.delete(trigger.id)
        self.on_change()

    async def run_now(self, trigger: TriggerRecord, *, is_test: bool = False) -> TriggerOccurrence:
        """Fire a trigger once, whatever its state is; return the occurrence."""
        now = self.triggers.now()
        occurrence = TriggerOccurrence(
            trigger_id=trigger.id,
            key=f"run:{new_id('occ')}",
            due_at=now,
            created_at=now,
            next_at=now,
            input=occurrence_input(trigger, due_at=now, test=is_test or None, manual=True),
        )
        await self.triggers.fire_now(occurrence)
        self.wake()
        return occurrence

    async def set_cursor(self, trigger: TriggerRecord, cursor: Any) -> None:
        """Set what the next tasks of a trigger get as `cursor`. Raises BadRequest above MAX_CURSOR bytes."""
        text = msgspec.json.encode(cursor)
        if len(text) > MAX_CURSOR:
            raise BadRequest(f"a cursor has at most {MAX_CURSOR} bytes, not {len(text)}", field="cursor")
        await self.triggers.update(trigger.id, cursor=text.decode())

    # ---- approval

    async def request_approval(self, trigger: TriggerRecord, *, agent: str | None) -> ApprovalRequest:
        """Ask a person to activate a trigger with its definition as it is now."""
        input = {"id": trigger.id, "name": trigger.name, "team": trigger.team, "hash": trigger.hash}
        reason = f"An agent wants to activate a trigger: {trigger.body[:1_000]}"
        return await self.request(ACTIVATE, input, trigger=trigger, reason=reason, agent=agent)

    async def request(
        self,
        operation: str,
        input: Mapping[str, Any],
        *,
        trigger: TriggerRecord,
        reason: str,
        agent: str | None = None,
    ) -> ApprovalRequest:
        """Store a request for approval that belongs to no call."""
        now, digest = self.triggers.now(), hash_input(input)
        return await self.store.approvals.create(
            ApprovalRequest(
                id=new_id("apr"),
                owner=trigger.owner,
                operation=operation,
                input=input,
                input_hash=digest,
                items=(ApprovalItem(operation, input, digest, reason=reason),),
                created_at=now,
                expires_at=now + self.settings.approval_seconds,
                agent=agent,
                key_id=trigger.key_id,
            )
        )

    async def apply_approvals(self) -> bool:
        """Activate what was approved, and disable what was denied; return whether something still waits."""
        waiting = False
        for trigger in await self.triggers.list_for_approval():
            try:
                waiting |= await self._apply_approval(trigger)
            except (StoreError, Unavailable):
                raise
            except DragomanError as error:  # the approval is gone, or what it is for
                log.warning("the trigger %s cannot be activated: %s", trigger.id, error.message)
                await self.triggers.update_seen(trigger, approval_id=None)
        return waiting

    async def _apply_approval(self, trigger: TriggerRecord) -> bool:
        """Apply the answer about one trigger; return whether it is still pending."""
        approval = await self.store.approvals.get(trigger.approval_id or "")
        match approval.status:
            case "pending":
                return True
            case "approved" | "used" if approval.input.get("hash") == trigger.hash:
                await self.enable(trigger, by=Identity(owner=trigger.owner, key_id=trigger.key_id))
            case "denied":
                reason = approval.reason or "its activation was denied"
                await self.triggers.update_seen(trigger, state="disabled", reason=reason, approval_id=None)
            case _:
                await self.triggers.update_seen(trigger, approval_id=None)
        return False


def do_nothing() -> None:
    """Do nothing: the default listener."""


def read_definition(trigger: TriggerRecord) -> TriggerDefinition:
    """Return the definition of a stored trigger. Raises BadRequest."""
    return parse_definition(msgspec.json.decode(trigger.body))


def webhook_secret(definition: TriggerDefinition, secret: str | None) -> str | None:
    """Return the secret of a trigger's webhook, a new one without `secret`; None for other triggers."""
    if not isinstance(definition.config, WebhookConfig):
        if secret is not None:
            raise BadRequest("only a trigger of the type webhook has a secret", field="secret")
        return None
    if secret is not None and not 8 <= len(secret) <= 500:
        raise BadRequest("a secret has 8 to 500 characters", field="secret")
    return secret or secrets.token_urlsafe(32)


def next_time(definition: TriggerDefinition, after: float) -> float | None:
    """Return when a trigger is due next by the clock; None for one that waits for something else."""
    return next(iter(next_times(definition, after, count=1)), None)


def next_times(definition: TriggerDefinition, after: float, *, count: int) -> Sequence[float]:
    """Return the next times at which a trigger is due by the clock, in order."""
    found: list[float] = []
    match definition.config:
        case ScheduleConfig() as config:
            for at in occurrences_after(config.cron, after, zone=find_zone(config.zone)):
                found.append(at)
                if len(found) >= count:
                    break
        case WindowConfig() as config:
            tick = next_tick_time(config, after)
            while len(found) < count and tick is not None:
                found.append(tick)
                tick = next_tick_time(config, tick)
        case _:
            pass
    return found


def next_tick_time(config: WindowConfig, after: float) -> float | None:
    """Return the next tick of this window or, once it is over, of the next one."""
    zone = find_zone(config.zone)
    window = window_at(config.during, after, zone=zone)
    at = None if window is None else next_tick(window, after, tick=parse_tick(config.tick))
    if at is not None or window is None:
        return at if at is not None else next_occurrence(config.during, after, zone=zone)
    return next_window_start(config, after)


def next_window_start(config: WindowConfig, after: float) -> float | None:
    """Return when the window after the one of a time begins."""
    zone = find_zone(config.zone)
    window = window_at(config.during, after, zone=zone)
    end = after if window is None else max(after, window.end - 1.0)
    return next_occurrence(config.during, end, zone=zone)
