"""Adding a skill that was found: shown to an administrator whole, and written once it is approved."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.errors import ApprovalNeeded, BadRequest, CallError, ConfigError, Conflict
from dragoman.operations.approval import ApprovalItem
from dragoman.operations.context import Context
from dragoman.operations.ledger import hash_input
from dragoman.operations.sanitize import INVISIBLE
from dragoman.teams.generated_files import MAX_PARTS, is_plain_name
from dragoman.teams.generated_files_sync import SharedFiles
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.skill_files import (
    APPROVED_FILE,
    MAX_SKILL,
    SKILL_FILE,
    SKILLS,
    SkillApproval,
    SkillText,
    hash_bytes,
)
from dragoman.teams.skills.sources import SkillCandidate, SkillRepositories
from dragoman.teams.spec import TeamSpec

ADD = "skills.add"
ADMINISTRATORS = "@administrators"
"""In `answerers`: nobody's name, so only the scope admin may answer: a skill is for all users of a team.

In a hub without keys, there is one owner, who may.
"""


class SkillAdditions:
    """Adds skills to `generated/skills/` of teams."""

    def __init__(self, teams: TeamRegistry, repositories: SkillRepositories, *, files: SharedFiles) -> None:
        self._teams = teams
        self._repositories = repositories
        self._files = files

    async def add(self, team: TeamSpec, source: str, *, context: Context) -> SkillText:
        """Add a skill. Raises ApprovalNeeded until it is answered, CallError when it is declined."""
        if context.state is not None and context.grant is not None:
            candidate = msgspec.json.decode(context.state, type=SkillCandidate)
            if not context.grant.approved:
                raise CallError(f"The skill was not added: {context.grant.text or 'nobody approved it'}")
            return await self._write(team, candidate, by=context.identity.owner)
        candidate = clean(await self._repositories.find(source, offload=context.offload))
        skill = self._check(team, candidate)
        input = {"team": team.name, **describe(candidate, skill)}
        answerers = None if context.identity.key_id is None else (ADMINISTRATORS,)
        item = ApprovalItem(ADD, input, hash_input(input), answerers=answerers)
        raise ApprovalNeeded(
            f"The skill {skill.name!r} waits for an administrator.",
            items=[item],
            state=msgspec.json.encode(candidate),
        )

    def _check(self, team: TeamSpec, candidate: SkillCandidate) -> SkillText:
        """Return what a candidate says. Raises BadRequest for one that is not valid, Conflict."""
        if len(candidate.text.encode()) > MAX_SKILL:
            raise BadRequest(f"The skill has more than {MAX_SKILL} bytes.")
        try:
            skill = candidate.parse()
        except ConfigError as error:
            raise BadRequest(f"The skill is not valid: {error.message}") from None
        existing = self._teams.skills(team.name).get(skill.name)
        if existing is not None and existing.level != "generated":
            raise Conflict(f"People have written a skill {skill.name!r} for this team already.")
        return skill

    async def _write(self, team: TeamSpec, candidate: SkillCandidate, *, by: str) -> SkillText:
        skill = self._check(team, candidate)
        approval = SkillApproval(
            origin=candidate.source,
            hash=skill.hash,
            files=file_hashes(candidate.files),
            requested_by=by,
        )
        shown = msgspec.json.encode({**msgspec.to_builtins(approval), "approved_at": time.time()}).decode()
        # SKILL.md last: without it the folder is not a skill.
        contents = {**candidate.files, APPROVED_FILE: shown, SKILL_FILE: candidate.text}
        await self._files.write(
            team.name, {f"{SKILLS}/{skill.name}/{path}": content for path, content in contents.items()}
        )
        return skill


def clean(candidate: SkillCandidate) -> SkillCandidate:
    """Return a candidate as it is shown and written: no invisible characters, and files of plain names."""
    files = {path: text for path, text in candidate.files.items() if is_plain_path(path)}
    left_out = [path for path in candidate.files if path not in files]
    return msgspec.structs.replace(
        candidate,
        text=INVISIBLE.sub("", candidate.text.removeprefix("\ufeff").replace("\r\n", "\n")).strip(),
        files={path: INVISIBLE.sub("", text) for path, text in files.items()},
        left_out=(*candidate.left_out, *left_out),
    )


def is_plain_path(path: str) -> bool:
    """Return whether the hub writes a file of this path into the folder of a skill."""
    parts = path.split("/")
    return (
        len(parts) <= MAX_PARTS - 2
        and all(part and is_plain_name(part) for part in parts)
        and path != APPROVED_FILE
    )


def file_hashes(files: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each file."""
    return {path: hash_bytes(text.encode()) for path, text in files.items()}


def describe(candidate: SkillCandidate, skill: SkillText) -> dict[str, Any]:
    """Return what is shown to the person who approves a skill."""
    return {
        "name": skill.name,
        "source": candidate.source,
        "revision": candidate.revision,
        "hash": skill.hash,
        "operations": list(skill.requires),
        "text": skill.text,
        "files": [
            {"path": path, "hash": hash_bytes(text.encode()), "text": text}
            for path, text in candidate.files.items()
        ],
        "leftOut": list(candidate.left_out),
    }
