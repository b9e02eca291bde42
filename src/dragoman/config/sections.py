"""Sections: what a configuration can say, as typed values with their defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from dragoman.config.a2a_section import A2aConfig
from dragoman.config.browser_and_skills import BrowserConfig, SkillsConfig
from dragoman.config.event_section import EventsConfig
from dragoman.config.retention_section import RetentionConfig
from dragoman.config.runner_section import RunnersConfig
from dragoman.config.webhook_section import WebhooksConfig
from dragoman.config.yaml_document import parse_duration
from dragoman.errors import ProviderCategory
from dragoman.usage_limits import NO_LIMITS, Limits

ProviderType = Literal["openai", "responses", "anthropic", "ollama", "scripted", "local", "claude-code"]
WhenBusy = Literal["refuse", "queue", "steer", "interrupt"]
PermissionMode = Literal["default", "acceptEdits", "plan", "auto", "dontAsk", "bypassPermissions"]
HookEvent = Literal[
    "user_prompt_submit", "pre_tool_use", "post_tool_use", "pre_model", "post_model", "run_end"
]
DEFAULT_URLS = {"anthropic": "https://api.anthropic.com", "ollama": "http://127.0.0.1:11434"}

NonNegativeInt: TypeAlias = Annotated[int, Meta(ge=0)]
PositiveInt: TypeAlias = Annotated[int, Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
NonNegativeSeconds: TypeAlias = Annotated[float, Meta(ge=0)]
Money: TypeAlias = Annotated[float, Meta(ge=0, le=1_000_000_000)]
PositiveFloat: TypeAlias = Annotated[float, Meta(gt=0)]
NonNegativeFloat: TypeAlias = Annotated[float, Meta(ge=0)]
Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Name: TypeAlias = Annotated[str, Meta(min_length=1)]


class ConfigSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A section of the configuration. An unknown field is an error."""


class KeyConfig(ConfigSection, frozen=True):
    """One of a provider's keys: where it is stored, and its display name."""

    name: Name | None = None
    api_key_env: Name | None = None
    api_key_file: Name | None = None
    api_key_secret: Name | None = None


class CooldownConfig(ConfigSection, frozen=True):
    """When a provider's key is not used for a while: after `failures` in `window` seconds, for `seconds`."""

    failures: PositiveInt = 3
    window: Seconds = 60.0
    seconds: Seconds = 30.0


class PriceConfig(ConfigSection, frozen=True):
    """What a model costs, in US dollars per million tokens; `web_search` per thousand searches."""

    input: Money
    output: Money
    cache_read: Money | None = None
    cache_write: Money | None = None
    hour_cache_write: Money | None = None
    web_search: Money | None = None


class ProviderConfig(ConfigSection, frozen=True):
    """A provider of models. Times are in seconds; None means no limit."""

    type: ProviderType
    base_url: str | None = None
    api_key_env: Name | None = None
    api_key_file: Name | None = None
    api_key_secret: Name | None = None
    keys: tuple[KeyConfig, ...] = ()
    cooldown: CooldownConfig = CooldownConfig()
    headers: dict[str, str] = {}
    options: dict[str, Any] = {}
    models: tuple[Name, ...] = ()
    only: bool = False
    prices: dict[str, PriceConfig] = {}
    script: str | None = None
    model_path: str | None = None
    version: Name = "2023-06-01"
    beta: tuple[Name, ...] = ()
    max_tokens: PositiveInt | None = None
    num_ctx: PositiveInt | None = None
    keep_alive: str | float | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    retries: NonNegativeInt = 3
    connect_timeout: Seconds | None = 10.0
    first_byte_timeout: Seconds | None = 300.0
    idle_timeout: Seconds | None = 120.0
    total_timeout: Seconds | None = None
    reasoning_field: Literal["none", "reasoning_content", "reasoning"] | None = None
    lenient_finish: bool | None = None
    thinking: Literal["auto", "open", "off"] | None = None
    call_ids: Literal["plain", "any", "nine"] | None = None
    connections: PositiveInt = 4000
    contexts: dict[str, PositiveInt] = {}
    executable: Name = "claude"
    permission_mode: PermissionMode | None = None
    agent: Name | None = None
    cwd: str | None = None
    allowed_tools: tuple[Name, ...] = ()
    disallowed_tools: tuple[Name, ...] = ()
    max_turns: PositiveInt | None = None
    mcp_config: str | None = None
    arguments: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Without headers, options and the address: what they hold may be secret."""
        return f"ProviderConfig({self.type!r})"

    @property
    def url(self) -> str | None:
        """The base URL: `base_url`, or the default of the type."""
        return self.base_url or DEFAULT_URLS.get(self.type)


class ContextConfig(ConfigSection, frozen=True):
    """How a conversation that grows too long for its model is shortened; `limit` in tokens."""

    policy: Literal["off", "truncate", "summarise"] = "off"
    limit: PositiveInt | None = None
    margin: Fraction = 0.85
    keep: Fraction = 0.5


class StopConfig(ConfigSection, frozen=True):
    """When an answer ends before its model says so: exactly one of these. `time`: seconds, or like `2min`.

    `use` is a Condition or predicate of one's own, `module:name` or `file.py:name`.
    """

    tool: Name | None = None
    text: Name | None = None
    matches: Name | None = None
    steps: PositiveInt | None = None
    tokens: PositiveInt | None = None
    cost: PositiveFloat | None = None
    time: Seconds | Name | None = None
    no_progress: PositiveInt | None = None
    use: Name | None = None
    all: tuple[StopConfig, ...] = ()
    any: tuple[StopConfig, ...] = ()

    @property
    def conditions(self) -> list[str]:
        """The names of the conditions that are set."""
        return [name for name in self.__struct_fields__ if getattr(self, name) not in (None, ())]

    @property
    def seconds(self) -> float:
        """`time` in seconds. Raises InvalidScalar."""
        return parse_duration(self.time) if isinstance(self.time, str) else self.time or 0.0


class AgentConfig(ConfigSection, frozen=True):
    """An agent; `model` falls back to the hub's. With a `description` other agents can call it.

    `output` is a JSON Schema, or the file that holds one.
    """

    model: str | None = None
    description: Name | None = None
    instructions: str | None = None
    operations: list[str] = []
    client_tools: list[dict[str, Any]] = []
    max_steps: PositiveInt | None = None
    options: dict[str, Any] = {}
    policy: Literal["allow", "ask", "deny"] | None = None
    timeout: Seconds | None = None
    max_calls: PositiveInt | None = None
    max_usd: Money | None = None
    context: ContextConfig = ContextConfig()
    stop_when: tuple[StopConfig, ...] = ()
    on_prepare_step: Name | None = None
    after_crash: Literal["resume", "close"] = "resume"
    when_busy: WhenBusy | None = None
    output: dict[str, Any] | Name | None = None


Patterns: TypeAlias = Name | tuple[Name, ...]


class PolicyRule(ConfigSection, frozen=True):
    """One of `allow`, `ask`, `deny`: patterns of operations; and whom it is for."""

    allow: Patterns = ()
    ask: Patterns = ()
    deny: Patterns = ()
    effect: Patterns = ()
    agent: Patterns = ()
    identity: Patterns = ()
    reason: str | None = None
    expires: Seconds | None = None
    answerers: Patterns = ()


class HookConfig(ConfigSection, frozen=True):
    """A hook: a function or a ready-made one (`use`), or an address (`url`). `timeout` is in seconds."""

    event: HookEvent | None = None
    use: Name | None = None
    url: str | None = None
    secret_env: Name | None = None
    match: Patterns = ()
    timeout: Seconds = 10.0
    on_error: Literal["block", "continue"] | None = None
    options: dict[str, Any] = {}
    name: Name | None = None
    watches: bool = False

    def __repr__(self) -> str:
        """Without the address and options: what they hold may be secret."""
        return f"HookConfig({self.use or 'url'!r})"


class McpServerConfig(ConfigSection, frozen=True):
    """An MCP server: a `command` to start, or a `url`. Times are in seconds.

    `trust`: whether its definitions are accepted as they come (`always`), pinned when they are first seen
    (`first`), or each approved before it is used (`ask`).
    """

    command: tuple[Name, ...] = ()
    env: dict[str, str] = {}
    env_from: tuple[Name, ...] = ()
    secrets: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    transport: Literal["auto", "http", "sse"] = "auto"
    headers: dict[str, str] = {}
    tools: tuple[Name, ...] = ("*",)
    effects: dict[str, Literal["read", "idempotent", "once"]] = {}
    trust_effects: bool = False
    trust: Literal["always", "first", "ask"] = "first"
    lazy: bool = False
    enabled: bool = True
    timeout: Seconds = 60.0
    connect_timeout: Seconds = 20.0
    concurrency: PositiveInt = 8
    rate: str | None = None
    max_tools: PositiveInt = 10_000
    notification_rate: str = "200/second"
    message_limit: PositiveInt = 32_000_000
    stderr_limit: PositiveInt = 64_000

    def __repr__(self) -> str:
        """Without the command, the address, headers and the environment: what they hold may be secret."""
        return "McpServerConfig(command)" if self.command else "McpServerConfig(url)"


class McpConfig(ConfigSection, frozen=True):
    """`/mcp`: operations listed beside the four meta tools, browsers' hosts and origins, sessions."""

    pinned: tuple[Name, ...] = ()
    hosts: tuple[Name, ...] = ()
    origins: tuple[Name, ...] = ()
    sessions: PositiveInt = 2_000
    owner_sessions: PositiveInt = 500


class WebConfig(ConfigSection, frozen=True):
    """`web.fetch`: whether it is offered, which hosts it may fetch from, and how much."""

    enabled: bool = True
    allow_hosts: tuple[Name, ...] = ()
    deny_hosts: tuple[Name, ...] = ()
    allow_networks: tuple[Name, ...] = ()
    ports: tuple[PositiveInt, ...] = (80, 443)
    max_bytes: PositiveInt = 5_000_000
    timeout: Seconds = 30.0
    rates: dict[str, Name] = {}


class SearchConfig(ConfigSection, frozen=True):
    """How operations are found: by their words, and with `embeddings` also by their meaning."""

    embeddings: Literal["none", "wordllama", "minilm"] = "none"
    model_path: str | None = None


class SpokesConfig(ConfigSection, frozen=True):
    """Other processes that bring operations: which namespaces each key's owner may register."""

    enabled: bool = True
    namespaces: dict[str, Patterns] = {}
    reserved: tuple[Name, ...] = ()
    effects: dict[str, Literal["read", "idempotent", "once"]] = {}
    trust_effects: Patterns = ()
    grace: NonNegativeSeconds = 30.0
    operations: PositiveInt = 5_000
    owner_operations: PositiveInt = 20_000


class LimitsConfig(ConfigSection, frozen=True):
    """Sizes in bytes and characters, threads, seconds to drain; and the usage limits of keys and owners."""

    body: PositiveInt = 8_000_000
    history: PositiveInt = 256_000_000
    gateway_body: PositiveInt = 32_000_000
    part: PositiveInt = 4_000_000
    values: PositiveInt = 100_000
    answer: PositiveInt = 64_000_000
    document: PositiveInt = 32_000_000
    arguments: PositiveInt = 1_000_000
    read_ahead: PositiveInt = 500_000
    reader_timeout: Seconds = 60.0
    threads: PositiveInt = 16
    key: Limits = NO_LIMITS
    owner: Limits = NO_LIMITS
    owners: dict[str, Limits] = {}
    unpriced: Literal["refuse", "allow"] = "refuse"
    named_documents: NonNegativeInt = 100_000
    drain: NonNegativeSeconds = 30.0
    spool: NonNegativeInt = 64_000_000
    result: PositiveInt = 24_000
    artifact: PositiveInt = 32_000_000
    repeats: PositiveInt = 3
    resumed: PositiveInt = 32
    event: PositiveInt = 65_536
    events: PositiveInt = 1_000_000
    followers: PositiveInt = 2_000
    stored_response: PositiveInt = 8_000_000
    owner_responses: PositiveInt = 1_000_000_000
    background_runs: PositiveInt = 64
    queued: PositiveInt = 20
    wakes: PositiveInt = 20
    owner_queued: PositiveInt = 500
    keep_days: PositiveInt | None = None


class HttpConfig(ConfigSection, frozen=True):
    """Connections and request heads: sizes in bytes, times in seconds. Read when the hub starts."""

    head: PositiveInt = 65_536
    headers: PositiveInt = 256
    head_timeout: Seconds = 10.0
    body_timeout: Seconds = 30.0
    body_rate: NonNegativeInt = 240
    idle_timeout: Seconds = 5.0
    connections: PositiveInt = 4_096
    per_address: PositiveInt = 512
    shared_addresses: tuple[Name, ...] = ("127.0.0.0/8", "::1")


class HostsConfig(ConfigSection, frozen=True):
    """How the hosts that share a Postgres database reach this one. `url` replaces that of `listen`."""

    listen: Name = "127.0.0.1:0"
    url: str | None = None


class CorsConfig(ConfigSection, frozen=True):
    """Origins whose pages may call the hub from a browser, beside the hub's own."""

    origins: list[str] = []


class TelemetryConfig(ConfigSection, frozen=True):
    """Traces; none without `otlp_endpoint`. `content`: whether they include messages and results."""

    otlp_endpoint: str | None = None
    service_name: Name = "dragoman"
    content: bool = False
    sample: Fraction = 1.0


class MetricsConfig(ConfigSection, frozen=True):
    """`/metrics`: open to everybody who reaches the port, or to requests with a key only."""

    public: bool = True


ModelNames: TypeAlias = Annotated[tuple[Name, ...], Meta(min_length=1)]
Balance: TypeAlias = Literal["failover", "round_robin", "least_busy", "weighted", "latency"]


class AliasConfig(ConfigSection, frozen=True):
    """An alias of several models, and which of them answers the next request; `weights` by their names."""

    models: ModelNames
    balance: Balance = "failover"
    weights: dict[str, NonNegativeFloat] = {}


class Config(ConfigSection, frozen=True):
    """The configuration of a hub. A run that no client follows stops after `disconnect_grace` seconds."""

    providers: dict[str, ProviderConfig] = {}
    model: str | None = None
    title_model: Name | None = None
    default_provider: Name | None = None
    aliases: dict[str, Name | ModelNames | AliasConfig] = {}
    fallbacks: dict[str, ModelNames] = {}
    fallback_on: tuple[ProviderCategory, ...] = (
        "rate_limit",
        "overloaded",
        "timeout",
        "network",
        "api_error",
        "auth",
    )
    prices: dict[str, PriceConfig] = {}
    instructions: str | None = None
    agents: dict[str, AgentConfig] = {}
    teams: Name | None = None
    operations: list[str] = []
    pinned: list[str] = []
    max_steps: PositiveInt = 10
    disconnect_grace: NonNegativeSeconds | Literal["never"] = 15.0
    when_busy: WhenBusy = "refuse"
    keep_alive: Seconds = 15.0
    files_root: str | None = None
    files: dict[str, str] = {}
    policy: tuple[PolicyRule, ...] = ()
    policy_default: Literal["allow", "ask", "deny"] = "allow"
    approval_seconds: Seconds = 86_400.0
    hooks: tuple[HookConfig, ...] = ()
    mcp_servers: dict[str, McpServerConfig] = {}
    mcp: McpConfig = McpConfig()
    web: WebConfig = WebConfig()
    shell: Literal["sandbox", "unsafe", "off"] = "sandbox"
    webhooks: WebhooksConfig = WebhooksConfig()
    search: SearchConfig = SearchConfig()
    skills: SkillsConfig = SkillsConfig()
    browser: BrowserConfig = BrowserConfig()
    spokes: SpokesConfig = SpokesConfig()
    runners: RunnersConfig = RunnersConfig()
    database: str | None = None
    synchronous: Literal["normal", "full"] = "normal"
    master_key_env: Name = "DRAGOMAN_MASTER_KEY"
    master_key_file: Name | None = None
    limits: LimitsConfig = LimitsConfig()
    retention: RetentionConfig = RetentionConfig()
    events: EventsConfig = EventsConfig()
    http: HttpConfig = HttpConfig()
    hosts: HostsConfig = HostsConfig()
    a2a: A2aConfig = A2aConfig()
    cors: CorsConfig = CorsConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    metrics: MetricsConfig = MetricsConfig()

    def __repr__(self) -> str:
        return f"Config(model={self.model!r})"  # the URL of a database holds a password

    @property
    def grace(self) -> float | None:
        """`disconnect_grace` in seconds, None for `never`."""
        return None if self.disconnect_grace == "never" else self.disconnect_grace

    @property
    def retention_periods(self) -> dict[str, float | None]:
        """How long the rows of each table are kept, in seconds; None for ever."""
        periods = {name: self.retention.seconds(name) for name in RetentionConfig.__struct_fields__}
        if self.limits.keep_days is not None:
            for name in ("approvals", "artifacts"):
                if getattr(self.retention, name) == getattr(RetentionConfig(), name):
                    periods[name] = self.limits.keep_days * 86_400.0
        return periods

    @property
    def routes(self) -> dict[str, tuple[str, ...]]:
        """The aliases, each with its models in the order in which they are tried."""
        return {name: alias_models(alias) for name, alias in self.aliases.items()}

    @property
    def balanced(self) -> dict[str, AliasConfig]:
        """The aliases that choose among their models, rather than trying them in order."""
        return {
            name: alias
            for name, alias in self.aliases.items()
            if isinstance(alias, AliasConfig) and alias.balance != "failover"
        }

    @property
    def price_list(self) -> dict[str, PriceConfig]:
        """All prices by `provider/model` pattern: those of the hub take precedence over a provider's."""
        provider_prices = {
            f"{name}/{model}": price
            for name, provider in self.providers.items()
            for model, price in provider.prices.items()
        }
        return {**self.prices, **provider_prices, **self.prices}  # the hub's are the first to be matched


def alias_models(alias: str | Sequence[str] | AliasConfig) -> tuple[str, ...]:
    """Return the models of an alias, in the order in which they are written."""
    if isinstance(alias, AliasConfig):
        return alias.models
    return (alias,) if isinstance(alias, str) else tuple(alias)
