"""Teams in OpenHive's layout: `config.yaml`, `org-rules/`, `team-rules/`, `skills/*.md`, `providers.yaml`.

Its own database (tasks, triggers, memories, the vault) is not read, its plugins (TypeScript) are not run: the
report of an import names them. Keys and credentials are never copied.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from dragoman.errors import BadRequest, ConfigError, Conflict
from dragoman.teams.front_matter import parse_yaml
from dragoman.teams.openhive_tool_names import translate_pattern
from dragoman.teams.spec import TEAM_FILE, check_team_name

CONFIG_FILE = "config.yaml"
TEAM_PLACES = ("", "teams", ".run/teams", "run/teams")
DATA_PLACES = ("", "data")
FOLDERS: Mapping[str, str] = {
    "org-rules": "rules/org",
    "team-rules": "rules/team",
    "skills": "skills",
    "subagents": "subagents",
}
PROVIDER_URLS = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
MAX_YAML = 1_000_000  # characters
MAX_MARKDOWN = 1_000_000  # bytes
MAX_TIMEOUT = 86_400_000  # milliseconds
MAX_RATE = 1_000_000  # requests a second
UNUSABLE = re.compile(r"[^a-z0-9_-]+")


class ProviderProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A profile of `providers.yaml`: `model` is `provider/model` here."""

    name: str
    provider: str
    model: str
    base_url: str | None = None


class OpenHiveTeam(msgspec.Struct, frozen=True, kw_only=True):
    """A team to import: the name that it gets here, its folder, and the fields of its file."""

    name: str
    folder: Path
    fields: Mapping[str, Any]


class ImportReport(msgspec.Struct, kw_only=True):
    """What an import created, and notes on what a person has to do."""

    teams: list[str] = msgspec.field(default_factory=list)
    profiles: list[ProviderProfile] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


def import_layout(source: Path, root: Path) -> ImportReport:
    """Write the teams of a folder in OpenHive's layout below `root`. Nothing is written on an error.

    Raises BadRequest when no team is there, ConfigError for a file that cannot be read, Conflict for a team
    that is below `root` already.
    """
    found = find_teams(source)
    if not found:
        raise BadRequest(f"{source} has no team: no folder with a {CONFIG_FILE}")
    names = [team.name for team in found]
    for team in found:
        if names.count(team.name) > 1:
            raise BadRequest(f"{team.folder}: another team is named {team.name!r} too")
    report = ImportReport()
    report.profiles = list(read_profiles(source, report.notes))
    for team in found:
        check_team_name(team.name)
        if (root / team.name).exists():
            raise Conflict(f"{root / team.name} already exists", hint="remove it, or name another folder")
    files = {team.name: convert_team(team, found, report=report) for team in found}
    for team in found:
        write_team(team, root / team.name, fields=files[team.name], notes=report.notes)
        report.teams.append(team.name)
    for place, level in (("system-rules", "system"), ("rules", "org"), ("data/rules", "org")):
        copy_markdown(source / place, root / "rules" / level, notes=report.notes)
    return report


def find_teams(source: Path) -> Sequence[OpenHiveTeam]:
    """Return the teams in a folder: itself, or those below it. Raises ConfigError."""
    if (source / CONFIG_FILE).is_file():
        return [read_team(source)]
    folders = {
        path.resolve(): path
        for place in TEAM_PLACES
        for path in (sorted((source / place).iterdir()) if (source / place).is_dir() else ())
        if (path / CONFIG_FILE).is_file()
    }
    return [read_team(path) for path in folders.values()]


def read_team(folder: Path) -> OpenHiveTeam:
    """Read the `config.yaml` of a team. Raises ConfigError."""
    fields = read_yaml(folder / CONFIG_FILE)
    return OpenHiveTeam(name=plain_name(fields.get("name") or folder.name), folder=folder, fields=fields)


def plain_name(name: object) -> str:
    """Return a name as a team may have it here."""
    return UNUSABLE.sub("-", str(name).strip().lower()).strip("-_")


def read_profiles(source: Path, notes: list[str]) -> Iterator[ProviderProfile]:
    """Yield the profiles of `providers.yaml`, and note the keys that are in it. Raises ConfigError."""
    path = next(
        (
            source / each / "providers.yaml"
            for each in DATA_PLACES
            if (source / each / "providers.yaml").is_file()
        ),
        None,
    )
    if path is None:
        return
    document = read_yaml(path)
    profiles = next((document[key] for key in ("profiles", "providers") if key in document), document)
    if not isinstance(profiles, dict):
        raise ConfigError(f"{path}: expected profiles by name")
    for name, fields in profiles.items():
        yield read_profile(str(name), fields, path=path, notes=notes)


def read_profile(name: str, fields: Any, *, path: Path, notes: list[str]) -> ProviderProfile:
    """Return one profile: `provider:model`, or a mapping with `provider` and `model`. Raises ConfigError."""
    if isinstance(fields, str):
        fields = {"model": fields}
    if not isinstance(fields, dict):
        raise ConfigError(f"{path}: {name}: expected `provider:model`, or provider and model")
    model, provider = str(fields.get("model") or ""), str(fields.get("provider") or "")
    if ":" in model and model.partition(":")[0] in (provider, *PROVIDER_URLS):
        provider, _, model = model.partition(":")
    if not provider or not model:
        raise ConfigError(f"{path}: {name}: provider or model is missing")
    if any("key" in str(field).lower() or "token" in str(field).lower() for field in fields):
        notes.append(f"the profile {name} has a key in {path.name}: set {provider.upper()}_API_KEY instead")
    base_url = fields.get("base_url") or fields.get("baseURL") or fields.get("api_url")
    return ProviderProfile(
        name=name,
        provider=provider,
        model=f"{provider}/{model}",
        base_url=None if base_url is None else str(base_url),
    )


def convert_team(
    team: OpenHiveTeam, teams: Sequence[OpenHiveTeam], *, report: ImportReport
) -> dict[str, Any]:
    """Return the fields of a team's `team.yaml`; note what has no counterpart here. Raises ConfigError."""
    fields, names = team.fields, {each.name for each in teams}
    parent = plain_name(fields.get("parent") or "")
    if parent and parent not in names:
        report.notes.append(f"{team.name}: its parent {parent!r} is not imported, so it has none")
    browser = fields.get("browser") or {}
    converted: dict[str, Any] = {
        "parent": parent if parent in names else None,
        "description": str(fields.get("description") or f"The team {team.name}"),
        "accepts": [str(each) for each in as_list(fields.get("scope_accepts") or fields.get("accepts"))],
        "model": find_model(fields.get("provider_profile"), report, team=team.name),
        "allowed_tools": convert_tools(team, report.notes),
        "max_steps": fields.get("maxSteps") or fields.get("max_steps"),
        "concurrency": fields.get("max_concurrent_daily_ops"),
    }
    if isinstance(browser, dict) and browser:
        domains = [str(each) for each in as_list(browser.get("allowed_domains"))]
        converted["browser"] = {"allowed_domains": domains}
        timeout = browser.get("timeout_ms")
        if isinstance(timeout, int | float) and 0 < timeout < MAX_TIMEOUT:
            converted["browser"]["timeout"] = timeout / 1_000
        elif timeout:
            report.notes.append(f"{team.name}: browser.timeout_ms is not a number of milliseconds")
    if isinstance(rates := fields.get("rate_limit_buckets"), dict):
        converted["rates"] = dict(convert_rates(rates))
    note_left_out(team, report.notes)
    return {name: value for name, value in converted.items() if value not in (None, [], {})}


def convert_tools(team: OpenHiveTeam, notes: list[str]) -> list[str]:
    """Return the patterns of a team's `allowed_tools` here, and note those that match nothing."""
    found: dict[str, None] = {}
    for pattern in as_list(team.fields.get("allowed_tools")):
        patterns = list(translate_pattern(str(pattern)))
        found |= dict.fromkeys(patterns)
        if not patterns:
            notes.append(
                f"{team.name}: allowed_tools: nothing here is named {str(pattern)!r}; it is left out"
            )
    return list(found)


def convert_rates(buckets: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rates of `rate_limit_buckets` as they are written here: calls per minute."""
    for key, bucket in buckets.items():
        rps = bucket.get("rps") if isinstance(bucket, dict) else bucket
        if isinstance(rps, int | float) and 0 < rps < MAX_RATE:
            yield str(key), f"{max(1, round(rps * 60))}/minute"


def find_model(profile: Any, report: ImportReport, *, team: str) -> str | None:
    """Return the model of a profile, or of `provider:model`; None for the hub's."""
    if profile is None:
        return None
    name = str(profile)
    found = next((each.model for each in report.profiles if each.name == name), None)
    if found is None and ":" in name:
        provider, _, model = name.partition(":")
        return f"{provider}/{model}"
    if found is None:
        report.notes.append(f"{team}: there is no profile {name!r}; it has the hub's model")
    return found


def note_left_out(team: OpenHiveTeam, notes: list[str]) -> None:
    """Note what of a team is not imported."""
    credentials = team.fields.get("credentials")
    if isinstance(credentials, dict) and credentials:
        names = ", ".join(sorted(map(str, credentials)))
        notes.append(f"{team.name}: credentials are not copied; put them into its vault: {names}")
    if plugins := sorted(path.name for path in (team.folder / "plugins").glob("*.ts")):
        notes.append(f"{team.name}: plugins in TypeScript are not run here: {', '.join(plugins)}")


def write_team(team: OpenHiveTeam, folder: Path, *, fields: Mapping[str, Any], notes: list[str]) -> None:
    """Write the folder of one team."""
    (folder / "workspace").mkdir(parents=True)
    for name, target in FOLDERS.items():
        copy_markdown(team.folder / name, folder / target, notes=notes)
    text = yaml.safe_dump(dict(fields), sort_keys=False, allow_unicode=True, width=100)
    (folder / TEAM_FILE).write_text(text, encoding="utf-8")


def copy_markdown(source: Path, target: Path, *, notes: list[str]) -> None:
    """Copy the `*.md` files of a folder; links, what is not a file, and large files are left out."""
    target.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        notes.append(f"{source} is a link; it is left out")
        return
    for path in sorted(source.glob("*.md")) if source.is_dir() else ():
        if reason := unusable_reason(path):
            notes.append(f"{path} {reason}; it is left out")
        else:
            shutil.copyfile(path, target / path.name)


def unusable_reason(path: Path) -> str | None:
    """Return why a Markdown file is not copied; None if it is copied."""
    if path.is_symlink():
        return "is a link"
    if not path.is_file():
        return "is not a file"
    return f"has more than {MAX_MARKDOWN} bytes" if path.stat().st_size > MAX_MARKDOWN else None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds fields. Raises ConfigError, without any of its text: it may hold keys."""
    if path.is_symlink():
        raise ConfigError(f"{path}: is a link; copy the file that it leads to")
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(MAX_YAML + 1)
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"{path}: not valid YAML") from None
    if len(text) > MAX_YAML:
        raise ConfigError(f"{path}: longer than {MAX_YAML} characters")
    fields = parse_yaml(text, source=str(path))
    if fields is not None and not isinstance(fields, dict):
        raise ConfigError(f"{path}: expected fields, like `description: …`")
    return fields or {}


def as_list(value: Any) -> list[Any]:
    """Return a list, a single value as a list, or an empty list for nothing."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def providers_section(profiles: Sequence[ProviderProfile]) -> str:
    """Return what dragoman.yaml needs for the profiles, as YAML; empty without any."""
    providers: dict[str, Any] = {}
    for profile in profiles:
        kind = profile.provider if profile.provider in PROVIDER_URLS else "openai"
        url = profile.base_url or PROVIDER_URLS[kind]
        providers[profile.provider] = {
            "type": kind,
            "base_url": url,
            "api_key_env": f"{profile.provider.upper()}_API_KEY",
        }
    if not providers:
        return ""
    aliases = {profile.name: profile.model for profile in profiles}
    return yaml.safe_dump({"providers": providers, "aliases": aliases}, sort_keys=False)
