"""`skills.list`, `skills.load`, `skills.read`, `skills.search` and `skills.add`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec.structs import replace
from pydantic import Field

from dragoman.errors import BadRequest, CallError, NotFound
from dragoman.operations.context import Context
from dragoman.operations.definitions.decorator import from_function
from dragoman.operations.operation import Operation
from dragoman.operations.sanitize import INVISIBLE
from dragoman.suggestions import suggest
from dragoman.teams.memory.operations import TeamArgument
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.skill_files import APPROVED_FILE, SKILL_FILE, Skill, hash_bytes
from dragoman.teams.skills.active import ActiveSkills
from dragoman.teams.skills.additions import SkillAdditions
from dragoman.teams.skills.sources import SkillRepositories
from dragoman.teams.spec import TeamSpec
from dragoman.teams.tool_patterns import is_allowed
from dragoman.tools.files.rooted_folder import RootedFolder, decode_whole

PIECE = 16_000  # characters of a text in one result
MAX_FILE = 256_000  # bytes of a file beside a skill
MAX_FILES = 100
MAX_DEPTH = 4
SEARCH_SECONDS = 60.0
NOTICE = "A skill is advice for this task. What you may call, spend and reach is decided by the hub."

SkillName = Annotated[str, Field(min_length=1, max_length=64, examples=["release-notes"])]
Offset = Annotated[int, Field(ge=0)]


class SkillSummary(TypedDict):
    """A skill before it is loaded."""

    name: str
    description: str
    hash: str
    level: str


class LoadedSkill(TypedDict):
    """A skill: its text, the operations that it requires, and its other files.

    `unavailable` are those of the operations that this team may not call.
    """

    name: str
    hash: str
    notice: str
    text: str
    operations: list[str]
    unavailable: list[str]
    files: list[str]
    next_offset: NotRequired[int]


class SkillPiece(TypedDict):
    """A piece of a file of a skill; `next_offset` is where the rest starts."""

    path: str
    text: str
    next_offset: int | None


class SkillServices:
    """What the operations of skills share."""

    def __init__(
        self,
        teams: TeamRegistry,
        active: ActiveSkills,
        *,
        repositories: SkillRepositories,
        additions: SkillAdditions,
    ) -> None:
        self.teams = teams
        self.active = active
        self.repositories = repositories
        self.additions = additions

    def all(self) -> Sequence[Operation]:
        """Return the operations."""
        return [
            from_function(self.list, "skills", effect="read", timeout=30),
            from_function(self.load, "skills", effect="read", timeout=30),
            from_function(self.read, "skills", effect="read", timeout=30),
            from_function(self.search, "skills", effect="read", timeout=SEARCH_SECONDS),
            replace(
                from_function(self.add, "skills", effect="idempotent", timeout=SEARCH_SECONDS), resumes=True
            ),
        ]

    def list(self, *, team: TeamArgument | None = None, context: Context) -> list[SkillSummary]:
        """List the skills of the team: instructions for kinds of tasks, to load before such a task.

        Args:
            team: For people only; a team has its own.
        """
        spec = self.teams.calling_team(context, team)
        return [
            SkillSummary(name=each.name, description=each.description, hash=each.hash, level=each.level)
            for each in self.teams.usable_skills(spec, context.agent).values()
        ]

    async def load(
        self,
        name: SkillName,
        *,
        offset: Offset = 0,
        team: TeamArgument | None = None,
        context: Context,
    ) -> LoadedSkill:
        """Load a skill: its instructions, and what it requires may be called until this answer ends.

        Args:
            name: The skill.
            offset: The character of its text to start at; next_offset of the piece before.
            team: For people only; a team has its own.
        """
        spec = self.teams.calling_team(context, team)
        skill = find_skill(self.teams, spec, name=name, agent=context.agent)
        text, next_offset = cut(skill.text, offset)
        self.active.activate(skill, context)
        ids = [operation_id(each, spec) for each in skill.requires]
        found = LoadedSkill(
            name=skill.name,
            hash=skill.hash,
            notice=NOTICE,
            text=text,
            operations=[id for id in ids if is_allowed(spec.allowed_tools, id)],
            unavailable=[id for id in ids if not is_allowed(spec.allowed_tools, id)],
            files=await asyncio.to_thread(list_files, skill.folder),
        )
        if next_offset is not None:
            found["next_offset"] = next_offset
        return found

    async def read(
        self,
        name: SkillName,
        path: Annotated[str, Field(min_length=1, max_length=500)],
        *,
        offset: Offset = 0,
        team: TeamArgument | None = None,
        context: Context,
    ) -> SkillPiece:
        """Read a file of a skill, such as a template that its text names.

        Args:
            name: The skill.
            path: The file, below the folder of the skill.
            offset: The character to start at; next_offset of the piece before.
            team: For people only; a team has its own.
        """
        spec = self.teams.calling_team(context, team)
        skill = find_skill(self.teams, spec, name=name, agent=context.agent)
        text, next_offset = cut(await asyncio.to_thread(read_file, skill, path), offset)
        return SkillPiece(path=path, text=text, next_offset=next_offset)

    async def search(
        self,
        query: Annotated[str, Field(min_length=1, max_length=200)],
        *,
        limit: Annotated[int, Field(ge=1, le=50)] = 10,
        team: TeamArgument | None = None,
        context: Context,
    ) -> dict[str, Any]:
        """Search for skills that the team does not have yet. skills.add asks a person to add one.

        Args:
            query: A few words for what the skill should help with.
            limit: How many skills to return at most.
            team: For people only; a team has its own.
        """
        self.teams.calling_team(context, team)
        return await self.repositories.search(query, limit=limit, offload=context.offload)

    async def add(
        self,
        source: Annotated[str, Field(min_length=3, max_length=400)],
        *,
        team: TeamArgument | None = None,
        context: Context,
    ) -> SkillSummary:
        """Add a skill that skills.search found. An administrator reads and approves it first.

        Args:
            source: The source of the skill, as skills.search returned it.
            team: For people only; a team has its own.
        """
        spec = self.teams.calling_team(context, team)
        added = await self.additions.add(spec, source, context=context)
        return SkillSummary(
            name=added.name, description=added.description, hash=added.hash, level="generated"
        )


def find_skill(teams: TeamRegistry, team: TeamSpec, *, name: str, agent: str | None) -> Skill:
    """Return a skill of a team. Raises NotFound with the names of those that there are."""
    skills = teams.usable_skills(team, agent)
    if name not in skills:
        names = ", ".join(skills) or "none"
        raise NotFound(
            f"The team {team.name!r} has no skill {name[:100]!r}; its skills are: {names[:2_000]}"
            f"{suggest(name, skills)}"
        )
    return skills[name]


def operation_id(required: str, team: TeamSpec) -> str:
    """Return the id of an operation that a skill requires: a name without a dot is a plugin of the team."""
    return required if "." in required else f"{team.name}.{required}"


def cut(text: str, offset: int) -> tuple[str, int | None]:
    """Return a piece of a text, and where the rest starts. Raises BadRequest for an offset beyond its end."""
    if offset and offset >= len(text):
        raise BadRequest(f"The offset {offset} is beyond the end: the text has {len(text)} characters.")
    end = offset + PIECE
    return text[offset:end], end if end < len(text) else None


def list_files(folder: Path | None) -> list[str]:
    """Return the paths of a skill's other files, sorted, at most MAX_FILES; no links and no hidden ones."""
    found: list[str] = []
    folders = [] if folder is None else [folder]
    for _ in range(MAX_DEPTH):
        children = [path for each in folders[:MAX_FILES] for path in each.iterdir() if is_shown(path)]
        found += [path.relative_to(folder or path).as_posix() for path in children if path.is_file()]
        folders = sorted(path for path in children if path.is_dir())
    return sorted(path for path in found if path not in (SKILL_FILE, APPROVED_FILE))[:MAX_FILES]


def is_shown(path: Path) -> bool:
    """Return whether a file or folder of a skill is listed: it is not hidden, and not a link."""
    return not path.name.startswith(".") and not path.is_symlink()


def read_file(skill: Skill, path: str) -> str:
    """Return the text of a file in a skill's folder. Raises NotFound, Forbidden, BadRequest, TooLarge."""
    if skill.folder is None:
        raise NotFound(f"The skill {skill.name!r} has no other files.")
    with RootedFolder(skill.folder).open(path) as descriptor:
        text = decode_whole(descriptor, path=path, limit=MAX_FILE).text
    if skill.files is not None and skill.files.get(path) != hash_bytes(text.encode()):
        raise CallError(f"{path!r} is not what was approved with the skill {skill.name!r}.")
    return INVISIBLE.sub("", text)
