"""Configuration: `dragoman.yaml` and the environment, read once at the edge, into typed values."""

from dragoman.config.environment import said_in
from dragoman.config.keys import key_places, master_key, read_key, secret
from dragoman.config.reading import parse_config, read_config
from dragoman.config.sections import (
    AgentConfig,
    Config,
    CooldownConfig,
    CorsConfig,
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
    "AgentConfig",
    "Config",
    "CooldownConfig",
    "CorsConfig",
    "KeyConfig",
    "LimitsConfig",
    "McpServerConfig",
    "MetricsConfig",
    "PriceConfig",
    "ProviderConfig",
    "ProviderType",
    "StopConfig",
    "TelemetryConfig",
    "key_places",
    "master_key",
    "parse_config",
    "read_config",
    "read_key",
    "said_in",
    "secret",
]
