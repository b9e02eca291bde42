"""Lessons: what the tasks of learning triggers answer, checked. Plain functions.

The answer is JSON: `{"lessons": [{"key": ..., "content": ..., "type": "lesson", "sources": [...]}]}`. The
confidence in a lesson is the number of its sources that were found to be real: with fewer than two it is not
stored; two make `medium`, three and more `high`. The model's own claims about that do not count.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from dragoman.errors import BadRequest
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.operations.sanitize import sanitize_text
from dragoman.store.teams.memories import Confidence

LearningKind: TypeAlias = Literal["learning", "reflection"]
MIN_SOURCES = 2
HIGH_SOURCES = 3
MAX_LESSONS = 20
MAX_SOURCES = 20
MAX_KEY, MAX_CONTENT, MAX_SOURCE = 200, 4_000, 500  # characters
FENCED = re.compile(r"```(?:json)?\s*(\{.*\})\s*```", re.DOTALL)

FORMAT = """
Your last message is JSON and nothing else:
{"lessons": [{"key": "short-name", "content": "What is true, in full sentences.", "sources": ["...", "..."]}]}
A source is the id of a task (task_...) that teams.history lists, or the URL of a page that you have fetched
in this task. The hub looks each of them up, and stores what has two or more; three count as certain.
Say {"lessons": []} when there is nothing to learn."""
TASKS: Mapping[str, str] = {
    "learning": """\
Learn from the work of your team since the last time. Look at the tasks that have ended (teams.history) and at
what the team remembers (memory.search). Observe what happened more than once; look for what confirms it, and
for what speaks against it; say it in general, so that it helps with other tasks."""
    + FORMAT,
    "reflection": """\
Look back at how your team works. Look at the tasks that failed or took long (teams.history), and at the
lessons that the team remembers (memory.list). Say what it should do otherwise, and which lessons
no longer hold: then save them anew, under the same key, as what holds now."""
    + FORMAT,
}
SCHEDULES: Mapping[str, str] = {"learning": "0 3 * * *", "reflection": "0 4 * * sun"}


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """A lesson as the model wrote it."""

    key: str
    content: str
    type: Literal["lesson", "decision"] = "lesson"
    sources: tuple[str, ...] = ()


class LessonList(msgspec.Struct, frozen=True):
    """The answer of a learning task."""

    lessons: list[Lesson]


class CheckedLesson(msgspec.Struct, frozen=True, kw_only=True):
    """A lesson that may be stored, with the sources that were found and the confidence that follows."""

    lesson: Lesson
    sources: tuple[str, ...]
    confidence: Confidence


def parse_lessons(text: str) -> Sequence[Lesson]:
    """Return the lessons in the answer of a task. Raises BadRequest."""
    found = FENCED.search(text)
    try:
        answer = msgspec.json.decode(found[1] if found else text.strip(), type=LessonList)
    except DECODE_ERRORS as error:
        raise BadRequest(f"the answer is not the JSON of lessons: {str(error)[:200]}") from None
    if len(answer.lessons) > MAX_LESSONS:
        raise BadRequest(f"{len(answer.lessons)} lessons are too many; the limit is {MAX_LESSONS}")
    return answer.lessons


def named_sources(lessons: Sequence[Lesson]) -> Collection[str]:
    """Return what the lessons name as sources, each once."""
    return {clean_source(source) for lesson in lessons for source in lesson.sources[:MAX_SOURCES]}


def clean_source(source: str) -> str:
    """Return a source as it is compared: a URL without its fragment."""
    return sanitize_text(source, MAX_SOURCE).partition("#")[0]


def check_lesson(lesson: Lesson, real: Collection[str]) -> CheckedLesson | str:
    """Return a lesson with those of its sources that are `real`, or the reason why it is not stored."""
    key, content = sanitize_text(lesson.key, MAX_KEY), sanitize_text(lesson.content, MAX_CONTENT)
    if not key or not content:
        return "it has no key or no content"
    sources = dict.fromkeys(clean_source(each) for each in lesson.sources[:MAX_SOURCES])
    found = tuple(each for each in sources if each in real)
    if len(found) < MIN_SOURCES:
        return f"{len(found)} of its {len(sources)} sources were found; it takes {MIN_SOURCES}"
    return CheckedLesson(
        lesson=msgspec.structs.replace(lesson, key=key, content=content),
        sources=found,
        confidence="high" if len(found) >= HIGH_SOURCES else "medium",
    )
