"""Folders of teams: finds them, reads the files that people write in them, and detects changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from dragoman.errors import ConfigError
from dragoman.teams.front_matter import parse_front_matter, parse_yaml
from dragoman.teams.skill_files import SKILLS, first_line
from dragoman.teams.spec import GENERATED, NAME_PATTERN, TEAM_FILE

RULES = "rules"
SUBAGENTS = "subagents"
TRIGGERS = "triggers"
MAX_FILE = 256_000  # bytes of a rule or a sub-agent
MAX_FILES = 200  # rules of one team and level
MAX_SUBAGENT_SKILLS = 100
WATCHED = (RULES, SUBAGENTS, TRIGGERS, SKILLS, GENERATED)

ACCEPTS_FILE = "accepts.yaml"

RuleLevel = Literal["system", "org", "team"]
Signature = frozenset[tuple[str, int, int]]


class RuleFile(msgspec.Struct, frozen=True):
    """A file of rules: its path below the folder of all teams, its text and the SHA-256 of that."""

    path: str
    text: str
    hash: str

    @property
    def name(self) -> str:
        """The file's name without its suffix: by it rules of two levels are compared."""
        return self.path.rpartition("/")[2].removesuffix(".md")


class SubagentFile(msgspec.Struct, frozen=True, kw_only=True):
    """A sub-agent of a team: `subagents/NAME.md`. Its `prompt` is the file without the front matter.

    `skills` are those of the team that it may load; None for all.
    """

    name: str
    description: str
    prompt: RuleFile
    model: str | None = None
    max_steps: int | None = None
    skills: tuple[str, ...] | None = None


class TeamSources(msgspec.Struct, frozen=True, kw_only=True):
    """What people have written in a team's folder beside `team.yaml`, sorted by file name.

    `org_rules` hold for the team and all below it, `team_rules` for the team alone.
    """

    org_rules: tuple[RuleFile, ...] = ()
    team_rules: tuple[RuleFile, ...] = ()
    subagents: tuple[SubagentFile, ...] = ()
    triggers: Mapping[str, Any] = {}
    """What `triggers/*.yaml` say, by file name without the suffix."""


class AcceptsChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes to `accepts` in `team.yaml` that agents made after an approval: `generated/accepts.yaml`."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @classmethod
    def between(cls, written: Sequence[str], wanted: Sequence[str]) -> AcceptsChange:
        """Return the change from the list that people have written to the wanted one."""
        return cls(
            tuple(dict.fromkeys(each for each in wanted if each not in written)),
            tuple(each for each in written if each not in wanted),
        )

    def apply(self, written: Sequence[str]) -> tuple[str, ...]:
        """Return the list that people have written with the change applied."""
        return tuple(dict.fromkeys([*(each for each in written if each not in self.removed), *self.added]))


def read_accepts(folder: Path, root: Path) -> AcceptsChange:
    """Read the change of `accepts` in a team's folder; empty without a file. Raises ConfigError."""
    path = folder / GENERATED / ACCEPTS_FILE
    if not path.is_file():
        return AcceptsChange()
    file = read_rule_file(path, root)
    try:
        return msgspec.convert(parse_yaml(file.text, source=file.path), AcceptsChange)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file.path}: {error}") from None


def find_folders(root: Path) -> dict[str, Path]:
    """Return the folders with a `team.yaml`, by name: in the root, and in its `generated/`."""
    return {
        path.name: path
        for folder in (root / GENERATED, root)
        for path in (sorted(folder.iterdir()) if folder.is_dir() else ())
        if (path / TEAM_FILE).is_file()
    }


def check_folders(folders: Mapping[str, Path], root: Path) -> None:
    """Raise ConfigError for a team that people have written and the hub has generated too."""
    for name, folder in folders.items():
        twin = root / GENERATED / name
        if folder != twin and (twin / TEAM_FILE).is_file():
            raise ConfigError(f"{folder}: there is a team {name!r} in {twin.parent} too; remove one of them")
        if not folder.resolve().is_relative_to(root.resolve()):
            raise ConfigError(f"{folder}: it is a link to a folder outside of {root}")


def read_sources(folder: Path, root: Path) -> TeamSources:
    """Read the rules and sub-agents of a team. Raises ConfigError."""
    return TeamSources(
        org_rules=read_rules(folder / RULES / "org", root),
        team_rules=read_rules(folder / RULES / "team", root),
        subagents=tuple(read_subagent(file) for file in read_rules(folder / SUBAGENTS, root)),
        triggers={
            file.name.removesuffix(".yaml"): parse_yaml(file.text, source=file.path)
            for file in read_rules(folder / TRIGGERS, root, pattern="*.yaml")
        },
    )


def read_rules(folder: Path, root: Path, *, pattern: str = "*.md") -> tuple[RuleFile, ...]:
    """Read the files of a folder that match a pattern, sorted by name. Raises ConfigError."""
    paths = sorted(folder.glob(pattern)) if folder.is_dir() else []
    if len(paths) > MAX_FILES:
        raise ConfigError(f"{folder}: {len(paths)} files of rules are too many; the limit is {MAX_FILES}")
    return tuple(read_rule_file(path, root) for path in paths)


def read_rule_file(path: Path, root: Path) -> RuleFile:
    """Read a file of text below `root`. Raises ConfigError."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"{path}: it is a link to a file outside of {root}")
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig").replace("\r\n", "\n").strip()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not valid UTF-8") from None
    if len(raw) > MAX_FILE:
        raise ConfigError(f"{path}: {len(raw)} bytes are too many; the limit is {MAX_FILE}")
    return RuleFile(path.relative_to(root).as_posix(), text, hash_text(text))


def read_subagent(file: RuleFile) -> SubagentFile:
    """Return the sub-agent that a file describes. Raises ConfigError."""
    fields, body = parse_front_matter(file.text, source=file.path)
    description = str(fields.get("description") or "").strip() or first_line(body)
    steps, model = fields.get("max_steps"), fields.get("model")
    if not NAME_PATTERN.fullmatch(file.name):
        raise ConfigError(f"{file.path}: {file.name!r} is not a valid name: use a-z, 0-9, - and _")
    if not description or not body:
        raise ConfigError(f"{file.path}: a sub-agent needs a description and, below it, its prompt")
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
        raise ConfigError(f"{file.path}: max_steps: expected a whole number >= 1, got {steps!r}")
    return SubagentFile(
        name=file.name,
        description=description,
        prompt=RuleFile(file.path, body, file.hash),
        model=None if model is None else str(model),
        max_steps=steps,
        skills=subagent_skills(fields.get("skills"), source=file.path),
    )


def subagent_skills(value: Any, *, source: str) -> tuple[str, ...] | None:
    """Return the skills that a sub-agent may load; None for all. Raises ConfigError."""
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or len(value) > MAX_SUBAGENT_SKILLS
        or not all(isinstance(each, str) for each in value)
    ):
        raise ConfigError(f"{source}: skills: expected a list of names of skills")
    return tuple(sorted(set(value)))


def hash_text(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def signature_of(*folders: Path) -> Signature:
    """Return path, modification time and size of each file that people write; equal if none has changed.

    The workspace and plugins are not looked at: they change while the team works.
    """
    return frozenset(entry for folder in folders for entry in walk_files(folder))


def walk_files(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield path, time and size of a team's files."""
    path = str(folder)  # joined as text: creating Path objects would be most of the cost
    yield from stat_entry(path)
    yield from stat_entry(f"{path}{os.sep}{TEAM_FILE}")
    for name in WATCHED:
        yield from walk_tree(f"{path}{os.sep}{name}", depth=2)
    yield from walk_tree(f"{path}{os.sep}{GENERATED}{os.sep}{SKILLS}", depth=2)


def walk_tree(folder: str, *, depth: int) -> Iterator[tuple[str, int, int]]:
    """Yield the files below a folder, to a depth."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if depth > 1 and entry.is_dir():
            yield from walk_tree(entry.path, depth=depth - 1)
        else:
            yield from stat_entry(entry.path)


def stat_entry(path: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, time and size of a file; nothing when there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - it runs thousands of times
    except OSError:
        return
    yield path, status.st_mtime_ns, status.st_size


def common_rules(root: Path) -> Mapping[RuleLevel, Sequence[RuleFile]]:
    """Read the rules of all teams, in `rules/system` and `rules/org`. Raises ConfigError."""
    return {
        "system": read_rules(root / RULES / "system", root),
        "org": read_rules(root / RULES / "org", root),
    }
