"""The lifecycle of an occurrence: overlap with others, its task, and the task's end.

Each step is a change of the occurrence's state in the database that one host wins, so that any host can do
the next one, also after a crash. The task has the occurrence as its `dedup_key`, so submitting it twice
creates it once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman.errors import (
    BadRequest,
    Conflict,
    DragomanError,
    Forbidden,
    LimitReached,
    NotFound,
    StoreError,
    Unauthorized,
    Unavailable,
)
from dragoman.identity import Identity
from dragoman.store.hub_events import NewEvent
from dragoman.store.teams.task_records import TeamTask
from dragoman.store.teams.trigger_records import (
    OccurrenceEnding,
    OverlapAction,
    PeriodLimits,
    TriggerOccurrence,
    TriggerRecord,
)
from dragoman.store.teams.triggers import REPLACED, DecideOverlap
from dragoman.store.webhook_deliveries import WebhookDelivery
from dragoman.teams.tasks.new_task import MAX_KEY, NewTask
from dragoman.teams.tasks.service import TeamTasks
from dragoman.teams.trigger_spec import OverlapPolicy, TriggerDefinition, WindowConfig
from dragoman.teams.triggers.disabled_notices import TriggerNotices
from dragoman.teams.triggers.learning_results import LearningResults
from dragoman.teams.triggers.occurrence_input import is_quiet, shorten, task_text
from dragoman.teams.triggers.service import TriggerService, read_definition

log = logging.getLogger(__name__)
CHECK_INTERVAL = 2.0  # seconds between two checks of a running task, or a pending approval
RUN_ANYWAY = "triggers.run"
Delivery: TypeAlias = WebhookDelivery | Literal["session"] | None


def overlap_decision(policy: OverlapPolicy) -> DecideOverlap:
    """Return a function from the numbers of active and of earlier overlapping occurrences to the action."""

    def decide(active: int, overlaps: int) -> OverlapAction:
        if not active:
            return "start"
        match policy:
            case "allow":
                return "start"
            case "skip_then_replace":
                return "replace" if overlaps else "skip"
            case "skip" | "queue" | "replace" | "confirm":
                return policy

    return decide


def period_limits(definition: TriggerDefinition) -> PeriodLimits | None:
    """Return the limits of a trigger in one window; None without windows."""
    match definition.config:
        case WindowConfig() as config:
            return PeriodLimits(ticks=config.max_ticks, tokens=config.max_tokens, usd=config.max_usd)
        case _:
            return None


def task_key(occurrence: TriggerOccurrence) -> str:
    """Return the `dedup_key` of the task of an occurrence; one that is too long ends with its hash."""
    text = f"{occurrence.trigger_id} {occurrence.key}"
    if len(text) <= MAX_KEY:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[: MAX_KEY - len(digest) - 1]} {digest}"


def smallest(*amounts: float | None) -> float | None:
    """Return the smallest amount; None, no limit, when all are."""
    return min((each for each in amounts if each is not None), default=None)


class TriggerFiring:
    """Takes occurrences from one state to the next."""

    def __init__(
        self, service: TriggerService, tasks: TeamTasks, *, write_usage: Callable[[], Awaitable[None]]
    ) -> None:
        """`write_usage` waits until the usage records of model calls that have ended are written."""
        self._service = service
        self._write_usage = write_usage
        self._triggers = service.triggers
        self._store = service.store
        self._tasks = tasks
        self._learning = LearningResults(service.store, service.teams)
        self.notices = TriggerNotices(service.store)

    async def handle(self, occurrence: TriggerOccurrence) -> None:
        """Take the next step of an occurrence. Raises StoreError, Unavailable; it is then repeated later."""
        try:
            trigger = await self._triggers.get(occurrence.trigger_id)
        except NotFound:  # it was deleted, and the occurrence with it
            return
        match occurrence.state:
            case "pending" | "queued":
                await self._decide(trigger, occurrence)
            case "waiting":
                await self._check_approval(trigger, occurrence)
            case "starting":
                await self._submit(trigger, occurrence)
            case "running":
                await self._check_task(trigger, occurrence)
            case _:
                pass

    # ---- beginning

    async def _decide(
        self,
        trigger: TriggerRecord,
        occurrence: TriggerOccurrence,
        *,
        policy: OverlapPolicy | None = None,
    ) -> None:
        definition = read_definition(trigger)
        limits = period_limits(definition) if occurrence.window is not None else None
        decision = await self._triggers.decide(
            occurrence,
            overlap_decision(policy or definition.overlap),
            usd=None if limits is None else limits.usd,
        )
        if decision is None:
            return
        match decision.action:
            case "confirm":
                await self._ask(trigger, replace(occurrence, state="waiting"))
            case "replace":
                await self._replace(trigger, decision.active)
            case "start":
                begun = replace(occurrence, state="starting", usd_limit=decision.usd_limit)
                await self._submit(trigger, begun)
            case "skip" | "queue":
                pass

    async def _replace(self, trigger: TriggerRecord, active: Sequence[TriggerOccurrence]) -> None:
        """Cancel the tasks of occurrences. The one that replaces them is queued, and starts after their end.

        So a crash leaves nothing undone: it is queued, and finds again what is to be cancelled.
        """
        for each in active:
            if each.task_id is None:  # its host ended before storing the id: submitting returns the same task
                await self._submit(trigger, each)
            current = await self._triggers.get_occurrence(each.trigger_id, each.key)
            if current is not None and current.state == "running":
                await self._cancel(current.task_id or "", REPLACED)
                await self._check_task(trigger, current)

    async def _cancel(self, task_id: str, reason: str) -> None:
        task = await self._store.team_tasks.get(task_id)
        if task is not None:
            await self._tasks.cancel(task_id, Identity(owner=task.owner), reason=reason)

    async def _submit(self, trigger: TriggerRecord, occurrence: TriggerOccurrence) -> None:
        definition = read_definition(trigger)
        try:
            identity = await self._identity(trigger)
            text = task_text(definition, occurrence, previous=await self._previous(occurrence))
            new = NewTask(
                team=trigger.team,
                text=text,
                source="trigger",
                priority=definition.fields.priority,
                topic=definition.fields.topic,
                correlation_id=trigger.id,
                dedup_key=task_key(occurrence),
                source_session=trigger.session_id,
                subagent=definition.fields.subagent,
                max_steps=definition.fields.max_steps,
                budget=smallest(definition.fields.budget, occurrence.usd_limit),
                detached=True,
            )
            task = (await self._tasks.submit(new, identity)).task
        except (Unauthorized, Forbidden) as error:
            await self._fail(trigger, occurrence, reason=error.message)
            await self._service.disable(trigger, error.message)
        except (StoreError, Unavailable, LimitReached):
            raise  # it is submitted again once the lease is over
        except DragomanError as error:
            await self._fail(trigger, occurrence, reason=error.message)
        else:
            check_at = self._triggers.now() + CHECK_INTERVAL
            changes = {"state": "running", "task_id": task.id, "next_at": check_at}
            if not await self._triggers.change(occurrence, **changes):
                await self._give_up_task(occurrence, task)

    async def _give_up_task(self, occurrence: TriggerOccurrence, task: TeamTask) -> None:
        """Cancel a task whose occurrence was ended or deleted while it was handed in."""
        current = await self._triggers.get_occurrence(occurrence.trigger_id, occurrence.key)
        if current is None or current.ended_at is not None:
            await self._cancel(task.id, REPLACED)

    async def _identity(self, trigger: TriggerRecord) -> Identity:
        """Return the identity whose rights a trigger's tasks have. Raises Unauthorized, Forbidden."""
        if trigger.key_id is None:
            return Identity(owner=trigger.owner)
        key = await self._store.keys.get(trigger.key_id)
        if key is None or not key.is_valid(self._triggers.now()):
            raise Unauthorized(f"the key {trigger.key_id!r} of the trigger has expired or was revoked")
        if not key.identity.may("chat"):
            raise Forbidden(f"the key {trigger.key_id!r} of the trigger may no longer chat")
        return key.identity

    async def _previous(self, occurrence: TriggerOccurrence) -> str | None:
        """Return the result of the tick before this one, in the same window."""
        if occurrence.window is None:
            return None
        for each in await self._triggers.history(occurrence.trigger_id, limit=20):
            if each.period == occurrence.period and each.state == "done":
                return each.result
        return None

    # ---- confirming

    async def _ask(self, trigger: TriggerRecord, occurrence: TriggerOccurrence) -> None:
        input = {"id": trigger.id, "name": trigger.name, "occurrence": occurrence.key}
        reason = "A task of this trigger runs already. Begin another one?"
        approval = await self._service.request(RUN_ANYWAY, input, trigger=trigger, reason=reason)
        check_at = self._triggers.now() + CHECK_INTERVAL
        await self._triggers.change(occurrence, approval_id=approval.id, next_at=check_at)

    async def _check_approval(self, trigger: TriggerRecord, occurrence: TriggerOccurrence) -> None:
        if occurrence.approval_id is None:  # the host ended before it could ask
            await self._ask(trigger, occurrence)
            return
        approval = await self._store.approvals.get(occurrence.approval_id)
        now = self._triggers.now()
        match approval.status:
            case "pending":
                await self._triggers.change(occurrence, next_at=now + CHECK_INTERVAL)
            case "approved" | "used":
                await self._decide(trigger, occurrence, policy="allow")
            case _:
                error = f"the approval to run beside another task is {approval.status}"
                changes = {"state": "skipped", "error": error, "ended_at": now, "next_at": None}
                await self._triggers.change(occurrence, **changes)

    # ---- the end

    async def task_ended(self, task: TeamTask) -> None:
        """Write the end of a task, if it is one of a trigger."""
        occurrence = await self._triggers.find_by_task(task.id)
        if occurrence is not None and occurrence.state == "running":
            trigger = await self._triggers.get(occurrence.trigger_id)
            await self._settle(trigger, occurrence, task=task)

    async def _check_task(self, trigger: TriggerRecord, occurrence: TriggerOccurrence) -> None:
        task = await self._store.team_tasks.get(occurrence.task_id or "")
        if task is None:
            await self._fail(trigger, occurrence, reason="its task was deleted")
        elif not task.is_active:
            await self._settle(trigger, occurrence, task=task)
        else:
            check_at = self._triggers.now() + CHECK_INTERVAL
            await self._triggers.change(occurrence, next_at=check_at)
            await self._check_tokens(trigger, occurrence, task=task)

    async def _check_tokens(
        self, trigger: TriggerRecord, occurrence: TriggerOccurrence, *, task: TeamTask
    ) -> None:
        """Cancel a task that has used up the tokens of its window."""
        limits = period_limits(read_definition(trigger))
        if limits is None or limits.tokens is None or occurrence.period is None:
            return
        used = await self._triggers.period_use(trigger.id, occurrence.period)
        tokens, _ = await self._usage(task)
        if used.tokens + (tokens or 0) > limits.tokens:
            await self._cancel(task.id, f"the window has used its {limits.tokens} tokens")

    async def _usage(self, task: TeamTask) -> tuple[int | None, float | None]:
        """Return the tokens and the cost of a task and all below it so far; None if unknown."""
        totals = await self._store.usage.task_totals(task.id)
        counted = [
            each for each in (totals.tokens.input_tokens, totals.tokens.output_tokens) if each is not None
        ]
        return (sum(counted) if counted else None), totals.cost

    async def _settle(self, trigger: TriggerRecord, occurrence: TriggerOccurrence, *, task: TeamTask) -> None:
        definition = read_definition(trigger)
        if occurrence.window is not None and await self._is_stopping(task):  # its cost is not known yet
            check_at = self._triggers.now() + CHECK_INTERVAL
            await self._triggers.change(occurrence, next_at=check_at)
            return
        await self._write_usage()
        tokens, cost = await self._usage(task)
        is_done = task.state == "done"
        if is_done and definition.fields.learn is not None:
            try:
                result = await self._learning.take(trigger, definition, task=task)
                task = replace(task, result=result, artifact=None)
            except BadRequest as error:
                is_done, task = False, replace(task, state="failed", error=error.message)
        ending = OccurrenceEnding(
            state="done" if is_done else "cancelled" if task.state == "cancelled" else "failed",
            ended_at=task.ended_at or self._triggers.now(),
            tokens=tokens,
            cost=cost,
            result=shorten(task.result),
            error=task.error,
        )
        delivery = (
            None
            if task.error == REPLACED or (is_done and is_quiet(definition, task.result))
            else make_delivery(trigger, definition, task=task, now=self._triggers.now())
        )
        await self._write_end(trigger, occurrence, ending=ending, delivery=delivery)

    async def _is_stopping(self, task: TeamTask) -> bool:
        """Return whether a task has ended before its run."""
        run = None if task.run_id is None else await self._store.runs.get(task.run_id)
        return run is not None and run.status == "running"

    async def _fail(self, trigger: TriggerRecord, occurrence: TriggerOccurrence, *, reason: str) -> None:
        ending = OccurrenceEnding(state="failed", ended_at=self._triggers.now(), error=reason)
        await self._write_end(trigger, occurrence, ending=ending)

    async def _write_end(
        self,
        trigger: TriggerRecord,
        occurrence: TriggerOccurrence,
        *,
        ending: OccurrenceEnding,
        delivery: Delivery = None,
    ) -> None:
        try:
            disabled = await self._triggers.settle(
                occurrence,
                ending,
                threshold=read_definition(trigger).fields.failure_threshold,
                delivery=delivery,
                notice=lambda reason: disabled_event(trigger, reason),
            )
        except Conflict:  # another host has written it
            return
        if disabled is not None:
            log.warning("the trigger %s of the team %s is disabled: %s", trigger.name, trigger.team, disabled)
            self.notices.add(trigger, disabled)
        queued = await self._triggers.next_queued(trigger.id)
        if queued is not None and await self._triggers.change(queued, next_at=self._triggers.now()):
            self._service.wake()


def make_delivery(
    trigger: TriggerRecord, definition: TriggerDefinition, *, task: TeamTask, now: float
) -> Delivery:
    """Return where the result of a task is delivered: a webhook, the trigger's session, or nowhere."""
    match definition.fields.deliver:
        case "none":
            return None
        case "session":
            return None if trigger.session_id is None else "session"
        case "webhook":
            if task.run_id is None:
                return None
            return WebhookDelivery(
                id=f"msg_{task.id}",
                run_id=task.run_id,
                session_id=task.session_id,
                owner=trigger.owner,
                url=definition.fields.webhook or "",
                next_at=now,
                created_at=now,
            )


def disabled_event(trigger: TriggerRecord, reason: str) -> NewEvent:
    """Return the event that tells the owner of a trigger why it was disabled."""
    body = {"triggerId": trigger.id, "team": trigger.team, "name": trigger.name, "reason": reason}
    return NewEvent(
        name="trigger.disabled",
        owner=trigger.owner,
        session_id=trigger.session_id,
        data=msgspec.json.encode(body).decode(),
        key_id=trigger.key_id,
    )
