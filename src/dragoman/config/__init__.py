"""Configuration: `dragoman.yaml` and the environment, read once at the edge, into typed values."""

from dragoman.config.environment_overrides import config_variables
from dragoman.config.loader import (
    DATABASE_VARIABLE,
    locate_error,
    parse_config,
    read_config,
    read_database,
    read_section,
)
from dragoman.config.provider_keys import first_key, key_sources, master_key, read_key
from dragoman.config.retention_section import RetentionConfig
from dragoman.config.sections import (
    AgentConfig,
    AliasConfig,
    Config,
    CooldownConfig,
    CorsConfig,
    HostsConfig,
    HttpConfig,
    KeyConfig,
    LimitsConfig,
    McpServerConfig,
    MetricsConfig,
    PriceConfig,
    ProviderConfig,
    ProviderType,
    StopConfig,
    TelemetryConfig,
)

__all__ = [
    "DATABASE_VARIABLE",
    "AgentConfig",
    "AliasConfig",
    "Config",
    "CooldownConfig",
    "CorsConfig",
    "HostsConfig",
    "HttpConfig",
    "KeyConfig",
    "LimitsConfig",
    "McpServerConfig",
    "MetricsConfig",
    "PriceConfig",
    "ProviderConfig",
    "ProviderType",
    "RetentionConfig",
    "StopConfig",
    "TelemetryConfig",
    "config_variables",
    "first_key",
    "key_sources",
    "locate_error",
    "master_key",
    "parse_config",
    "read_config",
    "read_database",
    "read_key",
    "read_section",
]
