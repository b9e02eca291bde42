"""Stores the lessons of a learning task in its team's memory, with an entry in the team's journal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dragoman.errors import Conflict
from dragoman.ids import new_id
from dragoman.store.store import Store
from dragoman.store.teams.memories import Memory
from dragoman.store.teams.task_records import TeamTask
from dragoman.store.teams.triggers import TriggerRecord
from dragoman.teams.lesson_validation import CheckedLesson, check_lesson, named_sources, parse_lessons
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.trigger_spec import TriggerDefinition
from dragoman.teams.triggers.occurrence_input import to_iso

FETCHING = ("web.fetch", "web.post", "browser.navigate")
MAX_FETCHED = 200
JOURNAL = "journal"
MAX_JOURNAL = 4_000  # characters of an entry


class LearningResults:
    """Stores lessons. Doing it twice changes nothing: a memory that says the same is left as it is."""

    def __init__(self, store: Store, teams: TeamRegistry) -> None:
        self._store = store
        self._teams = teams

    async def take(self, trigger: TriggerRecord, definition: TriggerDefinition, *, task: TeamTask) -> str:
        """Store the lessons of a finished task; return a report on them. Raises BadRequest."""
        lessons = parse_lessons(task.result or "")
        real = await self._find_real(named_sources(lessons), task)
        stored: list[str] = []
        refused: list[str] = []
        for lesson in lessons:
            checked = check_lesson(lesson, real)
            reason = checked if isinstance(checked, str) else await self._save(checked, trigger, task=task)
            if reason is None:
                stored.append(lesson.key[:200])
            else:
                refused.append(f"{lesson.key[:200]}: {reason}")
        text = report(stored, refused)
        await self._note(text, trigger, definition=definition, task=task)
        return text

    async def _find_real(self, sources: Collection[str], task: TeamTask) -> Collection[str]:
        """Return the sources that are tasks of the team that have ended, or pages that the task fetched."""
        fetched = await self._fetched_urls(task)
        real = {source for source in sources if source in fetched}
        for source in set(sources) - real:
            other = await self._store.team_tasks.get(source) if source.startswith("task_") else None
            if other is not None and other.id != task.id and self._is_seen(other, task):
                real.add(source)
        return real

    def _is_seen(self, other: TeamTask, task: TeamTask) -> bool:
        """Return whether a team may learn from a task: one that has ended, its own or of a team below it."""
        spec = self._teams.find(other.team)
        is_below = spec is not None and task.team in (spec.name, *spec.ancestors)
        return other.owner == task.owner and is_below and not other.is_active

    async def _fetched_urls(self, task: TeamTask) -> Collection[str]:
        urls: set[str] = set()
        for operation in FETCHING:
            filters = {"session_id": task.session_id, "operation": operation, "status": "done"}
            for row in await self._store.calls.list(filters, limit=MAX_FETCHED):
                entry = await self._store.calls.get(row.id)
                input: Any = None if entry is None else entry.record.input
                if isinstance(input, Mapping) and isinstance(input.get("url"), str):
                    urls.add(input["url"].partition("#")[0])
        return urls

    async def _save(self, checked: CheckedLesson, trigger: TriggerRecord, *, task: TeamTask) -> str | None:
        """Store a lesson; return the reason if it cannot be."""
        memories, lesson = self._store.memories, checked.lesson
        earlier = await memories.history(trigger.team, task.owner, key=lesson.key, limit=1)
        if earlier and earlier[0].is_active and earlier[0].kind not in ("lesson", "decision"):
            return f"there is a memory of the type {earlier[0].kind} under this key"
        memory = Memory(
            id=new_id("mem"),
            team=trigger.team,
            owner=task.owner,
            key=lesson.key,
            kind=lesson.type,
            content=lesson.content,
            created_at=0.0,
            created_by=task.id,
            reason=f"learned by the trigger {trigger.name}",
            confidence=checked.confidence,
            sources=checked.sources,
        )
        try:
            await memories.save(memory)
        except Conflict as error:
            return error.message
        return None

    async def _note(
        self, text: str, trigger: TriggerRecord, *, definition: TriggerDefinition, task: TeamTask
    ) -> None:
        """Write an entry of the journal of the team, or of its sub-agent."""
        names = (JOURNAL, definition.fields.learn or "learning", definition.fields.subagent)
        entry = Memory(
            id=new_id("mem"),
            team=trigger.team,
            owner=task.owner,
            key="/".join(name for name in names if name),
            kind="historical",
            content=f"{to_iso(task.ended_at or task.created_at)}: {text}"[:MAX_JOURNAL],
            created_at=0.0,
            created_by=task.id,
            reason="the next entry",
            sources=(task.id,),
        )
        try:
            await self._store.memories.save(entry)
        except Conflict:  # the team has as many memories as it may
            return


def report(stored: Sequence[str], refused: Sequence[str]) -> str:
    """Return a report on the lessons of a task, in a sentence or two."""
    first = f"{len(stored)} lessons stored" + (f" ({', '.join(stored)})" if stored else "")
    return first + (f"; {len(refused)} not stored ({'; '.join(refused)})" if refused else "") + "."
