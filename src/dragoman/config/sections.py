"""Sections: what a configuration can say, as typed values with their defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from dragoman.config.document import read_span
from dragoman.errors import ProviderCategory
from dragoman.limits import NO_LIMITS, Limits

ProviderType = Literal["openai", "anthropic", "ollama", "scripted", "local", "claude-code"]
PermissionMode = Literal["default", "acceptEdits", "plan", "auto", "dontAsk", "bypassPermissions"]
HookEvent = Literal[
    "user_prompt_submit", "pre_tool_use", "post_tool_use", "pre_model", "post_model", "run_end"
]
ADDRESSES = {"anthropic": "https://api.anthropic.com", "ollama": "http://127.0.0.1:11434"}

Count: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
Duration: TypeAlias = Annotated[float, Meta(ge=0)]
Money: TypeAlias = Annotated[float, Meta(ge=0)]
Above: TypeAlias = Annotated[float, Meta(gt=0)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Name: TypeAlias = Annotated[str, Meta(min_length=1)]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A section: a field that nobody knows is an error, not a silence."""


class KeyConfig(Strict, frozen=True):
    """One of several keys of a provider: where it lies, and a name for people to see."""

    name: Name | None = None
    api_key_env: Name | None = None
    api_key_file: Name | None = None
    api_key_secret: Name | None = None


class CooldownConfig(Strict, frozen=True):
    """When a provider's key rests: after `failures` within `window` seconds, for `seconds`."""

    failures: Positive = 3
    window: Seconds = 60.0
    seconds: Seconds = 30.0


class PriceConfig(Strict, frozen=True):
    """What a model costs, in US dollars per million tokens. None: as `input`."""

    input: Money
    output: Money
    cache_read: Money | None = None
    cache_write: Money | None = None


class ProviderConfig(Strict, frozen=True):
    """A place that answers. Times are in seconds, None: no limit."""

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
    max_tokens: Positive | None = None
    num_ctx: Positive | None = None
    keep_alive: str | float | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    retries: Count = 3
    connect_timeout: Seconds | None = 10.0
    first_byte_timeout: Seconds | None = 300.0
    idle_timeout: Seconds | None = 120.0
    total_timeout: Seconds | None = None
    reasoning_field: Literal["none", "reasoning_content", "reasoning"] | None = None
    lenient_finish: bool | None = None
    thinking: Literal["auto", "open", "off"] | None = None
    call_ids: Literal["plain", "any", "nine"] | None = None
    connections: Positive = 4000
    contexts: dict[str, Positive] = {}
    executable: Name = "claude"
    permission_mode: PermissionMode | None = None
    agent: Name | None = None
    cwd: str | None = None
    allowed_tools: tuple[Name, ...] = ()
    disallowed_tools: tuple[Name, ...] = ()
    max_turns: Positive | None = None
    mcp_config: str | None = None
    arguments: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Without headers, options and the address: what they hold may be secret."""
        return f"ProviderConfig({self.type!r})"

    @property
    def url(self) -> str | None:
        """Its address: `base_url`, or where servers of its type are found."""
        return self.base_url or ADDRESSES.get(self.type)


class ContextConfig(Strict, frozen=True):
    """How a conversation that grows too long for its model is shortened; `limit` in tokens."""

    policy: Literal["off", "truncate", "summarise"] = "off"
    limit: Positive | None = None
    margin: Share = 0.85
    keep: Share = 0.5


class StopConfig(Strict, frozen=True):
    """When an answer ends before its model says so: exactly one of these. `time`: seconds, or like `2min`.

    `use` is a Condition or predicate of one's own, `module:name` or `file.py:name`.
    """

    tool: Name | None = None
    text: Name | None = None
    matches: Name | None = None
    steps: Positive | None = None
    tokens: Positive | None = None
    cost: Above | None = None
    time: Seconds | Name | None = None
    no_progress: Positive | None = None
    use: Name | None = None
    all: tuple[StopConfig, ...] = ()
    any: tuple[StopConfig, ...] = ()

    @property
    def said(self) -> list[str]:
        """The names of the conditions that it says."""
        return [name for name in self.__struct_fields__ if getattr(self, name) not in (None, ())]

    @property
    def seconds(self) -> float:
        """`time` in seconds. Unusable."""
        return read_span(self.time) if isinstance(self.time, str) else self.time or 0.0


class AgentConfig(Strict, frozen=True):
    """An agent; `model` falls back to the hub's. With a `description` other agents can call it.

    `output` is a JSON Schema, or the file that holds one.
    """

    model: str | None = None
    description: Name | None = None
    instructions: str | None = None
    operations: list[str] = []
    client_tools: list[dict[str, Any]] = []
    max_steps: Positive | None = None
    options: dict[str, Any] = {}
    policy: Literal["allow", "ask", "deny"] | None = None
    timeout: Seconds | None = None
    max_calls: Positive | None = None
    max_usd: Money | None = None
    context: ContextConfig = ContextConfig()
    stop_when: tuple[StopConfig, ...] = ()
    on_prepare_step: Name | None = None
    output: dict[str, Any] | Name | None = None


Patterns: TypeAlias = Name | tuple[Name, ...]


class PolicyRule(Strict, frozen=True):
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


class HookConfig(Strict, frozen=True):
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


class McpServerConfig(Strict, frozen=True):
    """Somebody's MCP server: a `command` to start, or a `url`. Times are in seconds.

    `trust`: whether its definitions are taken as they come (`always`), pinned as they are first seen
    (`first`), or shown before any is used (`ask`).
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
    trust: Literal["always", "first", "ask"] = "first"
    lazy: bool = False
    enabled: bool = True
    timeout: Seconds = 60.0
    connect_timeout: Seconds = 20.0
    concurrency: Positive = 8
    rate: str | None = None

    def __repr__(self) -> str:
        """Without the command, the address, headers and the environment: what they hold may be secret."""
        return "McpServerConfig(command)" if self.command else "McpServerConfig(url)"


class McpConfig(Strict, frozen=True):
    """`/mcp`: operations that are listed as plain tools beside the four, and who may come from a browser."""

    pinned: tuple[Name, ...] = ()
    hosts: tuple[Name, ...] = ()
    origins: tuple[Name, ...] = ()


class WebConfig(Strict, frozen=True):
    """`web.fetch`: whether it is there, which hosts it may or must not ask, and how much it takes."""

    enabled: bool = True
    allow_hosts: tuple[Name, ...] = ()
    deny_hosts: tuple[Name, ...] = ()
    allow_networks: tuple[Name, ...] = ()
    ports: tuple[Positive, ...] = (80, 443)
    max_bytes: Positive = 5_000_000
    timeout: Seconds = 30.0


class SearchConfig(Strict, frozen=True):
    """How operations are found: by their words, and with embeddings also by their meaning."""

    embeddings: Literal["none", "wordllama"] = "none"


class SpokesConfig(Strict, frozen=True):
    """Other processes that bring operations: which namespaces each key's owner may register."""

    enabled: bool = True
    namespaces: dict[str, Patterns] = {}
    reserved: tuple[Name, ...] = ()
    grace: Duration = 30.0


class LimitsConfig(Strict, frozen=True):
    """Sizes in bytes and characters, threads, seconds to drain; and what keys and owners may ask."""

    body: Positive = 8_000_000
    gateway_body: Positive = 64_000_000
    part: Positive = 4_000_000
    threads: Positive = 16
    key: Limits = NO_LIMITS
    owner: Limits = NO_LIMITS
    owners: dict[str, Limits] = {}
    unpriced: Literal["refuse", "allow"] = "refuse"
    drain: Duration = 30.0
    spool: Count = 64_000_000
    result: Positive = 24_000
    artifact: Positive = 32_000_000
    repeats: Positive = 3
    keep_days: Positive = 30


class CorsConfig(Strict, frozen=True):
    """Front ends on other origins. Empty: none."""

    origins: list[str] = []


class TelemetryConfig(Strict, frozen=True):
    """Traces. None as endpoint: none are made. `content`: whether they hold what was said."""

    otlp_endpoint: str | None = None
    service_name: Name = "dragoman"
    content: bool = False
    sample: Share = 1.0


class MetricsConfig(Strict, frozen=True):
    """`/metrics`: for everybody who reaches the port, or for keys only."""

    public: bool = True


Models: TypeAlias = Annotated[tuple[Name, ...], Meta(min_length=1)]


class Config(Strict, frozen=True):
    """A hub. `disconnect_grace`: seconds that a run goes on with nobody there, or `never`: it runs on."""

    providers: dict[str, ProviderConfig] = {}
    model: str | None = None
    default_provider: Name | None = None
    aliases: dict[str, Name | Models] = {}
    fallbacks: dict[str, Models] = {}
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
    operations: list[str] = []
    pinned: list[str] = []
    max_steps: Positive = 10
    disconnect_grace: Duration | Literal["never"] = 15.0
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
    search: SearchConfig = SearchConfig()
    spokes: SpokesConfig = SpokesConfig()
    synchronous: Literal["normal", "full"] = "normal"
    master_key_env: Name = "DRAGOMAN_MASTER_KEY"
    master_key_file: Name | None = None
    limits: LimitsConfig = LimitsConfig()
    cors: CorsConfig = CorsConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    metrics: MetricsConfig = MetricsConfig()

    @property
    def grace(self) -> float | None:
        """`disconnect_grace` in seconds, None for `never`."""
        return None if self.disconnect_grace == "never" else self.disconnect_grace

    @property
    def routes(self) -> dict[str, tuple[str, ...]]:
        """The aliases, each with its models in the order in which they are tried."""
        return {
            name: (said,) if isinstance(said, str) else tuple(said) for name, said in self.aliases.items()
        }

    @property
    def price_list(self) -> dict[str, PriceConfig]:
        """All prices by `provider/model` pattern: the hub's own go before those of a provider."""
        listed = {
            f"{name}/{model}": price
            for name, provider in self.providers.items()
            for model, price in provider.prices.items()
        }
        return {**self.prices, **{name: price for name, price in listed.items() if name not in self.prices}}
