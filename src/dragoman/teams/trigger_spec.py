"""TriggerDefinition: when a trigger of a team fires, which task it gives, and where the result goes.

People write it in `team.yaml` and in `triggers/*.yaml`, clients send it as JSON, by the same names. The
fields of `config` depend on the type; they may also stand beside `type`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from dragoman.errors import BadRequest, ProviderError
from dragoman.http.url_and_proxy import parse_url
from dragoman.teams.lesson_validation import SCHEDULES, TASKS, LearningKind
from dragoman.teams.schedule import MissedPolicy, check_expression, find_zone

TriggerType: TypeAlias = Literal["schedule", "window", "message", "keyword", "webhook", "file"]
OverlapPolicy: TypeAlias = Literal["allow", "skip", "queue", "replace", "confirm", "skip_then_replace"]
ResultDelivery: TypeAlias = Literal["session", "webhook", "none"]
FileChange: TypeAlias = Literal["created", "changed", "deleted"]
SignatureKind: TypeAlias = Literal["github", "stripe", "standard"]

Name: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
Pattern: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Patterns: TypeAlias = Annotated[tuple[Pattern, ...], Meta(max_length=50)]
PositiveCount: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Dollars: TypeAlias = Annotated[float, Meta(gt=0, le=1_000_000)]
DURATION = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*(s|m|h)?")
UNITS: Mapping[str | None, float] = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0}
MIN_TICK = 1.0  # seconds
MAX_FAILURES = 100
MAX_STEPS = 500
LATER_FIELDS = frozenset({"subagent", "max_steps", "learn", "topic", "max_chain"})
"""Fields that came later: a definition without them has the hash that it had before."""


class TriggerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What depends on the type of a trigger. An unknown field is an error."""


class ScheduleConfig(TriggerConfig, frozen=True):
    """Fires at the times of a cron expression in a time zone; `missed` is what becomes of missed ones."""

    cron: str
    zone: str = "UTC"
    missed: MissedPolicy = "once"


class WindowConfig(TriggerConfig, frozen=True):
    """Fires every `tick` in the minutes that `during` matches, within limits for each window."""

    during: str
    zone: str = "UTC"
    tick: float | str = 30.0
    max_ticks: PositiveCount | None = None
    max_tokens: PositiveCount | None = None
    max_usd: Dollars | None = None


class MessageConfig(TriggerConfig, frozen=True):
    """Fires at messages of people in sessions of its owner, by patterns of session ids and channels.

    A channel is written `TYPE` or `TYPE:ID`. Without `channels` messages of all count.
    """

    sessions: Patterns = ("*",)
    channels: Patterns = ()


class KeywordConfig(MessageConfig, frozen=True, kw_only=True):
    """Fires at messages that have one of these words, or all of them; upper and lower case are the same."""

    keywords: Annotated[tuple[Pattern, ...], Meta(min_length=1, max_length=50)]
    match: Literal["any", "all"] = "any"


class WebhookConfig(TriggerConfig, frozen=True):
    """Fires at requests that are signed as GitHub, Stripe or Standard Webhooks do; of these `events` only."""

    signature: SignatureKind = "standard"
    events: Patterns = ()


class FileConfig(TriggerConfig, frozen=True):
    """Fires at changes of files in the workspace of its team, by a pattern of their paths.

    `max_chain` is how many times it fires in a row for changes that were made while a task of it ran, by
    default `MAX_CHAIN`.
    """

    path: Pattern
    on: Annotated[tuple[FileChange, ...], Meta(min_length=1)] = ("created", "changed")
    max_chain: Annotated[int, Meta(ge=1, le=10_000)] | None = None


CONFIG_TYPES: Mapping[TriggerType, type[TriggerConfig]] = {
    "schedule": ScheduleConfig,
    "window": WindowConfig,
    "message": MessageConfig,
    "keyword": KeywordConfig,
    "webhook": WebhookConfig,
    "file": FileConfig,
}
TIMED: frozenset[TriggerType] = frozenset({"schedule", "window"})


class TriggerFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A trigger as people and clients write it, before its `config` is read.

    Without `overlap` a schedule or a window skips the first occurrence that overlaps and replaces the task at
    the second, and all others queue. `budget` is in US dollars for each task. `subagent` of the team does it,
    in at most `max_steps`. With `learn`, the answers are lessons: see `lessons`.
    """

    type: TriggerType
    task: Annotated[str, Meta(min_length=1, max_length=20_000)]
    config: dict[str, Any] = {}
    overlap: OverlapPolicy | None = None
    failure_threshold: Annotated[int, Meta(ge=1, le=MAX_FAILURES)] = 5
    priority: Literal["low", "normal", "high", "critical"] = "normal"
    budget: Dollars | None = None
    deliver: ResultDelivery = "session"
    topic: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    session: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    webhook: Annotated[str, Meta(max_length=2_000)] | None = None
    quiet_when: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    subagent: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")] | None = None
    max_steps: Annotated[int, Meta(ge=1, le=MAX_STEPS)] | None = None
    learn: LearningKind | None = None


class TriggerDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A checked trigger: its fields, and the configuration of its type."""

    fields: TriggerFields
    config: TriggerConfig

    @property
    def overlap(self) -> OverlapPolicy:
        """What happens at an occurrence while a task of an earlier one runs."""
        default: OverlapPolicy = "skip_then_replace" if self.fields.type in TIMED else "queue"
        return self.fields.overlap or default

    def to_json(self) -> dict[str, Any]:
        """Return the definition as it was written, with all defaults."""
        body: dict[str, Any] = msgspec.to_builtins(self.fields)
        body = {name: value for name, value in body.items() if value is not None or name not in LATER_FIELDS}
        config = msgspec.to_builtins(self.config)
        config = {
            name: value for name, value in config.items() if value is not None or name not in LATER_FIELDS
        }
        return body | {"overlap": self.overlap, "config": config}

    @property
    def body(self) -> str:
        """The definition as JSON text with sorted keys."""
        return msgspec.json.encode(self.to_json(), order="sorted").decode()

    @property
    def hash(self) -> str:
        """The SHA-256 of the definition: what a person activates."""
        return hashlib.sha256(self.body.encode()).hexdigest()


def parse_definition(raw: Mapping[str, Any]) -> TriggerDefinition:
    """Return the definition in a decoded value. Raises BadRequest."""
    raw = with_template(raw)
    names = set(TriggerFields.__struct_fields__)
    beside = {name: value for name, value in raw.items() if name not in names}
    body = {name: value for name, value in raw.items() if name in names}
    fields = convert(body | {"config": {**read_config(body), **beside}}, TriggerFields, where="")
    kind = CONFIG_TYPES[fields.type]
    definition = TriggerDefinition(fields=fields, config=convert(fields.config, kind, where="config"))
    check_definition(definition)
    return definition


def with_template(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a trigger that learns with the task and the times that it does not name itself."""
    kind = str(raw.get("learn"))
    if kind not in TASKS:
        return raw
    filled = {"type": "schedule", "task": TASKS[kind], **raw}
    config = read_config(filled)
    if filled["type"] == "schedule" and "cron" not in {**filled, **config}:
        filled["config"] = {"cron": SCHEDULES[kind], **config}
    return filled


def read_config(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `config` of a decoded trigger, or of changes to one. Raises BadRequest."""
    config = raw.get("config", {})
    if not isinstance(config, Mapping):
        raise BadRequest("`config` must be an object", field="config")
    return config


def convert(value: Any, kind: type[Any], *, where: str) -> Any:
    """Convert a value to a struct. Raises BadRequest that names the field."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        field = str(error).rpartition("at `$.")[2].rstrip("`") if "at `$." in str(error) else None
        path = ".".join(name for name in (where, field) if name)
        raise BadRequest(f"the trigger is not valid: {error}", field=path or None) from None


def check_definition(definition: TriggerDefinition) -> None:
    """Check what the types of the fields do not say. Raises BadRequest."""
    fields = definition.fields
    if (fields.deliver == "webhook") != (fields.webhook is not None):
        raise BadRequest("`deliver: webhook` and `webhook`, a URL, go together", field="webhook")
    if fields.webhook is not None:
        try:
            parse_url(fields.webhook)
        except ProviderError:
            hint = "write it like https://host/path, without a user name or password"
            raise BadRequest("the URL of `webhook` is not valid", field="webhook", hint=hint) from None
    match definition.config:
        case ScheduleConfig() as config:
            check_expression(config.cron)
            find_zone(config.zone)
        case WindowConfig() as config:
            check_expression(config.during, field="during")
            find_zone(config.zone)
            parse_tick(config.tick)
        case FileConfig() as config:
            if config.path.startswith("/") or ".." in config.path.split("/"):
                raise BadRequest("`path` is a pattern within the team's workspace", field="path")
        case _:
            pass


def parse_tick(value: float | str) -> float:
    """Return the seconds between two ticks: a number, or a text such as `30s`, `5m`, `2h`. BadRequest."""
    if isinstance(value, str):
        found = DURATION.fullmatch(value.strip())
        seconds = float(found[1]) * UNITS[found[2]] if found else 0.0
    else:
        seconds = float(value)
    if not MIN_TICK <= seconds <= 86_400:
        raise BadRequest(f"{value!r} is not a time between two ticks", field="tick", hint="such as 30s or 5m")
    return seconds
