"""Skill files: what people, and the hub for agents, have written in folders of skills.

A skill is a folder with a `SKILL.md` in the format of Agent Skills (https://agentskills.io/specification),
or a plain Markdown file. A file that cannot be used is left out, and its problem says why: skills come from
many authors, and one of them must not stop a team.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from dragoman.errors import ConfigError
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.operations.sanitize import INVISIBLE, sanitize_text
from dragoman.teams.front_matter import parse_front_matter
from dragoman.teams.openhive_tool_names import translate_pattern

SKILLS = "skills"
SKILL_FILE = "SKILL.md"
APPROVED_FILE = "approved.json"
MAX_SKILL = 100_000  # bytes of the text
MAX_SKILLS = 200  # of one folder
MAX_REQUIRED = 100
MAX_NAME = 64
MAX_DESCRIPTION = 1_024  # characters
MAX_CATALOGUE_LINE = 300
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
TOOL_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,199}")
REQUIRED_HEADING = re.compile(r"#{1,6}\s+required[ -]tools\s*:?\s*#*\s*", re.IGNORECASE)
HEADING = re.compile(r"#{1,6}\s")
LIST_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+[`*_\[]*([A-Za-z0-9][A-Za-z0-9_./-]*)")
OTHER_NAMES: Mapping[str, str] = {"webfetch": "web.fetch"}
"""Names of tools in `allowed-tools` of other programs that OpenHive does not have."""

SkillLevel = Literal["hub", "generated", "team"]


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """A skill: its name, what it is for, its text and the SHA-256 of that.

    `requires` are ids of operations, or names of the team's plugins. `path` is below the folder of all teams,
    `folder` has the skill's other files. `origin` is where a generated one was found.
    """

    name: str
    description: str
    text: str
    hash: str
    path: str
    level: SkillLevel
    requires: tuple[str, ...] = ()
    folder: Path | None = None
    origin: str | None = None
    files: Mapping[str, str] | None = None
    """The approved files of a generated skill, with the SHA-256 of each."""

    @property
    def catalogue_line(self) -> str:
        """The line about the skill in a team's instructions, before it is loaded."""
        text = sanitize_text(" ".join(self.description.split()), MAX_CATALOGUE_LINE)
        return f"- {self.name}: {text}"


class SkillProblem(msgspec.Struct, frozen=True):
    """A file of a skill that cannot be used: its path below the folder of all teams, and why."""

    path: str
    text: str


class SkillFolder(msgspec.Struct, frozen=True):
    """The skills in a folder, sorted by name, and the files that cannot be used."""

    skills: tuple[Skill, ...] = ()
    problems: tuple[SkillProblem, ...] = ()


class SkillText(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a skill's file: the fields of its front matter that are used here, and its text."""

    name: str
    description: str
    text: str
    requires: tuple[str, ...]

    @property
    def hash(self) -> str:
        """The SHA-256 of the text."""
        return hash_bytes(self.text.encode())


class SkillApproval(msgspec.Struct, frozen=True, kw_only=True):
    """What `approved.json` beside a generated skill says: where it was found, what was approved, for whom."""

    origin: str
    hash: str
    files: dict[str, str] = {}
    requested_by: str | None = None


def parse_skill(text: str, *, name: str, source: str, is_strict: bool = False) -> SkillText:
    """Return the skill that a text describes, which is to have a name. Raises ConfigError.

    If it `is_strict`, the front matter has to have both `name` and `description`. Invisible characters are
    left out, so that people and models read the same.
    """
    visible = INVISIBLE.sub("", text.removeprefix("\ufeff").replace("\r\n", "\n")).strip()
    fields, body = parse_front_matter(visible, source=source)
    if is_strict and not {"name", "description"} <= set(fields):
        raise ConfigError(f"{source}: the front matter has to have a name and a description")
    own = fields.get("name", name)
    description = fields.get("description") or first_line(body)
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigError(f"{source}: {name[:80]!r} is not a valid name: use 1 to {MAX_NAME} of a-z, 0-9, -")
    if own != name:
        raise ConfigError(f"{source}: name: {str(own)[:80]!r} is not the name of its folder, {name!r}")
    if not isinstance(description, str) or not description.strip() or not body:
        raise ConfigError(f"{source}: a skill needs a description and, below it, its text")
    if len(description) > MAX_DESCRIPTION:
        raise ConfigError(
            f"{source}: description: {len(description)} characters; the limit is {MAX_DESCRIPTION}"
        )
    required = [*tools_in_field(fields.get("allowed-tools"), source=source), *tools_in_section(body)]
    ids = dict.fromkeys(id for tool in required for id in operation_ids(tool))
    if len(ids) > MAX_REQUIRED:
        raise ConfigError(f"{source}: it requires {len(ids)} operations; the limit is {MAX_REQUIRED}")
    return SkillText(name=name, description=description.strip(), text=visible, requires=tuple(ids))


def first_line(text: str) -> str:
    """Return the first line of a Markdown text, without the marks of a heading."""
    return next((line.strip("# ").strip() for line in text.splitlines() if line.strip("# ").strip()), "")


def tools_in_field(value: Any, *, source: str) -> Sequence[str]:
    """Return the names in `allowed-tools`: words with spaces or commas between, or a list."""
    if value is None:
        return ()
    if isinstance(value, str):
        value = re.sub(r"\([^()]*\)", "", value).replace(",", " ").split()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ConfigError(f"{source}: allowed-tools: expected names of operations")
    return [each.partition("(")[0].strip() for each in value]


def tools_in_section(text: str) -> Iterator[str]:
    """Yield the names in the list below the heading `Required Tools`."""
    is_within = False
    for line in text.splitlines():
        if HEADING.match(line):
            is_within = REQUIRED_HEADING.fullmatch(line) is not None
        elif is_within and (found := LIST_ITEM.match(line)):
            yield found[1].rstrip(".")


def operation_ids(tool: str) -> Sequence[str]:
    """Return the ids of the operations that a name stands for; a plugin's own name stays. No patterns."""
    name = tool.strip().lower()
    if not TOOL_PATTERN.fullmatch(name):
        return ()
    if name in OTHER_NAMES:
        return (OTHER_NAMES[name],)
    return tuple(id for id in translate_pattern(name) if "*" not in id) or (name,)


def hash_bytes(raw: bytes) -> str:
    """Return a SHA-256."""
    return hashlib.sha256(raw).hexdigest()


def read_skills(folder: Path, root: Path, *, level: SkillLevel) -> SkillFolder:
    """Read the skills in a folder below the folder of all teams."""
    if not folder.is_dir():
        return SkillFolder()
    found: dict[str, Skill] = {}
    problems: list[SkillProblem] = []
    places = sorted(skill_places(folder))
    if len(places) > MAX_SKILLS:
        text = f"{len(places)} skills are too many; the limit is {MAX_SKILLS}, the others are left out"
        problems.append(SkillProblem(folder.relative_to(root).as_posix(), text))
    for name, path in places[:MAX_SKILLS]:
        shown = path.relative_to(root).as_posix()
        try:
            if name in found:
                raise ConfigError(f"{shown}: there is a skill {name!r} in {found[name].path} too")
            found[name] = read_skill(name, path, root=root, level=level)
        except ConfigError as error:
            problems.append(SkillProblem(shown, error.message.removeprefix(shown).removeprefix(": ")))
    return SkillFolder(tuple(found.values()), tuple(problems))


def skill_places(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names and files of the skills in a folder."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if (path / SKILL_FILE).is_file():
            yield path.name, path / SKILL_FILE
        elif path.suffix == ".md" and path.is_file():
            yield path.stem.lower(), path


def read_skill(name: str, path: Path, *, root: Path, level: SkillLevel) -> Skill:
    """Read the file of a skill. Raises ConfigError."""
    shown = path.relative_to(root).as_posix()
    found = parse_skill(read_skill_text(path, within=root), name=name, source=shown)
    approval = read_approval(path.parent, found, source=shown) if level == "generated" else None
    return Skill(
        name=name,
        description=found.description,
        text=found.text,
        hash=found.hash,
        path=shown,
        level=level,
        requires=found.requires,
        folder=path.parent if path.name == SKILL_FILE else None,
        origin=None if approval is None else approval.origin,
        files=None if approval is None else approval.files,
    )


def read_skill_text(path: Path, *, within: Path) -> str:
    """Return the text of a skill's file, which no link takes out of a folder. Raises ConfigError."""
    try:
        if not path.resolve().is_relative_to(within.resolve()):
            raise ConfigError(f"{path.name}: it is a link to a file outside of the folder")
        with path.open("rb") as file:
            raw = file.read(MAX_SKILL + 1)
        if len(raw) > MAX_SKILL:
            raise ConfigError(f"{path.name}: more than {MAX_SKILL} bytes")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path.name}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path.name}: not valid UTF-8") from None


def read_approval(folder: Path, skill: SkillText, *, source: str) -> SkillApproval:
    """Return the approval of a generated skill. Raises ConfigError unless it is for this text."""
    try:
        approval = msgspec.json.decode((folder / APPROVED_FILE).read_bytes(), type=SkillApproval)
    except (OSError, *DECODE_ERRORS):
        raise ConfigError(f"{source}: nobody has approved it; {APPROVED_FILE} is missing") from None
    if approval.hash != skill.hash:
        raise ConfigError(f"{source}: it was changed after it was approved; move it to {SKILLS}/ to keep it")
    return approval
