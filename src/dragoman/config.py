"""Configuration: `dragoman.yaml` and the environment, read once at the edge, into typed values."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from dragoman.errors import ConfigError

log = logging.getLogger(__name__)
ProviderType = Literal["openai", "anthropic", "ollama", "scripted", "local"]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A section: a field that nobody knows is an error, not a silence."""


class ProviderConfig(Strict, frozen=True):
    """A place that answers. Times are in seconds, None: no limit."""

    type: ProviderType
    base_url: str | None = None
    api_key_env: str | None = None
    api_key_file: str | None = None
    headers: dict[str, str] = {}
    options: dict[str, Any] = {}
    script: str | None = None
    model_path: str | None = None
    retries: int = 3
    connect_timeout: float | None = 10.0
    first_byte_timeout: float | None = 300.0
    idle_timeout: float | None = 120.0
    total_timeout: float | None = None
    reasoning_field: Literal["none", "reasoning_content", "reasoning"] | None = None
    lenient_finish: bool | None = None
    thinking: Literal["auto", "open", "off"] | None = None
    call_ids: Literal["plain", "any", "nine"] | None = None
    connections: int = 4000


class AgentConfig(Strict, frozen=True):
    """An agent; `model` falls back to the hub's."""

    model: str | None = None
    instructions: str | None = None
    operations: list[str] = []
    client_tools: list[dict[str, Any]] = []
    max_steps: int | None = None
    options: dict[str, Any] = {}


class LimitsConfig(Strict, frozen=True):
    """Sizes: `body` and `part` in bytes and characters; `threads` for sync operations."""

    body: int = 8_000_000
    part: int = 4_000_000
    threads: int = 16


class CorsConfig(Strict, frozen=True):
    """Front ends on other origins. Empty: none."""

    origins: list[str] = []


class Config(Strict, frozen=True):
    """A hub. `disconnect_grace`: seconds that a run goes on with nobody there, or `never`: it runs on."""

    providers: dict[str, ProviderConfig] = {}
    model: str | None = None
    instructions: str | None = None
    agents: dict[str, AgentConfig] = {}
    operations: list[str] = []
    pinned: list[str] = []
    max_steps: int = 10
    disconnect_grace: float | Literal["never"] = 15.0
    keep_alive: float = 15.0
    files_root: str | None = None
    synchronous: Literal["normal", "full"] = "normal"
    limits: LimitsConfig = LimitsConfig()
    cors: CorsConfig = CorsConfig()

    @property
    def grace(self) -> float | None:
        """`disconnect_grace` in seconds, None for `never`."""
        return None if self.disconnect_grace == "never" else self.disconnect_grace


def read_config(path: Path | None) -> Config:
    """What a YAML file says; the defaults without a path. ConfigError names file and field."""
    if path is None:
        return Config()
    try:
        raw = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{str(path)!r} is no YAML: {error}") from None
    return parse_config(raw or {}, source=str(path))


def parse_config(raw: Any, *, source: str = "the configuration") -> Config:
    """The configuration in a decoded YAML value."""
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}", hint="docs/configuration.md lists every field") from None
    for name, provider in config.providers.items():
        _check(name, provider, source=source)
    return config


def _check(name: str, provider: ProviderConfig, *, source: str) -> None:
    if "/" in name or not name:
        raise ConfigError(f"{source}: providers.{name!r}: a provider's name has no slash")
    if provider.type in ("openai", "anthropic") and not provider.base_url:
        raise ConfigError(f"{source}: providers.{name}.base_url is missing")
    if provider.type == "scripted" and not provider.script:
        raise ConfigError(f"{source}: providers.{name}.script is missing: the path of a YAML script")


def secret(provider: ProviderConfig, *, name: str, environ: Mapping[str, str]) -> str | None:
    """The provider's key, from the environment or a file; None and a warning when the variable is not set.

    A hub that serves several providers is not kept from starting by one. ConfigError when a file named cannot
    be read.
    """
    if provider.api_key_env is not None:
        value = environ.get(provider.api_key_env)
        if not value:
            log.warning(
                "providers.%s: the environment variable %s is not set: its requests go without a key",
                name,
                provider.api_key_env,
            )
        return value or None
    if provider.api_key_file is not None:
        try:
            return Path(provider.api_key_file).read_text().strip()
        except OSError as error:
            raise ConfigError(f"providers.{name}: cannot read the key file: {error.strerror}") from None
    return None
